//! The budget is a promise: a memory cgroup of exactly its size is enough, and in a
//! larger one no more is used. Needs the right to make a memory cgroup; says so and
//! passes without it.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use emel_tests::fixtures::{GEMMA3, SMOLLM2, real_model};
use serde_json::Value;

/// The status of `capped.sh` where the system lets nobody make a memory cgroup.
const NO_CGROUP: i32 = 77;

fn capped(cap_bytes: u64, report: &Path, command: &[&str]) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/capped.sh");
    Command::new(script)
        .arg(format!("--memory-max={cap_bytes}"))
        .arg("--report")
        .arg(report)
        .arg("--")
        .args(command)
        .env("XDG_CACHE_HOME", "/dev/null")
        .output()
        .unwrap()
}

/// Fills most of the context and returns the group's peak.
fn peak_bytes(model: &Path, budget: &str, cap_bytes: u64, io: &str, report: &Path) -> u64 {
    let run = env!("CARGO_BIN_EXE_emel-run");
    let model = model.to_str().unwrap();
    let mut command = vec![run, model, "--ram-budget", budget, "--io", io];
    let text = "one two three ".repeat(150);
    command.extend(["-no-cnv", "-p", &text, "-n", "16", "-c", "512"]);
    command.extend(["--temp", "0", "--ignore-eos"]);
    // Where the kernel reads megabytes ahead, one fault brings more of the program into the group
    // than it needs.
    std::fs::read(run).unwrap();
    let output = capped(cap_bytes, report, &command);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{budget}, {io}: {errors}");
    // What the program has taken already is part of the plan, and no reason to warn.
    assert!(!errors.contains("of memory are available"), "{errors}");
    assert!(!output.stdout.is_empty());
    let report: Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    assert_eq!(report["oom_kills"], 0, "{report}");
    report["peak_bytes"].as_u64().unwrap()
}

fn check(model: Option<PathBuf>, budget: &str, budget_bytes: u64) {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report.json");
    let Some(model) = model else {
        return;
    };
    let probe = capped(budget_bytes, &report, &["true"]);
    if probe.status.code() == Some(NO_CGROUP) {
        eprintln!("skipped: no memory cgroup can be made here");
        return;
    }
    let errors = String::from_utf8_lossy(&probe.stderr);
    assert!(probe.status.success(), "{}: {errors}", probe.status);
    for io in ["ring", "uring", "pread", "mmap"] {
        peak_bytes(&model, budget, budget_bytes, io, &report);
        let peak = peak_bytes(&model, budget, 2 * budget_bytes, io, &report);
        assert!(peak <= budget_bytes, "{io}: peak {peak} of {budget_bytes}");
    }
}

#[test]
fn smollm2_stays_within_64_mib() {
    check(real_model(SMOLLM2), "64M", 64 << 20);
}

#[test]
fn gemma3_stays_within_96_mib() {
    check(real_model(GEMMA3), "96M", 96 << 20);
}
