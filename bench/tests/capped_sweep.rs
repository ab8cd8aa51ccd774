//! The sweep of `bench/capped.sh`: what is wrong is said before anything runs, and a contender that
//! fails is reported as what it is while the others run. What needs a cgroup that cannot be
//! made says so and passes.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use emel_bench::synth::{Architecture, Routing, Synth};
use emel_kernels::Format;
use emel_tests::programs;
use emel_tests::signals::undo_ignored;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

const NO_CGROUP: Option<i32> = Some(77);

/// A llama.cpp that describes itself, answers as it is, and, repacked, takes all the memory
/// that it gets.
const LLAMA: &str = r#"#!/bin/bash
case $* in
  *describe*) echo '{"version": "1", "system": "CPU", "settings": [{"repack": true}]}' ;;
  *'"repack":true'*) exec tail /dev/zero ;;
  *) echo '{"event": "first_token", "bytes_read": 1000, "major_faults": 1}'
     echo '{"event": "done", "bytes_read": 3000, "major_faults": 2, "answer": {"load_seconds": 1,
       "first_token_seconds": 2, "token_seconds": [0.5, 0.5]}}' | tr -d '\n' ;;
esac
"#;

/// A folder with a model of a few MiB, on a drive and not in memory.
fn with_model() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let model = folder.path().join("model.gguf");
    let synth = Synth {
        architecture: Architecture::Llama,
        layers: 2,
        embedding: 256,
        feed_forward: 512,
        heads: 4,
        kv_heads: 2,
        head_dim: 64,
        vocabulary: 500,
        context: 256,
        format: Format::Q4_K,
        head_format: Format::Q6_K,
        tied: true,
        routing: Routing::default(),
        seed: 1,
    };
    synth.write(&model, 2).unwrap();
    (folder, model)
}

