//! Q5_1: 32 five-bit weights, an `f16` scale and an `f16` minimum. `w = d · q + m`.
//!
//! 24 bytes: `d` (2), `m` (2), the fifth bits of the 32 weights (4), then 16 bytes whose low
//! nibbles are the other bits of weights 0–15 and high nibbles those of 16–31.

use super::{ActivationFormat, Block, RowBlock, WithMinimum, half_at, part};
use crate::arch::Simd;
use crate::panel::RowPack;

/// 32 weights in 24 bytes.
pub(crate) enum Q5_1 {}

impl Block for Q5_1 {
    type Raw = [u8; 24];
    const ELEMENTS: usize = 32;
    const ACTIVATIONS: ActivationFormat = ActivationFormat::Q8;

    #[inline(always)]
    fn blocks(row: &[u8]) -> &[Self::Raw] {
        row.as_chunks().0
    }

    #[inline(always)]
    fn dequantise(raw: &Self::Raw, out: &mut [f32]) {
        let scale = half_at(raw, 0);
        let minimum = half_at(raw, 2);
        let fifth = u32::from_le_bytes(*part(raw, 4));
        let (low, high) = out.split_at_mut(16);
        for (index, &byte) in raw[8..].iter().enumerate() {
            let fifth_low = ((fifth >> index) & 1) as u8 * 16;
            let fifth_high = ((fifth >> (index + 16)) & 1) as u8 * 16;
            low[index] = scale * f32::from(byte & 15 | fifth_low) + minimum;
            high[index] = scale * f32::from(byte >> 4 | fifth_high) + minimum;
        }
    }
}

impl RowBlock for Q5_1 {
    type Meaning = WithMinimum;

    #[inline(always)]
    fn unpack_row<S: Simd>(simd: S, blocks: &[Self::Raw], out: &mut RowPack) {
        for (group, raw) in blocks.iter().enumerate() {
            out.scales[0][group] = simd.f16(*part(raw, 0));
            out.minima[0][group] = simd.f16(*part(raw, 2));
            let fifth = simd.spread_bits(u32::from_le_bytes(*part(raw, 4)), 16);
            let weights = simd.or(simd.load_nibbles(part(raw, 8)), fifth);
            simd.store_bytes(weights, &mut out.quants[group]);
        }
    }
}
