//! `bench/capped.sh` with a command: it caps, or says why not and what to do, and never runs
//! a command uncapped unasked. What needs rights that are not there says so and passes.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use emel_tests::programs;
use emel_tests::signals::undo_ignored;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

/// The status of `capped.sh` where no cgroup can be made.
const NO_CGROUP: Option<i32> = Some(77);
/// As a shell has it of a process that was killed.
const KILLED: Option<i32> = Some(137);
const HAS_RUN: &str = "the command has run";

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("capped.sh")
}

/// Runs the script with `arguments` before a command that says so when it runs.
fn capped(arguments: &[&str]) -> Output {
    let mut command = Command::new(script());
    command.args(arguments).args(["--", "echo", HAS_RUN]);
    command.output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn check_refused(output: &Output, status: Option<i32>, message: &str) {
    let said = said(output);
    assert_eq!(output.status.code(), status, "{said}");
    assert!(said.contains(message), "{said}");
    let ran = String::from_utf8_lossy(&output.stdout).contains(HAS_RUN);
    assert!(!ran, "it ran uncapped: {said}");
}

/// Whether cgroups can be made here; if not, that is said.
fn can_cap() -> bool {
    let output = capped(&["--memory-max=64M"]);
    if output.status.code() == NO_CGROUP {
        eprintln!("skipped: no memory cgroup can be made here");
        return false;
    }
    assert!(output.status.success(), "{}", said(&output));
    true
}

/// Runs the shell text `setup` and then the script, with a view of the machine of its own
/// in which `setup` may mount what it likes; as nobody if asked. None, said on standard
/// error, where that is not allowed.
fn in_another_view(setup: &str, as_nobody: bool, arguments: &[&str]) -> Option<Output> {
    let is_root = nix::unistd::geteuid().is_root();
    let view: &[&str] = match is_root {
        true => &["--mount"],
        false => &["--user", "--map-root-user", "--mount"],
    };
    let allowed = Command::new("unshare").args(view).arg("true").output();
    if !allowed.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: no namespace can be made here");
        return None;
    }
    let become_nobody = match (as_nobody, is_root) {
        (false, _) => "",
        (true, true) => "setpriv --reuid=65534 --regid=65534 --clear-groups",
        // Without a map of users it is nobody to itself, and to others who it was.
        (true, false) => "unshare --user",
    };
    let text = format!("set -e\n{setup}\n{become_nobody} \"$@\"");
    let mut command = Command::new("unshare");
    command.args(view).args(["bash", "-c", &text, "setup"]);
    command.arg(script()).args(arguments);
    command.args(["--", "echo", HAS_RUN]);
    Some(command.output().unwrap())
}

/// Programs of this name that only fail, for a `PATH`.
fn failing(names: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in names {
        let text = "#!/bin/sh\necho no such bus >&2\nexit 1\n";
        programs::write(&folder.path().join(name), text);
    }
    let all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(folder.path(), all).unwrap();
    folder
}

#[test]
fn what_is_no_size_is_refused() {
    for size in ["", "8X", "-1", "1.5G", "0", "0G", "99999999999999999999G"] {
        let output = capped(&[&format!("--memory-max={size}")]);
        let message = if size.is_empty() {
            "no --memory-max"
        } else {
            "expected"
        };
        check_refused(&output, Some(1), message);
    }
    check_refused(
        &capped(&["--memory-max=4095"]),
        Some(1),
        "at least one page",
    );
    check_refused(&capped(&[]), Some(1), "no --memory-max");
}

#[test]
fn a_percentage_needs_a_model() {
    for size in ["50%", "101%"] {
        let output = capped(&[&format!("--memory-max={size}")]);
        check_refused(
            &output,
            Some(1),
            "of a model's file, and a command has none",
        );
    }
}

#[test]
fn more_than_the_machine_has_is_refused_as_no_cap() {
    let output = capped(&["--memory-max=900000G"]);
    check_refused(&output, Some(1), "so nothing would be capped");
}

#[test]
fn wrong_arguments_are_named() {
    let size = "--memory-max=64M";
    check_refused(
        &capped(&[size, "--via", "magic"]),
        Some(1),
        "--via magic: expected",
    );
    check_refused(
        &capped(&[size, "--fast"]),
        Some(1),
        "unknown argument --fast",
    );
    check_refused(
        &capped(&[size, "--files", "/proc/no/such"]),
        Some(1),
        "--files /proc/no/such: the folder cannot be made",
    );
    check_refused(
        &capped(&[size, "--report", "/no/such/report"]),
        Some(1),
        "--report /no/such/report: cannot be written",
    );
    let output = Command::new(script()).args([size, "--"]).output().unwrap();
    check_refused(&output, Some(1), "no command");
}

