//! Q4_1: 32 nibbles, an `f16` scale and an `f16` minimum. `w = d · q + m`.
//!
//! 20 bytes: `d` (2), `m` (2), then 16 bytes whose low nibbles are weights 0–15 and high nibbles
//! 16–31.

use super::{
    ActivationFormat, Block, PackRows, QuantisedBlock, WithMinimum, half_at, halves_of_nibbles,
    parts_of_eight, store_scales_and_minima,
};
use crate::arch::Simd;
use crate::block::panel::PanelScales;

/// 32 weights in 20 bytes.
pub(crate) enum Q4_1 {}

impl Block for Q4_1 {
    type Raw = [u8; 20];
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
        let (low, high) = out.split_at_mut(16);
        for (index, &byte) in raw[4..].iter().enumerate() {
            low[index] = scale * f32::from(byte & 15) + minimum;
            high[index] = scale * f32::from(byte >> 4) + minimum;
        }
    }
}

impl QuantisedBlock for Q4_1 {
    type Meaning = WithMinimum;

    #[inline(always)]
    fn unpack_scales<S: Simd>(simd: S, rows: &PackRows<'_, Self::Raw>, scales: &mut PanelScales) {
        store_scales_and_minima(simd, rows, scales);
    }

    #[inline(always)]
    fn unpack_row<S: Simd>(simd: S, blocks: &[Self::Raw]) -> [S::Quads; 4] {
        halves_of_nibbles(simd, &parts_of_eight(blocks, 4))
    }
}
