//! Q6_K: 256 six-bit weights in sixteen groups of 16, each with an eight-bit signed scale.
//! `w = (d · scale) · (q - 32)`.
//!
//! 210 bytes: 128 bytes of low nibbles, 64 bytes of upper bit pairs, 16 scales, `d` (2). Weights
//! come in two halves of 128, each of four runs of 32: run `r` of a half takes its low four bits
//! from nibble bytes `32·(r mod 2)..` of that half (low nibbles for runs 0 and 1, high for 2 and
//! 3) and its upper two from bits `2r..2r+2` of the half's 32 upper bytes.

use super::{ActivationFormat, Block, QuantisedBlock, accumulate_signed_halves, half_at, part};
use crate::activations::Q8Pack;
use crate::arch::Simd;

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
    #[inline(always)]
    fn accumulate<S: Simd, const T: usize>(
        simd: S,
        raw: &Self::Raw,
        packs: [&Q8Pack; T],
        _group: usize,
        sums: &mut [S::Floats; T],
    ) {
        let scale = simd.f16(*part(raw, 208));
        let scales: [f32; 16] =
            std::array::from_fn(|group| scale * f32::from(raw[192 + group] as i8));
        for half in 0..2 {
            let low = [
                simd.load_bytes(part(raw, 64 * half)),
                simd.load_bytes(part(raw, 64 * half + 32)),
            ];
            let upper = simd.load_bytes(part(raw, 128 + 32 * half));
            let runs = [
                (simd.bits::<0>(low[0], 15), simd.bits::<0>(upper, 3)),
                (simd.bits::<0>(low[1], 15), simd.bits::<2>(upper, 3)),
                (simd.bits::<4>(low[0], 15), simd.bits::<4>(upper, 3)),
                (simd.bits::<4>(low[1], 15), simd.bits::<6>(upper, 3)),
            ];
            for (run_of_half, (nibbles, pairs)) in runs.into_iter().enumerate() {
                let run = 4 * half + run_of_half;
                let unsigned = simd.or(nibbles, simd.shift_left_4(pairs));
                let weights = simd.subtract_byte(unsigned, 32);
                let scales = [scales[2 * run], scales[2 * run + 1]];
                accumulate_signed_halves(simd, weights, scales, packs, run, sums);
            }
        }
    }
}