#[test]
fn without_a_cap_a_command_runs_only_if_that_is_asked_for_and_it_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    let output = capped(&["--memory-max=none", "--report", report.to_str().unwrap()]);
    assert!(output.status.success());
    assert!(said(&output).contains("uncapped, as asked"));
    assert!(String::from_utf8_lossy(&output.stdout).contains(HAS_RUN));
    let report: Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
    assert_eq!(
        (&report["via"], &report["cap_bytes"]),
        (&"none".into(), &Value::Null)
    );
}

#[test]
fn a_report_does_not_replace_a_model() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    fs::write(&model, b"GGUF\x03\0\0\0").unwrap();
    for size in ["--memory-max=none", "--memory-max=64M"] {
        let output = capped(&[size, "--report", model.to_str().unwrap()]);
        check_refused(&output, Some(1), "this is a model");
    }
    assert_eq!(fs::read(&model).unwrap(), b"GGUF\x03\0\0\0");
}

/// Folders of cgroups that a script of this process id has made.
fn groups_of(script: u32) -> Vec<PathBuf> {
    let names = ["emel-capped", "emel-capped-io"].map(|name| format!("{name}-{script}"));
    let mut folders = vec![PathBuf::from("/sys/fs/cgroup")];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        // A group may go while it is looked at.
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(entry.path());
                if names.iter().any(|name| entry.file_name() == name.as_str()) {
                    found.push(entry.path());
                }
            }
        }
    }
    found
}

#[test]
fn no_group_is_left_behind_by_a_process_that_has_left_one_of_them() {
    let memory = Path::new("/sys/fs/cgroup/memory/cgroup.procs");
    if !memory.exists() || !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: it takes root and version 1 to leave the memory group alone");
        return;
    }
    let leaving = format!(
        "sleep 1000 >&- 2>&- & echo $! >{}; echo $!",
        memory.display()
    );
    let mut command = Command::new(script());
    command.args(["--memory-max=64M", "--via", "cgroup1", "--", "bash", "-c"]);
    let command = command.arg(leaving).stdout(Stdio::piped());
    let child = command.stderr(Stdio::piped()).spawn().unwrap();
    let script = child.id();
    let ended = child.wait_with_output().unwrap();
    if ended.status.code() == NO_CGROUP {
        eprintln!("skipped: {}", said(&ended));
        return;
    }
    assert!(ended.status.success(), "{}", said(&ended));
    let left = groups_of(script);
    // Where version 1 has no accounting of drives, it is the test's to end.
    let sleeping = String::from_utf8_lossy(&ended.stdout)
        .trim()
        .parse()
        .unwrap();
    let _ = kill(Pid::from_raw(sleeping), Signal::SIGKILL);
    assert!(left.is_empty(), "{left:?}: {}", said(&ended));
}

