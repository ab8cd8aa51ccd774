//! The gated delta rule (Yang, Kautz and Hatamizadeh, 2024), <https://arxiv.org/abs/2412.06464>:
//! linear attention whose memory is one matrix per head.
//!
//! A head's memory `S`, `[key_width, value_width]`, maps keys to values. Each token lets it fade,
//! looks up what it holds for the token's key, writes the part that is missing, and reads it with
//! the token's query:
//!
//! ```text
//! S ← decay · S
//! S ← S + k ⊗ (strength · (v - Sᵀk))
//! o = Sᵀq
//! ```
//!
//! A task is one head. It takes the tokens one after another and sums over the keys' elements in
//! ascending order, so neither the chunk a token arrives in nor the number of threads changes bits.

use crate::arch::{LANES, Routine, Simd};
use crate::path::Kernels;
use crate::pool::Pool;
use crate::shared::SharedSlice;

/// Vectors of a memory's row that are held in registers together.
const VECTORS: usize = 4;

/// What does not change from call to call of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaRuleShape {
    /// Heads of queries and of keys.
    pub key_heads: usize,
    /// Heads of values, each with a memory; a multiple of `key_heads`. Head `h` uses query and
    /// key `h % key_heads`.
    pub value_heads: usize,
    /// Elements of a query and of a key.
    pub key_width: usize,
    /// Elements of a value; a multiple of [`DeltaRuleShape::VALUE_MULTIPLE`].
    pub value_width: usize,
}

/// The operands of one call.
#[derive(Clone, Copy, Debug)]
pub struct DeltaRuleInput<'a> {
    /// `[tokens]` of queries `[key_heads, key_width]`, keys alike, and values
    /// `[value_heads, value_width]`.
    pub mixed: &'a [f32],
    /// `[tokens, value_heads]`: what is kept of the memory, 0 to 1.
    pub decay: &'a [f32],
    /// `[tokens, value_heads]`: how much of what is missing is written, 0 to 1.
    pub strength: &'a [f32],
}

impl DeltaRuleShape {
    /// Values of a head come in whole vectors.
    pub const VALUE_MULTIPLE: usize = LANES;

    /// Elements of all queries, or of all keys, of a token.
    pub fn keys(&self) -> usize {
        self.key_heads * self.key_width
    }

    /// Elements of all values of a token.
    pub fn values(&self) -> usize {
        self.value_heads * self.value_width
    }

    /// Queries, keys and values of a token.
    pub fn mixed(&self) -> usize {
        2 * self.keys() + self.values()
    }

    /// Elements of all memories.
    pub fn memory(&self) -> usize {
        self.values() * self.key_width
    }

    fn check(&self) {
        assert!(
            self.key_heads > 0 && self.value_heads.is_multiple_of(self.key_heads),
            "value heads per key head"
        );
        assert!(
            self.key_width > 0 && self.value_width.is_multiple_of(Self::VALUE_MULTIPLE),
            "values are whole vectors"
        );
    }
}

impl Kernels {
    /// Scales every query to length `1 / √key_width` and every key to length 1, in place; a length
    /// below `epsilon` counts as `epsilon`.
    ///
    /// # Panics
    ///
    /// If `mixed` is not whole tokens.
    pub fn normalise_queries_and_keys(
        &self,
        shape: &DeltaRuleShape,
        epsilon: f32,
        mixed: &mut [f32],
    ) {
        shape.check();
        assert!(mixed.len().is_multiple_of(shape.mixed()), "whole tokens");
        let query_length = 1.0 / (shape.key_width as f32).sqrt();
        for token in mixed.chunks_exact_mut(shape.mixed()) {
            let heads = token[..2 * shape.keys()].chunks_exact_mut(shape.key_width);
            for (head, values) in heads.enumerate() {
                let length = if head < shape.key_heads {
                    query_length
                } else {
                    1.0
                };
                self.dispatch(Normalise {
                    values,
                    length,
                    epsilon,
                });
            }
        }
    }

    /// `decay = e^(rate · ln(1 + e^(decay + bias)))` in place, `[tokens, heads]`; `rate` (negative)
    /// and `bias` are the heads' own.
    ///
    /// # Panics
    ///
    /// If the shapes disagree.
    pub fn decays(&self, rate: &[f32], bias: &[f32], decay: &mut [f32]) {
        assert_eq!(rate.len(), bias.len(), "a rate and a bias for each head");
        assert!(decay.len().is_multiple_of(rate.len()), "whole tokens");
        for token in decay.chunks_exact_mut(rate.len()) {
            for ((decay, rate), bias) in token.iter_mut().zip(rate).zip(bias) {
                *decay = (rate * softplus(*decay + bias)).exp();
            }
        }
    }

    /// `values = 1 / (1 + e^-values)` in place.
    pub fn sigmoid(&self, values: &mut [f32]) {
        for value in values {
            *value = 1.0 / (1.0 + (-*value).exp());
        }
    }

