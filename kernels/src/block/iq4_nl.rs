//! IQ4_NL: 32 four-bit indices into a table of unequal steps, and an `f16` scale.
//! `w = d · table[q]`.
//!
//! 18 bytes: `d` (2), then 16 bytes whose low nibbles are indices 0–15 and high nibbles 16–31.

use super::{
    ActivationFormat, Block, PackRows, QuantisedBlock, SignedWide, half_at, halves_of_indices,
    parts_of_eight, raised, store_scales,
};
use crate::arch::Simd;
use crate::block::panel::PanelScales;

/// 32 weights in 18 bytes.
pub(crate) enum IQ4NL {}

impl Block for IQ4NL {
    type Raw = [u8; 18];
    const ELEMENTS: usize = 32;
    const ACTIVATIONS: ActivationFormat = ActivationFormat::Q8;

    #[inline(always)]
    fn blocks(row: &[u8]) -> &[Self::Raw] {
        row.as_chunks().0
    }

    #[inline(always)]
    fn dequantise(raw: &Self::Raw, out: &mut [f32]) {
        let scale = half_at(raw, 0);
        let (low, high) = out.split_at_mut(16);
        for (index, &byte) in raw[2..].iter().enumerate() {
            low[index] = scale * f32::from(STEPS[usize::from(byte & 15)]);
            high[index] = scale * f32::from(STEPS[usize::from(byte >> 4)]);
        }
    }
}

impl QuantisedBlock for IQ4NL {
    type Meaning = SignedWide;
    const OFFSET_LOG2: u32 = 7;

    #[inline(always)]
    fn unpack_scales<S: Simd>(simd: S, rows: &PackRows<'_, Self::Raw>, scales: &mut PanelScales) {
        store_scales(simd, rows, scales);
    }

    #[inline(always)]
    fn unpack_row<S: Simd>(simd: S, blocks: &[Self::Raw]) -> [S::Quads; 4] {
        halves_of_indices(simd, &parts_of_eight(blocks, 2), &RAISED_STEPS)
    }
}

/// What the sixteen indices stand for: finer near zero. IQ4_XS shares it.
pub(super) const STEPS: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// The steps, 128 higher.
pub(super) const RAISED_STEPS: [u8; 16] = raised(STEPS, 128);
