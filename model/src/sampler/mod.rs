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

use std::sync::Arc;

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
    /// A sampler for rows of `vocabulary_size` logits and a sequence of up to `tokens_max`
    /// tokens, of which it looks back on no more. `breakers` are those that the options
    /// name, which samplers of the same ones may share; they only count for DRY.
    ///
    /// # Errors
    /// When an option is outside of its range.
    pub fn new(
        options: SamplerOptions,
        vocabulary_size: usize,
        tokens_max: usize,
        breakers: impl Into<Arc<Breakers>>,
    ) -> Result<Self, SamplerError> {
        options.check()?;
        let options = options.within(tokens_max);
        let (early, late) = split_stages(&options);
        let keep = kept(&options, &late, vocabulary_size);
        let mirostat = options.mirostat.unwrap_or_default();
        Ok(Self {
            adjustments: Adjustments::new(&options, early, &late, breakers.into()),
            candidates: Candidates::new(keep, vocabulary_size),
            late,
            // Twice the target is where the paper starts.
            surprise_max: 2.0 * f64::from(mirostat.target_surprise),
            random: Pcg64Mcg::seed_from_u64(options.seed),
            options,
            vocabulary_size,
        })
    }

    /// Heap bytes that a sampler of the same arguments holds, without making one.
    pub fn required_bytes(
        options: &SamplerOptions,
        vocabulary_size: usize,
        tokens_max: usize,
        breakers: &Breakers,
    ) -> usize {
        let own = options_bytes(options);
        let options = options.clone().within(tokens_max);
        let (early, late) = split_stages(&options);
        let keep = kept(&options, &late, vocabulary_size);
        Adjustments::required_bytes(&options, &early, &late, breakers)
            .saturating_add(Candidates::required_bytes(keep, vocabulary_size))
            .saturating_add(size_of_val(late.as_slice()))
            .saturating_add(own)
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
        let candidates = &self.candidates;
        let total: f64 = weights(candidates).sum();
        let target = uniform(&mut self.random) * total;
        let mut reached = 0.0;
        let drawn = weights(candidates).position(|weight| {
            reached += weight;
            reached > target
        });
        // Rounding may leave nothing but the likeliest.
        drawn
            .or_else(|| weights(candidates).position(|weight| weight >= 1.0))
            .unwrap_or(0)
    }

    /// Mirostat 2 (arXiv:2007.14966, algorithm 2): draws among tokens whose surprise is
    /// below a limit, and moves the limit towards the target.
    fn draw_by_surprise(&mut self, mirostat: Mirostat) -> u32 {
        stages::at_most_surprising(&mut self.candidates, self.surprise_max);
        let drawn = self.draw();
        let Some(&candidate) = self.candidates.as_slice().get(drawn) else {
            return 0;
        };
        let surprise = stages::surprise(&self.candidates, candidate);
        let error = surprise - f64::from(mirostat.target_surprise);
        self.surprise_max -= f64::from(mirostat.learning_rate) * error;
        candidate.id
    }

    /// Heap bytes held, counted against the memory budget.
    pub fn heap_bytes(&self) -> usize {
        self.adjustments.heap_bytes()
            + self.candidates.heap_bytes()
            + self.late.capacity() * size_of::<Stage>()
            + options_bytes(&self.options)
    }
}

/// Heap bytes of the options themselves.
fn options_bytes(options: &SamplerOptions) -> usize {
    let texts = options.dry_sequence_breakers.iter();
    let texts: usize = texts
        .map(|text| size_of::<String>() + text.capacity())
        .sum();
    options.logit_bias.capacity() * size_of::<(u32, f32)>()
        + options.stages.capacity() * size_of::<Stage>()
        + texts
}

/// How many of the likeliest tokens the stages look at.
fn kept(options: &SamplerOptions, late: &[Stage], vocabulary_size: usize) -> usize {
    match late.first() {
        _ if options.temperature <= 0.0 => 1,
        Some(Stage::TopK) => options.top_k,
        _ => vocabulary_size,
    }
}

/// The active stages of the options: penalties before anything else, and the others,
/// which are none when the likeliest token is taken.
fn split_stages(options: &SamplerOptions) -> (Vec<Stage>, Vec<Stage>) {
    let is_penalty = |stage: &Stage| matches!(stage, Stage::Penalties | Stage::Dry);
    let is_active = |stage: &Stage| options.is_active(*stage);
    let active = options.stages.iter().copied().filter(is_active);
    if options.temperature <= 0.0 {
        let mut early: Vec<Stage> = active.filter(is_penalty).collect();
        early.shrink_to_fit();
        return (early, Vec::new());
    }
    if options.mirostat.is_some() {
        return (Vec::new(), vec![Stage::Temperature]);
    }
    let mut early: Vec<Stage> = active.clone().take_while(is_penalty).collect();
    let mut late: Vec<Stage> = active.skip(early.len()).collect();
    early.shrink_to_fit();
    late.shrink_to_fit();
    (early, late)
}

/// A number from 0 to below 1, of the 53 random bits that it holds.
fn uniform(random: &mut Pcg64Mcg) -> f64 {
    (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests;
