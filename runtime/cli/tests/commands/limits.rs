//! What the system limits a process to: files, their size, its address space; and Ctrl-C.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use crate::{answering, command, emel_run, fixture, gemma, llama, refusal, result, words};
use emel_tests::signals;

/// Runs `emel-run MODEL ARGS…` under a limit of the shell's.
fn limited(limit: &str, arguments: &str) -> Output {
    let script = format!("ulimit {limit} && exec \"$0\" \"$@\"");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script, env!("CARGO_BIN_EXE_emel-run")]);
    shell.arg(llama()).args(words(arguments));
    shell.env("XDG_CACHE_HOME", "/dev/null");
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
fn a_stack_of_any_size_is_enough() {
    for kib in [64, 128, 1024] {
        let limit = format!("-s {kib}");
        result(limited(&limit, "-p hello -n 2 --ram-budget 64M"));
        result(limited(&limit, "-p hello -n 2 --ram-budget 64M -cnv -st"));
        let message = limited(&limit, "-p hello -n 2 --no-such-option");
        refusal(message, 2, &["--no-such-option"]);
    }
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
    let arguments = "-no-cnv -p hello -n 2 --ram-budget 1G -c 400000 --kv f32";
    let output = limited("-v 100000", arguments);
    let notes = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{notes}");
    for expected in [
        "the system refuses",
        "ulimit -v",
        "lower the context or the budget (-c, --ram-budget)",
    ] {
        assert!(notes.contains(expected), "{notes}");
    }
}

#[test]
fn an_address_space_of_any_size_ends_in_a_sentence_or_an_answer() {
    let arguments = "-p hello -n 2 --ram-budget 64M -cnv -st";
    for kib in (24_000..80_000)
        .step_by(4_000)
        .chain((80_000..400_000).step_by(40_000))
    {
        let output = limited(&format!("-v {kib}"), arguments);
        let notes = String::from_utf8_lossy(&output.stderr).into_owned();
        match output.status.code() {
            Some(0) => {}
            Some(1) => assert!(notes.contains("ulimit -v"), "{kib}: {notes}"),
            other => panic!("{kib}: {other:?}: {notes}"),
        }
    }
    let output = limited("-d 30000", arguments);
    refusal(
        output,
        1,
        &["29.3 MiB of memory (ulimit -d)", "64.0 MiB or more"],
    );
}

/// Runs until the first text is there, and interrupts.
fn interrupted(model: &Path, files: &[(&str, &Path)]) -> String {
    ended_by(Signal::SIGINT, model, files)
}

/// Runs until the first text is there, and sends the signal.
fn ended_by(signal: Signal, model: &Path, files: &[(&str, &Path)]) -> String {
    signals::undo_ignored();
    let mut run = command("emel-run");
    for (option, path) in files {
        run.arg(option).arg(path);
    }
    run.arg(model)
        .args(words("-p hello -n 19000 -c 20000 --temp 0 --ignore-eos"))
        .args(words("--ram-budget 256M"));
    let (child, mut output) = answering(run.stderr(Stdio::piped()));
    kill(Pid::from_raw(child.id() as i32), signal).unwrap();
    output.read_to_end(&mut Vec::new()).unwrap();
    let ended = child.wait_with_output().unwrap();
    let notes = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(128 + signal as i32), "{notes}");
    notes
}

#[test]
fn sigterm_and_sighup_end_a_run_as_an_interrupt_does() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name);
    let [session, statistics, profile] = ["session", "statistics", "profile"].map(path);
    for signal in [Signal::SIGTERM, Signal::SIGHUP] {
        let files: [(&str, &Path); 3] = [
            ("--session", &session),
            ("--stats-json", &statistics),
            ("--profile", &profile),
        ];
        let notes = ended_by(signal, &llama(), &files);
        let expected = format!("error: ended by {signal}; the session of ");
        assert!(notes.contains(&expected), "{notes}");
        assert!(session.is_file() && profile.is_file());
        let found: Value = serde_json::from_slice(&fs::read(&statistics).unwrap()).unwrap();
        assert!(found["generated_tokens"].as_u64().unwrap() > 0, "{found}");
        let error = found["error"].as_str().unwrap();
        assert!(notes.contains(error), "{error}");
        for file in [&session, &statistics, &profile] {
            fs::remove_file(file).unwrap();
        }
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn sigterm_ends_a_conversation_that_waits_for_a_message() {
    let folder = TempDir::new().unwrap();
    let statistics = folder.path().join("statistics");
    let mut child = command("emel-run")
        .arg(llama())
        .args(words("-cnv -n 4 -p hello --ram-budget 64M --stats-json"))
        .arg(&statistics)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The input does not end before the signal.
    let _input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_until(b'\n', &mut Vec::new()).unwrap();
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
    let ended = child.wait_with_output().unwrap();
    let notes = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(143), "{notes}");
    let found: Value = serde_json::from_slice(&fs::read(&statistics).unwrap()).unwrap();
    assert_eq!(found["error"], "ended by SIGTERM", "{found}");
}

