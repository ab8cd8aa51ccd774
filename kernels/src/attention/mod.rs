//! Causal attention of a chunk of tokens over a layer's KV cache.
//!
//! A query is one head of one token. Its scores of all positions it sees, their softmax and the
//! weighted sum of the values depend on nothing but itself and the cache: a score is summed over
//! the head's elements in order, the weighted sum over positions in order. Queries that share a
//! key and value head form a tile, so that a key is unpacked and a value loaded once for all of
//! them: the heads of a group, and those of several tokens of a chunk. How tiles are cut therefore
//! changes no bit.
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
use scores::{exponentiate, score};
pub(crate) use values::VALUES_NEAR;
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
    /// Each token's position, which is also the last cell it sees.
    pub positions: &'a [usize],
    /// A logit per head that takes part in the softmax and has no value (gpt-oss).
    pub sinks: Option<&'a [f32]>,
}

/// Queries that meet a key or a value together.
const TILE: usize = 16;

/// Room for the scores of one tile per worker.
pub struct AttentionScratch {
    scores: Vec<f32>,
    threads: usize,
    stride: usize,
}

impl AttentionScratch {
    /// Bytes that [`AttentionScratch::new`] allocates; the greatest number if there are more.
    pub fn required_bytes(threads: usize, max_context: usize) -> usize {
        [threads, TILE, Self::stride(max_context), size_of::<f32>()]
            .into_iter()
            .fold(1, usize::saturating_mul)
    }

    /// Room for `threads` workers and positions below `max_context`.
    pub fn new(threads: usize, max_context: usize) -> Self {
        let stride = Self::stride(max_context);
        Self {
            scores: vec![0.0; threads * TILE * stride],
            threads,
            stride,
        }
    }

    /// Scores per query, rounded up to whole vectors of positions.
    fn stride(max_context: usize) -> usize {
        max_context.div_ceil(PANEL_ROWS).saturating_mul(PANEL_ROWS)
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
                stride,
            };
            let length = TILE * stride;
            // SAFETY: each worker has its own stretch of scores and runs one task at a time.
            let scores = unsafe { scores.range(worker * length, length) };
            self.attend(&tile, scores, out);
        });
    }

    /// One task, with the type of the cache resolved.
    fn attend(&self, tile: &Tile<'_>, scores: &mut [f32], out: SharedSlice<'_, f32>) {
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
        scores: &mut [f32],
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
        for &position in input.positions {
            let cells = position.checked_add(1);
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
    /// Scores from one query to the next.
    stride: usize,
}

impl<'a> Tile<'a> {
    fn group(&self) -> usize {
        self.shape.heads / self.shape.kv_heads
    }

    /// The token and the head of a query.
    fn token_and_head(&self, query: usize) -> (usize, usize) {
        let group = self.group();
        (query / group, self.kv_head * group + query % group)
    }

    /// The positions a query sees.
    fn visible(&self, query: usize) -> Range<usize> {
        let end = self.input.positions[query / self.group()] + 1;
        let first = self
            .shape
            .window
            .map_or(0, |window| end.saturating_sub(window));
        first..end
    }

    /// A query's elements.
    fn query(&self, query: usize) -> &'a [f32] {
        let (token, head) = self.token_and_head(query);
        let width = self.shape.head_dim_k;
        &self.input.queries[(token * self.shape.heads + head) * width..][..width]
    }
}

/// One task.
struct Attend<'a, U> {
    tile: &'a Tile<'a>,
    keys: &'a [U],
    values: &'a [U],
    scores: &'a mut [f32],
    out: SharedSlice<'a, f32>,
}

impl<U: CacheUnit> Routine for Attend<'_, U> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Tile {
            shape,
            input,
            kv_head,
            ..
        } = *self.tile;
        let queries = self.tile.queries.clone();
        let visible = queries.clone().map(|query| self.tile.visible(query));
        let (mut start, mut end) = (usize::MAX, 0);
        for visible in visible {
            (start, end) = (start.min(visible.start), end.max(visible.end));
        }
        let keys = Strided::new(self.keys, shape.kv_heads, kv_head, shape.head_dim_k);
        score(simd, self.tile, &keys, start..end, self.scores);

        let mut factors = [0.0; TILE];
        for (index, query) in queries.clone().enumerate() {
            let visible = self.tile.visible(query);
            let scores = &mut self.scores[index * self.tile.stride..];
            let scores = &mut scores[visible.start - start..visible.end - start];
            for score in scores.iter_mut() {
                *score *= shape.scale;
            }
            if let Some(cap) = shape.softcap {
                for score in scores.iter_mut() {
                    *score = cap * (*score / cap).tanh();
                }
            }
            let (_, head) = self.tile.token_and_head(query);
            let total = exponentiate(simd, scores, input.sinks.map(|sinks| sinks[head]));
            factors[index] = 1.0 / total;
        }

        let values = Strided::new(self.values, shape.kv_heads, kv_head, shape.head_dim_v);
        let weights = Weights {
            tile: self.tile,
            scores: self.scores,
            start,
            factors,
        };
        weights.sum_values(simd, &values, self.out);
    }
}

/// The rows of one head, position after position.
struct Strided<'a, U> {
    units: &'a [U],
    /// Units from a position to the next.
    stride: usize,
    /// Units of a row.
    row_units: usize,
    /// Elements of a row.
    width: usize,
}

impl<'a, U: CacheUnit> Strided<'a, U> {
    #[inline(always)]
    fn new(cache: &'a [U], heads: usize, head: usize, width: usize) -> Self {
        let row_units = width.div_ceil(U::ELEMENTS);
        Self {
            units: &cache[head * row_units..],
            stride: heads * row_units,
            row_units,
            width,
        }
    }

    #[inline(always)]
    fn row(&self, position: usize) -> &'a [U] {
        &self.units[position * self.stride..][..self.row_units]
    }
}
