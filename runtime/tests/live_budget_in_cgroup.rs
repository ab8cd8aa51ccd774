//! A cgroup whose limit shrinks and grows while the engine runs: it gives weights back,
//! is not killed, and says the same. Needs the right to make a memory cgroup; says so
//! and passes without it.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use emel_tests::fixtures::{SMOLLM2, real_model};
use serde_json::Value;

/// Enough for all of the model, and for two thirds of it.
const LARGE_BYTES: u64 = 136 << 20;
const SMALL_BYTES: u64 = 88 << 20;
/// A test that takes longer waits for something that never comes.
const HANG: Duration = Duration::from_secs(120);

fn capped(via: &str) -> Command {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bench/capped.sh");
    let mut command = Command::new(script);
    command.arg(format!("--memory-max={LARGE_BYTES}"));
    command.args(["--via", via]);
    command
}

/// The folder that `capped.sh` has made, which bears the number of its process.
fn group(folder: &Path, name: &str, depth: usize) -> Option<PathBuf> {
    let folders = fs::read_dir(folder).ok()?.flatten();
    let folders: Vec<PathBuf> = folders
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect();
    if let Some(found) = folders.iter().find(|path| path.ends_with(name)) {
        return Some(found.clone());
    }
    let below = |path: &PathBuf| group(path, name, depth - 1);
    folders.iter().filter(|_| depth > 0).find_map(below)
}

/// The names of the limit to be kept to, and of the hard ones in the order in which they
/// are lowered.
fn limits(via: &str, group: &Path) -> (&'static str, Vec<&'static str>) {
    let (soft, hard) = match via {
        "cgroup2" => ("memory.high", vec!["memory.max"]),
        _ => (
            "memory.soft_limit_in_bytes",
            vec!["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"],
        ),
    };
    let there = hard.into_iter().filter(|name| group.join(name).exists());
    (soft, there.collect())
}

fn wait_for(lines: &Receiver<String>, part: &str) -> String {
    let started = Instant::now();
    loop {
        let left = HANG.saturating_sub(started.elapsed());
        let line = lines.recv_timeout(left);
        let line = line.unwrap_or_else(|_| panic!("nobody says `{part}`"));
        println!("{line}");
        if line.contains(part) {
            return line;
        }
    }
}

/// Version 1 refuses a limit below what is in use.
fn set_hard(group: &Path, names: &[&str], bytes: u64) {
    let started = Instant::now();
    for name in names {
        while fs::write(group.join(name), bytes.to_string()).is_err() {
            assert!(started.elapsed() < HANG, "{name} cannot be set to {bytes}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn run(model: &Path, io: &str) -> Vec<String> {
    let run = env!("CARGO_BIN_EXE_emel-run");
    let fixed = "--ram-budget 130M -c 512 -n 320 --temp 0 --ignore-eos -t 1";
    let mut command = vec![run.to_owned(), model.to_str().unwrap().to_owned()];
    command.extend(fixed.split(' ').map(str::to_owned));
    command.extend(["--io", io, "-p", "The capital of France is"].map(str::to_owned));
    command
}

#[test]
fn a_limit_that_shrinks_and_grows_in_the_middle_of_an_answer_changes_no_token() {
    let Some(model) = real_model(SMOLLM2) else {
        return;
    };
    let via = ["cgroup1", "cgroup2"].into_iter().find(|via| {
        let probe = capped(via).args(["--", "true"]).output();
        probe.unwrap().status.success()
    });
    let Some(via) = via else {
        eprintln!("skipped: no memory cgroup can be made here");
        return;
    };
    let command = run(&model, "pread");
    let free = Command::new(&command[0]).args(&command[1..]).output();
    let expected = free.unwrap().stdout;
    for io in ["uring", "pread"] {
        shrink_and_grow(via, &run(&model, io), &expected);
    }
}

fn shrink_and_grow(via: &str, command: &[String], expected: &[u8]) {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report.json");
    let mut child = capped(via)
        .arg("--report")
        .arg(&report)
        .arg("--")
        .args(command)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (sender, lines) = channel();
    let errors = BufReader::new(child.stderr.take().unwrap());
    std::thread::spawn(move || {
        for line in errors.lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    let mut output = child.stdout.take().unwrap();
    let mut text = vec![0; 60];
    output.read_exact(&mut text).unwrap();

    let name = format!("emel-capped-{}", child.id());
    let group = group(Path::new("/sys/fs/cgroup"), &name, 8).unwrap();
    let (soft, hard) = limits(via, &group);
    fs::write(group.join(soft), SMALL_BYTES.to_string()).unwrap();
    let line = wait_for(&lines, "gave back");
    assert!(line.contains("the memory limit is now 88.0 MiB"), "{line}");
    set_hard(&group, &hard, SMALL_BYTES);
    // Tokens are made below the lower limit.
    std::thread::sleep(Duration::from_millis(500));
    let mut rising = hard.clone();
    rising.reverse();
    set_hard(&group, &rising, LARGE_BYTES);
    fs::write(group.join(soft), LARGE_BYTES.to_string()).unwrap();
    wait_for(&lines, "takes again");

    output.read_to_end(&mut text).unwrap();
    assert!(child.wait().unwrap().success());
    let report: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    assert_eq!(report["oom_kills"], 0, "{report}");
    assert!(text == expected, "another answer");
}
