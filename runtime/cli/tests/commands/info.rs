//! `emel info`: what is in a file.

use std::process::Stdio;

use emel_tests::fixtures::{SMOLLM2, real_model};
use emel_tests::gguf_writer::{Field, GgufWriter};
use serde_json::Value;
use tempfile::TempDir;

use crate::model::Model;
use crate::{command, emel, emel_run, gemma, llama, refusal, result, words};

#[track_caller]
fn info(model: &std::path::Path) -> Value {
    let arguments = words("--json --ram-budget 64M");
    serde_json::from_str(&result(emel("info", model, arguments))).unwrap()
}

/// What is printed, with long lines put together again. None is wider than a terminal.
#[track_caller]
fn described(output: std::process::Output) -> String {
    let text = result(output);
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    unbroken(&text)
}

fn unbroken(text: &str) -> String {
    text.replace("\n              ", " ")
}

/// As [`info`], of a model that does not run, which the status and a line say too.
#[track_caller]
fn info_of_refused(model: &std::path::Path, arguments: &str) -> (String, String) {
    let output = emel("info", model, words(arguments));
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.starts_with("error: ") && message.lines().count() == 1);
    let text = String::from_utf8(output.stdout).unwrap();
    (unbroken(&text), message)
}

#[test]
fn a_model_is_described() {
    let folder = TempDir::new().unwrap();
    let model = Model::llama()
        .with("general.name", Field::string("Small\x1b[31m"))
        .with("tokenizer.chat_template", Field::string("{{ messages }}"))
        .with("tokenizer.chat_template.rag", Field::string("r"))
        .with("llama.expert_count", Field::U32(0))
        .write(&folder);
    let found = info(&model);
    assert_eq!(found["architecture"], "llama");
    assert_eq!(found["supported"], true);
    assert_eq!(found["problem"], Value::Null);
    assert_eq!(found["alignment"], 32);
    assert_eq!(found["types"][0]["name"], "F32");
    let parameters = found["parameters"].as_u64().unwrap();
    assert_eq!(found["types"][0]["bytes"], parameters * 4);
    assert_eq!(found["hyperparameters"]["experts"], 0);
    assert_eq!(found["tokenizer"]["tokens"], 384);
    assert_eq!(
        found["chat_template"]["names"],
        serde_json::json!(["default", "rag"])
    );
    assert_eq!(found["chat_template"]["start"], "{{ messages }}");
    assert_eq!(found["plan"]["mapped"], true);

    let text = result(emel("info", &model, words("--ram-budget 64M")));
    for part in [
        "name          Small\\u{1b}[31m\n",
        "architecture  llama\n",
        "heads         ",
        "chat template default, rag; 14 bytes\n",
        "all weights stay in memory, nothing is\n",
    ] {
        assert!(text.contains(part), "no `{part}` in: {text}");
    }
}

#[test]
fn what_streams_and_what_stays_is_told() {
    let text = described(emel("info", &gemma(), words("--io pread --ram-budget 64M")));
    assert!(
        text.contains(": all 336 KiB of weights stay in memory; KV"),
        "{text}"
    );
    let Some(model) = real_model(SMOLLM2) else {
        return;
    };
    let text = described(emel("info", &model, words("--ram-budget 64M")));
    assert!(text.contains(" M, "), "{text}");
    assert!(text.contains("in a budget of 64.0 MiB: "), "{text}");
    assert!(
        text.contains(" MiB are read for each token; KV cache of "),
        "{text}"
    );
}

