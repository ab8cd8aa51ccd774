//! How fast a plan would decode, from what has been measured of the drive and the
//! kernels.
//!
//! Reading and computing overlap, so a token takes as long as the slower of the two, and
//! what cannot overlap: the ring's slots run dry or full wherever units that stay and
//! units that stream do not come in turns.

use emel_loader::expert_slots::EXPERT_PARTS;
use emel_loader::plan::{ExpertSlotsPlan, Plan, Residency};
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
        let (bytes, reads) = token_reads(&blueprint.plan);
        let read_seconds = bytes / rate + reads * READ_SECONDS;
        Some(Self {
            tokens_per_second: 1.0 / token_seconds(read_seconds, compute_seconds),
            read_seconds,
            compute_seconds,
        })
    }
}

/// What the drive gives to a blueprint's ring, or else to its slots for experts, if it
/// streams and the drive has been measured.
pub fn drive_bytes_per_second(blueprint: &Blueprint) -> Option<f64> {
    let plan = &blueprint.plan;
    let curve = blueprint.settings.drive.as_ref()?;
    match &plan.expert_slots {
        _ if plan.slots > 0 => curve.bytes_per_second(mean_read_bytes(plan), plan.slots),
        Some(experts) => {
            curve.bytes_per_second(expert_read_bytes(experts), experts.used * EXPERT_PARTS)
        }
        None => None,
    }
}

/// Bytes that a token reads, and in how many reads; of experts, if all are as likely to be
/// chosen.
fn token_reads(plan: &Plan) -> (f64, f64) {
    let units = plan.streamed_bytes() as f64;
    let unit_reads = units / mean_read_bytes(plan).max(1) as f64;
    let Some(planned) = &plan.expert_slots else {
        return (units, unit_reads);
    };
    let experts = planned.expected_bytes_per_token() as f64;
    let expert_reads = experts / expert_read_bytes(planned).max(1) as f64;
    (units + experts, unit_reads + expert_reads)
}

/// Bytes of a part of an expert, on average.
fn expert_read_bytes(experts: &ExpertSlotsPlan) -> u64 {
    let reads = experts.layout.mixtures() * experts.used * EXPERT_PARTS;
    experts.bytes_per_token() / reads.max(1) as u64
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
    let program = &blueprint.program;
    let every_token = program.uses.iter().map(|weight| (weight.tensor, 1.0));
    let experts = program.expert_uses.iter().flat_map(|mixture| {
        let part = mixture.used as f64 / mixture.experts.max(1) as f64;
        mixture.tensors.map(|tensor| (tensor, part))
    });
    let mut seconds = 0.0;
    for (tensor, part) in every_token.chain(experts) {
        let tensor = &blueprint.catalog.tensors()[tensor];
        let rate = rates.of(tensor.tensor_type.name())?;
        seconds += part * tensor.extent.bytes as f64 / rate;
    }
    Some(seconds)
}
