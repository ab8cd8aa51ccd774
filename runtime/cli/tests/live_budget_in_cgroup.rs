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
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// More than the plan takes, and far less.
const LARGE_BYTES: u64 = 136 << 20;
const SMALL_BYTES: u64 = 88 << 20;
/// A test that takes longer waits for something that never comes.
const HANG: Duration = Duration::from_secs(120);

fn capped(via: &str) -> Command {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/capped.sh");
    let mut command = Command::new(script);
    command.arg(format!("--memory-max={LARGE_BYTES}"));
    command.args(["--via", via]);
    command.env("XDG_CACHE_HOME", "/dev/null");
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
    let fixed = "-no-cnv --ram-budget 130M -c 2048 -n 1900 --temp 0 --ignore-eos -t 1";
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
    for io in ["ring", "uring", "pread"] {
        let command = run(&model, io);
        let text = shrink_and_grow(via, &command);
        assert!(text == beginning(&command, text.len()), "another answer");
    }
}

/// The first bytes of what a command says without a limit.
fn beginning(command: &[String], bytes: usize) -> Vec<u8> {
    let mut free = Command::new(&command[0])
        .args(&command[1..])
        .env("XDG_CACHE_HOME", "/dev/null")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut text = vec![0; bytes];
    let mut output = free.stdout.take().unwrap();
    output.read_exact(&mut text).unwrap();
    free.kill().unwrap();
    free.wait().unwrap();
    text
}

/// Ends the processes of a group but the one that has made it.
fn end(group: &Path, maker: u32) {
    let processes = fs::read_to_string(group.join("cgroup.procs")).unwrap();
    let processes = processes.lines().map(|line| line.parse::<i32>().unwrap());
    for process in processes.filter(|&process| process != maker as i32) {
        let _ = kill(Pid::from_raw(process), Signal::SIGTERM);
    }
}

/// What the command has said by the time that it may use all of its memory again.
fn shrink_and_grow(via: &str, command: &[String]) -> Vec<u8> {
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

    end(&group, child.id());
    output.read_to_end(&mut text).unwrap();
    child.wait().unwrap();
    let report: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    assert_eq!(report["oom_kills"], 0, "{report}");
    text
}