fn sweep(folder: &Path, arguments: &[&str]) -> Output {
    let capper = Path::new(env!("CARGO_MANIFEST_DIR")).join("capped.sh");
    let mut command = Command::new(env!("CARGO_BIN_EXE_capped-sweep"));
    command.arg("--capper").arg(capper);
    command.arg("--out").arg(folder.join("report"));
    command.args(["--prompt-tokens", "4", "--runs", "2"]);
    if !arguments.contains(&"--tokens") {
        command.args(["--tokens", "3"]);
    }
    // What is measured of the drive is kept in here.
    command.env("XDG_CACHE_HOME", folder);
    command.args(arguments).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The report, or none where no cgroup can be made.
fn report(folder: &Path, arguments: &[&str]) -> Option<(Value, String)> {
    let output = sweep(folder, arguments);
    if output.status.code() == NO_CGROUP {
        eprintln!("skipped: {}", said(&output));
        return None;
    }
    assert!(output.status.success(), "{}", said(&output));
    let read = |name: &str| fs::read_to_string(folder.join("report").join(name)).unwrap();
    for plot in ["speed.svg", "bytes.svg"] {
        assert!(read(plot).starts_with("<svg "), "{}", read(plot));
    }
    Some((
        serde_json::from_str(&read("report.json")).unwrap(),
        read("report.md"),
    ))
}

fn outcomes(contender: &Value) -> Vec<&str> {
    let runs = contender["runs"].as_array().unwrap().iter();
    runs.map(|run| run["outcome"].as_str().unwrap()).collect()
}

/// A program in the place of llama.cpp's Python.
fn script(folder: &Path, text: &str) -> String {
    let path = folder.join("python");
    programs::write(&path, text);
    path.to_str().unwrap().to_owned()
}

#[test]
fn caps_that_are_none_are_refused_with_what_would_be_one() {
    let (folder, model) = with_model();
    let model = model.to_str().unwrap();
    for (size, message) in [
        ("8X", "expected bytes"),
        ("0", "at least one page"),
        ("0%", "at least one page"),
        ("101%", "up to 100%"),
        ("900000G", "so nothing would be capped"),
    ] {
        for option in ["--memory-max", "--budgets"] {
            let output = sweep(folder.path(), &["--model", model, option, size]);
            let said = said(&output);
            assert!(
                !output.status.success() && said.contains(message),
                "{size}: {said}"
            );
            assert_eq!(said.lines().count(), 1, "{said}");
            assert!(!folder.path().join("report").exists());
        }
    }
}

#[test]
fn a_model_that_is_not_there_and_options_that_make_no_sense_are_refused() {
    let (folder, model) = with_model();
    let model = model.to_str().unwrap();
    for (arguments, message) in [
        (vec!["--model", "nothing.gguf"], "nothing.gguf: "),
        (vec!["--model", model, "--contenders", "fast"], "fast"),
        (vec!["--model", model, "--tokens", "1"], "1"),
        (vec!["--model", model, "--via", "magic"], "magic"),
        (vec!["--model", model, "--margin", "x"], "expected bytes"),
        (vec!["--model", model, "--temp", "nan"], "expected a number"),
        (
            vec!["--model", model, "--memory-max=1M", "--margin=1M"],
            "leaves nothing",
        ),
    ] {
        let output = sweep(folder.path(), &arguments);
        let said = said(&output);
        assert!(!output.status.success() && said.contains(message), "{said}");
    }
}

#[test]
fn uncapped_runs_are_run_if_asked_for_and_the_report_says_so() {
    let (folder, model) = with_model();
    let model = model.to_str().unwrap();
    let arguments = [
        "--model",
        model,
        "--memory-max=none",
        "--contenders",
        "emel-mmap",
    ];
    let (report, text) = report(folder.path(), &arguments).unwrap();
    assert_eq!(report["settings"]["via"], "none");
    assert!(
        text.contains("No cap: nothing held the contenders."),
        "{text}"
    );
    assert!(text.contains("none (uncapped)"), "{text}");
    let contender = &report["caps"][0]["contenders"][0];
    assert_eq!(outcomes(contender), ["finished", "finished"]);
    assert_eq!(
        contender["runs"][0]["token_seconds"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    assert_eq!(contender["runs"][0]["group"], Value::Null);
}

#[test]
fn a_report_names_neither_folders_nor_the_machine() {
    let (folder, model) = with_model();
    let arguments = ["--model", model.to_str().unwrap(), "--memory-max=none"];
    let missing = ["--llama-python", "/no/python"];
    let (report, text) = report(folder.path(), &[&arguments[..], &missing].concat()).unwrap();
    let texts = [text, report.to_string()];
    for secret in [folder.path().to_str().unwrap(), "/no/python"] {
        assert!(texts.iter().all(|text| !text.contains(secret)), "{secret}");
    }
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    // A short name may be a part of any other word.
    let is_of_name = |letter: char| letter.is_alphanumeric() || "-.".contains(letter);
    for text in &texts {
        let mut words = text.split(|letter| !is_of_name(letter));
        assert!(
            !words.any(|word| word == host.trim() && !word.is_empty()),
            "{host}"
        );
    }
}

#[test]
fn why_a_contender_is_left_out_is_told_without_folders() {
    let (folder, model) = with_model();
    let model = model.to_str().unwrap();
    let refusing = "#!/bin/bash\necho \"$0: cannot load {MODEL}\" >&2; exit 1\n";
    let python = script(folder.path(), &refusing.replace("{MODEL}", model));
    let arguments = ["--model", model, "--memory-max=none", "--llama-python"];
    let arguments = [&arguments[..], &[&python]].concat();
    let (report, text) = report(folder.path(), &arguments).unwrap();
    let reason = "it does not load the model: python: cannot load model.gguf";
    assert_eq!(report["skipped"][0]["reason"], reason);
    assert!(text.contains(reason), "{text}");
}

#[test]
fn without_llama_the_other_contenders_run_and_a_line_says_so() {
    let (folder, model) = with_model();
    let model = model.to_str().unwrap();
    let missing = ["--memory-max=64M", "--llama-python", "/no/python"];
    let arguments = [&["--model", model][..], &missing].concat();
    let Some((report, text)) = report(folder.path(), &arguments) else {
        return;
    };
    assert!(
        text.contains("**llama.cpp did not run:** there is no Python"),
        "{text}"
    );
    assert_eq!(report["skipped"][0]["contender"], "llama");
    let cap = &report["caps"][0];
    assert_eq!(cap["contenders"].as_array().unwrap().len(), 2);
    for contender in cap["contenders"].as_array().unwrap() {
        assert_eq!(outcomes(contender), ["finished", "finished"], "{contender}");
        let run = &contender["runs"][0];
        assert_eq!(run["group"]["limit_bytes"], 64 << 20);
        assert_eq!(run["budget_bytes"], 64 << 20);
        assert!(run["group"]["peak_bytes"].as_u64().unwrap() <= 64 << 20);
        assert_eq!(run["cached_before"]["resident"], 0);
    }
    assert_eq!(cap["ratios"].as_array().unwrap().len(), 1);
    assert_eq!(cap["ratios"][0]["to"], "emel_mmap");
}

#[test]
fn a_signal_to_the_sweep_alone_ends_the_contender_too() {
    undo_ignored();
    let (folder, model) = with_model();
    let started = folder.path().join("started");
    // It prints nothing, and would go on for long.
    let silent = LLAMA.replace(
        "*'\"repack\":true'*) exec tail /dev/zero ;;\n  *)",
        "*) echo $$ >\"${0%/*}/begun\"; mv \"${0%/*}/begun\" \"${0%/*}/started\"; exec sleep 1000\n ",
    );
    let python = script(folder.path(), &silent);
    let mut sweep = Command::new(env!("CARGO_BIN_EXE_capped-sweep"));
    let capper = Path::new(env!("CARGO_MANIFEST_DIR")).join("capped.sh");
    sweep.arg("--capper").arg(capper);
    sweep.arg("--out").arg(folder.path().join("report"));
    sweep.args(["--memory-max=none", "--contenders=llama", "--llama-python"]);
    sweep.arg(&python).arg("--model").arg(&model);
    let sweep = sweep.env("XDG_CACHE_HOME", folder.path());
    let mut child = sweep.stderr(Stdio::piped()).spawn().unwrap();
    while !started.exists() {
        assert!(child.try_wait().unwrap().is_none(), "it has ended");
        std::thread::sleep(Duration::from_millis(10));
    }
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
    let ended = child.wait_with_output().unwrap();
    let told = said(&ended);
    assert_eq!(ended.status.code(), Some(143), "{told}");
    assert!(told.ends_with("error: ended by SIGTERM\n"), "{told}");
    let contender = fs::read_to_string(started).unwrap().trim().parse().unwrap();
    assert!(kill(Pid::from_raw(contender), None).is_err(), "it goes on");
}

#[test]
fn with_no_contender_left_nothing_is_reported() {
    let (folder, model) = with_model();
    let model = model.to_str().unwrap();
    let arguments = [
        "--model",
        model,
        "--memory-max=none",
        "--contenders",
        "llama,llama",
    ];
    let output = sweep(
        folder.path(),
        &[&arguments[..], &["--llama-python", "/no"]].concat(),
    );
    let said = said(&output);
    assert!(!output.status.success(), "{said}");
    assert_eq!(said.matches("llama.cpp is left out").count(), 1, "{said}");
    assert!(
        said.contains("error: no contender is left to run"),
        "{said}"
    );
}

#[test]
fn a_contender_that_cannot_live_in_its_cap_is_reported_as_killed_and_the_others_run() {
    let (folder, model) = with_model();
    let python = script(folder.path(), LLAMA);
    let model = model.to_str().unwrap();
    let arguments = [
        "--model",
        model,
        "--memory-max=64M",
        "--llama-python",
        &python,
    ];
    let Some((report, text)) = report(folder.path(), &arguments) else {
        return;
    };
    let contenders = report["caps"][0]["contenders"].as_array().unwrap();
    let found: Vec<_> = contenders
        .iter()
        .map(|contender| (outcomes(contender), contender["counts"] == true))
        .collect();
    let finished = || vec!["finished", "finished"];
    let expected = [
        (finished(), true),
        (finished(), true),
        (finished(), true),
        (vec!["out_of_memory"], false),
    ];
    assert_eq!(found, expected);
    let killed = &contenders[3]["runs"][0]["group"];
    assert!(killed["oom_kills"].as_u64().unwrap() >= 1, "{killed}");
    assert!(
        text.contains("llama.cpp, repacked was killed by the kernel"),
        "{text}"
    );
    // As it is in the file, one second for two tokens and 2000 bytes.
    let summary = &contenders[2]["summary"];
    assert_eq!(summary["tokens_per_second"]["median"], 2.0);
    assert_eq!(summary["bytes_per_token"]["median"], 1000.0);
}

#[test]
fn a_cap_that_emel_refuses_is_a_failure_in_its_words() {
    let (folder, model) = with_model();
    let model = model.to_str().unwrap();
    let arguments = ["--model", model, "--memory-max=8M", "--contenders", "emel"];
    let Some((report, text)) = report(folder.path(), &arguments) else {
        return;
    };
    let run = &report["caps"][0]["contenders"][0]["runs"][0];
    assert_eq!(
        (&run["outcome"], &run["status"]),
        (&"failed".into(), &1.into())
    );
    let message = run["message"].as_str().unwrap();
    assert!(message.contains("budget"), "{message}");
    assert!(
        text.contains(&format!("failed with status 1: {message}")),
        "{text}"
    );
}
