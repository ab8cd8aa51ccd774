//! Causal attention of a chunk of tokens over a layer's KV cache.
//!
//! A query is one head of one token. It takes the positions it sees in blocks (the online softmax
//! of Milakov and Gimelshein, 2018, as in FlashAttention): of each block its scores, their
//! exponentials below the greatest score so far, and the values that these weigh. Where a block
//! has a greater score, what was summed before is shrunk to it. So a worker keeps the scores of a
//! block, however long the context.
//!
//! All of this depends on nothing but the query and the cache. Blocks begin at multiples of
//! [`BLOCK`], whatever the query sees of them; a score is summed over the head's elements in
//! order, weights over a block's positions in eight lanes, values over the positions in order.
//! Queries that share a key and value head form a tile, so that a key is unpacked and a value
//! loaded once for all of them: the heads of a group, and those of several tokens of a chunk. How
//! tiles are cut therefore changes no bit.
//!
//! Sixteen keys lie side by side while they meet the tile, as the rows of a matrix product do, so
//! that a vector's lanes are positions and nothing is summed across lanes.

mod scores;
mod values;

use std::ops::Range;

use crate::arch::{PANEL_ROWS, Routine, Simd};
use crate::cache::{CacheUnit, KvSlice, KvView};
use crate::path::Kernels;
use crate::pool::Pool;
use crate::shared::SharedSlice;
use scores::{Softmax, score};
use values::Weights;

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
    /// The position of the cache's first cell, a multiple of 16; 0 unless there is a window.
    pub first: usize,
    /// Each token's position, which is also the last it sees.
    pub positions: &'a [usize],
    /// A logit per head that takes part in the softmax and has no value (gpt-oss).
    pub sinks: Option<&'a [f32]>,
}

/// Queries that meet a key or a value together.
const TILE: usize = 16;

/// Positions whose scores a query has at a time. A tile's are 16 KiB, half of a small
/// first-level cache; the values that they weigh stay in the second while the tile passes by.
const BLOCK: usize = 256;

/// Scores of a block, and room for them: one row for each query of a tile.
type BlockScores = [[f32; BLOCK]; TILE];

/// Room for the scores of one tile and block per worker.
pub struct AttentionScratch {
    scores: Vec<BlockScores>,
}

impl AttentionScratch {
    /// Bytes that [`AttentionScratch::new`] allocates; the greatest number if there are more.
    pub fn required_bytes(threads: usize) -> usize {
        threads.saturating_mul(size_of::<BlockScores>())
    }

    /// Room for `threads` workers.
    pub fn new(threads: usize) -> Self {
        Self {
            scores: vec![[[0.0; BLOCK]; TILE]; threads],
        }
    }
}

impl Kernels {
    /// `out[t, h] = Σ_p softmax_p(scale · q[t, h]·k[p]) · v[p]` over the positions that token `t`
    /// sees. `out` is `[tokens, heads, head_dim_v]`. Heads and tokens are split over the pool.
    ///
    /// # Panics
    ///
    /// If the shapes disagree, a token sees a position outside the cache, or the scratch has fewer
    /// threads than the pool.
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
            scratch.scores.len() >= pool.threads(),
            "scratch for fewer threads than the pool's"
        );
        let out = SharedSlice::new(out);
        let scores = SharedSlice::new(&mut scratch.scores);
        let group = shape.heads / shape.kv_heads;
        let queries = group * input.positions.len();
        // Few queries, as in decode, are cut finer, so that every worker has some.
        let share = (shape.kv_heads * queries).div_ceil(pool.threads());
        let size = TILE.min(share).max(1);
        let tiles = queries.div_ceil(size);
        pool.run_tasks(shape.kv_heads * tiles, |worker, task| {
            let (kv_head, tile) = (task / tiles, outside_in(task % tiles, tiles));
            let tile = Tile {
                shape,
                input,
                kv_head,
                queries: tile * size..queries.min((tile + 1) * size),
            };
            // SAFETY: each worker has its own scores and runs one task at a time.
            let scores = unsafe { scores.range(worker, 1) };
            self.attend(&tile, &mut scores[0], out);
        });
    }

    /// One task, with the type of the cache resolved.
    fn attend(&self, tile: &Tile<'_>, scores: &mut BlockScores, out: SharedSlice<'_, f32>) {
        let KvView { keys, values } = tile.input.kv;
        match (keys, values) {
            (KvSlice::F16(keys), KvSlice::F16(values)) => {
                self.attend_to(tile, [keys, values], scores, out);
            }
            (KvSlice::F32(keys), KvSlice::F32(values)) => {
                self.attend_to(tile, [keys, values], scores, out);
            }
            (KvSlice::Q8_0(keys), KvSlice::Q8_0(values)) => {
                self.attend_to(tile, [keys, values], scores, out);
            }
            _ => panic!("keys and values are kept in the same way"),
        }
    }

    fn attend_to<U: CacheUnit>(
        &self,
        tile: &Tile<'_>,
        [keys, values]: [&[U]; 2],
        scores: &mut BlockScores,
        out: SharedSlice<'_, f32>,
    ) {
        self.dispatch(Attend {
            tile,
            keys,
            values,
            scores,
            out,
        });
    }
}

