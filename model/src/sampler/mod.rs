//! From logits to a token.
//!
//! The stages and their order are llama.cpp's, so that settings mean the same in
//! both: penalty, top-k, top-p, min-p, temperature, draw. Probabilities in top-p
//! are those among what top-k has left.

mod candidates;
mod history;
mod log_probability;
mod options;

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use candidates::{Candidate, Candidates};
use history::History;
pub use log_probability::{log_probability, top_log_probabilities};
pub use options::{SamplerError, SamplerOptions};

/// Draws the tokens of one sequence. Nothing is allocated after [`Sampler::new`].
#[derive(Debug)]
pub struct Sampler {
    options: SamplerOptions,
    vocabulary_size: usize,
    candidates: Candidates,
    history: History,
    random: Pcg64Mcg,
}

impl Sampler {
    /// A sampler for rows of `vocabulary_size` logits.
    ///
    /// # Errors
    /// When an option is outside of its range.
    pub fn new(options: SamplerOptions, vocabulary_size: usize) -> Result<Self, SamplerError> {
        options.check()?;
        let keep = match options.top_k {
            _ if options.temperature <= 0.0 => 1,
            0 => vocabulary_size,
            top_k => top_k,
        };
        Ok(Self {
            candidates: Candidates::new(keep, vocabulary_size),
            history: History::new(
                options.repeat_penalty,
                options.repeat_last_n,
                vocabulary_size,
            ),
            random: Pcg64Mcg::seed_from_u64(options.seed),
            options,
            vocabulary_size,
        })
    }

    /// Adds a token of the sequence to the history, one of the prompt or one that
    /// was drawn.
    pub fn accept(&mut self, id: u32) {
        self.history.push(id);
    }

    /// Draws a token. Logits that are not numbers count as −∞, and of several that
    /// are equal the greedy choice is the first. Logits beyond the vocabulary size
    /// are not looked at; without any, the token is 0.
    pub fn sample(&mut self, logits: &[f32]) -> u32 {
        let logits = &logits[..logits.len().min(self.vocabulary_size)];
        let history = &self.history;
        let penalised = (0..).zip(logits).map(|(id, &logit)| {
            let Candidate { logit, id } = Candidate::new(id, logit);
            Candidate::new(id, history.penalised(id, logit))
        });
        self.candidates.select(penalised);
        if self.options.temperature > 0.0 {
            self.apply_top_p();
            self.apply_min_p();
            self.draw()
        } else {
            self.candidates.as_slice().first().map_or(0, |one| one.id)
        }
    }

    fn apply_top_p(&mut self) {
        let top_p = f64::from(self.options.top_p);
        if top_p >= 1.0 {
            return;
        }
        let candidates = self.candidates.as_slice();
        let enough = top_p * weights(candidates, 1.0).sum::<f64>();
        let mut reached = 0.0;
        let needed = weights(candidates, 1.0).position(|weight| {
            reached += weight;
            reached >= enough
        });
        let count = needed.map_or(candidates.len(), |last| last + 1);
        self.candidates.truncate(count);
    }

    fn apply_min_p(&mut self) {
        let min_p = f64::from(self.options.min_p);
        if min_p <= 0.0 {
            return;
        }
        let candidates = self.candidates.as_slice();
        let count = weights(candidates, 1.0).take_while(|&weight| weight >= min_p);
        let count = count.count();
        self.candidates.truncate(count);
    }

