//! The commands as a user meets them: what they print, where, and how they end.

#![expect(
    clippy::unwrap_used,
    reason = "clippy allows it in test functions only, and these help them"
)]

mod bad_model;
mod bad_option;
mod context;
mod conversation;
mod conversation_commands;
mod conversation_context;
mod conversation_in_terminal;
mod doctor;
mod eval;
mod info;
mod limits;
mod llama_flags;
mod lossy;
mod manual;
mod model;
mod outputs;
mod plan;
mod profile;
mod render;
mod replay;
mod result;
mod session;

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use emel_tests::fixtures::fixture;

/// A small model whose texts have no BOS.
pub(crate) fn llama() -> PathBuf {
    fixture("arch/llama.gguf")
}

/// A small model with sliding windows and a larger vocabulary.
pub(crate) fn gemma() -> PathBuf {
    fixture("arch/gemma3.gguf")
}

/// `emel-run` or `emel`, without input and untouched by the caller's environment. As most of
/// these models have a chat template, `emel-run` is asked to continue texts; a later `-cnv`
/// counts instead.
pub(crate) fn command(name: &str) -> Command {
    let mut command = Command::new(match name {
        "emel-run" => env!("CARGO_BIN_EXE_emel-run"),
        "emel" => env!("CARGO_BIN_EXE_emel"),
        other => panic!("no command {other}"),
    });
    if name == "emel-run" {
        command.arg("-no-cnv");
    }
    command.env_remove("EMEL_KERNELS").stdin(Stdio::null());
    // Nothing measured here before counts, and nothing is kept.
    command.env("XDG_CACHE_HOME", "/dev/null");
    command
}

/// Runs `emel SUBCOMMAND MODEL ARGS…`.
pub(crate) fn emel<A: AsRef<OsStr>>(
    subcommand: &str,
    model: &Path,
    arguments: impl IntoIterator<Item = A>,
) -> Output {
    let mut command = command("emel");
    command.arg(subcommand).arg(model).args(arguments);
    command.output().unwrap()
}

/// Runs `emel-run MODEL ARGS…` with a budget that the small models fit in.
pub(crate) fn emel_run<A: AsRef<OsStr>>(
    model: &Path,
    arguments: impl IntoIterator<Item = A>,
) -> Output {
    let mut command = command("emel-run");
    command.arg(model).args(["--ram-budget", "64M"]);
    command.args(arguments).output().unwrap()
}

/// Starts a command and waits for the first byte that it prints; the others come from the
/// stream.
pub(crate) fn answering(command: &mut Command) -> (Child, ChildStdout) {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut output = child.stdout.take().unwrap();
    output.read_exact(&mut [0]).unwrap();
    (child, output)
}

/// The words of a line of arguments.
pub(crate) fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split_whitespace()
}

/// Standard output of a command that has succeeded.
#[track_caller]
pub(crate) fn result(output: Output) -> String {
    let notes = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{notes}");
    assert!(!notes.contains("panicked"), "{notes}");
    // Not every vocabulary makes UTF-8, but what is printed is.
    String::from_utf8(output.stdout).unwrap()
}

/// Asserts that a command was refused with `status` and one line that holds all of
/// `expected`; returns the line.
#[track_caller]
pub(crate) fn refusal(output: Output, status: i32, expected: &[&str]) -> String {
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{message}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{message}");
    assert!(message.starts_with("error: "), "{message}");
    assert!(message.ends_with('\n'), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(!message.contains("panicked"), "{message}");
    assert!(!message.trim_end().contains(char::is_control), "{message}");
    for part in expected {
        assert!(message.contains(part), "no `{part}` in: {message}");
    }
    message
}
