//! Weighted sums of the values, for a tile of queries.

use std::ops::Range;

use super::{Strided, TILE, Tile};
use crate::arch::{PANEL_ROWS, Simd};
use crate::cache::CacheUnit;
use crate::shared::SharedSlice;

/// Elements of a head whose sums over the positions are kept in registers.
pub(crate) const VALUES_NEAR: usize = 64;

/// The softmax of a tile's queries.
pub(super) struct Weights<'a> {
    pub(super) tile: &'a Tile<'a>,
    /// `e^score` of each query, from position `start` on.
    pub(super) scores: &'a [f32],
    pub(super) start: usize,
    /// One over their sum.
    pub(super) factors: [f32; TILE],
}

impl Weights<'_> {
    /// Writes `factor · Σ_p weight[p] · values[p]` of every query, positions ascending.
    #[inline(always)]
    pub(super) fn sum_values<S: Simd, V: CacheUnit>(
        &self,
        simd: S,
        values: &Strided<'_, V>,
        out: SharedSlice<'_, f32>,
    ) {
        for first in (0..values.width).step_by(VALUES_NEAR) {
            let width = VALUES_NEAR.min(values.width - first);
            let mut index = 0;
            while index < self.tile.queries.len() {
                let count = (self.tile.queries.len() - index).min(4);
                let sums = match count {
                    4 => self.sum_near::<S, V, 4>(simd, values, index, first),
                    _ => self.sum_near::<S, V, 1>(simd, values, index, first),
                };
                let done = if count == 4 { 4 } else { 1 };
                for (place, sums) in (index..index + done).zip(sums) {
                    self.write(place, first, &sums[..width], out);
                }
                index += done;
            }
        }
    }

    /// Elements `first..first + width` of the sums of `Q` queries.
    #[inline(always)]
    fn sum_near<S: Simd, V: CacheUnit, const Q: usize>(
        &self,
        simd: S,
        values: &Strided<'_, V>,
        index: usize,
        first: usize,
    ) -> [[f32; VALUES_NEAR]; 4] {
        let mut sums = [[0.0; VALUES_NEAR]; 4];
        let mut seen = [0..0, 0..0, 0..0, 0..0];
        let mut common = 0..usize::MAX;
        for (query, seen) in seen[..Q].iter_mut().enumerate() {
            *seen = self.tile.visible(self.tile.queries.start + index + query);
            common = common.start.max(seen.start)..common.end.min(seen.end);
        }
        // Positions that all see, together; those before and after, query by query.
        common.end = common.end.max(common.start);
        for query in 0..Q {
            let before = seen[query].start..seen[query].end.min(common.start);
            let sums = std::array::from_mut(&mut sums[query]);
            self.add_values::<S, V, 1>(simd, values, index + query, first, before, sums);
        }
        let together: &mut [[f32; VALUES_NEAR]; Q] =
            sums.first_chunk_mut().expect("at most four queries");
        self.add_values::<S, V, Q>(simd, values, index, first, common.clone(), together);
        for query in 0..Q {
            let after = seen[query].start.max(common.end)..seen[query].end;
            let sums = std::array::from_mut(&mut sums[query]);
            self.add_values::<S, V, 1>(simd, values, index + query, first, after, sums);
        }
        sums
    }

    /// Adds some positions to the sums of `Q` queries.
    #[inline(always)]
    fn add_values<S: Simd, V: CacheUnit, const Q: usize>(
        &self,
        simd: S,
        values: &Strided<'_, V>,
        index: usize,
        first: usize,
        positions: Range<usize>,
        memory: &mut [[f32; VALUES_NEAR]; Q],
    ) {
        if positions.is_empty() {
            return;
        }
        let places = positions.start - self.start..positions.end - self.start;
        let mut weights: [&[f32]; Q] = [&[]; Q];
        for (query, weights) in weights.iter_mut().enumerate() {
            *weights = &self.scores[(index + query) * self.tile.stride..][places.clone()];
        }
        let mut sums = [[simd.load_rows(&[0.0; PANEL_ROWS]); VALUES_NEAR / PANEL_ROWS]; Q];
        for (sums, memory) in sums.iter_mut().zip(&*memory) {
            for (sum, memory) in sums.iter_mut().zip(memory.as_chunks().0) {
                *sum = simd.load_rows(memory);
            }
        }
        for (place, position) in positions.enumerate() {
            let mut loaded = [simd.load_rows(&[0.0; PANEL_ROWS]); VALUES_NEAR / PANEL_ROWS];
            V::load_near(simd, values.row(position), first, &mut loaded);
            for query in 0..Q {
                for chunk in 0..VALUES_NEAR / PANEL_ROWS {
                    let sum = &mut sums[query][chunk];
                    *sum = simd.add_scaled(loaded[chunk], weights[query][place], *sum);
                }
            }
        }
        for (sums, memory) in sums.into_iter().zip(memory) {
            for (sum, memory) in sums.into_iter().zip(memory.as_chunks_mut().0) {
                simd.store_rows(sum, memory);
            }
        }
    }

    /// Writes some elements of a query's output.
    fn write(&self, index: usize, first: usize, sums: &[f32], out: SharedSlice<'_, f32>) {
        let (token, head) = self.tile.token_and_head(self.tile.queries.start + index);
        let shape = self.tile.shape;
        let start = (token * shape.heads + head) * shape.head_dim_v + first;
        // SAFETY: each query belongs to one task, and its outputs to it alone.
        let out = unsafe { out.range(start, sums.len()) };
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = sum * self.factors[index];
        }
    }
}
