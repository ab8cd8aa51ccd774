//! TQ2_0: 256 ternary weights in two bits each, and an `f16` scale. `w = d · (q - 1)`.
//!
//! 66 bytes: 64 bytes of bit pairs, `d` (2). Weights come in two halves of 128, each of four runs
//! of 32: run `r` of a half lies in bits `2r..2r+2` of the half's 32 bytes.

use super::{ActivationFormat, Block, RowBlock, RowScales, Signed, bit_pairs, half_at, part};
use crate::arch::Simd;

/// 256 weights in 66 bytes.
pub(crate) enum TQ2_0 {}

impl Block for TQ2_0 {
    type Raw = [u8; 66];
    const ELEMENTS: usize = 256;
    const ACTIVATIONS: ActivationFormat = ActivationFormat::Q8;

    #[inline(always)]
    fn blocks(row: &[u8]) -> &[Self::Raw] {
        row.as_chunks().0
    }

    #[inline(always)]
    fn dequantise(raw: &Self::Raw, out: &mut [f32]) {
        let scale = half_at(raw, 64);
        for (run, weights) in out.chunks_exact_mut(32).enumerate() {
            let pairs: &[u8; 32] = part(raw, run / 4 * 32);
            for (weight, &byte) in weights.iter_mut().zip(pairs) {
                *weight = scale * f32::from(((byte >> (run % 4 * 2)) & 3) as i8 - 1);
            }
        }
    }
}

impl RowBlock for TQ2_0 {
    type Meaning = Signed;
    const OFFSET_LOG2: u32 = 0;

    #[inline(always)]
    fn row_scales<S: Simd>(simd: S, blocks: &[Self::Raw]) -> RowScales {
        let scale = simd.f16(*part(&blocks[0], 64));
        RowScales {
            scales: [[scale; 8]; 2],
            ..RowScales::ZERO
        }
    }

    #[inline(always)]
    fn row_quants<S: Simd>(simd: S, blocks: &[Self::Raw], groups: &mut [[u8; 32]; 8]) {
        for (half, groups) in groups.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let packed = simd.load_bytes(part(&blocks[0], 32 * half));
            for (pairs, group) in bit_pairs(simd, packed).into_iter().zip(groups) {
                simd.store_bytes(pairs, group);
            }
        }
    }
}
