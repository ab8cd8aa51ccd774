//! Four vocabularies and 40 hard texts, against the ids that llama.cpp gives.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::io::{Read, Write};
use std::path::PathBuf;

use emel_loader::gguf::Catalog;
use emel_model::tokenizer::{DecodeOptions, Detokenizer, EncodeOptions, Tokenizer};
use emel_tests::programs::thread_seconds;
use serde_json::Value;

const PARSED: EncodeOptions = EncodeOptions {
    add_special: true,
    parse_special: true,
};

const WHOLE: DecodeOptions = DecodeOptions {
    special: true,
    from_start: true,
};

fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/vocab")
}

fn tokenizer(name: &str) -> Tokenizer {
    let compressed = std::fs::File::open(fixtures().join(format!("{name}.gz"))).unwrap();
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(compressed)
        .read_to_end(&mut bytes)
        .unwrap();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&bytes).unwrap();
    let mut catalog = Catalog::open(file.path()).unwrap();
    Tokenizer::from_metadata(catalog.metadata_mut()).unwrap()
}

fn golden(name: &str) -> Vec<(String, Vec<u32>, String)> {
    let text = std::fs::read_to_string(fixtures().join("golden.json")).unwrap();
    let golden: Value = serde_json::from_str(&text).unwrap();
    let entry = |entry: &Value| {
        let ids = entry["ids"].as_array().unwrap().iter();
        let string = |key: &str| entry[key].as_str().unwrap().to_owned();
        let ids = ids.map(|id| id.as_u64().unwrap() as u32).collect();
        (string("text"), ids, string("detokenized"))
    };
    golden[name].as_array().unwrap().iter().map(entry).collect()
}

fn check(name: &str) {
    let tokenizer = tokenizer(name);
    assert!(
        tokenizer.warnings().is_empty(),
        "{:?}",
        tokenizer.warnings()
    );
    let golden = golden(name);
    assert_eq!(golden.len(), 40);
    for (text, ids, detokenized) in golden {
        assert_eq!(tokenizer.encode(&text, PARSED), ids, "{name} {text:?}");
        assert_eq!(
            tokenizer.decode(&ids, WHOLE),
            detokenized,
            "{name} {text:?}"
        );
        // Cleaning up spaces needs the whole text.
        if name == "bert-bge.gguf" {
            continue;
        }
        let mut detokenizer = Detokenizer::new(&tokenizer, WHOLE);
        let mut streamed = String::new();
        for &id in &ids {
            streamed.push_str(detokenizer.push(&tokenizer, id));
        }
        streamed.push_str(detokenizer.finish());
        assert_eq!(streamed, detokenized, "{name} {text:?}");
    }
}

#[test]
fn llama_bpe_ids_and_texts_are_those_of_llama_cpp() {
    check("llama-bpe.gguf");
}

#[test]
fn qwen2_ids_and_texts_are_those_of_llama_cpp() {
    check("qwen2.gguf");
}

#[test]
fn llama_spm_ids_and_texts_are_those_of_llama_cpp() {
    check("llama-spm.gguf");
}

#[test]
fn bert_bge_ids_and_texts_are_those_of_llama_cpp() {
    check("bert-bge.gguf");
}

#[test]
fn any_bytes_come_back_from_vocabularies_with_byte_tokens() {
    for name in ["llama-bpe", "qwen2", "llama-spm"] {
        let tokenizer = tokenizer(&format!("{name}.gguf"));
        let mut state = 7u32;
        for length in 0..200 {
            let mut bytes = Vec::new();
            for _ in 0..length {
                // The generator of Numerical Recipes, of which the high bits are good.
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                bytes.push((state >> 24) as u8);
            }
            let options = EncodeOptions {
                add_special: false,
                parse_special: false,
            };
            let ids = tokenizer.encode_bytes(&bytes, options);
            let spelt = ids.iter().flat_map(|&id| tokenizer.token_bytes(id, true));
            let spelt: Vec<u8> = spelt.collect();
            // SentencePiece puts a space before a text, unless it begins with other bytes.
            let first = bytes.utf8_chunks().next();
            let begins_text = first.is_some_and(|chunk| !chunk.valid().is_empty());
            let prefix = usize::from(name == "llama-spm" && begins_text);
            assert_eq!(spelt[prefix..], bytes, "{name}, seed 7, {length} bytes");
        }
    }
}

