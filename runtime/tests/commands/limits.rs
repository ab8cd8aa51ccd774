//! What the system limits a process to: files, their size, its address space; and Ctrl-C.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use crate::{command, emel_run, fixture, gemma, llama, refusal, result, words};

/// Runs `emel-run MODEL ARGS…` under a limit of the shell's.
fn limited(limit: &str, arguments: &str) -> Output {
    let script = format!("ulimit {limit} && exec \"$0\" \"$@\"");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script, env!("CARGO_BIN_EXE_emel-run")]);
    shell.arg(llama()).args(words(arguments));
    shell.stdin(Stdio::null()).output().unwrap()
}

#[test]
fn too_few_files_are_an_error_that_names_the_limit() {
    for files in 6..=10 {
        let limit = format!("-n {files}");
        let output = limited(&limit, "-p hello -n 2 --ram-budget 64M");
        refusal(output, 1, &["Too many open files", "ulimit -n"]);
    }
    result(limited("-n 64", "-p hello -n 2 --ram-budget 64M"));
}

#[test]
fn a_file_that_reaches_its_limit_is_an_error_and_leaves_nothing_behind() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("session");
    let arguments = format!(
        "-p hello -n 2 --ram-budget 64M --session {}",
        path.display()
    );
    let output = limited("-f 1", &arguments);
    let notes = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{notes}");
    for expected in ["cannot write the session", "File too large", "ulimit -f"] {
        assert!(notes.contains(expected), "{notes}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn memory_that_is_there_and_refused_is_said_to_be_limited() {
    let arguments = "-p hello -n 2 --ram-budget 1G -c 400000 --kv f32";
    let output = limited("-v 100000", arguments);
    let notes = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{notes}");
    for expected in [
        "the system refuses",
        "ulimit -v",
        "lower -c or --ram-budget",
    ] {
        assert!(notes.contains(expected), "{notes}");
    }
}

/// Runs until the first text is there, and interrupts.
fn interrupted(model: &Path, files: &[(&str, &Path)]) -> String {
    let mut run = command("emel-run");
    for (option, path) in files {
        run.arg(option).arg(path);
    }
    let mut child = run
        .arg(model)
        .args(words("-p hello -n 19000 -c 20000 --temp 0 --ignore-eos"))
        .args(words("--ram-budget 256M"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = child.stdout.take().unwrap();
    output.read_exact(&mut [0]).unwrap();
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    output.read_to_end(&mut Vec::new()).unwrap();
    let ended = child.wait_with_output().unwrap();
    let notes = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(130), "{notes}");
    notes
}

/// The tokens of the session that an interrupt has saved.
fn saved_tokens(notes: &str) -> usize {
    let told = notes.split_once("error: interrupted; the session of ");
    let tokens = told.and_then(|(_, told)| told.split(' ').next()?.parse().ok());
    let tokens = tokens.unwrap_or_else(|| panic!("{notes}"));
    assert!((2..19_000).contains(&tokens), "{notes}");
    tokens
}

#[test]
fn an_interrupt_saves_the_session_of_a_recurrent_model_which_cannot_go_back() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("session");
    for name in ["arch/lfm2.gguf", "arch/qwen35moe.gguf"] {
        let model = fixture(name);
        let session = ["--session", path.to_str().unwrap()];
        result(emel_run(&model, words("-p hello -n 4").chain(session)));
        saved_tokens(&interrupted(&model, &[("--session", &path)]));
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn an_interrupt_leaves_the_profile_and_the_statistics_of_what_was_done() {
    let folder = TempDir::new().unwrap();
    let [profile, statistics] = ["profile", "statistics"].map(|name| folder.path().join(name));
    let files: [(&str, &Path); 2] = [("--profile", &profile), ("--stats-json", &statistics)];
    let notes = interrupted(&llama(), &files);
    assert!(notes.ends_with("error: interrupted\n"), "{notes}");
    let json = |path: &Path| -> Value { serde_json::from_slice(&fs::read(path).unwrap()).unwrap() };
    assert!(json(&profile)["otherData"]["events"].as_u64().unwrap() > 0);
    assert!(json(&statistics)["generated_tokens"].as_u64().unwrap() > 0);
}

#[test]
fn an_interrupt_saves_the_session() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("session");
    let notes = interrupted(&gemma(), &[("--session", &path)]);
    let tokens = saved_tokens(&notes);
    let mut run = command("emel-run");
    run.arg(gemma())
        .args(words(
            "-p hello -n 2 -c 20000 --temp 0 --ram-budget 256M --session",
        ))
        .arg(&path);
    let resumed = run.output().unwrap();
    let notes = String::from_utf8_lossy(&resumed.stderr).into_owned();
    assert!(
        notes.contains(&format!("of the session's {tokens} tokens")),
        "{notes}"
    );
    result(resumed);
}

#[test]
fn a_reader_that_goes_away_leaves_the_session_and_the_statistics_of_what_it_took() {
    let folder = TempDir::new().unwrap();
    let [session, statistics] = ["session", "statistics"].map(|name| folder.path().join(name));
    let mut child = command("emel-run")
        .arg(llama())
        .args(words("-p hello -n 19000 -c 20000 --temp 0 --ignore-eos"))
        .args(words("--ram-budget 256M --session"))
        .arg(&session)
        .arg("--stats-json")
        .arg(&statistics)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut output = child.stdout.take().unwrap();
    output.read_exact(&mut [0]).unwrap();
    drop(output);
    assert!(child.wait().unwrap().success());
    assert!(session.is_file());
    let usage: Value = serde_json::from_slice(&fs::read(&statistics).unwrap()).unwrap();
    assert!(usage["generated_tokens"].as_u64().unwrap() < 19_000);
}

#[test]
fn results_do_not_replace_the_text_they_are_of() {
    let folder = TempDir::new().unwrap();
    let text = folder.path().join("text");
    fs::write(&text, "Once upon a time").unwrap();
    for option in ["--profile", "--stats-json"] {
        let arguments = ["-f", text.to_str().unwrap(), option, text.to_str().unwrap()];
        refusal(emel_run(&llama(), arguments), 2, &["the file of -f"]);
    }
    assert_eq!(fs::read(&text).unwrap(), b"Once upon a time");
}
