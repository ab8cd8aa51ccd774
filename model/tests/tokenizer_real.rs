//! The tokenizers of two real models, against the ids that llama.cpp gives.
//!
//! The models are not in the repository: `scripts/fetch_models.py` puts them into
//! `models/`. Without them the tests are skipped, unless `EMEL_REQUIRE_MODELS=1`.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use emel_loader::gguf::Catalog;
use emel_model::tokenizer::{DecodeOptions, Detokenizer, EncodeOptions, Tokenizer};
use emel_tests::fixtures::{json, real_model};
use serde_json::Value;

fn tokenizer(file: &str) -> Option<Tokenizer> {
    let mut catalog = Catalog::open(real_model(file)?).unwrap();
    Some(Tokenizer::from_metadata(catalog.metadata_mut()).unwrap())
}

fn ids(entry: &Value, key: &str) -> Vec<u32> {
    let ids = entry[key].as_array().unwrap().iter();
    ids.map(|id| id.as_u64().unwrap() as u32).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    let byte = |place| u8::from_str_radix(&hex[place..place + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(byte).collect()
}

fn check(model: &str, fixture: &str) {
    let Some(tokenizer) = tokenizer(model) else {
        return;
    };
    println!("{model}: {} heap bytes", tokenizer.heap_bytes());
    assert!(
        tokenizer.warnings().is_empty(),
        "{:?}",
        tokenizer.warnings()
    );
    let fixture: Value = json(&format!("real/{fixture}"));
    let (texts, prompts) = (&fixture["texts"], &fixture["prompts"]);
    let texts = texts.as_array().unwrap();
    let prompts = prompts.as_array().unwrap();
    assert_eq!(texts.len(), 40);
    for entry in texts.iter().chain(prompts) {
        let text = entry["text"].as_str().unwrap();
        let expected = ids(entry, "ids");
        assert_eq!(
            tokenizer.encode(text, EncodeOptions::PROMPT),
            expected,
            "{text:?}"
        );
    }
    for entry in texts {
        let pieces = ids(entry, "ids");
        let pieces = pieces
            .iter()
            .flat_map(|&id| tokenizer.token_bytes(id, true));
        let expected = bytes(entry["pieces_hex"].as_str().unwrap());
        assert_eq!(pieces.collect::<Vec<u8>>(), expected, "{}", entry["text"]);
    }
    for entry in prompts {
        let with_special = DecodeOptions {
            special: true,
            from_start: false,
        };
        let mut detokenizer = Detokenizer::new(&tokenizer, with_special);
        let mut streamed = String::new();
        for id in ids(entry, "greedy") {
            streamed.push_str(detokenizer.push(&tokenizer, id));
        }
        streamed.push_str(detokenizer.finish());
        assert_eq!(streamed, entry["greedy_text"].as_str().unwrap());
    }
}

#[test]
fn smollm2_encodes_as_in_llama_cpp() {
    check("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m-q4_1.json");
}

#[test]
fn gemma3_encodes_as_in_llama_cpp() {
    check("gemma3-270m-q4_k_m.gguf", "gemma3-270m-q4_k_m.json");
}
