//! How fast a plan would decode, from what has been measured of the drive and the
//! kernels.
//!
//! Reading and computing overlap wherever units go through the ring: a token takes as long
//! as the slower of the two, and reading longer beside computing. Experts are another
//! matter. Which ones a layer needs is known only when it has been routed, so its misses are
//! read while its hits are computed, and nothing else is. How many it misses is known of
//! models that have run before ([`MissCurve`](crate::experts::miss_curve::MissCurve)).

use emel_loader::expert_layout::{EXPERT_PARTS, ExpertUse};
use emel_loader::plan::{ExpertSlotsPlan, Plan, Residency};
use emel_loader::probe::{Curve, STEP_SECONDS, hand_over_seconds};

use crate::blueprint::Blueprint;
use crate::experts::heat::Heat;
use crate::measurements::ComputeRates;

/// What it costs a layer to ask for the experts it misses and to hear of the last, as measured
/// with a mixture in three budgets.
const WAVE_SECONDS: f64 = 2e-4;
/// By how much of the time that is computed the drive falls behind: both go through memory. In
/// profiles of 3 billion weights, half a ring of 8 MiB took 0.14 to 0.18 of the time longer that
/// was computed meanwhile.
const CONTENTION: f64 = 0.16;
/// Steps of the experts of a layer: gate and up, then down.
const EXPERT_STEPS: f64 = 2.0;

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

/// The part of a token's experts that a plan's slots miss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MissShare {
    /// As earlier runs have gone.
    Learnt(f64),
    /// If all are as likely to be chosen. Where routing prefers some it is less.
    Even(f64),
}

impl MissShare {
    /// That of `planned`, by what is known of the model.
    pub fn new(planned: &ExpertSlotsPlan, learnt: Option<&Heat>) -> Self {
        let experts = planned.layout.experts().max(1);
        let resident_share = planned.slots.min(experts) as f64 / experts as f64;
        let counted = learnt.and_then(|heat| heat.misses.miss_share(resident_share));
        counted.map_or(Self::Even(1.0 - resident_share), Self::Learnt)
    }

    /// The number.
    pub fn value(self) -> f64 {
        match self {
            Self::Learnt(share) | Self::Even(share) => share,
        }
    }

    /// Bytes of `planned` that are read for a token.
    pub fn read_bytes(self, planned: &ExpertSlotsPlan) -> u64 {
        match self {
            Self::Learnt(share) => (share * planned.bytes_per_token() as f64) as u64,
            Self::Even(_) => planned.expected_bytes_per_token(),
        }
    }

    /// Whether what is predicted with it is reached at least.
    pub fn is_lower_bound(self) -> bool {
        matches!(self, Self::Even(share) if share > 0.0)
    }
}

impl Prediction {
    /// The prediction for a blueprint, if `rates` has the formats of its weights and, where it
    /// streams, its drive has been measured.
    pub fn new(
        blueprint: &Blueprint,
        rates: &ComputeRates,
        misses: Option<MissShare>,
    ) -> Option<Self> {
        let plan = &blueprint.plan;
        let (rate, curve) = match plan.streams() {
            true => (
                drive_bytes_per_second(blueprint)?,
                blueprint.settings.drive.as_ref()?,
            ),
            // Nothing is read, from whatever drive.
            false => (f64::INFINITY, &Curve { points: Vec::new() }),
        };
        let streamed_bytes = plan.streamed_bytes() as f64;
        let units = Seconds {
            reading: streamed_bytes / rate
                + hand_over_seconds(streamed_bytes, plan.slot_bytes as u64, plan.slots),
            computing: units_compute_seconds(blueprint, rates)? * (1.0 + streamed_share(plan))
                + unit_steps(plan) as f64 * STEP_SECONDS,
        };
        let mut seconds = units.overlapped();
        let mut all = units;
        let planned = plan.expert_slots.as_ref();
        let miss_share = misses.map_or(0.0, MissShare::value);
        for (mixture, experts) in blueprint.program.expert_uses.iter().enumerate() {
            let bytes = planned.map_or(0, |it| it.layout.expert_bytes(mixture));
            let layer = Layer {
                used: experts.used,
                computing: expert_compute_seconds(blueprint, rates, experts)?,
                reading: &|misses| wave_seconds(curve, bytes, misses),
            };
            let steps_seconds = EXPERT_STEPS * STEP_SECONDS;
            seconds += layer.seconds(miss_share) + steps_seconds;
            all.reading += experts.used as f64 * miss_share * wave_seconds(curve, bytes, 1);
            all.computing += experts.used as f64 * layer.computing + steps_seconds;
        }
        Some(Self {
            tokens_per_second: 1.0 / seconds,
            read_seconds: all.reading,
            compute_seconds: all.computing,
        })
    }
}

