//! Causal attention of a chunk of tokens over a layer's KV cache.
//!
//! One task is one head of one token: the scores of all visible positions, their softmax, and the
//! weighted sum of the values in ascending order of position. A task's arithmetic depends on the
//! token's position and window alone, so neither the chunk a token arrives in nor the number of
//! threads changes its bits. Tasks run head by head, so that each worker has early (cheap) and late
//! (dear) tokens, and the keys of one head stay in its cache.

use crate::arch::{LANES, Routine, Simd, exponential, pad};
use crate::cache::{CacheElement, KvSlice, KvView};
use crate::path::Kernels;
use crate::pool::Pool;
use crate::shared::SharedSlice;

/// What does not change from call to call of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Query heads; a multiple of `kv_heads`.
    pub heads: usize,
    /// Key and value heads; query head `h` reads head `h / (heads / kv_heads)`.
    pub kv_heads: usize,
    /// Elements of a query and of a key.
    pub head_dim_k: usize,
    /// Elements of a value.
    pub head_dim_v: usize,
    /// Factor on the scores, usually `1 / sqrt(head_dim_k)`.
    pub scale: f32,
    /// A token sees itself and the `window - 1` positions before; `None` sees all.
    pub window: Option<usize>,
    /// Scores become `cap · tanh(score / cap)` (Gemma 2).
    pub softcap: Option<f32>,
}

/// The operands of one call.
#[derive(Clone, Copy, Debug)]
pub struct AttentionInput<'a> {
    /// `[tokens, heads, head_dim_k]`.
    pub queries: &'a [f32],
    /// The layer's cache, with the tokens' own rows already written.
    pub kv: KvView<'a>,
    /// Each token's position, which is also the last cell it sees.
    pub positions: &'a [usize],
    /// A logit per head that takes part in the softmax and has no value (gpt-oss).
    pub sinks: Option<&'a [f32]>,
}

/// Room for the scores of one task per worker.
pub struct AttentionScratch {
    scores: Vec<f32>,
    threads: usize,
    stride: usize,
}

impl AttentionScratch {
    /// Bytes that [`AttentionScratch::new`] allocates.
    pub fn required_bytes(threads: usize, max_context: usize) -> usize {
        threads * Self::stride(max_context) * size_of::<f32>()
    }

    /// Room for `threads` workers and positions below `max_context`.
    pub fn new(threads: usize, max_context: usize) -> Self {
        let stride = Self::stride(max_context);
        Self {
            scores: vec![0.0; threads * stride],
            threads,
            stride,
        }
    }

    /// Scores per worker, rounded up to whole cache lines so that workers share none.
    fn stride(max_context: usize) -> usize {
        max_context.next_multiple_of(16)
    }
}

impl Kernels {
    /// `out[t, h] = Σ_p softmax_p(scale · q[t, h]·k[p]) · v[p]` over the positions that token `t`
    /// sees. `out` is `[tokens, heads, head_dim_v]`. Heads and tokens are split over the pool.
    ///
    /// # Panics
    ///
    /// If the shapes disagree, a position is outside the cache or the scratch, or the scratch has
    /// fewer threads than the pool.
    pub fn attention(
        &self,
        pool: &Pool,
        shape: &AttentionShape,
        input: &AttentionInput<'_>,
        out: &mut [f32],
        scratch: &mut AttentionScratch,
    ) {
        shape.check(input, out.len());
        assert!(
            scratch.threads >= pool.threads(),
            "scratch for fewer threads than the pool's"
        );
        let furthest = input
            .positions
            .iter()
            .max()
            .map_or(0, |&position| position + 1);
        assert!(
            furthest <= scratch.stride,
            "position {furthest} beyond the scratch"
        );
        let stride = scratch.stride;
        let out = SharedSlice::new(out);
        let scores = SharedSlice::new(&mut scratch.scores);
        let tokens = input.positions.len();
        pool.run_tasks(shape.heads * tokens, |worker, task| {
            let (head, token) = (task / tokens, task % tokens);
            // SAFETY: each worker has its own stretch of scores and runs one task at a time.
            let scores = unsafe { scores.range(worker * stride, stride) };
            let start = (token * shape.heads + head) * shape.head_dim_v;
            // SAFETY: each task has its own token and head, and they have their own outputs.
            let out = unsafe { out.range(start, shape.head_dim_v) };
            self.attend(
                &Head {
                    shape,
                    input,
                    token,
                    head,
                },
                scores,
                out,
            );
        });
    }