#[test]
fn a_signal_ends_the_command_too() {
    undo_ignored();
    let sizes = if can_cap() {
        &["none", "64M"][..]
    } else {
        &["none"]
    };
    for size in sizes {
        let mut child = Command::new(script())
            .arg(format!("--memory-max={size}"))
            .args(["--", "bash", "-c", "echo $$; exec sleep 1000"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let script_id = child.id();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut command = String::new();
        output.read_line(&mut command).unwrap();
        kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
        let ended = child.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(143), "{}", said(&ended));
        let command = Pid::from_raw(command.trim().parse().unwrap());
        assert!(kill(command, None).is_err(), "{size}: it goes on");
        let left = groups_of(script_id);
        assert!(left.is_empty(), "{size}: {left:?}");
    }
}

#[test]
fn without_systemd_that_is_the_cause_and_the_remedy_is_another_way() {
    let hide = "mount -t tmpfs none /run";
    let arguments = ["--memory-max=64M", "--via", "systemd"];
    if let Some(output) = in_another_view(hide, false, &arguments) {
        check_refused(
            &output,
            NO_CGROUP,
            "systemd: not running here; use --via cgroup2",
        );
    }
}

#[test]
fn without_a_user_manager_the_remedy_is_to_log_in() {
    let programs = failing(&["systemd-run", "systemctl"]);
    let setup = format!(
        "mount -t tmpfs none /run; mkdir -p /run/systemd/system; export PATH={}:$PATH",
        programs.path().display()
    );
    let arguments = ["--memory-max=64M", "--via", "systemd"];
    if let Some(output) = in_another_view(&setup, true, &arguments) {
        check_refused(&output, NO_CGROUP, "no user manager answers; log in as");
    }
}

#[test]
fn a_scope_that_systemd_refuses_is_told_in_its_words() {
    let programs = failing(&["systemd-run"]);
    let setup = format!(
        "mount -t tmpfs none /run; mkdir -p /run/systemd/system; export PATH={0}:$PATH
         printf '#!/bin/sh\\n' >{0}/systemctl; chmod 755 {0}/systemctl",
        programs.path().display()
    );
    let arguments = ["--memory-max=64M", "--via", "systemd"];
    if let Some(output) = in_another_view(&setup, false, &arguments) {
        check_refused(&output, NO_CGROUP, "systemd: no such bus");
    }
}

#[test]
fn a_scope_without_its_limit_is_refused() {
    let programs = failing(&["systemctl"]);
    // Runs the command where it is, with no limit.
    let setup = format!(
        "mount -t tmpfs none /run; mkdir -p /run/systemd/system; export PATH={0}:$PATH
         printf '#!/bin/sh\\n' >{0}/systemctl
         printf '#!/bin/bash\\nwhile [[ $1 != bash ]]; do shift; done; exec \"$@\"\\n' >{0}/systemd-run
         chmod 755 {0}/*",
        programs.path().display()
    );
    let arguments = ["--memory-max=64M", "--via", "systemd"];
    if let Some(output) = in_another_view(&setup, false, &arguments) {
        check_refused(
            &output,
            NO_CGROUP,
            "does not have the limit of 67108864 bytes",
        );
    }
}

#[test]
fn without_a_memory_controller_every_way_is_refused_with_its_cause() {
    let hide = "mount -t tmpfs none /run; mount -t tmpfs none /sys/fs/cgroup";
    let Some(output) = in_another_view(hide, false, &["--memory-max=64M"]) else {
        return;
    };
    check_refused(&output, NO_CGROUP, "cannot cap memory here");
    let said = said(&output);
    for way in [
        "systemd: not running",
        "cgroup2: ",
        "cgroup1: no memory controller",
    ] {
        assert!(said.contains(way), "{said}");
    }
}

#[test]
fn limits_that_a_common_file_says_back_are_not_believed() {
    // As a careless mount may leave it: the files are there, and no kernel behind them.
    let pretend = "mount -t tmpfs none /run; mount -t tmpfs none /sys/fs/cgroup
        while read -r _ _ _ _ point rest; do
          case $rest in
            *' - cgroup2 '*) mkdir -p \"$point\"
              echo memory >\"$point/cgroup.controllers\"
              echo memory >\"$point/cgroup.subtree_control\" ;;
            *' - cgroup '*memory*) mkdir -p \"$point\"
              echo 1 >\"$point/memory.limit_in_bytes\" ;;
          esac
        done </proc/self/mountinfo";
    if let Some(output) = in_another_view(pretend, false, &["--memory-max=64M"]) {
        check_refused(&output, NO_CGROUP, "no permission to make a group");
    }
}

#[test]
fn without_the_right_to_make_groups_the_remedy_is_root_or_systemd() {
    let way = ["cgroup2", "cgroup1"].into_iter().find(|way| {
        let output = capped(&["--memory-max=64M", "--via", way]);
        output.status.success()
    });
    let Some(way) = way else {
        eprintln!("skipped: cgroups cannot be made directly here");
        return;
    };
    let arguments = ["--memory-max=64M", "--via", way];
    if let Some(output) = in_another_view("true", true, &arguments) {
        check_refused(&output, NO_CGROUP, "no permission to make a group below");
    }
}

#[test]
fn a_command_keeps_its_input_its_output_and_its_status() {
    if !can_cap() {
        return;
    }
    let mut command = Command::new("bash");
    let text = format!("echo abc | {} --memory-max=64M -- ", script().display());
    command.args(["-c", &(text + "bash -c 'cat; exit 3'")]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "abc\n");
}

#[test]
fn a_kill_is_reported_from_outside_with_the_groups_files() {
    if !can_cap() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (files, report) = (
        folder.path().join("its/files"),
        folder.path().join("report"),
    );
    let mut command = Command::new(script());
    command.arg("--memory-max=32M").arg("--files").arg(&files);
    command.arg("--report").arg(&report);
    // Keeps all it reads, for want of a line's end.
    command.args(["--", "tail", "/dev/zero"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), KILLED, "{}", said(&output));
    let report: Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
    assert_eq!(report["cap_bytes"], 32 << 20);
    assert!(report["oom_kills"].as_u64().unwrap() >= 1, "{report}");
    let usage = emel_bench::capped::group::GroupUsage::read(&files, None).unwrap();
    assert_eq!(usage.limit_bytes, Some(32 << 20));
    assert_eq!(usage.oom_kills, report["oom_kills"].as_u64());
    assert_eq!(usage.peak_bytes, report["peak_bytes"].as_u64());
    // Another run is none the worse for it.
    assert!(can_cap());
}
