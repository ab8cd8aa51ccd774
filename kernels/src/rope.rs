//! Rotary position embedding (Su et al., 2021) and its context extensions.
//!
//! Pair `i` of a head turns by `position · f_i`. Every extension in use changes the frequencies
//! `f_i`, or scales all cosines and sines by one factor, independently of the position; so a model
//! has one [`RopeFrequencies`], and each pass fills a [`RopeTable`] with the cosines and sines of
//! its positions once for all layers. Angles are computed in `f64`: at position 100,000 an `f32`
//! angle is off by 0.004.

use crate::path::Kernels;
use crate::pool::Pool;

/// How a model stretches its context.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// As trained.
    None,
    /// Positions divided by `factor` (position interpolation, Chen et al., 2023).
    Linear {
        /// How many times longer the context is.
        factor: f64,
    },
    /// YaRN (Peng et al., 2023): low frequencies are interpolated, high ones kept, with a ramp
    /// between, and magnitudes grow by `attn_factor · (1 + 0.1·ln factor)`.
    Yarn {
        /// How many times longer the context is.
        factor: f64,
        /// The context the model was trained with.
        original_context: usize,
        /// Weight of the ramp: 1 for YaRN, 0 for plain interpolation without its magnitude.
        ext_factor: f64,
        /// A factor on the magnitude.
        attn_factor: f64,
        /// Rotations over the original context above which a pair is kept, usually 32.
        beta_fast: f64,
        /// Rotations below which a pair is interpolated, usually 1.
        beta_slow: f64,
    },
}

/// Which two elements of a head turn together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// `(2i, 2i + 1)`: Llama in GGUF files.
    Interleaved,
    /// `(i, i + pairs)`: GPT-NeoX, Qwen, Gemma, Phi.
    Halves,
}

/// Radians per position of each pair, and the magnitude of the rotation.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeFrequencies {
    /// Radians per position, one per pair.
    pub inverse: Vec<f64>,
    /// Factor on cosines and sines; 1 unless the scaling says otherwise.
    pub magnitude: f64,
}

impl RopeFrequencies {
    /// Frequencies of the first `dimensions` elements of a head: `base^(-2i / dimensions)` for
    /// pair `i`, divided by its factor if there are `factors` (`rope_freqs.weight`), then scaled.
    ///
    /// # Panics
    ///
    /// If there are `factors` but fewer than pairs.
    pub fn new(
        scaling: RopeScaling,
        base: f64,
        dimensions: usize,
        factors: Option<&[f32]>,
    ) -> Self {
        let pairs = dimensions / 2;
        if let Some(factors) = factors {
            assert!(
                factors.len() >= pairs,
                "{} factors for {pairs} pairs",
                factors.len()
            );
        }
        let frequency = |pair: usize| {
            let plain = base.powf(-2.0 * pair as f64 / dimensions as f64);
            let kept = plain / factors.map_or(1.0, |factors| f64::from(factors[pair]));
            kept * scaling.stretch(pair, dimensions, base)
        };
        Self {
            inverse: (0..pairs).map(frequency).collect(),
            magnitude: scaling.magnitude(),
        }
    }
}

impl RopeScaling {
    /// What the frequency of a pair is multiplied by.
    fn stretch(&self, pair: usize, dimensions: usize, base: f64) -> f64 {
        match *self {
            Self::None => 1.0,
            Self::Linear { factor } => 1.0 / factor,
            Self::Yarn {
                factor,
                original_context,
                ext_factor,
                beta_fast,
                beta_slow,
                ..
            } => {
                // The pair that makes `rotations` turns over the original context.
                let pair_of = |rotations: f64| {
                    let wavelengths = original_context as f64 / (rotations * std::f64::consts::TAU);
                    dimensions as f64 * wavelengths.ln() / (2.0 * base.ln())
                };
                let low = pair_of(beta_fast).floor().max(0.0);
                let high = pair_of(beta_slow).ceil().min(dimensions as f64 - 1.0);
                let ramp = (pair as f64 - low) / (high - low).max(0.001);
                let kept = (1.0 - ramp.clamp(0.0, 1.0)) * ext_factor;
                (1.0 - kept) / factor + kept
            }
        }
    }

    fn magnitude(&self) -> f64 {
        match *self {
            Self::Yarn {
                factor,
                ext_factor,
                attn_factor,
                ..
            } if ext_factor != 0.0 => attn_factor * (1.0 + 0.1 * factor.ln()),
            Self::Yarn { attn_factor, .. } => attn_factor,
            Self::None | Self::Linear { .. } => 1.0,
        }
    }
}

