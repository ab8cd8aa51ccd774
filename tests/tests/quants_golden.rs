//! Every weight format against llama.cpp's logits on a tiny random model quantised to it.
//!
//! llama.cpp quantises activations too, and otherwise than these kernels do, so the numbers are
//! near and not equal: its own logits lie up to 0.07 from those of f32 activations.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use emel::{KvType, Settings};
use emel_tests::fixtures::{fixture, json};
use emel_tests::run::{logits, settings};
use serde::Deserialize;

/// Where the models are that are too large for the repository.
const FOLDER_VARIABLE: &str = "EMEL_QUANT_FIXTURES";

/// How far a probe's logit may be from the golden one.
const PROBE_LIMIT: f64 = 0.12;

/// The lead over the runner-up above which the golden argmax must be found.
const CLEAR_MARGIN: f64 = 0.05;

/// Models in `tests/fixtures/quants/`.
const COMMITTED: [&str; 11] = [
    "Q2_K", "Q3_K", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "TQ1_0",
    "TQ2_0",
];

#[derive(Deserialize)]
struct Golden {
    tokens: Vec<u32>,
    probe_ids: Vec<usize>,
    /// Per position: argmax, its logit, the runner-up's logit, the probes' logits.
    rows: Vec<Vec<f64>>,
}

/// Runs the model; returns the greatest difference of a probe's logit, and the positions where a
/// clear argmax was not found.
fn differences(model: &Path, golden: &Golden) -> (f64, Vec<usize>) {
    let settings = Settings {
        kv_type: KvType::F32,
        ..settings(1 << 30, golden.tokens.len())
    };
    let rows = logits(model, settings, &golden.tokens).unwrap();
    assert_eq!(rows.len(), golden.rows.len());
    let mut greatest: f64 = 0.0;
    let mut wrong = Vec::new();
    for (position, (row, expected)) in rows.iter().zip(&golden.rows).enumerate() {
        assert!(row.iter().all(|logit| logit.is_finite()));
        for (&id, &logit) in golden.probe_ids.iter().zip(&expected[3..]) {
            greatest = greatest.max((f64::from(row[id]) - logit).abs());
        }
        let argmax = (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b]));
        let clear = expected[1] - expected[2] > CLEAR_MARGIN;
        if clear && argmax != Some(expected[0] as usize) {
            wrong.push(position);
        }
    }
    (greatest, wrong)
}

fn check(name: &str, model: &Path, golden: &Golden) {
    let (greatest, wrong) = differences(model, golden);
    eprintln!("{name}: probe logits within {greatest:.4}");
    assert!(wrong.is_empty(), "{name}: another argmax at {wrong:?}");
    assert!(
        greatest <= PROBE_LIMIT,
        "{name}: a probe logit is {greatest} from the golden one"
    );
}

fn goldens() -> BTreeMap<String, Golden> {
    json("quants/golden.json")
}

#[test]
fn small_formats_give_the_golden_logits() {
    let goldens = goldens();
    for format in COMMITTED {
        let name = format!("llama-{format}.gguf");
        check(&name, &fixture("quants").join(&name), &goldens[&name]);
    }
}

#[test]
fn large_formats_give_the_golden_logits() {
    let Some(folder) = std::env::var_os(FOLDER_VARIABLE).map(PathBuf::from) else {
        eprintln!("skipped: {FOLDER_VARIABLE} names no folder with the larger models");
        return;
    };
    for (name, golden) in goldens() {
        if COMMITTED
            .iter()
            .all(|format| name != format!("llama-{format}.gguf"))
        {
            check(&name, &folder.join(&name), &golden);
        }
    }
}
