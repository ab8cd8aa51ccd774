//! Sixteen rows of a matrix, pack by pack, and what half a group of them adds to a sum.

use crate::activations::{PACK_ELEMENTS, Q8Pack};
use crate::arch::{PANEL_ROWS, Simd};
use crate::block::panel::PanelScales;
use crate::block::{BLOCKS_PER_PACK_MAX, Meaning, PackRows, QuantisedBlock};
use crate::matrix::Matrix;

/// The blocks of `rows` rows, at most sixteen, each with all that follow it in the matrix. Rows that do
/// not exist repeat the last one; nothing reads what becomes of them.
#[inline(always)]
pub(super) fn strip<'a, F: QuantisedBlock>(
    weights: &Matrix<'a>,
    first_row: usize,
    rows: usize,
) -> PackRows<'a, F::Raw> {
    let mut strip: PackRows<'_, F::Raw> = [&[]; PANEL_ROWS];
    for (index, row) in strip.iter_mut().enumerate() {
        *row = F::blocks(weights.rows_from(first_row + index.min(rows - 1)));
    }
    strip
}

/// Pack `pack` of each row; `None` if the matrix ends within it. Where a row ends within its last pack,
/// the rest is the next row's, and nothing reads what becomes of it: copies would take a third of the
/// time of a token.
#[inline(always)]
pub(super) fn whole_pack<'a, F: QuantisedBlock>(
    rows: &PackRows<'a, F::Raw>,
    pack: usize,
) -> Option<PackRows<'a, F::Raw>> {
    let blocks_per_pack = PACK_ELEMENTS / F::ELEMENTS;
    let mut blocks = *rows;
    for blocks in &mut blocks {
        *blocks = blocks.get(pack * blocks_per_pack..(pack + 1) * blocks_per_pack)?;
    }
    Some(blocks)
}

/// The last pack of each row, of which a matrix's last is filled up with its first block; nothing reads
/// what becomes of those.
#[cold]
pub(super) fn padded_pack<F: QuantisedBlock>(
    rows: &PackRows<'_, F::Raw>,
    pack: usize,
) -> [[F::Raw; BLOCKS_PER_PACK_MAX]; PANEL_ROWS] {
    let start = pack * (PACK_ELEMENTS / F::ELEMENTS);
    rows.map(|blocks| {
        let blocks = &blocks[start..];
        let mut padded = [blocks[0]; BLOCKS_PER_PACK_MAX];
        let count = blocks.len().min(BLOCKS_PER_PACK_MAX);
        padded[..count].copy_from_slice(&blocks[..count]);
        padded
    })
}

/// Adds what sixteen columns of sixteen rows contribute to the rows' sums for one token: half `HALF`
/// of a group, in `lane` of the activations, with the integer dot products `dots`.
#[inline(always)]
pub(super) fn add_half<S: Simd, M: Meaning, const HALF: usize>(
    simd: S,
    dots: S::Counts,
    scales: &PanelScales,
    pack: &Q8Pack,
    group: usize,
    lane: usize,
    sums: S::Rows,
) -> S::Rows {
    let scale_half = if M::HALVES { HALF } else { 0 };
    let weights = simd.load_rows(&scales.scales[scale_half][group]);
    let weights = simd.scale_rows(weights, pack.scales[HALF][group]);
    let sums = simd.add_products(simd.counts_as_rows(dots), weights, sums);
    if !M::HAS_MINIMUM || (!M::HALVES && HALF == 0) {
        return sums;
    }
    let minima = simd.load_rows(&scales.minima[scale_half][group]);
    let share = if M::HALVES {
        pack.scales[HALF][group] * f32::from(pack.counts[lane])
    } else {
        pack.sums[group]
    };
    simd.add_scaled(minima, share, sums)
}