/// Cosines and sines of the tokens of a pass.
pub struct RopeTable {
    /// `[tokens, pairs]` of (cosine, sine).
    turns: Vec<(f32, f32)>,
    tokens: usize,
    pairs: usize,
}

impl RopeTable {
    /// Bytes that [`RopeTable::new`] allocates.
    pub fn required_bytes(max_tokens: usize, dimensions: usize) -> usize {
        max_tokens
            .saturating_mul(dimensions / 2)
            .saturating_mul(size_of::<(f32, f32)>())
    }

    /// Room for `max_tokens` tokens of heads whose first `dimensions` elements turn.
    pub fn new(max_tokens: usize, dimensions: usize) -> Self {
        let turns = vec![(1.0, 0.0); max_tokens * (dimensions / 2)];
        Self {
            turns,
            tokens: 0,
            pairs: dimensions / 2,
        }
    }

    /// Computes the turns of tokens at these positions, over what was held before.
    ///
    /// # Panics
    ///
    /// If the table is too small.
    pub fn fill(&mut self, frequencies: &RopeFrequencies, positions: &[usize]) {
        self.pairs = frequencies.inverse.len();
        self.tokens = positions.len();
        assert!(
            self.tokens * self.pairs <= self.turns.len(),
            "{} tokens of {} pairs do not fit the table",
            self.tokens,
            self.pairs
        );
        for (token, &position) in positions.iter().enumerate() {
            let turns = &mut self.turns[token * self.pairs..][..self.pairs];
            for (turn, frequency) in turns.iter_mut().zip(&frequencies.inverse) {
                let (sine, cosine) = (position as f64 * frequency).sin_cos();
                let magnitude = frequencies.magnitude;
                *turn = ((cosine * magnitude) as f32, (sine * magnitude) as f32);
            }
        }
    }

    /// Number of tokens filled last.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    fn token(&self, token: usize) -> &[(f32, f32)] {
        &self.turns[token * self.pairs..][..self.pairs]
    }
}

impl Kernels {
    /// Turns the heads of every token in place; tokens are split over the pool. `x` is
    /// `[tokens, heads, head_dimension]`; of each head the first `2 · pairs` elements turn and the
    /// rest stay.
    ///
    /// # Panics
    ///
    /// If `x` is not the table's number of tokens, or a head is shorter than what turns.
    pub fn rope(
        &self,
        pool: &Pool,
        style: RopeStyle,
        table: &RopeTable,
        x: &mut [f32],
        heads: usize,
        head_dimension: usize,
    ) {
        self.rope_from(pool, style, table, x, heads, head_dimension, 0);
    }

    /// [`Kernels::rope`] of the `2 · pairs` elements that follow the first `offset` of each head.
    ///
    /// # Panics
    ///
    /// If `x` is not the table's number of tokens, or a head ends before what turns.
    #[expect(
        clippy::too_many_arguments,
        reason = "a tensor, its shape and what turns"
    )]
    pub fn rope_from(
        &self,
        pool: &Pool,
        style: RopeStyle,
        table: &RopeTable,
        x: &mut [f32],
        heads: usize,
        head_dimension: usize,
        offset: usize,
    ) {
        assert_eq!(
            x.len(),
            table.tokens * heads * head_dimension,
            "tokens of a rotation"
        );
        assert!(
            head_dimension >= offset + 2 * table.pairs,
            "a head is shorter than what turns"
        );
        if x.is_empty() {
            return;
        }
        let width = heads * head_dimension;
        pool.run_rows(x, width, |tokens, x| {
            for (token, heads) in tokens.zip(x.chunks_exact_mut(width)) {
                let turns = table.token(token);
                for head in heads.chunks_exact_mut(head_dimension) {
                    let part = &mut head[offset..];
                    match style {
                        RopeStyle::Interleaved => turn_interleaved(turns, part),
                        RopeStyle::Halves => turn_halves(turns, part),
                    }
                }
            }
        });
    }
}

fn turn_interleaved(turns: &[(f32, f32)], head: &mut [f32]) {
    for (&(cosine, sine), pair) in turns.iter().zip(head.as_chunks_mut::<2>().0) {
        let [a, b] = *pair;
        *pair = [a * cosine - b * sine, a * sine + b * cosine];
    }
}

fn turn_halves(turns: &[(f32, f32)], head: &mut [f32]) {
    let (first, second) = head.split_at_mut(turns.len());
    for ((&(cosine, sine), a), b) in turns.iter().zip(first).zip(second) {
        (*a, *b) = (*a * cosine - *b * sine, *a * sine + *b * cosine);
    }
}
