//! Scores of a tile of queries, and their exponentials.

use std::ops::Range;

use super::{Strided, Tile};
use crate::arch::{LANES, PANEL_ROWS, Simd, exponential};
use crate::cache::CacheUnit;

/// Elements of a head for which sixteen keys are unpacked at a time: 8 KiB.
const ELEMENTS_NEAR: usize = 128;

/// `scores[q][p - positions.start] = query q · keys[p]` for all queries of the tile.
#[inline(always)]
pub(super) fn score<S: Simd, K: CacheUnit>(
    simd: S,
    tile: &Tile<'_>,
    keys: &Strided<'_, K>,
    positions: Range<usize>,
    scores: &mut [f32],
) {
    let mut panel = [[0.0; PANEL_ROWS]; ELEMENTS_NEAR];
    for first in positions.clone().step_by(PANEL_ROWS) {
        let last = positions.end - 1;
        let mut rows = [keys.row(first); PANEL_ROWS];
        for (row, position) in rows.iter_mut().zip(first..) {
            *row = keys.row(position.min(last));
        }
        for element in (0..keys.width).step_by(ELEMENTS_NEAR) {
            let end = keys.width.min(element + ELEMENTS_NEAR);
            let panel = &mut panel[..end - element];
            K::unpack(simd, &rows, element, panel);
            let scores = &mut scores[first - positions.start..];
            let count = tile.queries.len();
            let mut index = 0;
            while index + 8 <= count {
                score_panel::<S, 8>(simd, tile, index, panel, element, scores);
                index += 8;
            }
            while index + 2 <= count {
                score_panel::<S, 2>(simd, tile, index, panel, element, scores);
                index += 2;
            }
            if index < count {
                score_panel::<S, 1>(simd, tile, index, panel, element, scores);
            }
        }
    }
}

/// Adds to the scores of `Q` queries what the elements of the panel contribute.
#[inline(always)]
fn score_panel<S: Simd, const Q: usize>(
    simd: S,
    tile: &Tile<'_>,
    first: usize,
    panel: &[[f32; PANEL_ROWS]],
    element: usize,
    scores: &mut [f32],
) {
    let mut queries: [&[f32]; Q] = [&[]; Q];
    for (index, query) in queries.iter_mut().enumerate() {
        *query = &tile.query(tile.queries.start + first + index)[element..][..panel.len()];
    }
    let mut sums = [simd.load_rows(&[0.0; PANEL_ROWS]); Q];
    if element > 0 {
        for (index, sum) in sums.iter_mut().enumerate() {
            let scores = &scores[(first + index) * tile.stride..];
            *sum = simd.load_rows(scores.first_chunk().expect("room for sixteen"));
        }
    }
    for (index, keys) in panel.iter().enumerate() {
        let keys = simd.load_rows(keys);
        for query in 0..Q {
            sums[query] = simd.add_scaled(keys, queries[query][index], sums[query]);
        }
    }
    for (index, sum) in sums.into_iter().enumerate() {
        let scores = &mut scores[(first + index) * tile.stride..];
        simd.store_rows(sum, scores.first_chunk_mut().expect("room for sixteen"));
    }
}

/// Replaces scores by `e^(score - greatest)` and returns their sum, the sink's share included.
#[inline(always)]
pub(super) fn exponentiate<S: Simd>(simd: S, scores: &mut [f32], sink: Option<f32>) -> f32 {
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
