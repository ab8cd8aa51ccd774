use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::{Cgroup, Version};
use crate::SystemError;

const UNIFIED: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw";
const HYBRID: &str = "\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw";
const UNLIMITED: &str = "9223372036854771712";

/// A machine of files: the two tables of `/proc/self` and the cgroup tree.
fn machine(memberships: &str, mounts: &str, files: &[(&str, &str)]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), "proc/self/cgroup", memberships);
    write(root.path(), "proc/self/mountinfo", mounts);
    for (file, text) in files {
        write(root.path(), &format!("sys/fs/cgroup/{file}"), text);
    }
    root
}

fn write(root: &Path, file: &str, text: &str) {
    let path = root.join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("{text}\n")).unwrap();
}

#[test]
fn under_version_2_the_smallest_limit_on_the_way_to_the_root_counts() {
    let files = [
        ("cgroup.controllers", "cpu memory"),
        ("a.slice/memory.max", "1000"),
        ("a.slice/b.scope/memory.max", "2000"),
        ("a.slice/b.scope/memory.current", "77"),
        ("a.slice/b.scope/memory.peak", "99"),
    ];
    let root = machine("0::/a.slice/b.scope", UNIFIED, &files);
    let cgroup = Cgroup::own_below(root.path()).unwrap();
    assert_eq!(cgroup.version(), Version::V2);
    assert!(cgroup.folder.ends_with("sys/fs/cgroup/a.slice/b.scope"));
    assert_eq!(cgroup.memory_limit().unwrap(), Some(1000));
    assert_eq!(cgroup.memory_usage().unwrap(), Some(77));
    assert_eq!(cgroup.memory_peak().unwrap(), Some(99));
}

#[test]
fn what_is_charged_already_is_not_available_but_page_cache_is() {
    let files = [
        ("cgroup.controllers", "cpu memory"),
        ("a.slice/memory.max", "1000"),
        ("a.slice/memory.current", "700"),
        (
            "a.slice/memory.stat",
            "anon 400\nfile 300\ninactive_file 200\nactive_file 50\nshmem 50",
        ),
        ("a.slice/b.scope/memory.max", "600"),
        ("a.slice/b.scope/memory.current", "10"),
    ];
    let root = machine("0::/a.slice/b.scope", UNIFIED, &files);
    let cgroup = Cgroup::own_below(root.path()).unwrap();
    // 1000 - (700 - 250) is less than 600 - 10.
    assert_eq!(cgroup.memory_available().unwrap(), Some(550));
    write(
        root.path(),
        "sys/fs/cgroup/a.slice/b.scope/memory.current",
        "5000",
    );
    assert_eq!(cgroup.memory_available().unwrap(), Some(0));
}

#[test]
fn version_1_counts_the_page_cache_of_the_whole_tree() {
    let files = [
        ("memory/box/memory.limit_in_bytes", "4096"),
        ("memory/box/memory.usage_in_bytes", "3000"),
        (
            "memory/box/memory.stat",
            "inactive_file 1\ntotal_inactive_file 1000\ntotal_active_file 500",
        ),
    ];
    let root = machine("5:memory:/box\n0::/", HYBRID, &files);
    let cgroup = Cgroup::own_below(root.path()).unwrap();
    assert_eq!(cgroup.memory_available().unwrap(), Some(4096 - 1500));
}

#[test]
fn max_everywhere_is_no_limit() {
    let files = [("a.slice/memory.max", "max")];
    let root = machine("0::/a.slice", UNIFIED, &files);
    let cgroup = Cgroup::own_below(root.path()).unwrap();
    assert_eq!(cgroup.memory_limit().unwrap(), None);
    assert_eq!(cgroup.memory_available().unwrap(), None);
    assert_eq!(cgroup.memory_peak().unwrap(), None);
}

#[test]
fn the_root_of_version_2_has_neither_limit_nor_usage() {
    let files = [("cgroup.controllers", "cpu memory")];
    let root = machine("0::/", UNIFIED, &files);
    let cgroup = Cgroup::own_below(root.path()).unwrap();
    assert_eq!(cgroup.memory_limit().unwrap(), None);
    assert_eq!(cgroup.memory_usage().unwrap(), None);
}

#[test]
fn under_version_1_the_memory_tree_is_taken() {
    let files = [
        ("memory/memory.limit_in_bytes", UNLIMITED),
        ("memory/box/memory.limit_in_bytes", "4096"),
        ("memory/box/inner/memory.limit_in_bytes", UNLIMITED),
        ("memory/box/inner/memory.usage_in_bytes", "5"),
        ("memory/box/inner/memory.max_usage_in_bytes", "6"),
    ];
    let memberships = "5:memory:/box/inner\n3:cpu,cpuacct:/other\n0::/";
    let root = machine(memberships, HYBRID, &files);
    let cgroup = Cgroup::own_below(root.path()).unwrap();
    assert_eq!(cgroup.version(), Version::V1);
    assert_eq!(cgroup.memory_limit().unwrap(), Some(4096));
    assert_eq!(cgroup.memory_usage().unwrap(), Some(5));
    assert_eq!(cgroup.memory_peak().unwrap(), Some(6));
}

