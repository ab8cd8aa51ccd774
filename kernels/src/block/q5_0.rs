//! Q5_0: 32 five-bit weights and an `f16` scale. `w = d · (q - 16)`.
//!
//! 22 bytes: `d` (2), the fifth bits of the 32 weights (4), then 16 bytes whose low nibbles are
//! the other bits of weights 0–15 and high nibbles those of 16–31.

use super::{
    ActivationFormat, Block, PackRows, QuantisedBlock, Signed, half_at,
    halves_of_nibbles_and_fifth_bits, part, parts_of_eight, store_scales,
};
use crate::arch::Simd;
use crate::block::panel::PanelScales;

/// 32 weights in 22 bytes.
pub(crate) enum Q5_0 {}

impl Block for Q5_0 {
    type Raw = [u8; 22];
    const ELEMENTS: usize = 32;
    const ACTIVATIONS: ActivationFormat = ActivationFormat::Q8;

    #[inline(always)]
    fn blocks(row: &[u8]) -> &[Self::Raw] {
        row.as_chunks().0
    }

    #[inline(always)]
    fn dequantise(raw: &Self::Raw, out: &mut [f32]) {
        let scale = half_at(raw, 0);
        let fifth = u32::from_le_bytes(*part(raw, 2));
        let (low, high) = out.split_at_mut(16);
        for (index, &byte) in raw[6..].iter().enumerate() {
            let fifth_low = ((fifth >> index) & 1) as u8 * 16;
            let fifth_high = ((fifth >> (index + 16)) & 1) as u8 * 16;
            low[index] = scale * f32::from((byte & 15 | fifth_low) as i8 - 16);
            high[index] = scale * f32::from((byte >> 4 | fifth_high) as i8 - 16);
        }
    }
}

impl QuantisedBlock for Q5_0 {
    type Meaning = Signed;
    const OFFSET_LOG2: u32 = 4;

    #[inline(always)]
    fn unpack_scales<S: Simd>(simd: S, rows: &PackRows<'_, Self::Raw>, scales: &mut PanelScales) {
        store_scales(simd, rows, scales);
    }

    #[inline(always)]
    fn unpack_row<S: Simd>(simd: S, blocks: &[Self::Raw]) -> [S::Quads; 4] {
        let fifth = parts_of_eight(blocks, 2);
        halves_of_nibbles_and_fifth_bits(simd, &parts_of_eight(blocks, 6), &fifth)
    }
}
