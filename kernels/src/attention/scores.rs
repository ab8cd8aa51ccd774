//! Scores of a tile of queries, and their exponentials.

use std::ops::Range;

use super::{AttentionShape, BLOCK, BlockScores, Strided};
use crate::arch::{LANES, PANEL_ROWS, Simd, exponential};
use crate::cache::CacheUnit;

/// Elements of a head for which sixteen keys are unpacked at a time: 8 KiB.
const ELEMENTS_NEAR: usize = 128;

/// `scores[q][p % BLOCK] = query q · keys[p]` for some positions of a block. Of the sixteen that
/// the first and the last of them lie among, the others' scores are those of any key.
#[inline(always)]
pub(super) fn score<S: Simd, K: CacheUnit>(
    simd: S,
    keys: &Strided<'_, K>,
    queries: &[&[f32]],
    positions: Range<usize>,
    scores: &mut BlockScores,
) {
    let mut panel = [[0.0; PANEL_ROWS]; ELEMENTS_NEAR];
    let (start, last) = (positions.start, positions.end - 1);
    for first in (start - start % PANEL_ROWS..positions.end).step_by(PANEL_ROWS) {
        let mut rows = [keys.row(first); PANEL_ROWS];
        for (row, position) in rows.iter_mut().zip(first..) {
            *row = keys.row(position.min(last));
        }
        let place = first % BLOCK / PANEL_ROWS;
        for element in (0..keys.width).step_by(ELEMENTS_NEAR) {
            let end = keys.width.min(element + ELEMENTS_NEAR);
            let panel = &mut panel[..end - element];
            K::unpack(simd, &rows, element, panel);
            let (eights, rest) = queries.as_chunks::<8>();
            let (eight_scores, rest_scores) = scores[..queries.len()].as_chunks_mut::<8>();
            for (queries, scores) in eights.iter().zip(eight_scores) {
                score_panel(simd, queries, panel, element, place, scores);
            }
            let (pairs, rest) = rest.as_chunks::<2>();
            let (pair_scores, rest_scores) = rest_scores.as_chunks_mut::<2>();
            for (queries, scores) in pairs.iter().zip(pair_scores) {
                score_panel(simd, queries, panel, element, place, scores);
            }
            for (query, scores) in rest.iter().zip(rest_scores) {
                let scores = std::array::from_mut(scores);
                score_panel(simd, &[*query], panel, element, place, scores);
            }
        }
    }
}

/// Adds to sixteen scores of `Q` queries what the elements of the panel contribute.
#[inline(always)]
fn score_panel<S: Simd, const Q: usize>(
    simd: S,
    queries: &[&[f32]; Q],
    panel: &[[f32; PANEL_ROWS]],
    element: usize,
    place: usize,
    scores: &mut [[f32; BLOCK]; Q],
) {
    let mut near = *queries;
    for query in &mut near {
        *query = &query[element..][..panel.len()];
    }
    let mut sums = [simd.load_rows(&[0.0; PANEL_ROWS]); Q];
    if element > 0 {
        for (sum, scores) in sums.iter_mut().zip(&*scores) {
            *sum = simd.load_rows(&scores.as_chunks().0[place]);
        }
    }
    for (index, keys) in panel.iter().enumerate() {
        let keys = simd.load_rows(keys);
        for query in 0..Q {
            sums[query] = simd.add_scaled(keys, near[query][index], sums[query]);
        }
    }
    for (sum, scores) in sums.into_iter().zip(scores) {
        simd.store_rows(sum, &mut scores.as_chunks_mut().0[place]);
    }
}

/// The softmax of a query over the blocks so far.
#[derive(Clone, Copy)]
pub(super) struct Softmax {
    sink: Option<f32>,
    /// The greatest score, the sink among them.
    greatest: f32,
    /// `Σ e^(score - greatest)`, the position `p` in lane `p % 8`.
    sums: [f32; LANES],
}

impl Softmax {
    /// That of no position; `sink` is a score without a position.
    pub(super) fn new(sink: Option<f32>) -> Self {
        Self {
            sink,
            greatest: sink.unwrap_or(f32::NEG_INFINITY),
            sums: [0.0; LANES],
        }
    }

    /// Takes a block, of which the query sees `places`, one at least: replaces products of query
    /// and key by the weights of their values. Returns what sums over the blocks before are to be
    /// multiplied with.
    #[inline(always)]
    pub(super) fn take<S: Simd>(
        &mut self,
        simd: S,
        shape: &AttentionShape,
        scores: &mut [f32; BLOCK],
        places: Range<usize>,
    ) -> f32 {
        let seen = &mut scores[places.clone()];
        for score in seen.iter_mut() {
            *score *= shape.scale;
        }
        if let Some(cap) = shape.softcap {
            for score in seen.iter_mut() {
                *score = cap * (*score / cap).tanh();
            }
        }
        // What is far below any score weighs exactly nothing.
        let whole = places.start - places.start % LANES..places.end.next_multiple_of(LANES);
        scores[whole.start..places.start].fill(f32::NEG_INFINITY);
        scores[places.end..whole.end].fill(f32::NEG_INFINITY);
        let eights = scores[whole].as_chunks_mut::<LANES>().0;

        let mut greatest = simd.splat(self.greatest);
        for eight in &*eights {
            greatest = simd.maximum(greatest, simd.load(eight));
        }
        let greatest = simd.greatest(greatest);
        let mut shrink = [0.0; LANES];
        let shift = simd.splat(self.greatest - greatest);
        simd.store(exponential(simd, shift), &mut shrink);
        self.greatest = greatest;

        let shift = simd.splat(greatest);
        let mut sums = simd.multiply(simd.load(&self.sums), simd.load(&shrink));
        for eight in eights {
            let lanes = exponential(simd, simd.subtract(simd.load(eight), shift));
            sums = simd.add(sums, lanes);
            simd.store(lanes, eight);
        }
        simd.store(sums, &mut self.sums);
        shrink[0]
    }

    /// `Σ e^(score - greatest)` over all positions, the sink's share included.
    #[inline(always)]
    pub(super) fn total<S: Simd>(&self, simd: S) -> f32 {
        let sum = simd.sum(simd.load(&self.sums));
        let Some(sink) = self.sink else {
            return sum;
        };
        let mut share = [0.0; LANES];
        simd.store(
            exponential(simd, simd.splat(sink - self.greatest)),
            &mut share,
        );
        sum + share[0]
    }
}