#[test]
fn further_signals_do_not_wait_for_the_pass_that_runs() {
    let folder = TempDir::new().unwrap();
    // A prompt that takes long, and no text before its end.
    let text = folder.path().join("text");
    fs::write(&text, "a long story without an end ".repeat(4000)).unwrap();
    let mut child = command("emel-run")
        .arg(gemma())
        .args(words("-n 1 -c 120000 --ram-budget 2G -t 1 --session"))
        .arg(folder.path().join("session"))
        .arg("-f")
        .arg(&text)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let process = Pid::from_raw(child.id() as i32);
    let mut sent = 0;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        // It may not be listening yet, and then the first one ends it.
        std::thread::sleep(Duration::from_millis(300));
        kill(process, Signal::SIGTERM).unwrap();
        sent += 1;
        assert!(sent < 100, "it goes on after {sent} signals");
    };
    let is_ended = status.code() == Some(143) || status.signal() == Some(libc::SIGTERM);
    assert!(is_ended, "{status:?}");
}

#[test]
fn a_signal_that_is_ignored_by_whoever_started_the_run_is_ignored_by_it() {
    let folder = TempDir::new().unwrap();
    let session = folder.path().join("session");
    let script = "trap '' HUP && exec \"$0\" \"$@\"";
    let mut run = Command::new("sh");
    run.args(["-c", script, env!("CARGO_BIN_EXE_emel-run")])
        .arg(llama())
        .args(words("-p hello -n 300 -c 400 --temp 0 --ignore-eos"))
        .args(words("--ram-budget 64M --session"))
        .arg(&session)
        .env("XDG_CACHE_HOME", "/dev/null");
    let (child, mut output) = answering(run.stderr(Stdio::piped()));
    kill(Pid::from_raw(child.id() as i32), Signal::SIGHUP).unwrap();
    output.read_to_end(&mut Vec::new()).unwrap();
    result(child.wait_with_output().unwrap());
    assert!(session.is_file());
}

#[test]
fn a_run_that_fails_says_so_in_its_statistics() {
    let folder = TempDir::new().unwrap();
    let [model, statistics] = ["model.gguf", "statistics"].map(|name| folder.path().join(name));
    fs::copy(llama(), &model).unwrap();
    let mut run = command("emel-run");
    run.arg(&model)
        .args(words("-p hello -n 19000 -c 20000 --temp 0 --ignore-eos"))
        .args(words("--ram-budget 256M --io pread --stats-json"))
        .arg(&statistics);
    let (child, mut output) = answering(run.stderr(Stdio::piped()));
    // A model that is written to while it runs is an error.
    let mut bytes = fs::read(&model).unwrap();
    bytes.push(0);
    fs::write(&model, bytes).unwrap();
    output.read_to_end(&mut Vec::new()).unwrap();
    let ended = child.wait_with_output().unwrap();
    let notes = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(1), "{notes}");
    let found: Value = serde_json::from_slice(&fs::read(&statistics).unwrap()).unwrap();
    let error = found["error"].as_str().unwrap();
    assert!(error.contains("model.gguf"), "{error}");
    assert!(notes.contains(error), "{notes}");
}

#[test]
fn a_fifo_takes_statistics_and_a_profile_if_somebody_reads_it() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("fifo");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for option in ["--stats-json", "--profile"] {
        let arguments = || words("-p hello -n 4").chain([option, path.to_str().unwrap()]);
        let expected = ["/fifo", "cannot write", "nobody reads this FIFO"];
        refusal(emel_run(&llama(), arguments()), 1, &expected);
        let path = path.clone();
        let mut reader = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(path)
            .unwrap();
        let mut found = Vec::new();
        std::thread::scope(|scope| {
            let run = scope.spawn(|| result(emel_run(&llama(), arguments())));
            // A profile is more than a FIFO holds at a time.
            while !run.is_finished() {
                if let Ok(0) | Err(_) = reader.read_to_end(&mut found) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        });
        let _ = reader.read_to_end(&mut found);
        let found: Value = serde_json::from_slice(&found).unwrap();
        assert!(found.is_object());
    }
}

/// The tokens of the session that an interrupt has saved.
fn saved_tokens(notes: &str) -> usize {
    let after = notes.split_once("error: interrupted; the session of ");
    let tokens = after.and_then(|(_, after)| after.split(' ').next()?.parse().ok());
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
    let mut run = command("emel-run");
    run.arg(llama())
        .args(words("-p hello -n 19000 -c 20000 --temp 0 --ignore-eos"))
        .args(words("--ram-budget 256M --session"))
        .arg(&session)
        .arg("--stats-json")
        .arg(&statistics);
    let (mut child, output) = answering(run.stderr(Stdio::null()));
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