/// Time in which some experts of so many bytes land that are asked for together, with a
/// drive that has nothing else to do before and after.
fn wave_seconds(curve: &Curve, expert_bytes: u64, experts: usize) -> f64 {
    let part_bytes = expert_bytes / EXPERT_PARTS as u64;
    let rate = wave_bytes_per_second(curve, part_bytes, experts);
    let rate = rate.unwrap_or(f64::MAX);
    (experts as u64 * expert_bytes) as f64 / rate
}

/// What a drive gives while it reads some experts in parts of so many bytes: as much as to a
/// ring of twice as many slots, half of which are in flight.
fn wave_bytes_per_second(curve: &Curve, part_bytes: u64, experts: usize) -> Option<f64> {
    curve.bytes_per_second(part_bytes, 2 * EXPERT_PARTS * experts)
}

/// What it takes to read and to compute something.
#[derive(Debug, Clone, Copy)]
struct Seconds {
    reading: f64,
    computing: f64,
}

impl Seconds {
    /// If one goes on beside the other.
    fn overlapped(self) -> f64 {
        self.computing
            .max(self.reading + CONTENTION * self.computing)
    }
}

/// Products of a token, but for experts': those of a matrix's runs of rows, one for each.
fn unit_steps(plan: &Plan) -> usize {
    plan.units.iter().map(|unit| unit.parts.len()).sum()
}

/// The part of the units' bytes that are read in every pass. They go through memory twice,
/// when they are read and when they are computed on, and memory is what computing waits for.
fn streamed_share(plan: &Plan) -> f64 {
    let all: u64 = plan.units.iter().map(|unit| unit.extent.bytes).sum();
    plan.streamed_bytes() as f64 / all.max(1) as f64
}

/// A mixture of which a token goes to `used` experts.
struct Layer<'a> {
    used: usize,
    /// Time to compute one of them.
    computing: f64,
    /// Time in which so many land.
    reading: &'a dyn Fn(usize) -> f64,
}

impl Layer<'_> {
    /// Its time where each expert is missing with the chance `miss_share`, on average: hits
    /// are computed while misses are read, and the last of these when it has landed.
    fn seconds(&self, miss_share: f64) -> f64 {
        let computing = self.used as f64 * self.computing;
        let mut seconds = 0.0;
        for (misses, chance) in chances(self.used, miss_share) {
            let reading = match misses {
                0 => 0.0,
                _ => WAVE_SECONDS + (self.reading)(misses) + self.computing,
            };
            seconds += chance * computing.max(reading);
        }
        seconds
    }
}

/// How likely each number of misses is (the binomial distribution), in logarithms: of thousands
/// of experts the ways to choose some are more than a float holds.
fn chances(used: usize, miss_share: f64) -> impl Iterator<Item = (usize, f64)> {
    let (miss, hit) = (miss_share.ln(), (1.0 - miss_share).ln());
    // Without any, their logarithm does not count, though it be infinite.
    let times = |count: usize, one: f64| if count == 0 { 0.0 } else { count as f64 * one };
    let mut ways = 0.0_f64;
    (0..=used).map(move |misses| {
        let hits = used - misses;
        let chance = (ways + times(misses, miss) + times(hits, hit)).exp();
        ways += (hits as f64 / (misses + 1) as f64).ln();
        (misses, chance)
    })
}

/// Tokens per second in two digits, which is what a prediction is worth.
pub fn rounded(speed: f64) -> String {
    match speed {
        9.95.. => format!("{speed:.0}"),
        0.995.. => format!("{speed:.1}"),
        _ => format!("{speed:.2}"),
    }
}

/// What the drive gives to a blueprint's ring, or else to its slots for experts, if it
/// streams and the drive has been measured.
pub fn drive_bytes_per_second(blueprint: &Blueprint) -> Option<f64> {
    let plan = &blueprint.plan;
    let curve = blueprint.settings.drive.as_ref()?;
    match &plan.expert_slots {
        _ if plan.slots > 0 => curve.bytes_per_second(mean_read_bytes(plan), plan.slots),
        Some(experts) => wave_bytes_per_second(curve, expert_read_bytes(experts), experts.used),
        None => None,
    }
}

/// Bytes of a part of an expert, on average.
fn expert_read_bytes(experts: &ExpertSlotsPlan) -> u64 {
    let reads = experts.layout.mixtures() * experts.used * EXPERT_PARTS;
    experts.bytes_per_token() / reads.max(1) as u64
}

/// Bytes of a streamed unit, on average.
fn mean_read_bytes(plan: &Plan) -> u64 {
    let streamed = plan
        .residency
        .iter()
        .filter(|it| **it == Residency::Streamed);
    plan.streamed_bytes() / (streamed.count() as u64).max(1)
}

