//! What leaves candidates out, and what changes how likely they are.
//!
//! All of these leave one candidate at least. Candidates come and stay sorted,
//! likeliest first.

use super::candidates::{Candidate, Candidates};
use super::options::SamplerOptions;

/// Below this a draw is as good as greedy, and quotients stay finite.
const TEMPERATURE_MIN: f64 = 1e-6;

/// How likely the candidates are relative to the first, which is the likeliest.
pub(super) fn weights(candidates: &[Candidate]) -> impl Iterator<Item = f64> {
    let greatest = greatest(candidates);
    let relative = candidates
        .iter()
        .map(move |one| f64::from(one.logit) - greatest);
    relative.map(f64::exp)
}

fn greatest(candidates: &[Candidate]) -> f64 {
    candidates.first().map_or(0.0, |one| one.logit.into())
}

/// What turns a logit into a surprise in nats, −ln p: the greatest logit plus the
/// logarithm of the sum of weights.
fn normaliser(candidates: &[Candidate]) -> f64 {
    greatest(candidates) + weights(candidates).sum::<f64>().ln()
}

/// The entropy of the candidates, in nats.
fn entropy(candidates: &[Candidate]) -> f64 {
    let normaliser = normaliser(candidates);
    let terms = candidates.iter().map(|one| {
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
pub(super) fn surprise(candidates: &[Candidate], candidate: Candidate) -> f64 {
    (normaliser(candidates) - f64::from(candidate.logit)) / std::f64::consts::LN_2
}

/// Nucleus sampling (arXiv:1904.09751): the fewest candidates that reach `top_p`.
pub(super) fn top_p(candidates: &mut Candidates, top_p: f32, min_keep: usize) {
    let all = candidates.as_slice();
    let enough = f64::from(top_p) * weights(all).sum::<f64>();
    let mut reached = 0.0;
    let needed = (1..).zip(weights(all)).find(|&(count, weight)| {
        reached += weight;
        reached >= enough && count >= min_keep
    });
    let count = needed.map_or(all.len(), |(count, _)| count);
    candidates.truncate(count);
}

/// Min-p sampling (arXiv:2407.01082): candidates at least `min_p` times as likely as
/// the first.
pub(super) fn min_p(candidates: &mut Candidates, min_p: f32, min_keep: usize) {
    let likely = weights(candidates.as_slice());
    let count = likely.take_while(|&weight| weight >= f64::from(min_p));
    let count = count.count().max(min_keep);
    candidates.truncate(count);
}

/// Locally typical sampling (arXiv:2202.00666): the candidates whose surprise is
/// nearest to the entropy, until they pass `typical_p`.
pub(super) fn typical_p(candidates: &mut Candidates, typical_p: f32, min_keep: usize) {
    let all = candidates.as_slice();
    let (normaliser, entropy) = (normaliser(all), entropy(all));
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
    let least = greatest(all) - f64::from(n) * variance.sqrt();
    let near = all.iter().take_while(|one| f64::from(one.logit) >= least);
    let count = near.count();
    candidates.truncate(count);
}

/// Exclude top choices: of the candidates at least `threshold` likely all but the last
/// go. By p-e-w, <https://github.com/oobabooga/text-generation-webui/pull/6335>.
pub(super) fn xtc(candidates: &mut Candidates, threshold: f32, min_keep: usize) {
    let all = candidates.as_slice();
    let least = f64::from(threshold) * weights(all).sum::<f64>();
    let likely = weights(all).take_while(|&weight| weight >= least && weight > 0.0);
    let last = likely.count().saturating_sub(1);
    if all.len() - last >= min_keep {
        candidates.drop_first(last);
    }
}

/// Divides by the temperature. With a range it follows the entropy, from the least at
/// certainty to the most where all are equally likely:
/// <https://github.com/ggml-org/llama.cpp/pull/4972>.
pub(super) fn temperature(candidates: &mut Candidates, options: &SamplerOptions) {
    let all = candidates.as_slice();
    let middle = f64::from(options.temperature);
    let range = f64::from(options.dynatemp_range);
    let mut temperature = middle;
    if range > 0.0 {
        if all.len() < 2 {
            return;
        }
        let least = f64::max(middle - range, 0.0);
        let share = (entropy(all) / (all.len() as f64).ln()).clamp(0.0, 1.0);
        let power = share.powf(options.dynatemp_exponent.into());
        temperature = least + (middle + range - least) * power;
    }
    let temperature = temperature.max(TEMPERATURE_MIN);
    candidates.map(|one| (f64::from(one.logit) / temperature) as f32);
}

/// Leaves the candidates whose surprise is at most `limit` bits.
pub(super) fn at_most_surprising(candidates: &mut Candidates, limit: f64) {
    let all = candidates.as_slice();
    let normaliser = normaliser(all);
    let surprise = |one: &Candidate| (normaliser - f64::from(one.logit)) / std::f64::consts::LN_2;
    let count = all.iter().take_while(|one| surprise(one) <= limit).count();
    candidates.truncate(count);
}
