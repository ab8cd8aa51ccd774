//! What the hot calls allocate (nothing), and whether a tokenizer holds as much as
//! it says. One test, because the counters are the process's.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use emel_loader::counting_allocator::CountingAllocator;
use emel_loader::gguf::{Array, Metadata, StringTable, Value};
use emel_model::sampler::{Breakers, Mirostat, Sampler, SamplerOptions, Stage};
use emel_model::tokenizer::{DecodeOptions, Detokenizer, EncodeOptions, Tokenizer};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

fn calls() -> usize {
    ALLOCATOR.calls()
}

fn held_bytes() -> usize {
    ALLOCATOR.held_bytes()
}

fn metadata(model: &str, pre: &str) -> Metadata {
    let mut metadata = Metadata::default();
    let mut tokens = StringTable::default();
    let mut merges = StringTable::default();
    for byte in 0..=255u8 {
        let spelt = format!("<0x{byte:02X}>");
        tokens.push(spelt.as_bytes());
    }
    for id in 0..60_000 {
        tokens.push(format!("word{id}").as_bytes());
    }
    merges.push(b"word1 word2");
    let count = tokens.len();
    let mut kinds = vec![6; 256];
    kinds.resize(count, 1);
    let string = |text: &str| Value::String(text.into());
    let entries = [
        ("tokenizer.ggml.model", string(model)),
        ("tokenizer.ggml.pre", string(pre)),
        ("tokenizer.ggml.tokens", Value::Array(Array::String(tokens))),
        ("tokenizer.ggml.merges", Value::Array(Array::String(merges))),
        ("tokenizer.ggml.token_type", Value::Array(Array::I32(kinds))),
        (
            "tokenizer.ggml.scores",
            Value::Array(Array::F32(vec![0.0; count])),
        ),
    ];
    for (key, value) in entries {
        metadata.insert(key.to_owned(), value);
    }
    metadata
}

#[test]
fn hot_calls_allocate_nothing_and_tokenizers_hold_what_they_say() {
    for pre in [
        "default",
        "gpt-2",
        "smollm",
        "llama-bpe",
        "qwen2",
        "qwen35",
        "gpt-4o",
        "tekken",
        "deepseek-v3",
        "deepseek-coder",
        "deepseek-llm",
        "kimi-k2",
        "youtu",
        "bailingmoe",
        "seed-coder",
        "minicpm5",
        "bloom",
        "viking",
        "falcon",
    ] {
        check_heap_bytes("gpt2", pre);
    }
    for model in ["llama", "gemma4", "bert", "t5", "rwkv"] {
        check_heap_bytes(model, "default");
    }
    check_detokenizer();
    check_samplers();
}

fn check_heap_bytes(model: &str, pre: &str) {
    let before = held_bytes();
    let tokenizer = Tokenizer::from_metadata(&mut metadata(model, pre)).unwrap();
    let text = "Hello, 123 wörld! 日本語 😀 don't\n\n x  \t y Привет ";
    for repeats in [1, 1000, 2000] {
        tokenizer.encode(&text.repeat(repeats), EncodeOptions::default());
    }
    let held = held_bytes() - before;
    let said = tokenizer.heap_bytes();
    println!("{model} {pre}: says {said} bytes, holds {held}");
    assert!(held <= said, "{model} {pre}: says {said}, holds {held}");
    assert!(
        said <= held + (1 << 20),
        "{model} {pre}: says {said}, holds {held}"
    );
}

fn check_detokenizer() {
    let tokenizer = Tokenizer::from_metadata(&mut metadata("llama", "default")).unwrap();
    let mut detokenizer = Detokenizer::new(&tokenizer, DecodeOptions::default());
    let before = calls();
    for id in (0..60_256).chain(0..256).chain((0..256).rev()) {
        detokenizer.push(&tokenizer, id);
    }
    detokenizer.finish();
    assert_eq!(calls(), before);
}

fn check_samplers() {
    let plain = SamplerOptions::default();
    let with_top_k = |top_k| SamplerOptions {
        top_k,
        repeat_penalty: 1.1,
        ..plain.clone()
    };
    let everything = SamplerOptions {
        typical_p: 0.9,
        top_n_sigma: 2.0,
        xtc_probability: 0.5,
        dynatemp_range: 0.5,
        logit_bias: vec![(7, 1.0), (3, -1.0)],
        ..SamplerOptions::most_demanding()
    };
    let backwards = SamplerOptions {
        stages: Stage::ALL.into_iter().rev().collect(),
        ..everything.clone()
    };
    let mirostat = SamplerOptions {
        mirostat: Some(Mirostat::default()),
        ..plain.clone()
    };
    let all = [0, 1, 40].map(with_top_k).into_iter();
    for options in all.chain([everything, backwards, mirostat]) {
        check_sampler(options);
    }
}

fn check_sampler(options: SamplerOptions) {
    let tokenizer = Tokenizer::from_metadata(&mut metadata("llama", "default")).unwrap();
    let breakers = Breakers::new(&options, &tokenizer);
    let logits: Vec<f32> = (0..5000).map(|id| (id * 37 % 101) as f32 / 10.0).collect();
    let before = held_bytes();
    let mut sampler = Sampler::new(options, logits.len(), 100, breakers).unwrap();
    let held = held_bytes() - before;
    let said = sampler.heap_bytes();
    assert!(held <= said, "says {said}, holds {held}");
    let before = calls();
    for _ in 0..200 {
        let id = sampler.sample(&logits);
        sampler.accept(id);
    }
    assert_eq!(calls(), before);
}
