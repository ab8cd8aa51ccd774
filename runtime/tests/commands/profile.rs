//! `--profile FILE`.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;
use tempfile::TempDir;

use crate::{emel_run, fixture, llama, refusal, result, words};

/// The spans of a profile, by name.
fn spans(json: &Value) -> BTreeMap<String, Vec<&Value>> {
    let mut spans: BTreeMap<String, Vec<&Value>> = BTreeMap::new();
    for event in json["traceEvents"].as_array().unwrap() {
        if event["ph"] == "X" {
            assert!(event["ts"].as_f64().unwrap() >= 0.0, "{event}");
            assert!(event["dur"].as_f64().unwrap() >= 0.0, "{event}");
            let name = event["name"].as_str().unwrap().to_owned();
            spans.entry(name).or_default().push(event);
        }
    }
    spans
}

#[test]
fn a_profile_is_a_chrome_trace_of_passes_reads_waits_and_samples() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("profile.json");
    // Its embedding rows are read even where all else stays in memory.
    let arguments = words("-p hello -n 6 --temp 0 --ignore-eos --io pread --profile");
    let arguments = arguments.chain([path.to_str().unwrap()]);
    result(emel_run(&fixture("arch/llama-untied.gguf"), arguments));
    let json: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(json["otherData"]["dropped_events"], 0);
    let spans = spans(&json);
    // The prompt, and all tokens but the last.
    assert_eq!(spans["pass"].len(), 6);
    // Each token, and the prompt's.
    assert_eq!(spans["sample"].len(), 7);
    assert!(spans["compute"].len() > 6 && !spans["wait"].is_empty());
    for read in &spans["read"] {
        assert!(read["args"]["bytes"].as_u64().unwrap() > 0, "{read}");
    }
    let rows = json["traceEvents"].as_array().unwrap();
    let row_names = rows.iter().filter(|event| event["name"] == "thread_name");
    assert!(row_names.count() > 1);
}

#[test]
fn a_profile_is_refused_in_place_of_the_model() {
    let model = llama();
    let arguments = ["-p", "a", "--profile", model.to_str().unwrap()];
    refusal(emel_run(&model, arguments), 1, &["this is the model"]);
    assert!(fs::metadata(&model).unwrap().len() > 0);
}