/// Time in which the weights that every token goes through are computed on.
fn units_compute_seconds(blueprint: &Blueprint, rates: &ComputeRates) -> Option<f64> {
    let uses = blueprint.program.uses.iter();
    let seconds = uses.map(|weight| tensor_seconds(blueprint, rates, weight.tensor));
    seconds.sum()
}

/// The same for one expert of a mixture.
fn expert_compute_seconds(
    blueprint: &Blueprint,
    rates: &ComputeRates,
    experts: &ExpertUse,
) -> Option<f64> {
    let catalog = &blueprint.catalog;
    let of_part = |part| {
        let tensor = experts.tensor(catalog, part, 0);
        let rate = rates.of(tensor.tensor_type.name())?;
        Some(experts.extent(catalog, part, 0).bytes as f64 / rate)
    };
    (0..EXPERT_PARTS).map(of_part).sum()
}

fn tensor_seconds(blueprint: &Blueprint, rates: &ComputeRates, tensor: usize) -> Option<f64> {
    let tensor = &blueprint.catalog.tensors()[tensor];
    let rate = rates.of(tensor.tensor_type.name())?;
    Some(tensor.extent.bytes as f64 / rate)
}

#[cfg(test)]
mod tests {
    use emel_loader::probe::Point;

    use super::*;

    #[test]
    fn a_speed_has_two_digits() {
        let speeds = [0.2, 0.994, 0.996, 3.96, 9.94, 9.96, 41.7];
        let expected = ["0.20", "0.99", "1.0", "4.0", "9.9", "10", "42"];
        assert_eq!(speeds.map(rounded), expected);
    }

    fn layer(used: usize, computing: f64) -> Layer<'static> {
        let reading = &|misses: usize| misses as f64 * 7e-4;
        Layer {
            used,
            computing,
            reading,
        }
    }

    #[track_caller]
    fn assert_near(found: f64, expected: f64) {
        assert!(
            (found / expected - 1.0).abs() < 1e-9,
            "{found}, not {expected}"
        );
    }

    #[test]
    fn experts_in_memory_are_only_computed_and_others_are_read_first() {
        assert_near(layer(8, 1e-4).seconds(0.0), 8e-4);
        let all = WAVE_SECONDS + 8.0 * 7e-4 + 1e-4;
        assert_near(layer(8, 1e-4).seconds(1.0), all);
    }

    #[test]
    fn misses_of_a_layer_hide_behind_its_hits_only_as_far_as_these_take() {
        let one_of_two = WAVE_SECONDS + 7e-4 + 1e-4;
        let both = WAVE_SECONDS + 2.0 * 7e-4 + 1e-4;
        let expected = 0.25 * 2e-4 + 0.5 * one_of_two + 0.25 * both;
        assert_near(layer(2, 1e-4).seconds(0.5), expected);
        assert_near(layer(8, 1e-2).seconds(0.1), 8e-2);
    }

    #[test]
    fn computing_hides_behind_reading_but_for_what_it_takes_from_memory() {
        let overlapped = |reading, computing| Seconds { reading, computing }.overlapped();
        assert_near(overlapped(3.0, 1.0), 3.0 + CONTENTION);
        assert_near(overlapped(1.0, 3.0), 3.0);
        assert_near(overlapped(0.0, 2.0), 2.0);
    }

    #[test]
    fn few_experts_land_more_slowly_than_many_for_each_of_them() {
        let point = |depth, bytes_per_second| Point {
            block_bytes: 1 << 20,
            depth,
            bytes_per_second,
        };
        let curve = Curve {
            points: vec![point(6, 1e9), point(48, 3e9)],
        };
        let bytes = 3 << 20;
        assert_near(wave_seconds(&curve, bytes, 1), bytes as f64 / 1e9);
        assert_near(wave_seconds(&curve, bytes, 8), 8.0 * bytes as f64 / 3e9);
    }

    #[test]
    fn numbers_of_misses_are_as_likely_as_pascals_triangle_says_also_of_thousands() {
        for ((_, found), ways) in chances(4, 0.5).zip([1.0, 4.0, 6.0, 4.0, 1.0]) {
            assert_near(found, ways / 16.0);
        }
        for share in [0.0, 1e-9, 0.3, 0.5, 1.0] {
            let all: f64 = chances(4096, share).map(|(_, chance)| chance).sum();
            assert!((all - 1.0).abs() < 1e-6, "{share}: {all}");
            let mean: f64 = chances(4096, share)
                .map(|(it, chance)| it as f64 * chance)
                .sum();
            assert!((mean - 4096.0 * share).abs() < 1e-2, "{share}: {mean}");
        }
    }
}
