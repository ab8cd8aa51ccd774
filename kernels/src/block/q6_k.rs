//! Q6_K: 256 six-bit weights in sixteen groups of 16, each with an eight-bit signed scale.
//! `w = (d · scale) · (q - 32)`.
//!
//! 210 bytes: 128 bytes of low nibbles, 64 bytes of upper bit pairs, 16 scales, `d` (2). Weights
//! come in two halves of 128, each of four runs of 32: run `r` of a half takes its low four bits
//! from nibble bytes `32·(r mod 2)..` of that half (low nibbles for runs 0 and 1, high for 2 and
//! 3) and its upper two from bits `2r..2r+2` of the half's 32 upper bytes.

use super::{ActivationFormat, Block, QuantisedBlock, RowPack, SignedHalves, half_at, part};
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
    type Meaning = SignedHalves;
    const OFFSET_LOG2: u32 = 5;

    #[inline(always)]
    fn unpack<S: Simd>(simd: S, blocks: &[Self::Raw], out: &mut RowPack) {
        let raw = &blocks[0];
        let scale = simd.splat(simd.f16(*part(raw, 208)));
        let scales = split_scales(part(raw, 192)).map(|half| simd.load(&half));
        for (half, out) in scales.into_iter().zip(&mut out.scales) {
            simd.store(simd.multiply(scale, half), out);
        }
        for (half, quants) in out.quants.as_chunks_mut::<4>().0.iter_mut().enumerate() {
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
            for ((nibbles, pairs), quants) in runs.into_iter().zip(quants) {
                simd.store_bytes(simd.or(nibbles, simd.shift_left_4(pairs)), quants);
            }
        }
    }
}

/// The sixteen scales, as those of the groups' first halves and of their second.
#[inline(always)]
fn split_scales(packed: &[u8; 16]) -> [[f32; 8]; 2] {
    [0, 1].map(|half| std::array::from_fn(|group| f32::from(packed[2 * group + half] as i8)))
}
