//! From logits to a token.
//!
//! The stages and their order are llama.cpp's, so that settings mean the same in both:
//! biases, then by default penalties, DRY, top-n-sigma, top-k, typical, top-p, min-p,
//! XTC, temperature, then the draw. Each stage sees the probabilities among what the
//! ones before have left.

mod adjustments;
mod candidates;
mod dry;
mod history;
mod log_probability;
mod options;
mod stages;

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use adjustments::Adjustments;
use candidates::Candidates;
pub use dry::Breakers;
pub use log_probability::{log_probability, top_log_probabilities};
pub use options::{Mirostat, SamplerError, SamplerOptions, Stage};
use stages::weights;

/// Draws the tokens of one sequence. Nothing is allocated after [`Sampler::new`].
#[derive(Debug)]
pub struct Sampler {
    options: SamplerOptions,
    vocabulary_size: usize,
    adjustments: Adjustments,
    candidates: Candidates,
    /// The stages on the candidates.
    late: Vec<Stage>,
    /// Mirostat's limit on the surprise, in bits.
    surprise_max: f64,
    random: Pcg64Mcg,
}

impl Sampler {
    /// A sampler for rows of `vocabulary_size` logits. `breakers` are those that the
    /// options name; they only count for DRY. Memory for as many tokens as the options
    /// look back on is taken at once, so bound them ([`SamplerOptions::within`]).
    ///
    /// # Errors
    /// When an option is outside of its range.
    pub fn new(
        options: SamplerOptions,
        vocabulary_size: usize,
        breakers: Breakers,
    ) -> Result<Self, SamplerError> {
        options.check()?;
        let (early, late) = split_stages(&options);
        let keep = match late.first() {
            _ if options.temperature <= 0.0 => 1,
            Some(Stage::TopK) => options.top_k,
            _ => vocabulary_size,
        };
        let mirostat = options.mirostat.unwrap_or_default();
        Ok(Self {
            adjustments: Adjustments::new(&options, early, &late, breakers),
            candidates: Candidates::new(keep, vocabulary_size),
            late,
            // Twice the target is where the paper starts.
            surprise_max: 2.0 * f64::from(mirostat.target_surprise),
            random: Pcg64Mcg::seed_from_u64(options.seed),
            options,
            vocabulary_size,
        })
    }

    /// Adds a token of the sequence to the history, one of the prompt or one that
    /// was drawn.
    pub fn accept(&mut self, id: u32) {
        self.adjustments.accept(id);
    }

    /// Draws a token. Logits that are not numbers count as −∞, and of several that
    /// are equal the greedy choice is the first. Logits beyond the vocabulary size
    /// are not looked at; without any, the token is 0.
    pub fn sample(&mut self, logits: &[f32]) -> u32 {
        let logits = &logits[..logits.len().min(self.vocabulary_size)];
        self.adjustments.update();
        self.candidates.select(self.adjustments.applied(logits));
        if self.options.temperature <= 0.0 {
            return self.candidates.as_slice().first().map_or(0, |one| one.id);
        }
        for index in 0..self.late.len() {
            self.apply(self.late[index]);
        }
        match self.options.mirostat {
            Some(mirostat) => self.draw_by_surprise(mirostat),
            None => {
                let drawn = self.draw();
                let candidates = self.candidates.as_slice();
                candidates.get(drawn).map_or(0, |one| one.id)
            }
        }
    }

    fn apply(&mut self, stage: Stage) {
        let options = &self.options;
        let candidates = &mut self.candidates;
        match stage {
            Stage::Penalties | Stage::Dry => {
                candidates.map(|one| self.adjustments.penalised(stage, one));
            }
            Stage::TopNSigma => stages::top_n_sigma(candidates, options.top_n_sigma),
            Stage::TopK => candidates.truncate(options.top_k),
            Stage::TypicalP => stages::typical_p(candidates, options.typical_p, options.min_keep),
            Stage::TopP => stages::top_p(candidates, options.top_p, options.min_keep),
            Stage::MinP => stages::min_p(candidates, options.min_p, options.min_keep),
            Stage::Xtc => {
                if uniform(&mut self.random) <= f64::from(options.xtc_probability) {
                    stages::xtc(candidates, options.xtc_threshold, options.min_keep);
                }
            }
            Stage::Temperature => stages::temperature(candidates, options),
        }
    }

    /// The place of a candidate, drawn by its probability.
    fn draw(&mut self) -> usize {
        let candidates = self.candidates.as_slice();
        let total: f64 = weights(candidates).sum();
        let target = uniform(&mut self.random) * total;
        let mut reached = 0.0;
        let drawn = weights(candidates).position(|weight| {
            reached += weight;
            reached > target
        });
        drawn.unwrap_or(0)
    }

