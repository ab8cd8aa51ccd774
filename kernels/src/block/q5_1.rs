//! Q5_1: 32 five-bit weights, an `f16` scale and an `f16` minimum. `w = d · q + m`.
//!
//! 24 bytes: `d` (2), `m` (2), the fifth bits of the 32 weights (4), then 16 bytes whose low
//! nibbles are the other bits of weights 0–15 and high nibbles those of 16–31.

use super::{
    ActivationFormat, Block, PackRows, QuantisedBlock, WithMinimum, half_at,
    halves_of_nibbles_and_fifth_bits, part, parts_of_eight, store_scales_and_minima,
};
use crate::arch::Simd;
use crate::block::panel::PanelScales;

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

impl QuantisedBlock for Q5_1 {
    type Meaning = WithMinimum;

    #[inline(always)]
    fn unpack_scales<S: Simd>(simd: S, rows: &PackRows<'_, Self::Raw>, scales: &mut PanelScales) {
        store_scales_and_minima(simd, rows, scales);
    }

    #[inline(always)]
    fn unpack_row<S: Simd>(simd: S, blocks: &[Self::Raw]) -> [S::Quads; 4] {
        let fifth = parts_of_eight(blocks, 4);
        halves_of_nibbles_and_fifth_bits(simd, &parts_of_eight(blocks, 8), &fifth)
    }
}
