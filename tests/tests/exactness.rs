//! The same bits for any budget, reader and number of threads.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::mpsc::channel;

use emel::{Backend, Io, KvType, RamBudget, Settings};
use emel_tests::fixtures::{GEMMA3, SMOLLM2, fixture, json, real_model};
use emel_tests::gguf_writer::GgufWriter;
use emel_tests::run::{READERS, block_on, open, settings, smallest_budget};
use serde_json::Value;

/// A hash of the bits of all logits of all prompts, and the bytes that were streamed.
fn fingerprint(model: &Path, settings: &Settings, prompts: &[Vec<u32>]) -> Vec<u64> {
    block_on(async {
        let engine = open(model, settings.clone()).await.unwrap();
        let mut hashes = Vec::new();
        for ids in prompts {
            let (sender, receiver) = channel();
            engine
                .evaluate(ids.clone(), move |_, row| {
                    let mut hasher = DefaultHasher::new();
                    for logit in row {
                        logit.to_bits().hash(&mut hasher);
                    }
                    sender.send(hasher.finish()).unwrap();
                })
                .await
                .unwrap();
            hashes.extend(receiver);
        }
        hashes
    })
}

fn check(model: &Path, prompts: &[Vec<u32>]) {
    check_with(model, KvType::F16, prompts);
}

fn check_with(model: &Path, kv_type: KvType, prompts: &[Vec<u32>]) {
    let context = prompts.iter().map(Vec::len).max().unwrap();
    let file_bytes = std::fs::metadata(model).unwrap().len();
    let base = Settings {
        all_logits: true,
        kv_type,
        ..settings(file_bytes / 2, context)
    };
    let smallest = smallest_budget(model, &base);
    let threads_max = Settings {
        threads: 3,
        ..base.clone()
    };
    // Half a tiny file is less than the engine itself needs.
    let half = (file_bytes / 2).max(smallest_budget(model, &threads_max) + file_bytes / 8);
    let with = |budget: u64, backend, threads| Settings {
        ram_budget: RamBudget::Bytes(budget),
        io: Io::Only(backend),
        threads,
        ..base.clone()
    };
    let first = READERS[0];
    let expected = fingerprint(model, &with(half, first, 2), prompts);
    assert_eq!(expected.len(), prompts.iter().map(Vec::len).sum::<usize>());
    let others = [
        with(smallest, first, 2),
        with(smallest, Backend::Pread, 1),
        with(smallest, Backend::Mmap, 2),
        with(half, first, 1),
        with(half, Backend::Pread, 2),
        with(half, Backend::Mmap, 3),
        with(half, *READERS.get(1).unwrap_or(&first), 2),
        with(smallest + 2 * file_bytes, first, 2),
        with(smallest + 2 * file_bytes, Backend::Mmap, 1),
    ];
    for other in others {
        let found = fingerprint(model, &other, prompts);
        assert_eq!(found, expected, "{}: {other:?}", model.display());
    }
}

/// Long prompts are cut here, which is many chunks of the smallest budget.
const PROMPT_TOKENS_MAX: usize = 130;