#[test]
fn special_tokens_are_found_by_role() {
    let llama = tokenizer("llama-bpe.gguf");
    assert_eq!(llama.vocabulary_size(), 128_256);
    assert_eq!(llama.bos(), Some(128_000));
    assert_eq!(llama.eos(), Some(128_001));
    assert!(llama.adds_bos());
    for text in ["<|end_of_text|>", "<|eot_id|>"] {
        let id = llama.token_id(text).unwrap();
        assert!(llama.is_end_of_generation(id), "{text}");
    }
    assert!(!llama.is_end_of_generation(128_000));

    let qwen = tokenizer("qwen2.gguf");
    assert!(!qwen.adds_bos());
    for text in ["<|endoftext|>", "<|im_end|>"] {
        let id = qwen.token_id(text).unwrap();
        assert!(qwen.is_end_of_generation(id), "{text}");
    }

    // A tag of HTML in this vocabulary.
    let strike_end = qwen.token_id("</s>").unwrap();
    assert!(!qwen.is_end_of_generation(strike_end));

    let spm = tokenizer("llama-spm.gguf");
    assert_eq!((spm.bos(), spm.eos()), (Some(1), Some(2)));
    assert!(spm.is_end_of_generation(2));
}

#[test]
fn control_tokens_are_plain_text_unless_they_are_parsed() {
    let qwen = tokenizer("qwen2.gguf");
    let text = "<|im_start|>user";
    let plain = qwen.encode(text, EncodeOptions::default());
    let parsed = qwen.encode(text, PARSED);
    assert_eq!(parsed.len(), 2);
    assert!(plain.len() > 2);
    assert!(!plain.iter().any(|&id| qwen.is_control(id)));
    assert_eq!(qwen.decode(&plain, DecodeOptions::default()), text);
    assert_eq!(qwen.decode(&parsed, DecodeOptions::default()), "user");
}

#[test]
fn a_continued_sentence_piece_text_keeps_its_space() {
    let spm = tokenizer("llama-spm.gguf");
    let unmarked = EncodeOptions {
        add_special: false,
        parse_special: false,
    };
    let ids = spm.encode("Hello", unmarked);
    assert_eq!(spm.decode(&ids, WHOLE), "Hello");
    assert_eq!(spm.decode(&ids, DecodeOptions::default()), " Hello");
}

#[test]
fn a_hundred_kilobytes_of_one_kind_come_back() {
    for name in ["llama-bpe.gguf", "qwen2.gguf", "llama-spm.gguf"] {
        let tokenizer = tokenizer(name);
        for unit in ["a", " ", "\n", "=", "1", "é", "日", "ab ", "<|", "\u{0}"] {
            let text = unit.repeat(100_000 / unit.len());
            let ids = tokenizer.encode(&text, PARSED);
            let decoded = tokenizer.decode(&ids[usize::from(tokenizer.adds_bos())..], WHOLE);
            assert!(decoded == text, "{name} {unit:?}");
        }
    }
}

#[test]
fn ten_megabytes_take_time_in_proportion() {
    for name in ["llama-bpe", "qwen2", "llama-spm", "bert-bge"] {
        let tokenizer = tokenizer(&format!("{name}.gguf"));
        for unit in ["a", "ab 1é日\n"] {
            let time = |bytes: usize| {
                let text = unit.repeat(bytes / unit.len());
                thread_seconds(|| drop(tokenizer.encode(&text, PARSED)))
            };
            let (short, long) = (time(1_000_000), time(10_000_000));
            println!("{name} {unit:?}: {short:.3} s and {long:.3} s");
            // Quadratic work would take a hundred times as long, not ten.
            assert!(long < 40.0 * short.max(0.05), "{name} {unit:?}");
        }
    }
}
