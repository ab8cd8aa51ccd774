//! Q2_K: 256 two-bit weights in sixteen groups of 16, each with a four-bit scale and a four-bit
//! minimum. `w = (d · scale) · q - (dmin · minimum)`.
//!
//! 84 bytes: sixteen bytes with a scale in the low nibble and a minimum in the high one, 64 bytes
//! of bit pairs, `d` (2), `dmin` (2). Weights come in two halves of 128, each of four runs of 32:
//! run `r` of a half lies in bits `2r..2r+2` of the half's 32 bytes.

use super::{
    ActivationFormat, Block, RowBlock, RowScales, WithMinimumHalves, bit_pairs, half_at, part,
};
use crate::arch::Simd;

/// 256 weights in 84 bytes.
pub(crate) enum Q2K {}

impl Block for Q2K {
    type Raw = [u8; 84];
    const ELEMENTS: usize = 256;
    const ACTIVATIONS: ActivationFormat = ActivationFormat::Q8;

    #[inline(always)]
    fn blocks(row: &[u8]) -> &[Self::Raw] {
        row.as_chunks().0
    }

    #[inline(always)]
    fn dequantise(raw: &Self::Raw, out: &mut [f32]) {
        let (scale, minimum) = (half_at(raw, 80), half_at(raw, 82));
        for (group, weights) in out.chunks_exact_mut(16).enumerate() {
            let scale = scale * f32::from(raw[group] & 15);
            let minimum = minimum * f32::from(raw[group] >> 4);
            let (half, run_of_half) = (group / 8, group % 8 / 2);
            let pairs: &[u8; 16] = part(raw, 16 + 32 * half + 16 * (group % 2));
            for (weight, &byte) in weights.iter_mut().zip(pairs) {
                *weight = scale * f32::from((byte >> (2 * run_of_half)) & 3) - minimum;
            }
        }
    }
}

impl RowBlock for Q2K {
    type Meaning = WithMinimumHalves;

    #[inline(always)]
    fn row_scales<S: Simd>(simd: S, blocks: &[Self::Raw]) -> RowScales {
        let raw = &blocks[0];
        let (scales, minima) = split_nibbles(part(raw, 0));
        let scale = simd.splat(simd.f16(*part(raw, 80)));
        let minimum = simd.splat(-simd.f16(*part(raw, 82)));
        let mut out = RowScales::ZERO;
        for half in 0..2 {
            let scales = simd.multiply(scale, simd.load_small(&scales[half]));
            let minima = simd.multiply(minimum, simd.load_small(&minima[half]));
            simd.store(scales, &mut out.scales[half]);
            simd.store(minima, &mut out.minima[half]);
        }
        out
    }

    #[inline(always)]
    fn row_quants<S: Simd>(simd: S, blocks: &[Self::Raw], groups: &mut [[u8; 32]; 8]) {
        for (half, groups) in groups.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let packed = simd.load_bytes(part(&blocks[0], 16 + 32 * half));
            for (pairs, group) in bit_pairs(simd, packed).into_iter().zip(groups) {
                simd.store_bytes(pairs, group);
            }
        }
    }
}

/// The scales and the minima, each as those of the runs' first halves and of their second.
#[inline(always)]
fn split_nibbles(packed: &[u8; 16]) -> ([[u8; 8]; 2], [[u8; 8]; 2]) {
    let half =
        |half: usize, shift: u32| std::array::from_fn(|run| (packed[2 * run + half] >> shift) & 15);
    ([half(0, 0), half(1, 0)], [half(0, 4), half(1, 4)])
}
