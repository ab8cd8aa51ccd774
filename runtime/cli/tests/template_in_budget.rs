//! A chat template that would take gigabytes takes no more than the budget.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::path::{Path, PathBuf};
use std::process::Command;

use emel_tests::fixtures::fixture;
use nix::sys::resource::{UsageWho, getrusage};

const BUDGET: &str = "64M";
const BUDGET_KIB: i64 = 64 << 10;

/// More of the kinds that the two files have.
const TEMPLATES: [&str; 8] = [
    "{{ '%.3000000000f' % 1.5 }}",
    "{{ ('a ' * 30000000).split() }}",
    "{% set n = namespace(s=[1]) %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "{% set n = namespace(s=[1]) %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "{{ ('a\n' * 1000000) | indent(4000) }}",
    "{{ ([1] * 100000000) ~ '' }}",
    "{{ [1] * 100000000 == [1] * 100000000 }}",
    "{{ [[[['a']]]] | tojson(indent='x' * 5000000) }}",
];

fn unpacked(name: &str, folder: &Path) -> PathBuf {
    let packed = std::fs::File::open(fixture(&format!("faults/{name}.gz"))).unwrap();
    let path = folder.join(name);
    let mut file = std::fs::File::create(&path).unwrap();
    std::io::copy(&mut flate2::read::GzDecoder::new(packed), &mut file).unwrap();
    path
}

fn check_refused(arguments: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_emel"));
    command.args(arguments).env("XDG_CACHE_HOME", "/dev/null");
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{arguments:?}: {errors}");
    let refused = |line: &&str| line.starts_with("error:") && line.contains("chat template");
    assert_eq!(
        errors.lines().filter(refused).count(),
        1,
        "{arguments:?}: {errors}"
    );
}

#[test]
fn a_template_that_makes_gigabytes_is_refused_within_the_budget() {
    let folder = tempfile::tempdir().unwrap();
    let messages = folder.path().join("messages.json");
    std::fs::write(&messages, r#"[{"role": "user", "content": "hello"}]"#).unwrap();
    let messages = messages.to_str().unwrap();
    let models = ["bomb_format.gguf", "bomb_join.gguf"].map(|name| unpacked(name, folder.path()));
    let models = models.each_ref().map(|model| model.to_str().unwrap());
    let run = ["--ram-budget", BUDGET, "-cnv", "-p", "hello", "-n", "1"];
    for model in models {
        check_refused(&[&["run", model][..], &run].concat());
        check_refused(&["render", model, "-f", messages]);
    }
    for template in TEMPLATES {
        let template = ["--chat-template", template];
        check_refused(&[&["run", models[0]][..], &run, &template].concat());
    }
    // The largest of all that were run.
    let peak_kib = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap().max_rss();
    assert!(
        peak_kib < BUDGET_KIB,
        "{peak_kib} KiB for a budget of {BUDGET}"
    );
}