    fn draw(&mut self) -> u32 {
        let candidates = self.candidates.as_slice();
        let temperature = f64::from(self.options.temperature);
        let total: f64 = weights(candidates, temperature).sum();
        // 53 random bits are what a number below 1 holds.
        let uniform = (self.random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let target = uniform * total;
        let mut reached = 0.0;
        let drawn = weights(candidates, temperature).position(|weight| {
            reached += weight;
            reached > target
        });
        candidates.get(drawn.unwrap_or(0)).map_or(0, |one| one.id)
    }

    /// Heap bytes held, counted against the memory budget.
    pub fn heap_bytes(&self) -> usize {
        self.candidates.heap_bytes() + self.history.heap_bytes()
    }
}

/// How likely the candidates are relative to the first, which is the likeliest.
fn weights(candidates: &[Candidate], temperature: f64) -> impl Iterator<Item = f64> {
    let greatest = f64::from(candidates.first().map_or(0.0, |one| one.logit));
    let relative = candidates
        .iter()
        .map(move |one| f64::from(one.logit) - greatest);
    relative.map(move |logit| (logit / temperature).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every stage off: a draw by the logits as they are.
    const PLAIN: SamplerOptions = SamplerOptions {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repeat_penalty: 1.0,
        repeat_last_n: 0,
        seed: 17,
    };

    /// Logits of the probabilities 0.4, 0.3, 0.2, 0.1, not in order.
    fn logits() -> [f32; 4] {
        [0.2f32.ln(), 0.4f32.ln(), 0.1f32.ln(), 0.3f32.ln()]
    }

    /// How often each of four tokens is drawn in 20,000 draws.
    fn shares(options: SamplerOptions, logits: [f32; 4]) -> [f64; 4] {
        let mut sampler = Sampler::new(options, 4).unwrap();
        let mut counts = [0.0; 4];
        for _ in 0..20_000 {
            counts[sampler.sample(&logits) as usize] += 1.0;
        }
        counts.map(|count: f64| count / 20_000.0)
    }

    fn assert_shares(options: SamplerOptions, expected: [f64; 4]) {
        let found = shares(options, logits());
        for (found_share, expected_share) in found.iter().zip(expected) {
            // 0.015 is more than four standard deviations of a share.
            let difference = (found_share - expected_share).abs();
            let impossible = expected_share == 0.0 && *found_share > 0.0;
            assert!(
                difference < 0.015 && !impossible,
                "{found:?}, not {expected:?}"
            );
        }
    }

    #[test]
    fn a_plain_draw_follows_the_probabilities() {
        assert_shares(PLAIN, [0.2, 0.4, 0.1, 0.3]);
    }

    #[test]
    fn temperature_sharpens_and_flattens() {
        // Squares of the probabilities, 0.04 + 0.16 + 0.01 + 0.09 = 0.3.
        let cold = SamplerOptions {
            temperature: 0.5,
            ..PLAIN
        };
        assert_shares(cold, [4.0 / 30.0, 16.0 / 30.0, 1.0 / 30.0, 9.0 / 30.0]);
        let hot = SamplerOptions {
            temperature: 1e6,
            ..PLAIN
        };
        assert_shares(hot, [0.25; 4]);
    }

    #[test]
    fn top_k_leaves_the_likeliest() {
        let options = SamplerOptions { top_k: 2, ..PLAIN };
        assert_shares(options, [0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0]);
    }

    #[test]
    fn top_p_leaves_as_few_as_reach_the_probability() {
        let with = |top_p| SamplerOptions { top_p, ..PLAIN };
        assert_shares(with(0.65), [0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0]);
        assert_shares(with(0.75), [2.0 / 9.0, 4.0 / 9.0, 0.0, 3.0 / 9.0]);
        assert_shares(with(0.0), [0.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn top_p_counts_probabilities_among_what_top_k_left() {
        // Of 4/7 and 3/7 the first reaches one half alone.
        let options = SamplerOptions {
            top_k: 2,
            top_p: 0.5,
            ..PLAIN
        };
        assert_shares(options, [0.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn min_p_is_relative_to_the_likeliest() {
        let with = |min_p| SamplerOptions { min_p, ..PLAIN };
        assert_shares(with(0.6), [0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0]);
        assert_shares(with(0.4), [2.0 / 9.0, 4.0 / 9.0, 0.0, 3.0 / 9.0]);
        assert_shares(with(1.0), [0.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn temperature_comes_after_min_p() {
        // Flat as the draw is, min-p has seen the logits as they were.
        let options = SamplerOptions {
            temperature: 1e6,
            min_p: 0.6,
            ..PLAIN
        };
        assert_shares(options, [0.0, 0.5, 0.0, 0.5]);
    }

    #[test]
    fn greedy_takes_the_first_of_equals() {
        for temperature in [0.0, -1.0] {
            let options = SamplerOptions {
                temperature,
                ..SamplerOptions::default()
            };
            let mut sampler = Sampler::new(options, 5).unwrap();
            assert_eq!(sampler.sample(&[1.0, 3.0, 2.0, 3.0, 3.0]), 1);
        }
    }

    #[test]
    fn the_penalty_counts_for_greedy_and_for_prompt_tokens() {
        let options = SamplerOptions {
            temperature: 0.0,
            repeat_penalty: 2.0,
            repeat_last_n: 2,
            ..SamplerOptions::default()
        };
        let mut sampler = Sampler::new(options, 3).unwrap();
        let logits = [3.0, 2.0, 1.0];
        assert_eq!(sampler.sample(&logits), 0);
        sampler.accept(0);
        assert_eq!(sampler.sample(&logits), 1);
        sampler.accept(1);
        assert_eq!(sampler.sample(&logits), 0);
        sampler.accept(2);
        assert_eq!(sampler.sample(&logits), 0);
        sampler.accept(2);
        assert_eq!(sampler.sample(&logits), 0);
    }

    #[test]
    fn equal_seeds_draw_equal_tokens() {
        let draws = |seed| {
            let options = SamplerOptions { seed, ..PLAIN };
            let mut sampler = Sampler::new(options, 4).unwrap();
            Vec::from_iter((0..64).map(|_| sampler.sample(&logits())))
        };
        assert_eq!(draws(1), draws(1));
        assert_ne!(draws(1), draws(2));
    }

    #[test]
    fn logits_that_are_no_numbers_neither_panic_nor_win() {
        let (nan, infinite) = (f32::NAN, f32::INFINITY);
        for temperature in [0.0, 1.0] {
            let options = SamplerOptions {
                temperature,
                repeat_penalty: 1.5,
                repeat_last_n: 4,
                ..SamplerOptions::default()
            };
            let mut sampler = Sampler::new(options, 3).unwrap();
            for id in 0..3 {
                sampler.accept(id);
            }
            assert_eq!(sampler.sample(&[nan, 1.0, nan]), 1);
            assert_eq!(sampler.sample(&[1.0, infinite, nan]), 1);
            assert_eq!(sampler.sample(&[-infinite, -5.0, -infinite]), 1);
            assert!(sampler.sample(&[nan; 3]) < 3);
            assert!(sampler.sample(&[-infinite; 3]) < 3);
            assert!(sampler.sample(&[infinite; 3]) < 3);
            assert_eq!(sampler.sample(&[]), 0);
            assert!(sampler.sample(&[0.0; 9]) < 3);
        }
    }

    #[test]
    fn tokens_ruled_out_are_never_drawn() {
        let mut sampler = Sampler::new(PLAIN, 4).unwrap();
        let logits = [f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY, 1.0];
        for _ in 0..1000 {
            assert!(sampler.sample(&logits) % 2 == 1);
        }
    }

    #[test]
    fn options_out_of_range_are_named() {
        type Change = fn(&mut SamplerOptions);
        let changes: [(&str, Change); 8] = [
            ("temperature", |options| options.temperature = f32::NAN),
            ("top_p", |options| options.top_p = 1.1),
            ("top_p", |options| options.top_p = -0.1),
            ("top_p", |options| options.top_p = f32::NAN),
            ("min_p", |options| options.min_p = 2.0),
            ("repeat_penalty", |options| options.repeat_penalty = -1.0),
            ("repeat_penalty", |options| options.repeat_penalty = 0.0),
            ("repeat_penalty", |options| {
                options.repeat_penalty = f32::INFINITY;
            }),
        ];
        for (option, change) in changes {
            let mut options = SamplerOptions::default();
            change(&mut options);
            let error = Sampler::new(options, 4).unwrap_err();
            assert_eq!(error.option, option);
        }
    }

    #[test]
    fn a_sampler_of_a_large_vocabulary_holds_little() {
        let sampler = Sampler::new(SamplerOptions::default(), 262_144).unwrap();
        assert!(sampler.heap_bytes() < 1024);
    }
}