    /// One task, with the types of the cache resolved.
    fn attend(&self, head: &Head<'_>, scores: &mut [f32], out: &mut [f32]) {
        match (head.input.kv.keys, head.input.kv.values) {
            (KvSlice::F16(keys), KvSlice::F16(values)) => {
                self.dispatch(Attend {
                    head,
                    keys,
                    values,
                    scores,
                    out,
                });
            }
            (KvSlice::F32(keys), KvSlice::F32(values)) => {
                self.dispatch(Attend {
                    head,
                    keys,
                    values,
                    scores,
                    out,
                });
            }
            (KvSlice::F16(keys), KvSlice::F32(values)) => {
                self.dispatch(Attend {
                    head,
                    keys,
                    values,
                    scores,
                    out,
                });
            }
            (KvSlice::F32(keys), KvSlice::F16(values)) => {
                self.dispatch(Attend {
                    head,
                    keys,
                    values,
                    scores,
                    out,
                });
            }
        }
    }
}

impl AttentionShape {
    /// Panics unless the operands have this shape.
    fn check(&self, input: &AttentionInput<'_>, out: usize) {
        let tokens = input.positions.len();
        assert!(
            self.kv_heads > 0 && self.heads.is_multiple_of(self.kv_heads),
            "heads per group"
        );
        assert_eq!(
            input.queries.len(),
            tokens * self.heads * self.head_dim_k,
            "queries"
        );
        assert_eq!(out, tokens * self.heads * self.head_dim_v, "outputs");
        assert!(
            input.sinks.is_none_or(|sinks| sinks.len() == self.heads),
            "a sink per head"
        );
        assert_ne!(self.window, Some(0), "a window of no positions");
        for &position in input.positions {
            let cells = position.checked_add(1);
            let fits = |slice: KvSlice<'_>, width: usize| {
                let needed = cells.and_then(|cells| cells.checked_mul(self.kv_heads * width));
                needed.is_some_and(|needed| needed <= slice.len())
            };
            assert!(
                fits(input.kv.keys, self.head_dim_k),
                "position {position} outside the keys"
            );
            assert!(
                fits(input.kv.values, self.head_dim_v),
                "position {position} outside the values"
            );
        }
    }
}

/// Which head of which token.
struct Head<'a> {
    shape: &'a AttentionShape,
    input: &'a AttentionInput<'a>,
    token: usize,
    head: usize,
}

/// One task.
struct Attend<'a, K, V> {
    head: &'a Head<'a>,
    keys: &'a [K],
    values: &'a [V],
    scores: &'a mut [f32],
    out: &'a mut [f32],
}

impl<K: CacheElement, V: CacheElement> Routine for Attend<'_, K, V> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Head {
            shape,
            input,
            token,
            head,
        } = *self.head;
        let position = input.positions[token];
        let first = shape
            .window
            .map_or(0, |window| (position + 1).saturating_sub(window));
        let scores = &mut self.scores[..=position - first];
        let kv_head = head / (shape.heads / shape.kv_heads);

        let query = &input.queries[(token * shape.heads + head) * shape.head_dim_k..];
        let keys = Strided::new(self.keys, shape.kv_heads, kv_head, shape.head_dim_k, first);
        score(simd, &query[..shape.head_dim_k], &keys, scores);
        for score in scores.iter_mut() {
            *score *= shape.scale;
        }
        if let Some(cap) = shape.softcap {
            for score in scores.iter_mut() {
                *score = cap * (*score / cap).tanh();
            }
        }
        let total = exponentiate(simd, scores, input.sinks.map(|sinks| sinks[head]));
        let values = Strided::new(
            self.values,
            shape.kv_heads,
            kv_head,
            shape.head_dim_v,
            first,
        );
        weigh(simd, scores, &values, 1.0 / total, self.out);
    }
}

/// The rows of one head, position after position.
struct Strided<'a, E> {
    elements: &'a [E],
    stride: usize,
    width: usize,
}

impl<'a, E> Strided<'a, E> {
    #[inline(always)]
    fn new(cache: &'a [E], heads: usize, head: usize, width: usize, first: usize) -> Self {
        let stride = heads * width;
        Self {
            elements: &cache[first * stride + head * width..],
            stride,
            width,
        }
    }

    #[inline(always)]
    fn row(&self, index: usize) -> &'a [E] {
        &self.elements[index * self.stride..][..self.width]
    }
}

/// `scores[p] = query · keys[p]`, four positions in flight.
#[inline(always)]
fn score<S: Simd, K: CacheElement>(
    simd: S,
    query: &[f32],
    keys: &Strided<'_, K>,
    scores: &mut [f32],
) {
    let mut index = 0;
    while index + 4 <= scores.len() {
        let rows = [
            keys.row(index),
            keys.row(index + 1),
            keys.row(index + 2),
            keys.row(index + 3),
        ];
        scores[index..index + 4].copy_from_slice(&dots(simd, query, rows));
        index += 4;
    }
    while index < scores.len() {
        [scores[index]] = dots(simd, query, [keys.row(index)]);
        index += 1;
    }
}

