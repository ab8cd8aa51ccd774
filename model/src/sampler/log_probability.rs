//! Exact log-probabilities of a row of logits.

use super::candidates::{Candidate, Candidates};

/// The log-probability of token `id`: its logit minus the logarithm of the sum of
/// all exponentials, in 64 bits. −∞ for an id outside the row.
pub fn log_probability(logits: &[f32], id: u32) -> f64 {
    let Some(&logit) = logits.get(id as usize) else {
        return f64::NEG_INFINITY;
    };
    Normaliser::of(logits).log_probability(Candidate::new(id, logit))
}

/// The `k` likeliest tokens and their log-probabilities, likeliest first; among
/// equals, the lowest id.
pub fn top_log_probabilities(logits: &[f32], k: usize) -> Vec<(u32, f32)> {
    if k == 0 || logits.is_empty() {
        return Vec::new();
    }
    let mut candidates = Candidates::new(k, logits.len());
    candidates.select(all(logits));
    let normaliser = Normaliser::of(logits);
    let entry = |&one: &Candidate| (one.id, normaliser.log_probability(one) as f32);
    candidates.as_slice().iter().map(entry).collect()
}

fn all(logits: &[f32]) -> impl Iterator<Item = Candidate> {
    let pairs = (0..).zip(logits);
    pairs.map(|(id, &logit)| Candidate::new(id, logit))
}

/// The logarithm of the sum of exponentials, in two parts: the greatest logit, so
/// that nothing overflows, and the rest, which would be lost next to a large one.
struct Normaliser {
    greatest: f64,
    rest: f64,
}

impl Normaliser {
    fn of(logits: &[f32]) -> Self {
        let greatest = all(logits).map(|one| one.logit).fold(f32::MIN, f32::max);
        let greatest = f64::from(greatest);
        let relative = all(logits).map(|one| (f64::from(one.logit) - greatest).exp());
        Self {
            greatest,
            rest: relative.sum::<f64>().ln(),
        }
    }

    fn log_probability(&self, candidate: Candidate) -> f64 {
        (f64::from(candidate.logit) - self.greatest) - self.rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_probabilities_are_those_computed_by_hand() {
        // e^0 + e^ln2 + e^ln5 = 8.
        let logits = [0.0, 2f32.ln(), 5f32.ln()];
        for (id, share) in [(0, 1.0), (1, 2.0), (2, 5.0f64)] {
            let expected = (share / 8.0).ln();
            assert!((log_probability(&logits, id) - expected).abs() < 1e-6);
        }
        let top = top_log_probabilities(&logits, 2);
        assert_eq!([top[0].0, top[1].0], [2, 1]);
        assert!((top[0].1 - (5f32 / 8.0).ln()).abs() < 1e-6);
        assert_eq!(log_probability(&logits, 3), f64::NEG_INFINITY);
    }

    #[test]
    fn large_logits_do_not_overflow() {
        let logits = [3000.0, 3000.0, -3000.0];
        assert!((log_probability(&logits, 0) - 0.5f64.ln()).abs() < 1e-12);
        assert!((log_probability(&logits, 2) + 6000.0).abs() < 1.0);
    }

    #[test]
    fn infinite_and_missing_logits_give_numbers_or_nothing() {
        for logits in [
            [f32::NAN, f32::NAN],
            [f32::INFINITY, f32::INFINITY],
            [f32::NEG_INFINITY, f32::NEG_INFINITY],
        ] {
            assert!((log_probability(&logits, 1) - 0.5f64.ln()).abs() < 1e-12);
        }
        assert!(top_log_probabilities(&[], 5).is_empty());
        assert!(top_log_probabilities(&[1.0], 0).is_empty());
        assert_eq!(top_log_probabilities(&[1.0], 5), [(0, 0.0)]);
    }
}
