//! Every architecture against llama.cpp's logits on a tiny random model of it.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::collections::BTreeMap;
use std::path::Path;

use emel::{KvType, RamBudget, Settings};
use emel_tests::fixtures::{fixture, json};
use emel_tests::gguf_writer::{Field, GgufWriter};
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

/// Longer than the original context of any model, as it was for the goldens of LongRoPE.
const CONTEXT: usize = 512;

fn check(name: &str, tolerance: f64) {
    check_file(&fixture("arch").join(name), name, tolerance);
}

/// A model against the golden of this name.
fn check_file(model: &Path, name: &str, tolerance: f64) {
    let goldens: BTreeMap<String, Golden> = json("arch/golden.json");
    let golden = &goldens[name];
    let resident = Settings {
        kv_type: KvType::F32,
        all_logits: true,
        ..settings(1 << 30, CONTEXT)
    };
    // Streamed, so that the goldens hold for what a small budget computes.
    let streamed = with_smallest_budget(model, &resident);
    let rows = logits(model, streamed, &golden.tokens).unwrap();
    check_rows(name, golden, &rows, tolerance);
    let whole = logits(model, resident.clone(), &golden.tokens).unwrap();
    assert!(bits(&rows) == bits(&whole), "{name}: streaming shows");

    let resident = Settings {
        all_logits: false,
        ..resident
    };
    let streamed = with_smallest_budget(model, &resident);
    let streams = |settings| {
        let (tokens, usage) = greedy(model, settings, &golden.tokens, golden.greedy.len()).unwrap();
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

/// The matrices of keys and values in one, as converters wrote them before they took
/// them apart: the same numbers, so the same golden.
#[test]
fn deepseek2_in_its_older_layout_matches() {
    const HEADS: usize = 4;
    const PLAIN: usize = 8;
    const LATENT: usize = 16;
    const VALUE: usize = 8;
    let mut writer = GgufWriter::copy_of(&fixture("arch/deepseek2.gguf"));
    for key in ["key_length", "value_length", "head_count_kv"] {
        writer = writer.without(&format!("deepseek2.attention.{key}"));
    }
    for key in ["key_length_mla", "value_length_mla"] {
        writer = writer.without(&format!("deepseek2.attention.{key}"));
    }
    for (key, number) in [
        ("key_length", 12),
        ("value_length", 8),
        ("head_count_kv", 4),
    ] {
        writer = writer.field(&format!("deepseek2.attention.{key}"), Field::U32(number));
    }
    let keys = writer.take_f32("attn_k_b.weight");
    let values = writer.take_f32("attn_v_b.weight");
    assert_eq!((keys.len(), values.len()), (3, 3));
    for ((name, keys), (_, values)) in keys.iter().zip(&values) {
        let mut both = Vec::new();
        for head in 0..HEADS {
            // Turned, because it took queries to latent vectors.
            let keys = &keys[head * LATENT * PLAIN..];
            for row in 0..PLAIN {
                both.extend((0..LATENT).map(|column| keys[column * PLAIN + row]));
            }
            both.extend(&values[head * VALUE * LATENT..][..VALUE * LATENT]);
        }
        let name = name.replace("k_b", "kv_b");
        let rows = HEADS * (PLAIN + VALUE);
        writer = writer.f32_tensor(&name, &[LATENT as u64, rows as u64], &both);
    }
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("older.gguf");
    writer.write(&model).unwrap();
    check_file(&model, "deepseek2.gguf", 5e-4);
}
