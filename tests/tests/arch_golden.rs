//! Every architecture against llama.cpp's logits on a tiny random model of it.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::collections::BTreeMap;
use std::path::Path;

use emel::{KvType, RamBudget, Settings};
use emel_tests::fixtures::{fixture, json};
use emel_tests::run::{greedy, logits, settings, smallest_budget};
use serde::Deserialize;

#[derive(Deserialize)]
struct Golden {
    tokens: Vec<u32>,
    probe_ids: Vec<usize>,
    /// Per position: argmax, its logit, the runner-up's logit, the probes' logits.
    rows: Vec<Vec<f64>>,
    greedy: Vec<u32>,
}

/// The context that the goldens were computed with, which LongRoPE asks about.
const CONTEXT: usize = 512;

fn check(name: &str, tolerance: f64) {
    let goldens: BTreeMap<String, Golden> = json("arch/golden.json");
    let golden = &goldens[name];
    let model = fixture("arch").join(name);
    let resident = Settings {
        kv_type: KvType::F32,
        all_logits: true,
        ..settings(1 << 30, CONTEXT)
    };
    // Streamed, so that the goldens hold for what a small budget computes.
    let streamed = with_smallest_budget(&model, &resident);
    let rows = logits(&model, streamed, &golden.tokens).unwrap();
    check_rows(name, golden, &rows, tolerance);
    let whole = logits(&model, resident.clone(), &golden.tokens).unwrap();
    assert!(bits(&rows) == bits(&whole), "{name}: streaming shows");

    let resident = Settings {
        all_logits: false,
        ..resident
    };
    let streamed = with_smallest_budget(&model, &resident);
    let streams = |settings| {
        let (tokens, usage) =
            greedy(&model, settings, &golden.tokens, golden.greedy.len()).unwrap();
        assert_eq!(tokens, golden.greedy, "{name}");
        usage.streamed_bytes_per_token
    };
    assert!(
        streams(streamed) > streams(resident),
        "{name} did not stream"
    );
}

fn check_rows(name: &str, golden: &Golden, rows: &[Vec<f32>], tolerance: f64) {
    assert_eq!(rows.len(), golden.rows.len());
    for (position, (row, expected)) in rows.iter().zip(&golden.rows).enumerate() {
        let near = |found: f32, expected: f64, what: &str| {
            let limit = tolerance * expected.abs().max(1.0);
            let difference = (f64::from(found) - expected).abs();
            assert!(
                difference <= limit,
                "{name}, position {position}, {what}: {found} is {difference:e} from {expected}"
            );
        };
        near(row[expected[0] as usize], expected[1], "argmax");
        let mut others = row.clone();
        others.remove(expected[0] as usize);
        let runner_up = others.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        near(runner_up, expected[2], "runner-up");
        for (&id, &logit) in golden.probe_ids.iter().zip(&expected[3..]) {
            near(row[id], logit, "probe");
        }
    }
}

fn with_smallest_budget(model: &Path, settings: &Settings) -> Settings {
    Settings {
        ram_budget: RamBudget::Bytes(smallest_budget(model, settings)),
        ..settings.clone()
    }
}

fn bits(rows: &[Vec<f32>]) -> Vec<u32> {
    rows.iter().flatten().map(|logit| logit.to_bits()).collect()
}

#[test]
fn llama_matches() {
    check("llama.gguf", 5e-4);
}

#[test]
fn llama_with_an_untied_head_matches() {
    check("llama-untied.gguf", 5e-4);
}

#[test]
fn llama_with_rope_frequency_factors_matches() {
    check("llama-rope-freqs.gguf", 5e-4);
}

#[test]
fn llama_with_linear_rope_scaling_matches() {
    check("llama-linear-rope.gguf", 5e-4);
}

#[test]
fn llama_with_yarn_rope_scaling_matches() {
    check("llama-yarn-rope.gguf", 5e-4);
}

#[test]
fn qwen2_matches() {
    check("qwen2.gguf", 5e-4);
}

#[test]
fn qwen3_matches() {
    check("qwen3.gguf", 5e-4);
}

#[test]
fn llama_with_experts_matches() {
    check("mixtral.gguf", 5e-4);
}

#[test]
fn qwen2moe_matches() {
    check("qwen2moe.gguf", 5e-4);
}

#[test]
fn qwen3moe_matches() {
    check("qwen3moe.gguf", 5e-4);
}

#[test]
fn olmoe_matches() {
    check("olmoe.gguf", 5e-4);
}

#[test]
fn granite_matches() {
    check("granite.gguf", 5e-4);
}

#[test]
fn granitemoe_matches() {
    check("granitemoe.gguf", 5e-4);
}

#[test]
fn glm4moe_matches() {
    check("glm4moe.gguf", 5e-4);
}

#[test]
fn minimax_m2_matches() {
    check("minimax-m2.gguf", 5e-4);
}

#[test]
fn gpt_oss_matches() {
    check("gpt-oss.gguf", 5e-4);
}

#[test]
fn phi3_matches() {
    check("phi3.gguf", 5e-4);
}

#[test]
fn gemma2_matches() {
    // The golden used a half-precision table for GELU.
    check("gemma2.gguf", 2e-3);
}

#[test]
fn gemma3_matches() {
    // The golden used a half-precision table for GELU.
    check("gemma3.gguf", 2e-3);
}

#[test]
fn lfm2_matches() {
    check("lfm2.gguf", 5e-4);
}

#[test]
fn lfm2moe_matches() {
    check("lfm2moe.gguf", 5e-4);
}

#[test]
fn qwen35moe_matches() {
    check("qwen35moe.gguf", 5e-4);
}

#[test]
fn deepseek2_matches() {
    check("deepseek2.gguf", 5e-4);
}
