//! TQ2_0: 256 ternary weights in two bits each, and an `f16` scale. `w = d · (q - 1)`.
//!
//! 66 bytes: 64 bytes of bit pairs, `d` (2). Weights come in two halves of 128, each of four runs
//! of 32: run `r` of a half lies in bits `2r..2r+2` of the half's 32 bytes.

use super::{ActivationFormat, Block, QuantisedBlock, accumulate_signed, half_at, part};
use crate::activations::Q8Pack;
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

impl QuantisedBlock for TQ2_0 {
    #[inline(always)]
    fn accumulate<S: Simd, const T: usize>(
        simd: S,
        raw: &Self::Raw,
        packs: [&Q8Pack; T],
        _group: usize,
        sums: &mut [S::Floats; T],
    ) {
        let scale = simd.f16(*part(raw, 64));
        for half in 0..2 {
            let packed = simd.load_bytes(part(raw, 32 * half));
            let runs = [
                simd.bits::<0>(packed, 3),
                simd.bits::<2>(packed, 3),
                simd.bits::<4>(packed, 3),
                simd.bits::<6>(packed, 3),
            ];
            for (run, pairs) in (4 * half..).zip(runs) {
                let weights = simd.subtract_byte(pairs, 1);
                accumulate_signed(simd, weights, scale, packs, run, sums);
            }
        }
    }
}