#[test]
fn what_is_not_used_of_a_file_is_listed() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("model.gguf");
    let original = GgufWriter::copy_of(&llama());
    let with_images = original.clone();
    let with_images = with_images.f32_tensor("v.patch_embd.weight", &[4], &[1.0; 4]);
    with_images.write(&path).unwrap();
    let found = info(&path);
    assert_eq!(found["supported"], true);
    assert_eq!(
        found["unused"],
        serde_json::json!([{"name": "v.*", "purpose": "images", "tensors": 1, "bytes": 16}])
    );
    let text = result(emel("info", &path, words("--ram-budget 64M")));
    let line = "\nnot used      v.* (images), 16 bytes in 1 tensor\n";
    assert!(text.contains(line), "{text}");

    // What is not known may be a part of the model.
    let name = "blk.0.attn_q.lora_a";
    original
        .f32_tensor(name, &[4], &[1.0; 4])
        .write(&path)
        .unwrap();
    let (found, _) = info_of_refused(&path, "--json");
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!(found["supported"], false);
    assert_eq!(found["unused"], serde_json::json!([]));
    let expected = ["tensor `blk.0.attn_q.lora_a` has no place in", "`llama`"];
    for part in expected {
        assert!(found["problem"].as_str().unwrap().contains(part), "{found}");
    }
    refusal(emel("plan", &path, words("--ram-budget 64M")), 1, &expected);
}

#[test]
fn a_model_that_does_not_run_is_described_and_told_why() {
    let folder = TempDir::new().unwrap();
    let json = |model: &Model| {
        let (found, message) = info_of_refused(&model.write(&folder), "--json");
        let found: Value = serde_json::from_str(&found).unwrap();
        assert!(message.contains(found["problem"].as_str().unwrap()));
        found
    };
    let found = json(&Model::llama().with("general.architecture", Field::string("mamba")));
    assert_eq!(found["supported"], false);
    let problem = found["problem"].as_str().unwrap();
    assert!(
        problem.contains("`mamba` is not supported; supported: llama"),
        "{problem}"
    );
    assert!(found["supported_architectures"].as_array().unwrap().len() >= 4);
    let (text, message) = info_of_refused(&folder.path().join("model.gguf"), "");
    assert!(
        text.contains("runs          no architecture `mamba` is not supported"),
        "{text}"
    );
    assert!(message.contains("model.gguf: architecture `mamba`"));
    let found = json(&Model::llama().without_tensor("output_norm.weight"));
    assert!(
        found["problem"]
            .as_str()
            .unwrap()
            .contains("output_norm.weight")
    );
    let found = json(&Model::llama().with("tokenizer.ggml.model", Field::string("abacus")));
    assert!(found["problem"].as_str().unwrap().contains("abacus"));
}

#[test]
fn the_template_that_a_conversation_gets_is_shown() {
    let folder = TempDir::new().unwrap();
    let with = |key: &str, field: Field| {
        let model = Model::llama().without("tokenizer.chat_template");
        let path = model.with(key, field).write(&folder);
        let text = result(emel("info", &path, words("--ram-budget 64M")));
        (info(&path)["chat_template"].clone(), text)
    };
    let (found, text) = with("tokenizer.chat_template.default", Field::string("plain"));
    assert_eq!(
        (&found["start"], &found["bytes"]),
        (&"plain".into(), &5.into())
    );
    assert_eq!(found["chatml_without_tools"], false);
    assert!(text.contains("chat template default; 5 bytes\n"), "{text}");
    let (found, text) = with("tokenizer.chat_template.tool_use", Field::string("tool"));
    assert_eq!(found["start"], "tool");
    assert_eq!(found["chatml_without_tools"], true);
    let line = "chat template tool_use; 4 bytes; without tools ChatML would be used\n";
    assert!(text.contains(line), "{text}");
    let (found, text) = with("tokenizer.chat_template", Field::U32(3));
    let problem = found["problem"].as_str().unwrap();
    assert!(problem.contains("holds the integer 3"), "{problem}");
    assert!(unbroken(&text).contains("holds the integer 3"), "{text}");
    assert!(text.contains("all weights stay"), "{text}");
}

