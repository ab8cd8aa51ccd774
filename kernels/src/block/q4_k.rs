//! Q4_K: 256 nibbles in eight groups of 32, each with a six-bit scale and a six-bit minimum.
//! `w = (d · scale) · q - (dmin · minimum)`.
//!
//! 144 bytes: `d` (2), `dmin` (2), twelve bytes of packed scales and minima, then 128 bytes of
//! nibbles. Each run of 32 nibble bytes holds two groups: low nibbles, then high nibbles.
//!
//! The packed twelve bytes `p`: groups 0–3 have their scale in the low six bits of `p[g]` and
//! their minimum in those of `p[4+g]`; groups 4–7 have the low four bits of both in `p[8+g-4]`
//! (scale in the low nibble) and the upper two in the top bits of `p[g-4]` and `p[g]`.

use super::{
    ActivationFormat, Block, PackRows, QuantisedBlock, WithMinimum, blocks_at, half_at, part, parts,
};
use crate::arch::{PANEL_ROWS, Simd};
use crate::block::panel::{Panel, PanelScales};

/// 256 weights in 144 bytes.
pub(crate) enum Q4K {}

impl Block for Q4K {
    type Raw = [u8; 144];
    const ELEMENTS: usize = 256;
    const ACTIVATIONS: ActivationFormat = ActivationFormat::Q8;

    #[inline(always)]
    fn blocks(row: &[u8]) -> &[Self::Raw] {
        row.as_chunks().0
    }

    #[inline(always)]
    fn dequantise(raw: &Self::Raw, out: &mut [f32]) {
        let (scales, minima) = unpack_scales(part(raw, 4));
        let (scale, minimum) = (half_at(raw, 0), half_at(raw, 2));
        for (group, weights) in out.chunks_exact_mut(32).enumerate() {
            let scale = scale * f32::from(scales[group]);
            let minimum = minimum * f32::from(minima[group]);
            let nibbles: &[u8; 32] = part(raw, 16 + group / 2 * 32);
            let shift = group % 2 * 4;
            for (weight, &byte) in weights.iter_mut().zip(nibbles) {
                *weight = scale * f32::from((byte >> shift) & 15) - minimum;
            }
        }
    }
}

impl QuantisedBlock for Q4K {
    type Meaning = WithMinimum;

    #[inline(always)]
    fn unpack_scales<S: Simd>(simd: S, rows: &PackRows<'_, Self::Raw>, scales: &mut PanelScales) {
        unpack_head(simd, &parts(&blocks_at(rows, 0), 0), scales);
    }

    #[inline(always)]
    fn unpack_row<S: Simd>(simd: S, blocks: &[Self::Raw]) -> [S::Quads; 4] {
        halves_of_pairs(simd, part(&blocks[0], 16))
    }

    #[inline(always)]
    fn unpack_quants<S: Simd>(simd: S, rows: &PackRows<'_, Self::Raw>, panel: &mut Panel) {
        let blocks = blocks_at(rows, 0);
        let (pairs, _) = panel.quants.as_chunks_mut::<2>();
        for (pair, [even, odd]) in pairs.iter_mut().enumerate() {
            let quads = simd.interleave(&parts(&blocks, 16 + 32 * pair));
            for (quads, (even, odd)) in quads.into_iter().zip(even.iter_mut().zip(odd)) {
                simd.store_quads(simd.quad_bits(quads, 0, 15), even);
                simd.store_quads(simd.quad_bits(quads, 4, 15), odd);
            }
        }
    }
}

/// The halves of eight groups of nibbles, as
/// [`unpack_row`](QuantisedBlock::unpack_row) returns them: groups 0 and 1 in the low and the high
/// nibbles of the first 32 bytes, and so on.
#[inline(always)]
pub(super) fn halves_of_pairs<S: Simd>(simd: S, nibbles: &[u8; 128]) -> [S::Quads; 4] {
    const SHIFTS: [u32; PANEL_ROWS] = [0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4];
    let even = simd.load_pair([part(nibbles, 0), part(nibbles, 64)]);
    let odd = simd.load_pair([part(nibbles, 32), part(nibbles, 96)]);
    let mut quads = simd.repeat_lanes(even, odd);
    for quads in &mut quads {
        *quads = simd.quad_bits_each(*quads, &SHIFTS, 15);
    }
    quads
}

/// Unpacks what Q4_K and Q5_K blocks begin with: `d`, `dmin` and the packed scales and minima, as
/// [`unpack_scales`] does for one row.
#[inline(always)]
pub(super) fn unpack_head<S: Simd>(
    simd: S,
    heads: &[&[u8; 16]; PANEL_ROWS],
    out: &mut PanelScales,
) {
    const SIX_BITS: u8 = 0x3f;
    const FOUR_BITS: u8 = 0x0f;
    const TOP_BITS: u8 = 0x03;
    let [halves, first, second, third] = simd.interleave_half(heads);
    let scale = simd.half_as_rows(halves, 0);
    let minimum = simd.scale_rows(simd.half_as_rows(halves, 1), -1.0);
    let scales = [
        simd.quad_bits(first, 0, SIX_BITS),
        simd.or_shifted(
            simd.quad_bits(third, 0, FOUR_BITS),
            simd.quad_bits(first, 6, TOP_BITS),
        ),
    ];
    let minima = [
        simd.quad_bits(second, 0, SIX_BITS),
        simd.or_shifted(
            simd.quad_bits(third, 4, FOUR_BITS),
            simd.quad_bits(second, 6, TOP_BITS),
        ),
    ];
    for group in 0..8 {
        let (word, index) = (group / 4, group as u32 % 4);
        let scales = simd.byte_as_rows(scales[word], index);
        let minima = simd.byte_as_rows(minima[word], index);
        let (scales, minima) = (
            simd.multiply_rows(scale, scales),
            simd.multiply_rows(minimum, minima),
        );
        simd.store_rows(scales, &mut out.scales[0][group]);
        simd.store_rows(minima, &mut out.minima[0][group]);
    }
}

/// The eight scales and the eight minima, each below 64.
#[inline(always)]
pub(super) fn unpack_scales(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    const SIX_BITS: u32 = 0x3f3f_3f3f;
    const FOUR_BITS: u32 = 0x0f0f_0f0f;
    const TOP_BITS: u32 = 0x3030_3030;
    let first = u32::from_le_bytes(*part(packed, 0));
    let second = u32::from_le_bytes(*part(packed, 4));
    let third = u32::from_le_bytes(*part(packed, 8));
    let scales = [
        first & SIX_BITS,
        third & FOUR_BITS | (first >> 2) & TOP_BITS,
    ];
    let minima = [
        second & SIX_BITS,
        (third >> 4) & FOUR_BITS | (second >> 2) & TOP_BITS,
    ];
    (join(scales), join(minima))
}

/// Eight bytes from two little-endian words.
#[inline(always)]
fn join([low, high]: [u32; 2]) -> [u8; 8] {
    (u64::from(low) | u64::from(high) << 32).to_le_bytes()
}