fn prompts(reference: &str) -> Vec<Vec<u32>> {
    let reference: Value = json(reference);
    reference["prompts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|prompt| serde_json::from_value(prompt["ids"].clone()).unwrap())
        .map(|mut ids: Vec<u32>| {
            ids.truncate(PROMPT_TOKENS_MAX);
            ids
        })
        .collect()
}

#[test]
fn a_tiny_llama_gives_the_same_bits_however_it_is_run() {
    let tokens: Vec<u32> = (0..100).map(|index| index * 37 % 384).collect();
    check(&fixture("arch/llama-untied.gguf"), &[tokens]);
}

#[test]
fn a_tiny_gemma_gives_the_same_bits_however_it_is_run() {
    let tokens: Vec<u32> = (0..300).map(|index| index * 41 % 384).collect();
    check(&fixture("arch/gemma3.gguf"), &[tokens]);
}

#[test]
fn a_tiny_mixture_of_experts_gives_the_same_bits_however_it_is_run() {
    let tokens: Vec<u32> = (0..100).map(|index| index * 43 % 384).collect();
    check(&fixture("arch/qwen3moe.gguf"), &[tokens]);
}

#[test]
fn recurrent_and_latent_layers_give_the_same_bits_however_they_are_run() {
    let tokens: Vec<u32> = (0..100).map(|index| index * 31 % 384).collect();
    for model in ["lfm2", "lfm2moe", "qwen35moe", "deepseek2"] {
        let model = fixture("arch").join(format!("{model}.gguf"));
        check(&model, std::slice::from_ref(&tokens));
    }
}

#[test]
fn keys_and_values_in_8_bits_give_the_same_bits_however_they_are_run() {
    for (model, tokens) in [
        ("llama-untied", 100),
        ("gemma3", 300),
        ("qwen3moe", 100),
        ("deepseek2", 100),
    ] {
        let model = fixture("arch").join(format!("{model}.gguf"));
        let tokens = (0..tokens).map(|index| index * 47 % 384).collect();
        check_with(&model, KvType::Q8_0, &[tokens]);
    }
    if let Some(model) = real_model(SMOLLM2) {
        let prompts = prompts("real/smollm2-135m-q4_1-exact.json");
        check_with(&model, KvType::Q8_0, &prompts[..2]);
    }
}

#[test]
fn a_model_gives_the_same_bits_however_its_file_is_laid_out() {
    let reversed: Order = |index, _| (u64::MAX - index as u64, String::new());
    let by_name: Order = |_, name| (0, name.to_owned());
    let shuffled: Order = |_, name| (hash(name), String::new());
    let folder = tempfile::tempdir().unwrap();
    let tokens: Vec<u32> = (0..40).map(|index| index * 29 % 384).collect();
    for name in ["llama-untied", "gemma3"] {
        let model = fixture(&format!("arch/{name}.gguf"));
        let run = |path: &Path, backend| {
            let mut small = settings(0, tokens.len());
            small.all_logits = true;
            small.io = Io::Only(backend);
            small.ram_budget = RamBudget::Bytes(smallest_budget(path, &small));
            fingerprint(path, &small, std::slice::from_ref(&tokens))
        };
        let expected = run(&model, READERS[0]);
        let orders = [
            ("reversed", reversed),
            ("by name", by_name),
            ("shuffled", shuffled),
        ];
        for (order_name, order) in orders {
            for alignment in [None, Some(8), Some(64), Some(4096)] {
                let what = format!("{name} {order_name} {alignment:?}");
                let mut copy = GgufWriter::copy_of(&model)
                    .without("general.alignment")
                    .sort_tensors_by_key(order);
                if let Some(alignment) = alignment {
                    copy = copy.alignment(alignment);
                }
                let path = folder.path().join("copy.gguf");
                copy.write(&path).unwrap();
                for &backend in READERS.iter() {
                    assert_eq!(run(&path, backend), expected, "{what} {backend:?}");
                }
                for first_holds_tensors in [true, false] {
                    let shards = copy
                        .write_shards(folder.path(), "shards", 3, first_holds_tensors)
                        .unwrap();
                    let found = run(&shards[0], READERS[0]);
                    assert_eq!(found, expected, "{what} in shards");
                }
            }
        }
    }
}

/// Where a tensor goes in a file, by its place before and its name.
type Order = fn(usize, &str) -> (u64, String);

fn hash(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

#[test]
fn smollm2_gives_the_same_bits_however_it_is_run() {
    if let Some(model) = real_model(SMOLLM2) {
        check(&model, &prompts("real/smollm2-135m-q4_1-exact.json"));
    }
}

#[test]
fn gemma3_gives_the_same_bits_however_it_is_run() {
    if let Some(model) = real_model(GEMMA3) {
        check(&model, &prompts("real/gemma3-270m-q4_k_m-exact.json"));
    }
}