#[test]
fn a_missing_pre_tokenizer_is_told() {
    let folder = TempDir::new().unwrap();
    let path = Model::llama().without("tokenizer.ggml.pre").write(&folder);
    let expected = "`tokenizer.ggml.pre` is missing, `default` is used: expect worse answers";
    let text = described(emel("info", &path, words("--ram-budget 64M")));
    assert!(text.contains(expected), "{text}");
    assert_eq!(info(&path)["tokenizer"]["warnings"][0], expected);
    let output = emel_run(&path, words("-p hello -n 1"));
    let notes = String::from_utf8(output.stderr).unwrap();
    assert!(notes.contains(expected), "{notes}");
}

#[test]
fn a_bad_environment_is_not_the_models_fault() {
    let mut run = command("emel");
    run.arg("info").arg(llama()).env("EMEL_KERNELS", "bogus");
    refusal(run.output().unwrap(), 1, &["EMEL_KERNELS=bogus"]);
}

#[test]
fn a_model_that_does_not_run_within_the_budget_is_described_and_told_why() {
    let (text, message) = info_of_refused(&llama(), "--ram-budget 1M");
    let (_, smallest) = message.split_once("the smallest that works is ").unwrap();
    let smallest: u64 = smallest.split_once('M').unwrap().0.parse().unwrap();
    // It is that of the run, which holds a conversation with this model.
    let run = |mebibytes: u64| {
        let mut run = command("emel");
        run.arg("run").arg(llama()).args(words("-st -n 500 -p hi"));
        run.args(["--ram-budget", &format!("{mebibytes}M")]);
        run.output().unwrap()
    };
    result(run(smallest));
    refusal(run(smallest - 1), 1, &["the smallest that works is"]);
    assert!(
        text.contains("runs          not within this budget"),
        "{text}"
    );
    assert!(
        unbroken(&text).contains("the smallest that works is"),
        "{text}"
    );
}

#[test]
fn what_is_no_model_is_refused() {
    let file = std::path::Path::new(file!()).file_name().unwrap();
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/commands");
    refusal(emel("info", &here.join(file), words("")), 1, &["GGUF"]);
    let output = emel("info", &llama(), words("-t 2000"));
    refusal(output, 2, &["-t is 2000"]);
}

#[test]
fn a_reader_that_leaves_early_is_no_error_of_info() {
    let mut child = command("emel")
        .arg("info")
        .arg(llama())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn a_real_model_is_described() {
    let Some(model) = real_model(SMOLLM2) else {
        return;
    };
    let found = info(&model);
    assert_eq!(found["name"], "Smollm2 135M 8k Lc100K Mix1 Ep2");
    assert_eq!(found["parameters"], 134_515_008);
    assert_eq!(found["hyperparameters"]["layers"], 30);
    assert_eq!(found["hyperparameters"]["kv_heads"], 3);
    assert_eq!(found["tokenizer"]["pre"], "smollm");
    let special = found["tokenizer"]["special"].as_array().unwrap();
    let eos = special.iter().find(|token| token["job"] == "eos").unwrap();
    assert_eq!(eos["text"], "<|im_end|>");
    let start = found["chat_template"]["start"].as_str().unwrap();
    assert!(
        start.starts_with("{% for message in messages %}"),
        "{start}"
    );
    assert!(found["plan"]["streamed_bytes_per_pass"].as_u64().unwrap() > 0);
}

#[test]
fn keys_that_are_not_used_and_notes_are_shown() {
    let folder = TempDir::new().unwrap();
    let model = Model::llama()
        .with("llama.rope.scaling.factor", Field::F32(0.0))
        .with("llama.attention.max_alibi_bias", Field::F32(8.0))
        .write(&folder);
    let found = info(&model);
    assert_eq!(
        found["unused_keys"],
        serde_json::json!(["llama.attention.max_alibi_bias"])
    );
    let note = "`llama.rope.scaling.factor` is 0, which is read as 1";
    assert_eq!(found["notes"], serde_json::json!([note]));
    let text = result(emel("info", &model, words("--ram-budget 64M")));
    assert!(text.contains(&format!("note: {note}\n")), "{text}");
}