    /// Runs tokens through the memories `[value_heads, key_width, value_width]`; `out`, which is
    /// `[tokens, value_heads, value_width]`, is what their queries read. Heads are split over the
    /// pool.
    ///
    /// # Panics
    ///
    /// If the shapes disagree.
    pub fn delta_rule(
        &self,
        pool: &Pool,
        shape: &DeltaRuleShape,
        input: &DeltaRuleInput<'_>,
        memory: &mut [f32],
        out: &mut [f32],
    ) {
        shape.check();
        assert!(
            input.mixed.len().is_multiple_of(shape.mixed()),
            "whole tokens"
        );
        let tokens = input.mixed.len() / shape.mixed();
        assert_eq!(input.decay.len(), tokens * shape.value_heads, "decays");
        assert_eq!(
            input.strength.len(),
            tokens * shape.value_heads,
            "strengths"
        );
        assert_eq!(memory.len(), shape.memory(), "memories");
        assert_eq!(out.len(), tokens * shape.values(), "outputs");
        let head_memory = shape.key_width * shape.value_width;
        let memory = SharedSlice::new(memory);
        let out = SharedSlice::new(out);
        pool.run_tasks(shape.value_heads, |_, head| {
            // SAFETY: each task has its own head, and heads have their own memories.
            let memory = unsafe { memory.range(head * head_memory, head_memory) };
            for token in 0..tokens {
                let start = token * shape.values() + head * shape.value_width;
                // SAFETY: each task has its own head, and heads have their own outputs.
                let out = unsafe { out.range(start, shape.value_width) };
                self.dispatch(Recall::new(shape, input, token, head, memory, out));
            }
        });
    }
}

/// `ln(1 + e^x)`, which is `x` where the difference is below an `f32`'s resolution.
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

struct Normalise<'a> {
    values: &'a mut [f32],
    length: f32,
    epsilon: f32,
}

impl Routine for Normalise<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let squares = crate::norm::sum_of_squares(simd, self.values);
        let scale = self.length / squares.sqrt().max(self.epsilon);
        for value in self.values {
            *value *= scale;
        }
    }
}

/// One token of one head.
struct Recall<'a> {
    query: &'a [f32],
    key: &'a [f32],
    value: &'a [f32],
    decay: f32,
    strength: f32,
    memory: &'a mut [f32],
    out: &'a mut [f32],
}

impl<'a> Recall<'a> {
    fn new(
        shape: &DeltaRuleShape,
        input: &DeltaRuleInput<'a>,
        token: usize,
        head: usize,
        memory: &'a mut [f32],
        out: &'a mut [f32],
    ) -> Self {
        let mixed = &input.mixed[token * shape.mixed()..][..shape.mixed()];
        let (queries, rest) = mixed.split_at(shape.keys());
        let (keys, values) = rest.split_at(shape.keys());
        let key_start = head % shape.key_heads * shape.key_width;
        Self {
            query: &queries[key_start..][..shape.key_width],
            key: &keys[key_start..][..shape.key_width],
            value: &values[head * shape.value_width..][..shape.value_width],
            decay: input.decay[token * shape.value_heads + head],
            strength: input.strength[token * shape.value_heads + head],
            memory,
            out,
        }
    }
}

impl Routine for Recall<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let vectors = self.value.len() / LANES;
        let mut vector = 0;
        while vector + VECTORS <= vectors {
            self.columns::<S, VECTORS>(simd, vector * LANES);
            vector += VECTORS;
        }
        while vector < vectors {
            self.columns::<S, 1>(simd, vector * LANES);
            vector += 1;
        }
    }
}

impl Recall<'_> {
    /// The rule for `V` vectors of the value, from element `first` on. The columns of a memory do
    /// not meet, so each goes through the whole rule by itself.
    #[inline(always)]
    fn columns<S: Simd, const V: usize>(&mut self, simd: S, first: usize) {
        let width = self.value.len();
        let decay = simd.splat(self.decay);
        let mut recalled = [simd.splat(0.0); V];
        for (row, &key) in self.memory.chunks_exact(width).zip(self.key) {
            let key = simd.splat(key);
            let row = row[first..][..V * LANES].as_chunks().0;
            for (recalled, eight) in recalled.iter_mut().zip(row) {
                let faded = simd.multiply(simd.load(eight), decay);
                *recalled = simd.fused_multiply_add(faded, key, *recalled);
            }
        }
        let strength = simd.splat(self.strength);
        let value = self.value[first..][..V * LANES].as_chunks().0;
        let mut missing = recalled;
        for (missing, eight) in missing.iter_mut().zip(value) {
            *missing = simd.multiply(simd.subtract(simd.load(eight), *missing), strength);
        }
        let mut sums = [simd.splat(0.0); V];
        let rows = self.memory.chunks_exact_mut(width);
        for ((row, &key), &query) in rows.zip(self.key).zip(self.query) {
            let (key, query) = (simd.splat(key), simd.splat(query));
            let row = row[first..][..V * LANES].as_chunks_mut().0;
            for ((eight, &missing), sum) in row.iter_mut().zip(&missing).zip(&mut sums) {
                let faded = simd.multiply(simd.load(eight), decay);
                let written = simd.fused_multiply_add(key, missing, faded);
                simd.store(written, eight);
                *sum = simd.fused_multiply_add(written, query, *sum);
            }
        }
        let out = self.out[first..][..V * LANES].as_chunks_mut().0;
        for (sum, eight) in sums.into_iter().zip(out) {
            simd.store(sum, eight);
        }
    }
}