#[test]
fn the_unlimited_value_of_version_1_is_no_limit() {
    let files = [("memory/memory.limit_in_bytes", UNLIMITED)];
    let root = machine("5:memory:/\n0::/", HYBRID, &files);
    let cgroup = Cgroup::own_below(root.path()).unwrap();
    assert_eq!(cgroup.memory_limit().unwrap(), None);
}

#[test]
fn a_hybrid_machine_may_have_the_memory_controller_in_version_2() {
    let files = [
        ("unified/cgroup.controllers", "memory"),
        ("unified/box/memory.max", "123"),
    ];
    let root = machine("3:cpu,cpuacct:/other\n0::/box", HYBRID, &files);
    let cgroup = Cgroup::own_below(root.path()).unwrap();
    assert_eq!(cgroup.version(), Version::V2);
    assert_eq!(cgroup.memory_limit().unwrap(), Some(123));
}

#[test]
fn a_container_sees_its_own_cgroup_at_the_mount_point() {
    let mounts = "30 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup cgroup rw,memory";
    let files = [("memory.limit_in_bytes", "8192")];
    let root = machine("5:memory:/docker/abc", mounts, &files);
    let cgroup = Cgroup::own_below(root.path()).unwrap();
    assert_eq!(cgroup.memory_limit().unwrap(), Some(8192));
}

#[test]
fn a_mount_point_with_a_space_is_found() {
    let mounts = "30 23 0:26 / /sys/fs/cgroup/my\\040tree rw - cgroup2 cgroup2 rw";
    let files = [("my tree/a/memory.max", "1")];
    let root = machine("0::/a", mounts, &files);
    let cgroup = Cgroup::own_below(root.path()).unwrap();
    assert_eq!(cgroup.memory_limit().unwrap(), Some(1));
}

#[test]
fn a_cgroup_with_a_colon_in_its_name_is_found() {
    let files = [("app:1.scope/memory.max", "5")];
    let root = machine("0::/app:1.scope", UNIFIED, &files);
    let cgroup = Cgroup::own_below(root.path()).unwrap();
    assert_eq!(cgroup.memory_limit().unwrap(), Some(5));
}

#[test]
fn without_a_memory_controller_there_is_an_error_with_a_remedy() {
    let files = [("unified/cgroup.controllers", "cpu")];
    let root = machine("0::/", HYBRID, &files);
    let error = Cgroup::own_below(root.path()).unwrap_err();
    assert!(matches!(error, SystemError::NoMemoryCgroup));
    assert!(error.to_string().contains("set a RAM budget"));
}

#[test]
fn without_proc_there_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    let error = Cgroup::own_below(root.path()).unwrap_err();
    assert!(error.to_string().contains("proc/self/cgroup: cannot read"));
}

#[test]
fn a_limit_that_is_no_number_is_an_error() {
    let files = [("a/memory.max", "lots")];
    let root = machine("0::/a", UNIFIED, &files);
    let cgroup = Cgroup::own_below(root.path()).unwrap();
    let error = cgroup.memory_limit().unwrap_err();
    assert!(
        error
            .to_string()
            .contains("found \"lots\", expected a number")
    );
}

#[test]
fn a_process_is_alone_when_the_list_has_only_its_number() {
    let files = [("a/memory.max", "1"), ("a/cgroup.procs", "42")];
    let root = machine("0::/a", UNIFIED, &files);
    let cgroup = Cgroup::own_below(root.path()).unwrap();
    assert!(cgroup.only_process(42).unwrap());
    assert!(!cgroup.only_process(4).unwrap());
    write(root.path(), "sys/fs/cgroup/a/cgroup.procs", "42\n43");
    assert!(!cgroup.only_process(42).unwrap());
}

#[test]
fn a_cgroup_below_is_company() {
    let files = [
        ("a/memory.max", "1"),
        ("a/cgroup.procs", "42"),
        ("a/child/memory.max", "1"),
    ];
    let root = machine("0::/a", UNIFIED, &files);
    let cgroup = Cgroup::own_below(root.path()).unwrap();
    assert!(!cgroup.only_process(42).unwrap());
}

#[test]
fn this_machine_answers_or_says_why_not() {
    match Cgroup::own() {
        Ok(cgroup) => {
            cgroup.memory_limit().unwrap();
            cgroup.memory_usage().unwrap();
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
