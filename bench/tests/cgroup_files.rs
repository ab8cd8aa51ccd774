//! What a cgroup says of a run, read from files that kernels wrote: `tests/fixtures/cgroup`.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::fs;
use std::path::Path;

use emel_bench::capped::group::{GroupError, GroupUsage};
use emel_tests::fixtures::fixture;
use tempfile::TempDir;

fn recorded(name: &str) -> GroupUsage {
    GroupUsage::read(&fixture(&format!("cgroup/{name}")), None).unwrap()
}

fn files(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

fn usage(folder: &Path, device: Option<&str>) -> GroupUsage {
    GroupUsage::read(folder, device).unwrap()
}

#[test]
fn a_run_in_version_1_that_filled_its_group_with_page_cache() {
    let expected = GroupUsage {
        version: 1,
        limit_bytes: Some(20 << 20),
        peak_bytes: Some(20 << 20),
        oom: None,
        oom_kills: Some(0),
        high: None,
        max: Some(0),
        major_faults: Some(3),
        // That kernel counts reads only where a device is throttled.
        bytes_read: None,
    };
    assert_eq!(recorded("v1-finished"), expected);
}

#[test]
fn a_run_in_version_1_that_was_killed() {
    let usage = recorded("v1-killed");
    assert_eq!(
        (usage.limit_bytes, usage.peak_bytes),
        (Some(32 << 20), Some(32 << 20))
    );
    assert_eq!((usage.oom_kills, usage.major_faults), (Some(1), Some(0)));
}

#[test]
fn a_run_in_version_2_that_read_more_than_its_group_holds() {
    let usage = recorded("v2-finished");
    assert_eq!((usage.version, usage.limit_bytes), (2, Some(20 << 20)));
    assert_eq!(
        (usage.oom, usage.oom_kills, usage.high),
        (Some(0), Some(0), Some(0))
    );
    assert!(usage.max.unwrap() > 0, "{usage:?}");
    assert!(usage.bytes_read.unwrap() >= 64 << 20, "{usage:?}");
    assert!(usage.peak_bytes.unwrap() <= 20 << 20, "{usage:?}");
}

#[test]
fn a_run_in_version_2_that_was_killed() {
    let usage = recorded("v2-killed");
    assert_eq!(
        (usage.limit_bytes, usage.peak_bytes),
        (Some(32 << 20), Some(32 << 20))
    );
    assert_eq!((usage.oom, usage.oom_kills), (Some(1), Some(1)));
}

#[test]
fn reads_are_those_of_the_models_drive_or_of_all() {
    let version_2 = files(&[
        ("memory.events", "oom 0\n"),
        (
            "io.stat",
            "8:0 rbytes=100 wbytes=7 rios=1\n254:0 rbytes=30 wbytes=1 rios=2\n7:0 \n",
        ),
    ]);
    assert_eq!(usage(version_2.path(), None).bytes_read, Some(130));
    assert_eq!(usage(version_2.path(), Some("254:0")).bytes_read, Some(30));
    assert_eq!(usage(version_2.path(), Some("9:9")).bytes_read, None);
    let counts = "8:0 Read 100\n8:0 Write 7\n8:0 Total 107\n254:0 Read 30\nTotal 137\n";
    let version_1 = files(&[
        ("memory.limit_in_bytes", "4096\n"),
        ("blkio.throttle.io_service_bytes", counts),
    ]);
    assert_eq!(usage(version_1.path(), None).bytes_read, Some(130));
    assert_eq!(usage(version_1.path(), Some("8:0")).bytes_read, Some(100));
}

#[test]
fn both_fail_counts_of_version_1_are_hits_of_the_limit() {
    let folder = files(&[
        ("memory.limit_in_bytes", "4096\n"),
        ("memory.failcnt", "3\n"),
        ("memory.memsw.failcnt", "40\n"),
    ]);
    assert_eq!(usage(folder.path(), None).max, Some(43));
}

#[test]
fn what_a_kernel_does_not_count_is_absent_and_not_zero() {
    let folder = files(&[("memory.events", "low 0\n"), ("memory.max", "max\n")]);
    let expected = GroupUsage {
        version: 2,
        ..GroupUsage::default()
    };
    assert_eq!(usage(folder.path(), None), expected);
}

#[test]
fn files_that_hold_something_else_or_are_not_there_are_errors() {
    let folder = files(&[("memory.events", "oom_kill many\n")]);
    let error = GroupUsage::read(folder.path(), None).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("found \"many\", expected a number"),
        "{error}"
    );
    let folder = files(&[("memory.limit_in_bytes", "lots\n")]);
    let error = GroupUsage::read(folder.path(), None).unwrap_err();
    assert!(matches!(error, GroupError::Format { .. }), "{error}");
    let nothing = tempfile::tempdir().unwrap();
    let error = GroupUsage::read(nothing.path(), None).unwrap_err();
    assert!(matches!(error, GroupError::Nothing { .. }), "{error}");
}
