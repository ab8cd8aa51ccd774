//! How fast a plan would decode, from what has been measured of the drive and the
//! kernels.
//!
//! Reading and computing overlap, so a token takes as long as the slower of the two, and
//! what cannot overlap: the ring's slots run dry or full wherever units that stay and
//! units that stream do not come in turns.

use emel_loader::plan::{Plan, Residency};
use emel_loader::probe::READ_SECONDS;

use crate::blueprint::Blueprint;
use crate::measurements::ComputeRates;

/// How fast a plan would decode.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// Tokens of an answer per second.
    pub tokens_per_second: f64,
    /// Time in which a token's bytes are read.
    pub read_seconds: f64,
    /// Time in which a token is computed.
    pub compute_seconds: f64,
}

impl Prediction {
    /// The prediction for a blueprint that streams, if its drive has been measured and
    /// `rates` has the formats of its weights.
    pub fn new(blueprint: &Blueprint, rates: &ComputeRates) -> Option<Self> {
        let compute_seconds = compute_seconds(blueprint, rates)?;
        let rate = drive_bytes_per_second(blueprint)?;
        let bytes = blueprint.plan.streamed_bytes() as f64;
        let reads = bytes / mean_read_bytes(&blueprint.plan).max(1) as f64;
        let read_seconds = bytes / rate + reads * READ_SECONDS;
        Some(Self {
            tokens_per_second: 1.0 / token_seconds(read_seconds, compute_seconds),
            read_seconds,
            compute_seconds,
        })
    }
}

/// What the drive gives to a blueprint's ring, if it streams and the drive has been
/// measured.
pub fn drive_bytes_per_second(blueprint: &Blueprint) -> Option<f64> {
    let plan = &blueprint.plan;
    let curve = blueprint.settings.drive.as_ref()?;
    plan.streams()
        .then(|| curve.bytes_per_second(mean_read_bytes(plan), plan.slots))?
}

/// The longer of the two, and the part of the other that does not hide behind it.
fn token_seconds(read_seconds: f64, compute_seconds: f64) -> f64 {
    let (longer, shorter) = if read_seconds > compute_seconds {
        (read_seconds, compute_seconds)
    } else {
        (compute_seconds, read_seconds)
    };
    longer + shorter * SERIAL_PART
}

/// The part of the shorter time that is added to the longer one, as measured with a model
/// of 1.7 GB in budgets from 500 to 1550 MiB.
const SERIAL_PART: f64 = 0.25;

/// Bytes of a streamed unit, on average.
fn mean_read_bytes(plan: &Plan) -> u64 {
    let streamed = plan
        .residency
        .iter()
        .filter(|it| **it == Residency::Streamed);
    plan.streamed_bytes() / (streamed.count() as u64).max(1)
}

/// Time in which the weights of a pass are gone through; of a mixture of experts, those
/// of the experts that a token goes to.
fn compute_seconds(blueprint: &Blueprint, rates: &ComputeRates) -> Option<f64> {
    let hyperparameters = &blueprint.program.hyperparameters;
    let experts = hyperparameters.experts.max(1) as f64;
    let used = hyperparameters.experts_used.max(1) as f64 / experts;
    let mut seconds = 0.0;
    for weight in &blueprint.program.uses {
        let tensor = &blueprint.catalog.tensors()[weight.tensor];
        // Experts lie one behind the other in a third dimension.
        let part = if tensor.dims.len() > 2 { used } else { 1.0 };
        let rate = rates.of(tensor.tensor_type.name())?;
        seconds += part * tensor.extent.bytes as f64 / rate;
    }
    Some(seconds)
}
