//! Weighted sums of the values, for a tile of queries.

use std::ops::Range;

use super::{BLOCK, BlockScores, Strided, TILE};
use crate::arch::{PANEL_ROWS, Simd};
use crate::cache::{CacheUnit, VALUES_NEAR};

/// Queries whose sums are.
const QUERIES_NEAR: usize = 4;

/// Elements of the sums of `Q` queries.
type Sums<const Q: usize> = [[f32; VALUES_NEAR]; Q];

/// What a tile's queries give the values of a block.
pub(super) struct Weights {
    /// The block's first position.
    pub(super) start: usize,
    /// The positions of it that each query sees.
    pub(super) seen: [Range<usize>; TILE],
    /// What each query's sum over the blocks before is multiplied with.
    pub(super) shrink: [f32; TILE],
}

impl Weights {
    /// `sums[q] = shrink[q] · sums[q] + Σ_p weights[q][p - start] · values[p]`, positions ascending.
    #[inline(always)]
    pub(super) fn add_values<S: Simd, V: CacheUnit>(
        &self,
        simd: S,
        values: &Strided<'_, V>,
        weights: &BlockScores,
        sums: &mut [&mut [f32]],
    ) {
        for first in (0..values.width).step_by(VALUES_NEAR) {
            let near = first..values.width.min(first + VALUES_NEAR);
            let mut index = 0;
            let (fours, rest) = sums.as_chunks_mut::<QUERIES_NEAR>();
            for sums in fours {
                self.add_near(simd, values, weights, index, near.clone(), sums);
                index += QUERIES_NEAR;
            }
            for sums in rest {
                let sums = std::array::from_mut(sums);
                self.add_near(simd, values, weights, index, near.clone(), sums);
                index += 1;
            }
        }
    }

    /// Some elements of the sums of `Q` queries from `index` on.
    #[inline(always)]
    fn add_near<S: Simd, V: CacheUnit, const Q: usize>(
        &self,
        simd: S,
        values: &Strided<'_, V>,
        weights: &BlockScores,
        index: usize,
        near: Range<usize>,
        sums: &mut [&mut [f32]; Q],
    ) {
        let mut memory = [[0.0; VALUES_NEAR]; Q];
        for (query, (memory, sums)) in memory.iter_mut().zip(&*sums).enumerate() {
            let shrink = self.shrink[index + query];
            for (memory, sum) in memory.iter_mut().zip(&sums[near.clone()]) {
                *memory = sum * shrink;
            }
        }
        let weights: &[[f32; BLOCK]; Q] = weights[index..].first_chunk().expect("of the tile");
        let seen = &self.seen[index..][..Q];
        // Positions that all see, together; those before and after, query by query.
        let mut common = 0..usize::MAX;
        for seen in seen {
            common = common.start.max(seen.start)..common.end.min(seen.end);
        }
        common.end = common.end.max(common.start);
        for query in 0..Q {
            let before = seen[query].start..seen[query].end.min(common.start);
            let (weights, sums) = (&weights[query], std::array::from_mut(&mut memory[query]));
            self.add_positions(simd, values, &[weights], near.start, before, sums);
        }
        let mut together = [&weights[0]; Q];
        for (together, weights) in together.iter_mut().zip(weights) {
            *together = weights;
        }
        self.add_positions(
            simd,
            values,
            &together,
            near.start,
            common.clone(),
            &mut memory,
        );
        for query in 0..Q {
            let after = seen[query].start.max(common.end)..seen[query].end;
            let (weights, sums) = (&weights[query], std::array::from_mut(&mut memory[query]));
            self.add_positions(simd, values, &[weights], near.start, after, sums);
        }
        for (memory, sums) in memory.iter().zip(sums) {
            sums[near.clone()].copy_from_slice(&memory[..near.len()]);
        }
    }

    /// Adds some positions to the sums of `Q` queries, from the head's element `first` on.
    #[inline(always)]
    fn add_positions<S: Simd, V: CacheUnit, const Q: usize>(
        &self,
        simd: S,
        values: &Strided<'_, V>,
        weights: &[&[f32; BLOCK]; Q],
        first: usize,
        positions: Range<usize>,
        memory: &mut Sums<Q>,
    ) {
        if positions.is_empty() {
            return;
        }
        let places = positions.start - self.start..positions.end - self.start;
        let mut near: [&[f32]; Q] = [&[]; Q];
        for (near, weights) in near.iter_mut().zip(weights) {
            *near = &weights[places.clone()];
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
                    *sum = simd.add_scaled(loaded[chunk], near[query][place], *sum);
                }
            }
        }
        for (sums, memory) in sums.into_iter().zip(memory) {
            for (sum, memory) in sums.into_iter().zip(memory.as_chunks_mut().0) {
                simd.store_rows(sum, memory);
            }
        }
    }
}
