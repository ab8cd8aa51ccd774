//! `emel trace` and `emel replay`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Output;

use emel_tests::fixtures::fixture;

use super::{emel, llama, refusal, result, words};

struct Traced {
    folder: tempfile::TempDir,
}

impl Traced {
    fn new() -> Self {
        let traced = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        let text = "the experts of a mixture are read when they are needed ".repeat(20);
        std::fs::write(traced.path("text"), text).unwrap();
        traced
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn trace(&self, model: &Path, more: &str) -> Output {
        let (text, trace) = (self.path("text"), self.path("trace"));
        let fixed = [
            OsStr::new("-f"),
            text.as_ref(),
            "-o".as_ref(),
            trace.as_ref(),
        ];
        let rest = ["--ram-budget", "64M", "-c", "50"]
            .into_iter()
            .chain(words(more));
        emel(
            "trace",
            model,
            fixed.into_iter().chain(rest.map(OsStr::new)),
        )
    }

    fn replay(&self, arguments: &str) -> Output {
        emel("replay", &self.path("trace"), words(arguments))
    }
}

fn mixture() -> PathBuf {
    fixture("arch/qwen3moe.gguf")
}

fn number(report: &serde_json::Value, name: &str) -> f64 {
    report[name].as_f64().unwrap()
}

#[test]
fn a_trace_is_replayed_by_every_policy() {
    let traced = Traced::new();
    let told = result(traced.trace(&mixture(), ""));
    assert!(
        told.contains(" positions, ") && told.contains(" experts, "),
        "{told}"
    );
    let hits = |arguments: &str| {
        let arguments = format!("{arguments} --slots 50% --json");
        let report: serde_json::Value =
            serde_json::from_str(&result(traced.replay(&arguments))).unwrap();
        assert!(number(&report, "demands") > 100.0);
        number(&report, "hit_rate")
    };
    let best = hits("--policy belady");
    for policy in ["learned", "lru", "lfu", "aged-lfu"] {
        let found = hits(&format!("--policy {policy}"));
        assert!((0.0..=best).contains(&found), "{policy}: {found} of {best}");
        hits(&format!("--policy {policy} --per-layer"));
    }
    for source in ["frequent", "coact", "router", "both"] {
        hits(&format!("--predict {source} --guess 3"));
    }
    let text = result(traced.replay("--slots 100% --predict both"));
    assert!(text.contains("hits ") && text.contains("recall "), "{text}");
}

#[test]
fn what_was_learnt_is_kept_and_ignored_with_a_line_if_it_is_of_no_use() {
    let traced = Traced::new();
    result(traced.trace(&mixture(), ""));
    let heat = traced.path("heat");
    let with = |option: &str| {
        let path = heat.to_str().unwrap();
        traced.replay(&format!("--slots 25% --predict coact {option} {path}"))
    };
    let missing = with("--heat");
    assert!(String::from_utf8_lossy(&missing.stderr).contains("is ignored: there is no such file"));
    result(with("--save-heat"));
    let found = with("--heat");
    assert!(found.stderr.is_empty(), "{found:?}");
    result(found);

    let good = std::fs::read(&heat).unwrap();
    std::fs::write(&heat, &good[..good.len() - 1]).unwrap();
    let found = with("--heat");
    assert_eq!(String::from_utf8_lossy(&found.stderr).lines().count(), 1);
    assert!(
        String::from_utf8_lossy(&found.stderr).contains("is ignored: what was learnt is damaged")
    );
    result(found);
}

#[test]
fn no_file_of_another_kind_is_overwritten() {
    let traced = Traced::new();
    result(traced.trace(&mixture(), ""));
    let before = std::fs::read(traced.path("text")).unwrap();
    let text = traced.path("text");
    let save = format!("--slots 25% --save-heat {}", text.to_str().unwrap());
    refusal(traced.replay(&save), 1, &["--save-heat needs --predict"]);
    refusal(
        traced.replay(&format!("{save} --predict coact")),
        1,
        &["text", "not what emel has learnt"],
    );
    std::fs::remove_file(traced.path("trace")).unwrap();
    std::fs::hard_link(&text, traced.path("trace")).unwrap();
    refusal(
        traced.trace(&mixture(), ""),
        1,
        &["trace", "this is the text"],
    );
    assert!(std::fs::read(&text).unwrap() == before);
}

#[test]
fn a_fifo_is_refused_and_not_waited_for() {
    let traced = Traced::new();
    nix::unistd::mkfifo(&traced.path("trace"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    refusal(traced.replay("--slots 50%"), 1, &["this is no trace"]);
}

#[test]
fn a_full_disk_is_named() {
    let traced = Traced::new();
    std::os::unix::fs::symlink("/dev/full", traced.path("trace")).unwrap();
    refusal(
        traced.trace(&mixture(), ""),
        1,
        &["cannot write the trace", "No space left"],
    );
}

#[test]
fn what_cannot_be_traced_or_replayed_is_refused() {
    let traced = Traced::new();
    refusal(traced.trace(&llama(), ""), 1, &["mixture of experts"]);
    refusal(traced.replay("--slots 50%"), 1, &["trace", "cannot read"]);
    result(traced.trace(&mixture(), "--look-ahead 0"));
    refusal(
        traced.replay("--slots 1"),
        1,
        &["--slots is 1", "expected 4 or more"],
    );
    refusal(
        traced.replay("--slots 200%"),
        2,
        &["--slots", "share from 0% to 100%"],
    );
    refusal(
        traced.replay("--slots 50% --predict router"),
        1,
        &["--look-ahead"],
    );
    refusal(
        traced.replay("--slots 50% --predict coact --policy lru"),
        1,
        &["--policy learned"],
    );
    let good = std::fs::read(traced.path("trace")).unwrap();
    std::fs::write(traced.path("trace"), &good[..good.len() - 9]).unwrap();
    refusal(
        traced.replay("--slots 50%"),
        1,
        &["bytes, expected", "emel trace"],
    );
    std::fs::write(traced.path("trace"), "something else").unwrap();
    refusal(traced.replay("--slots 50%"), 1, &["this is no trace"]);
}
