//! `--profile FILE`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use emel::{Backend, Io};
use emel_loader::gguf::Catalog;
use emel_tests::run::{settings, smallest_budget};
use serde_json::Value;
use tempfile::TempDir;

use crate::{command, emel_run, fixture, llama, refusal, result, words};

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

/// The profile of a short answer in the smallest budget that works, or in a large one.
fn profile(model: &Path, is_streamed: bool) -> Value {
    let mut settings = settings(0, 64);
    settings.profile = true;
    settings.io = Io::Only(Backend::Pread);
    let budget_bytes = match is_streamed {
        true => smallest_budget(model, &settings),
        false => 64 << 20,
    };
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("profile.json");
    let mut command = command("emel-run");
    command.arg(model).arg("--profile").arg(&path);
    command.args(["--ram-budget", &budget_bytes.to_string()]);
    command.args(words(
        "-p hello -n 6 -c 64 -t 2 --temp 0 --ignore-eos --io pread",
    ));
    result(command.output().unwrap());
    serde_json::from_slice(&fs::read(&path).unwrap()).unwrap()
}

/// Tensors that events of a kind name, each in the layer of its name.
fn tensors(spans: &[&Value]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for span in spans {
        let Some(names) = span["args"]["tensor"].as_str() else {
            assert_eq!(span["args"]["layer"], Value::Null, "{span}");
            continue;
        };
        let layer = match span["args"]["layer"].as_u64() {
            Some(layer) => format!("blk.{layer}."),
            None => String::new(),
        };
        for name in names.split(", ") {
            assert!(name.starts_with(&layer), "{span}");
            assert_eq!(name.starts_with("blk."), !layer.is_empty(), "{span}");
            found.insert(name.to_owned());
        }
    }
    found
}

fn matrices(model: &Path) -> BTreeSet<String> {
    let catalog = Catalog::open(model).unwrap();
    let matrices = catalog.tensors().iter();
    let matrices = matrices.filter(|tensor| tensor.dims.len() > 1);
    matrices.map(|tensor| tensor.name.clone()).collect()
}

#[test]
fn computing_and_reads_name_layer_and_tensor() {
    let model = fixture("arch/llama-untied.gguf");
    // In memory, where steps are joined, and streamed in parts of matrices.
    for is_streamed in [false, true] {
        let json = profile(&model, is_streamed);
        let spans = spans(&json);
        assert_eq!(tensors(&spans["compute"]), matrices(&model));
        let read = tensors(&spans["read"]);
        assert!(read.contains("token_embd.weight"), "{read:?}");
        assert_eq!(read.len() > 1, is_streamed, "{read:?}");
        assert!(
            spans["read"]
                .iter()
                .all(|it| it["args"]["tensor"].is_string())
        );
    }
}

#[test]
fn reads_of_experts_name_the_expert() {
    let model = fixture("arch/qwen3moe.gguf");
    let json = profile(&model, true);
    let spans = spans(&json);
    let (experts, others): (Vec<&Value>, Vec<&Value>) = spans["read"]
        .iter()
        .partition(|read| read["args"]["expert"].is_u64());
    let is_expert = |name: &String| name.contains("_exps.");
    let all = matrices(&model);
    let expected: BTreeSet<String> = all.iter().filter(|it| is_expert(it)).cloned().collect();
    assert_eq!(tensors(&experts), expected);
    assert!(!tensors(&others).iter().any(is_expert));
    assert_eq!(tensors(&spans["compute"]), all);
    assert!(tensors(&spans["wait"]).iter().any(is_expert));
}

#[test]
fn a_profile_is_refused_in_place_of_the_model() {
    let model = llama();
    let arguments = ["-p", "a", "--profile", model.to_str().unwrap()];
    refusal(emel_run(&model, arguments), 1, &["this is the model"]);
    assert!(fs::metadata(&model).unwrap().len() > 0);
}
