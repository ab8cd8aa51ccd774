//! `--lossy-…`: off unless it is asked for, and named wherever it shows.

use std::fs;
use std::path::PathBuf;

use emel_tests::fixtures::fixture;
use serde_json::Value;
use tempfile::TempDir;

use crate::{command, emel, emel_run, llama, refusal, result, words};

pub(crate) fn mixture() -> PathBuf {
    fixture("arch/minimax-m2.gguf")
}

/// A budget in which only some of the experts have slots.
pub(crate) fn budget_with_slots() -> String {
    let plan = |budget: u64| {
        let budget = budget.to_string();
        let arguments =
            words("-c 64 --io pread --json -no-cnv --ram-budget").chain([budget.as_str()]);
        let output = emel("plan", &mixture(), arguments);
        let plan: Option<Value> = serde_json::from_slice(&output.stdout).ok();
        plan.filter(|plan| !plan["experts"].is_null())
    };
    let mut budgets = (10 << 20_u64..32 << 20).step_by(64 << 10);
    let budget = budgets.find(|&budget| plan(budget).is_some());
    budget.expect("some budget has slots").to_string()
}

#[test]
fn lossy_options_are_named_so_in_help_notes_and_statistics() {
    let help = result(command("emel-run").arg("--help").output().unwrap());
    assert_eq!(help.matches("LOSSY").count(), 3, "{help}");
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("statistics").display().to_string();
    let budget = budget_with_slots();
    let run = |budget: &str, more: &str| {
        let mut run = command("emel-run");
        run.arg(mixture())
            .args(words(
                "-p hello -n 24 -c 64 --io pread --temp 0 --ignore-eos --stats",
            ))
            .args(["--ram-budget", budget, "--stats-json", &path])
            .args(words(more));
        let output = run.output().unwrap();
        let notes = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{notes}");
        let found: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        (notes, found["lossy"].clone())
    };
    let (notes, lossy) = run(&budget, "");
    assert!(!notes.contains("LOSSY") && lossy.is_null(), "{notes}");

    let (notes, lossy) = run(&budget, "--lossy-cache-routing 1,8 --lossy-expert-budget 1");
    let expected = "note: LOSSY: cache routing 1,8 with expert budget 1 changes";
    assert_eq!(notes.matches(expected).count(), 1, "{notes}");
    let [substituted, dropped] = ["substituted", "dropped"].map(|key| lossy[key].as_u64());
    let expected = format!(
        "LOSSY:   {} expert choices while decoding, {} of them substituted, {} dropped",
        lossy["of_choices"],
        substituted.unwrap(),
        dropped.unwrap()
    );
    assert!(notes.contains(&expected), "no `{expected}` in: {notes}");
    assert!(substituted.unwrap() + dropped.unwrap() > 0, "{lossy}");
    assert_eq!(lossy["cache_routing"], serde_json::json!([1, 8]));
    assert_eq!(lossy["expert_budget"], 1);

    let (notes, lossy) = run("64M", "--lossy-expert-budget 1");
    assert!(notes.contains("changes nothing here"), "{notes}");
    assert_eq!(lossy["dropped"], 0);
}

#[test]
fn lossy_options_that_cannot_apply_are_refused() {
    for (model, options, expected) in [
        (llama(), "--lossy-cache-routing 1,4", "a mixture of experts"),
        (llama(), "--lossy-expert-budget 1", "a mixture of experts"),
        (mixture(), "--lossy-cache-routing 1", "as 2,16"),
        (mixture(), "--lossy-cache-routing -1,4", "as 2,16"),
        (mixture(), "--lossy-cache-routing one,4", "as 2,16"),
        (mixture(), "--lossy-cache-routing 1,2,3", "as 2,16"),
        (
            mixture(),
            "--lossy-cache-routing 0,8",
            "is 0,8, expected 1 to",
        ),
        (
            mixture(),
            "--lossy-cache-routing 1,999",
            "is 1,999, expected 1 to",
        ),
        (mixture(), "--lossy-expert-budget 0", "is 0, expected 1 to"),
        (
            mixture(),
            "--lossy-expert-budget 99",
            "is 99, expected 1 to",
        ),
        (
            mixture(),
            "--lossy-cache-routing 2,8 --lossy-expert-budget 1",
            "at least the 2 experts that cache routing keeps",
        ),
        (
            mixture(),
            "--lossy-expert-budget 1 --prefetch router",
            "--prefetch is router, expected off or auto",
        ),
    ] {
        let arguments = words("-p hello -n 1 -c 64").chain(words(options));
        refusal(emel_run(&model, arguments), 2, &["lossy", expected]);
    }
}
