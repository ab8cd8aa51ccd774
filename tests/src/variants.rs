//! What llama.cpp computes for variants of the models in `fixtures/arch`, as the tools in
//! `tests/tools` write it.

use std::io::Read;

use flate2::read::GzDecoder;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::fixtures::fixture;

/// What is left of the largest logit for rounding: Gemma's GELU is a table in llama.cpp.
pub const TOLERANCE: f64 = 2e-3;

/// The largest logit, and for each position the argmax and the logits of the probes.
type Logits = (f64, Vec<f64>, Vec<f64>, Vec<f64>);

/// Results that variants have in common.
#[derive(Debug, Deserialize)]
pub struct Results {
    /// The ids that go in.
    pub tokens: Vec<u32>,
    /// Positions that the context has.
    pub context: usize,
    positions: Vec<usize>,
    probe_ids: Vec<usize>,
    results: Vec<Logits>,
}

impl Results {
    /// Where the logits of the golden positions are not those of a result.
    pub fn difference(&self, rows: &[Vec<f32>], result: usize) -> Option<String> {
        let (largest, first, second, third) = &self.results[result];
        for (&position, expected) in self.positions.iter().zip([first, second, third]) {
            for (&id, &expected) in self.probe_ids.iter().zip(&expected[1..]) {
                let found = f64::from(rows[position][id]);
                if (found - expected).abs() > TOLERANCE * largest.max(1.0) {
                    return Some(format!("position {position}: {found} and not {expected}"));
                }
            }
        }
        None
    }
}

/// The bytes of a compressed file in `tests/fixtures/`.
///
/// # Panics
/// When it is missing or damaged.
pub fn unpacked(name: &str) -> Vec<u8> {
    let file = std::fs::File::open(fixture(name)).expect("a fixture");
    let mut bytes = Vec::new();
    let mut unpacking = GzDecoder::new(file);
    unpacking.read_to_end(&mut bytes).expect("a whole fixture");
    bytes
}

/// A compressed JSON file in `tests/fixtures/`.
///
/// # Panics
/// When it is missing or not of this shape.
pub fn packed_json<T: DeserializeOwned>(name: &str) -> T {
    serde_json::from_slice(&unpacked(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}