    /// Mirostat 2 (arXiv:2007.14966, algorithm 2): draws among tokens whose surprise is
    /// below a limit, and moves the limit towards the target.
    fn draw_by_surprise(&mut self, mirostat: Mirostat) -> u32 {
        stages::at_most_surprising(&mut self.candidates, self.surprise_max);
        let drawn = self.draw();
        let candidates = self.candidates.as_slice();
        let Some(&candidate) = candidates.get(drawn) else {
            return 0;
        };
        let surprise = stages::surprise(candidates, candidate);
        let error = surprise - f64::from(mirostat.target_surprise);
        self.surprise_max -= f64::from(mirostat.learning_rate) * error;
        candidate.id
    }

    /// Heap bytes held, counted against the memory budget.
    pub fn heap_bytes(&self) -> usize {
        let stages = self.late.capacity() + self.options.stages.capacity();
        let texts = &self.options.dry_sequence_breakers;
        let texts: usize = texts
            .iter()
            .map(|text| size_of::<String>() + text.capacity())
            .sum();
        self.adjustments.heap_bytes()
            + self.candidates.heap_bytes()
            + self.options.logit_bias.capacity() * size_of::<(u32, f32)>()
            + stages * size_of::<Stage>()
            + texts
    }
}

/// The active stages of the options: penalties before anything else, and the others,
/// which are none when the likeliest token is taken.
fn split_stages(options: &SamplerOptions) -> (Vec<Stage>, Vec<Stage>) {
    let is_penalty = |stage: &Stage| matches!(stage, Stage::Penalties | Stage::Dry);
    let is_active = |stage: &Stage| options.is_active(*stage);
    let active = options.stages.iter().copied().filter(is_active);
    if options.temperature <= 0.0 {
        return (active.filter(is_penalty).collect(), Vec::new());
    }
    if options.mirostat.is_some() {
        return (Vec::new(), vec![Stage::Temperature]);
    }
    let early: Vec<Stage> = active.clone().take_while(is_penalty).collect();
    let late = active.skip(early.len()).collect();
    (early, late)
}

/// A number from 0 to below 1, of the 53 random bits that it holds.
fn uniform(random: &mut Pcg64Mcg) -> f64 {
    (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every stage off: a draw by the logits as they are.
    fn plain() -> SamplerOptions {
        SamplerOptions {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repeat_last_n: 0,
            seed: 17,
            ..SamplerOptions::default()
        }
    }

    fn sampler(options: SamplerOptions, vocabulary_size: usize) -> Sampler {
        Sampler::new(options, vocabulary_size, Breakers::default()).unwrap()
    }

    /// Logits of the probabilities 0.4, 0.3, 0.2, 0.1, not in order.
    fn logits() -> [f32; 4] {
        [0.2f32.ln(), 0.4f32.ln(), 0.1f32.ln(), 0.3f32.ln()]
    }

    /// How often each of four tokens is drawn in 20,000 draws.
    fn shares(options: SamplerOptions, logits: [f32; 4]) -> [f64; 4] {
        let mut sampler = sampler(options, 4);
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
        assert_shares(plain(), [0.2, 0.4, 0.1, 0.3]);
    }

    #[test]
    fn temperature_sharpens_and_flattens() {
        // Squares of the probabilities, 0.04 + 0.16 + 0.01 + 0.09 = 0.3.
        let cold = SamplerOptions {
            temperature: 0.5,
            ..plain()
        };
        assert_shares(cold, [4.0 / 30.0, 16.0 / 30.0, 1.0 / 30.0, 9.0 / 30.0]);
        let hot = SamplerOptions {
            temperature: 1e6,
            ..plain()
        };
        assert_shares(hot, [0.25; 4]);
    }

    #[test]
    fn top_k_leaves_the_likeliest() {
        let options = SamplerOptions {
            top_k: 2,
            ..plain()
        };
        assert_shares(options, [0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0]);
    }

    #[test]
    fn top_p_leaves_as_few_as_reach_the_probability() {
        let with = |top_p| SamplerOptions { top_p, ..plain() };
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
            ..plain()
        };
        assert_shares(options, [0.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn min_p_is_relative_to_the_likeliest() {
        let with = |min_p| SamplerOptions { min_p, ..plain() };
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
            ..plain()
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
            let mut sampler = sampler(options, 5);
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
        let mut sampler = sampler(options, 3);
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
            let options = SamplerOptions { seed, ..plain() };
            let mut sampler = sampler(options, 4);
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
            let mut sampler = sampler(options, 3);
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
        let mut sampler = sampler(plain(), 4);
        let logits = [f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY, 1.0];
        for _ in 0..1000 {
            assert_eq!(sampler.sample(&logits) % 2, 1);
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
            let error = Sampler::new(options, 4, Breakers::default()).unwrap_err();
            assert_eq!(error.option, option);
        }
    }

    #[test]
    fn a_sampler_of_a_large_vocabulary_holds_little() {
        let sampler = sampler(SamplerOptions::default(), 262_144);
        assert!(sampler.heap_bytes() < 1024);
    }
}
