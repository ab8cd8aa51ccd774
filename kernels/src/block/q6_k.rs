//! Q6_K: 256 six-bit weights in sixteen groups of 16, each with an eight-bit signed scale.
//! `w = (d · scale) · (q - 32)`.
//!
//! 210 bytes: 128 bytes of low nibbles, 64 bytes of upper bit pairs, 16 scales, `d` (2). Weights
//! come in two halves of 128, each of four runs of 32: run `r` of a half takes its low four bits
//! from nibble bytes `32·(r mod 2)..` of that half (low nibbles for runs 0 and 1, high for 2 and
//! 3) and its upper two from bits `2r..2r+2` of the half's 32 upper bytes.

use super::{
    ActivationFormat, Block, PackRows, QuantisedBlock, SignedHalves, blocks_at, half_at, part,
    parts,
};
use crate::arch::{PANEL_ROWS, Simd};
use crate::block::panel::{Panel, PanelScales};

/// 256 weights in 210 bytes.
pub(crate) enum Q6K {}

impl Block for Q6K {
    type Raw = [u8; 210];
    const ELEMENTS: usize = 256;
    const ACTIVATIONS: ActivationFormat = ActivationFormat::Q8;

    #[inline(always)]
    fn blocks(row: &[u8]) -> &[Self::Raw] {
        row.as_chunks().0
    }

    #[inline(always)]
    fn dequantise(raw: &Self::Raw, out: &mut [f32]) {
        let scale = half_at(raw, 208);
        for (run, weights) in out.chunks_exact_mut(32).enumerate() {
            let (half, run_of_half) = (run / 4, run % 4);
            let low: &[u8; 32] = part(raw, 64 * half + 32 * (run_of_half % 2));
            let upper: &[u8; 32] = part(raw, 128 + 32 * half);
            for (index, weight) in weights.iter_mut().enumerate() {
                let scale = scale * f32::from(raw[192 + 2 * run + index / 16] as i8);
                let nibble = (low[index] >> (run_of_half / 2 * 4)) & 15;
                let pair = (upper[index] >> (2 * run_of_half)) & 3;
                *weight = scale * f32::from((nibble | pair << 4) as i8 - 32);
            }
        }
    }
}

impl QuantisedBlock for Q6K {
    type Meaning = SignedHalves;
    const OFFSET_LOG2: u32 = 5;

    #[inline(always)]
    fn unpack_scales<S: Simd>(simd: S, rows: &PackRows<'_, Self::Raw>, out: &mut PanelScales) {
        let blocks = blocks_at(rows, 0);
        // The last sixteen bytes end with `d`.
        let scale = simd.half_as_rows(simd.interleave_half(&parts(&blocks, 194))[3], 1);
        let scales = simd.interleave_half(&parts(&blocks, 192));
        for group in 0..8 {
            for half in 0..2 {
                let place = 2 * group + half;
                let scales = simd.signed_byte_as_rows(scales[place / 4], place as u32 % 4);
                let scales = simd.multiply_rows(scale, scales);
                simd.store_rows(scales, &mut out.scales[half][group]);
            }
        }
    }

    #[inline(always)]
    fn unpack_row<S: Simd>(simd: S, blocks: &[Self::Raw]) -> [S::Quads; 4] {
        const NIBBLES: [u32; PANEL_ROWS] = [0, 0, 4, 4, 0, 0, 4, 4, 0, 0, 4, 4, 0, 0, 4, 4];
        const PAIRS: [u32; PANEL_ROWS] = [0, 2, 4, 6, 0, 2, 4, 6, 0, 2, 4, 6, 0, 2, 4, 6];
        let raw = &blocks[0];
        let even = simd.load_pair([part(raw, 0), part(raw, 64)]);
        let odd = simd.load_pair([part(raw, 32), part(raw, 96)]);
        let upper = simd.load_pair([part(raw, 128), part(raw, 160)]);
        let mut quads = simd.alternate_lanes(even, odd);
        for (quads, upper) in quads.iter_mut().zip(simd.repeat_lanes(upper, upper)) {
            let nibbles = simd.quad_bits_each(*quads, &NIBBLES, 15);
            *quads = simd.or_shifted(nibbles, simd.quad_bits_each(upper, &PAIRS, 3));
        }
        quads
    }

    #[inline(always)]
    fn unpack_quants<S: Simd>(simd: S, rows: &PackRows<'_, Self::Raw>, panel: &mut Panel) {
        let blocks = blocks_at(rows, 0);
        let (halves, _) = panel.quants.as_chunks_mut::<4>();
        for (half, runs) in halves.iter_mut().enumerate() {
            let upper = simd.interleave(&parts(&blocks, 128 + 32 * half));
            for odd in 0..2 {
                let low = simd.interleave(&parts(&blocks, 64 * half + 32 * odd));
                for (quad, (low, upper)) in low.into_iter().zip(upper).enumerate() {
                    for run in [odd, odd + 2] {
                        let nibbles = simd.quad_bits(low, 4 * (run as u32 / 2), 15);
                        let pairs = simd.quad_bits(upper, 2 * run as u32, 3);
                        simd.store_quads(simd.or_shifted(nibbles, pairs), &mut runs[run][quad]);
                    }
                }
            }
        }
    }
}