/// Task `index` of `count` in the order first, last, second, last but one, …: later tokens see
/// more, and workers take contiguous tasks.
fn outside_in(index: usize, count: usize) -> usize {
    if index.is_multiple_of(2) {
        index / 2
    } else {
        count - 1 - index / 2
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
        assert!(
            input.first.is_multiple_of(PANEL_ROWS),
            "the first cell's position"
        );
        for &position in input.positions {
            let cells = position
                .checked_add(1)
                .filter(|&end| seen_first(self.window, end) >= input.first);
            assert!(
                cells.is_some(),
                "position {position} sees what is before the cache's first cell, {}",
                input.first
            );
            let cells = cells.map(|end| end - input.first);
            let fits = |slice: KvSlice<'_>, width: usize| {
                let needed = cells.and_then(|cells| cells.checked_mul(self.kv_heads));
                needed.is_some_and(|needed| needed <= slice.heads(width))
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

/// Some queries of one key and value head. Query `q` is head `q mod group` of the group, of token
/// `q / group`.
struct Tile<'a> {
    shape: &'a AttentionShape,
    input: &'a AttentionInput<'a>,
    kv_head: usize,
    queries: Range<usize>,
}

/// The first position that a query sees that sees those before `end`.
fn seen_first(window: Option<usize>, end: usize) -> usize {
    window.map_or(0, |window| end.saturating_sub(window))
}

impl<'a> Tile<'a> {
    /// The positions that each query sees.
    fn visible(&self) -> [Range<usize>; TILE] {
        let group = self.shape.heads / self.shape.kv_heads;
        let mut visible = [const { 0..0 }; TILE];
        for (visible, query) in visible.iter_mut().zip(self.queries.clone()) {
            let end = self.input.positions[query / group] + 1;
            *visible = seen_first(self.shape.window, end)..end;
        }
        visible
    }

    /// The head of each query, and its place among the heads of all tokens.
    fn places(&self) -> impl Iterator<Item = (usize, usize)> + use<'a> {
        let (heads, group) = (self.shape.heads, self.shape.heads / self.shape.kv_heads);
        let first_head = self.kv_head * group;
        self.queries.clone().map(move |query| {
            let head = first_head + query % group;
            (head, query / group * heads + head)
        })
    }
}

/// One task.
struct Attend<'a, U> {
    tile: &'a Tile<'a>,
    keys: &'a [U],
    values: &'a [U],
    scores: &'a mut BlockScores,
    out: SharedSlice<'a, f32>,
}

impl<U: CacheUnit> Routine for Attend<'_, U> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Tile { shape, input, .. } = *self.tile;
        let count = self.tile.queries.len();
        let visible = self.tile.visible();
        let visible = &visible[..count];
        let mut queries: [&[f32]; TILE] = [&[]; TILE];
        let mut sums: [&mut [f32]; TILE] = std::array::from_fn(|_| Default::default());
        let mut softmaxes = [Softmax::new(None); TILE];
        for (index, (head, place)) in self.tile.places().enumerate() {
            let (width_k, width_v) = (shape.head_dim_k, shape.head_dim_v);
            queries[index] = &input.queries[place * width_k..][..width_k];
            // SAFETY: each query belongs to one task, and its outputs to it alone.
            sums[index] = unsafe { self.out.range(place * width_v, width_v) };
            sums[index].fill(0.0);
            softmaxes[index] = Softmax::new(input.sinks.map(|sinks| sinks[head]));
        }
        let (queries, sums) = (&queries[..count], &mut sums[..count]);

        let keys = Strided::new(self.keys, self.tile, shape.head_dim_k);
        let values = Strided::new(self.values, self.tile, shape.head_dim_v);
        let (mut next, mut end) = (usize::MAX, 0);
        for visible in visible {
            (next, end) = (next.min(visible.start), end.max(visible.end));
        }
        while next < end {
            let start = next - next % BLOCK;
            let block = next..end.min(start + BLOCK);
            let mut weights = Weights {
                start,
                seen: [const { 0..0 }; TILE],
                shrink: [1.0; TILE],
            };
            score(simd, &keys, queries, block.clone(), self.scores);
            for (index, visible) in visible.iter().enumerate() {
                let clamp = |position: usize| position.clamp(block.start, block.end);
                let seen = clamp(visible.start)..clamp(visible.end);
                if !seen.is_empty() {
                    let places = seen.start - start..seen.end - start;
                    let scores = &mut self.scores[index];
                    weights.shrink[index] = softmaxes[index].take(simd, shape, scores, places);
                }
                weights.seen[index] = seen;
            }
            weights.add_values(simd, &values, self.scores, sums);
            next = block.end;
        }
        for (sums, softmax) in sums.iter_mut().zip(softmaxes) {
            let factor = 1.0 / softmax.total(simd);
            for sum in sums.iter_mut() {
                *sum *= factor;
            }
        }
    }
}

/// The rows of one head, position after position.
struct Strided<'a, U> {
    units: &'a [U],
    /// The position of the first row.
    first: usize,
    /// Units from a position to the next.
    stride: usize,
    /// Units of a row.
    row_units: usize,
    /// Elements of a row.
    width: usize,
}

impl<'a, U: CacheUnit> Strided<'a, U> {
    #[inline(always)]
    fn new(cache: &'a [U], tile: &Tile<'_>, width: usize) -> Self {
        let row_units = width.div_ceil(U::ELEMENTS);
        Self {
            units: &cache[tile.kv_head * row_units..],
            first: tile.input.first,
            stride: tile.shape.kv_heads * row_units,
            row_units,
            width,
        }
    }

    #[inline(always)]
    fn row(&self, position: usize) -> &'a [U] {
        &self.units[(position - self.first) * self.stride..][..self.row_units]
    }
}