/// Dot products of a query with `R` keys.
#[inline(always)]
fn dots<S: Simd, K: CacheElement, const R: usize>(
    simd: S,
    query: &[f32],
    rows: [&[K]; R],
) -> [f32; R] {
    let mut sums = [simd.splat(0.0); R];
    let (eights, rest) = query.as_chunks::<LANES>();
    for (chunk, eight) in eights.iter().enumerate() {
        let values = simd.load(eight);
        for row in 0..R {
            let key = K::load(simd, &rows[row].as_chunks().0[chunk]);
            sums[row] = simd.fused_multiply_add(values, key, sums[row]);
        }
    }
    if !rest.is_empty() {
        let values = simd.load(&pad(rest));
        for row in 0..R {
            let key = K::load(simd, &pad_elements(rows[row].as_chunks::<LANES>().1));
            sums[row] = simd.fused_multiply_add(values, key, sums[row]);
        }
    }
    let mut out = [0.0; R];
    for row in 0..R {
        out[row] = simd.sum(sums[row]);
    }
    out
}

/// Replaces scores by `e^(score - greatest)` and returns their sum, the sink's share included.
#[inline(always)]
fn exponentiate<S: Simd>(simd: S, scores: &mut [f32], sink: Option<f32>) -> f32 {
    let greatest = scores
        .iter()
        .copied()
        .chain(sink)
        .fold(f32::NEG_INFINITY, f32::max);
    let shift = simd.splat(greatest);
    let mut sums = simd.splat(0.0);
    let (eights, rest) = scores.as_chunks_mut::<LANES>();
    for eight in eights {
        let lanes = exponential(simd, simd.subtract(simd.load(eight), shift));
        sums = simd.add(sums, lanes);
        simd.store(lanes, eight);
    }
    // Padding far below any score adds exactly zero.
    let mut padded = [f32::NEG_INFINITY; LANES];
    padded[..rest.len()].copy_from_slice(rest);
    let lanes = exponential(simd, simd.subtract(simd.load(&padded), shift));
    sums = simd.add(sums, lanes);
    simd.store(lanes, &mut padded);
    rest.copy_from_slice(&padded[..rest.len()]);

    let Some(sink) = sink else {
        return simd.sum(sums);
    };
    simd.store(exponential(simd, simd.splat(sink - greatest)), &mut padded);
    simd.sum(sums) + padded[0]
}

/// `out = factor · Σ_p weights[p] · values[p]`, positions ascending.
#[inline(always)]
fn weigh<S: Simd, V: CacheElement>(
    simd: S,
    weights: &[f32],
    values: &Strided<'_, V>,
    factor: f32,
    out: &mut [f32],
) {
    let factor = simd.splat(factor);
    let whole = out.len() / LANES;
    let mut chunk = 0;
    while chunk + 4 <= whole {
        weigh_chunks::<S, V, 4>(simd, weights, values, factor, chunk, out);
        chunk += 4;
    }
    while chunk < whole {
        weigh_chunks::<S, V, 1>(simd, weights, values, factor, chunk, out);
        chunk += 1;
    }
    let rest = &mut out[whole * LANES..];
    if rest.is_empty() {
        return;
    }
    let mut sum = simd.splat(0.0);
    for (index, &weight) in weights.iter().enumerate() {
        let value = V::load(simd, &pad_elements(&values.row(index)[whole * LANES..]));
        sum = simd.fused_multiply_add(simd.splat(weight), value, sum);
    }
    let mut padded = [0.0; LANES];
    simd.store(simd.multiply(sum, factor), &mut padded);
    rest.copy_from_slice(&padded[..rest.len()]);
}

/// `C` vectors of the weighted sum, held in registers over all positions.
#[inline(always)]
fn weigh_chunks<S: Simd, V: CacheElement, const C: usize>(
    simd: S,
    weights: &[f32],
    values: &Strided<'_, V>,
    factor: S::Floats,
    first_chunk: usize,
    out: &mut [f32],
) {
    let mut sums = [simd.splat(0.0); C];
    for (index, &weight) in weights.iter().enumerate() {
        let weight = simd.splat(weight);
        let row = &values.row(index)[first_chunk * LANES..][..C * LANES];
        for (sum, eight) in sums.iter_mut().zip(row.as_chunks().0) {
            *sum = simd.fused_multiply_add(weight, V::load(simd, eight), *sum);
        }
    }
    let out = &mut out[first_chunk * LANES..][..C * LANES];
    for (sum, eight) in sums.into_iter().zip(out.as_chunks_mut().0) {
        simd.store(simd.multiply(sum, factor), eight);
    }
}

/// Fewer than eight elements, padded with zeros.
#[inline(always)]
fn pad_elements<E: CacheElement>(elements: &[E]) -> [E; LANES] {
    let mut padded = [E::ZERO; LANES];
    padded[..elements.len()].copy_from_slice(elements);
    padded
}
