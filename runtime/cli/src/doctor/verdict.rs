//! What the drive, the memory and the processor come to, in a sentence.

use std::path::PathBuf;

use serde::Serialize;

use super::Drive;
use crate::plan;
use crate::remedies::in_options;
use crate::units::in_gibibytes;
use emel::internals::blueprint::{Blueprint, Settings};
use emel::internals::budget::in_binary_units;
use emel::internals::measurements::ComputeRates;
use emel::internals::prediction::{self, MissShare, Prediction, rounded};

/// Usual sizes of models, in billions of parameters.
const USUAL_SIZES: [u64; 2] = [8, 30];
/// Bytes of a billion parameters in Q4_K_M, which has 4.85 bits for each.
const BYTES_OF_BILLION: u64 = 606_250_000;
/// What of a budget is not for weights, as a divisor.
const OTHER_SHARE: u64 = 8;

#[derive(Serialize)]
pub(super) struct Verdict {
    pub(super) text: String,
    /// What the drive gives to a run.
    drive_bytes_per_second: Option<f64>,
    /// Of the model, if there is one and enough has been measured.
    tokens_per_second: Option<f64>,
}

impl Verdict {
    /// That of `model` with `settings`, or, where there is no model, of usual ones.
    pub(super) fn new(
        model: Option<&PathBuf>,
        drive: &Drive,
        settings: Settings,
        rates: Option<&ComputeRates>,
    ) -> Self {
        let best = settings.drive.as_ref().and_then(|curve| curve.knee());
        let rate = best.map(|point| point.bytes_per_second);
        let Some(model) = model else {
            return Self {
                text: of_usual_models(rate, settings.ram_budget.bytes(0).ok(), drive),
                drive_bytes_per_second: rate,
                tokens_per_second: None,
            };
        };
        let planned = plan::of_run(model, settings, None);
        let (text, rate, tokens_per_second) = match &planned {
            Err(error) => {
                let text = format!("this model does not run: {}", in_options(error));
                (text, rate, None)
            }
            Ok(blueprint) => {
                let rate = prediction::drive_bytes_per_second(blueprint).or(rate);
                let (text, speed) = of_model(blueprint, rate, rates, drive);
                (text, rate, speed)
            }
        };
        Self {
            text,
            drive_bytes_per_second: rate,
            tokens_per_second,
        }
    }
}

/// The drive's rate, or why there is none.
fn rate_text(rate: Option<f64>, drive: &Drive) -> String {
    match (rate, &drive.problem) {
        (Some(rate), _) => format!("the drive gives {:.1} GiB/s", in_gibibytes(rate)),
        (None, Some(_)) => "the drive is not measured (see below)".to_owned(),
        (None, None) => "the drive was too busy to be measured".to_owned(),
    }
}

fn of_model(
    blueprint: &Blueprint,
    rate: Option<f64>,
    rates: Option<&ComputeRates>,
    drive: &Drive,
) -> (String, Option<f64>) {
    let plan = &blueprint.plan;
    let misses = plan.expert_slots.as_ref().map(|experts| {
        let learnt = blueprint.learnt().unwrap_or_default();
        MissShare::new(experts, learnt.as_ref())
    });
    let predicted = rates.and_then(|rates| Prediction::new(blueprint, rates, misses));
    let speed = predicted.map(|it| it.tokens_per_second);
    let about = match misses.is_some_and(MissShare::is_lower_bound) {
        true => "at least",
        false => "about",
    };
    let tokens = speed.map(|speed| format!(": {about} {} tokens/s", rounded(speed)));
    let tokens = tokens.unwrap_or_default();
    let budget = in_binary_units(plan.budget_bytes);
    if !plan.streams() {
        let text = format!("this model fits in {budget}{tokens}; the drive does not matter");
        return (text, speed);
    }
    let of_experts = misses
        .zip(plan.expert_slots.as_ref())
        .map_or(0, |(misses, experts)| misses.read_bytes(experts));
    let read = in_binary_units(plan.streamed_bytes() + of_experts);
    let rate = rate_text(rate, drive);
    let text = format!(
        "this model does not fit in {budget} and runs all the same{tokens}; it reads {read} for each token, and {rate}"
    );
    (text, speed)
}

fn of_usual_models(rate: Option<f64>, budget_bytes: Option<u64>, drive: &Drive) -> String {
    let rate_text = rate_text(rate, drive);
    let Some(budget_bytes) = budget_bytes else {
        return format!("the memory that is available is not known; {rate_text}");
    };
    let budget = in_binary_units(budget_bytes);
    let for_weights = budget_bytes - budget_bytes / OTHER_SHARE;
    let models = USUAL_SIZES.map(|billions| {
        let bytes = billions * BYTES_OF_BILLION;
        let model = format!(
            "model of {billions}B parameters ({} in Q4_K_M)",
            in_binary_units(bytes)
        );
        match (bytes.checked_sub(for_weights).filter(|&it| it > 0), rate) {
            (None, _) => format!("a {model} fits"),
            (Some(read), Some(rate)) => format!(
                "a dense {model} makes {} tokens/s at most",
                rounded(rate / read as f64)
            ),
            (Some(read), None) => format!(
                "a dense {model} reads {} for each token",
                in_binary_units(read)
            ),
        }
    });
    format!("in {budget}, {}; {rate_text}", models.join(", and "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_models_are_judged_by_what_does_not_fit() {
        let drive = Drive::default();
        let verdict = of_usual_models(Some(2.0 * 1024.0_f64.powi(3)), Some(8 << 30), &drive);
        // 18.19e9 bytes, of which 7 GiB stay.
        let expected = "in 8.0 GiB, a model of 8B parameters (4.5 GiB in Q4_K_M) fits, and a dense \
                        model of 30B parameters (16.9 GiB in Q4_K_M) makes 0.20 tokens/s at most; \
                        the drive gives 2.0 GiB/s";
        assert_eq!(verdict, expected);
        let verdict = of_usual_models(None, Some(4 << 30), &drive);
        assert!(
            verdict.contains("of 8B parameters (4.5 GiB in Q4_K_M) reads 1.0 GiB for each token"),
            "{verdict}"
        );
    }
}
