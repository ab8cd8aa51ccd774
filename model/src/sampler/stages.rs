//! What leaves candidates out, and what changes how likely they are.
//!
//! All of these leave one candidate at least. Candidates come sorted, likeliest first, or
//! in the order of ids: a whole vocabulary is sorted only where a stage needs it.

use super::candidates::{Candidate, Candidates};
use super::options::SamplerOptions;

/// Below this a draw is as good as greedy, and quotients stay finite.
const TEMPERATURE_MIN: f64 = 1e-6;

/// How likely the candidates are relative to the likeliest, in their order.
pub(super) fn weights(candidates: &Candidates) -> impl Iterator<Item = f64> {
    let weight = weight(candidates);
    candidates.as_slice().iter().map(weight)
}

/// How likely a candidate is relative to the likeliest of these.
fn weight(candidates: &Candidates) -> impl Fn(&Candidate) -> f64 + use<> {
    let greatest = candidates.greatest();
    move |one| (f64::from(one.logit) - greatest).exp()
}

/// What turns a logit into a surprise in nats, −ln p: the greatest logit plus the
/// logarithm of the sum of weights.
fn normaliser(candidates: &Candidates) -> f64 {
    candidates.greatest() + weights(candidates).sum::<f64>().ln()
}

/// The entropy of the candidates, in nats.
fn entropy(candidates: &Candidates) -> f64 {
    let normaliser = normaliser(candidates);
    let terms = candidates.as_slice().iter().map(|one| {
        let surprise = normaliser - f64::from(one.logit);
        // Nothing is as improbable as e^−800, and zero times much is no number.
        let probability = (-surprise).exp();
        if probability > 0.0 {
            probability * surprise
        } else {
            0.0
        }
    });
    terms.sum()
}

/// The surprise of one of the candidates, −log₂ p.
pub(super) fn surprise(candidates: &Candidates, candidate: Candidate) -> f64 {
    (normaliser(candidates) - f64::from(candidate.logit)) / std::f64::consts::LN_2
}

/// Nucleus sampling (arXiv:1904.09751): the fewest candidates that reach `top_p`.
pub(super) fn top_p(candidates: &mut Candidates, top_p: f32, min_keep: usize) {
    let total = weights(candidates).sum::<f64>();
    let enough = f64::from(top_p) * total;
    if !candidates.is_sorted() {
        // All that are less likely than this have less than 1 − top_p together: the others
        // are enough, and few to sort.
        let count = candidates.as_slice().len() as f64;
        let weight = weight(candidates);
        let least = (1.0 - f64::from(top_p)) * total / count;
        candidates.keep_likely(min_keep, |one| weight(one) >= least);
        candidates.sort();
    }
    let mut reached = 0.0;
    let needed = (1..).zip(weights(candidates)).find(|&(count, weight)| {
        reached += weight;
        reached >= enough && count >= min_keep
    });
    if let Some((count, _)) = needed {
        candidates.truncate(count);
    }
}

/// Min-p sampling (arXiv:2407.01082): candidates at least `min_p` times as likely as
/// the first.
pub(super) fn min_p(candidates: &mut Candidates, min_p: f32, min_keep: usize) {
    let weight = weight(candidates);
    candidates.keep_likely(min_keep, |one| weight(one) >= f64::from(min_p));
}

/// Locally typical sampling (arXiv:2202.00666): the candidates whose surprise is
/// nearest to the entropy, until they pass `typical_p`.
pub(super) fn typical_p(candidates: &mut Candidates, typical_p: f32, min_keep: usize) {
    let (normaliser, entropy) = (normaliser(candidates), entropy(candidates));
    let surprise = |one: Candidate| normaliser - f64::from(one.logit);
    candidates.keep_by(
        |one| (surprise(one) - entropy).abs(),
        |sorted| {
            let mut reached = 0.0;
            let needed = (1..).zip(sorted).find(|&(count, &one)| {
                reached += (-surprise(one)).exp();
                reached > f64::from(typical_p) && count >= min_keep
            });
            needed.map_or(sorted.len(), |(count, _)| count)
        },
    );
}

/// Top-nσ sampling (arXiv:2411.07641): logits at most `n` standard deviations below the
/// greatest. Tokens that are ruled out do not count for the deviation.
pub(super) fn top_n_sigma(candidates: &mut Candidates, n: f32) {
    let all = candidates.as_slice();
    let logits = || {
        let possible = all.iter().filter(|one| one.logit > f32::MIN);
        possible.map(|one| f64::from(one.logit))
    };
    let count = logits().count().max(1) as f64;
    let mean = logits().sum::<f64>() / count;
    let variance = logits().map(|logit| (logit - mean).powi(2)).sum::<f64>() / count;
    let least = candidates.greatest() - f64::from(n) * variance.sqrt();
    candidates.keep_likely(1, |one| f64::from(one.logit) >= least);
}

/// Exclude top choices: of the candidates at least `threshold` likely all but the last
/// go. By p-e-w, <https://github.com/oobabooga/text-generation-webui/pull/6335>.
pub(super) fn xtc(candidates: &mut Candidates, threshold: f32, min_keep: usize) {
    let least = f64::from(threshold) * weights(candidates).sum::<f64>();
    let weight = weight(candidates);
    candidates.drop_likely(min_keep, |one| {
        let weight = weight(one);
        weight >= least && weight > 0.0
    });
}

/// Divides by the temperature. With a range it follows the entropy, from the least at
/// certainty to the most where all are equally likely:
/// <https://github.com/ggml-org/llama.cpp/pull/4972>.
pub(super) fn temperature(candidates: &mut Candidates, options: &SamplerOptions) {
    let count = candidates.as_slice().len();
    let middle = f64::from(options.temperature);
    let range = f64::from(options.dynatemp_range);
    let mut temperature = middle;
    if range > 0.0 {
        if count < 2 {
            return;
        }
        let least = f64::max(middle - range, 0.0);
        let share = (entropy(candidates) / (count as f64).ln()).clamp(0.0, 1.0);
        let power = share.powf(options.dynatemp_exponent.into());
        temperature = least + (middle + range - least) * power;
    }
    let temperature = temperature.max(TEMPERATURE_MIN);
    candidates.map(|one| (f64::from(one.logit) / temperature) as f32);
}

/// Leaves the candidates whose surprise is at most `limit` bits.
pub(super) fn at_most_surprising(candidates: &mut Candidates, limit: f64) {
    let normaliser = normaliser(candidates);
    let surprise = |one: &Candidate| (normaliser - f64::from(one.logit)) / std::f64::consts::LN_2;
    candidates.keep_likely(1, |one| surprise(one) <= limit);
}
