//! Q4_0: 32 nibbles and an `f16` scale. `w = d · (q - 8)`.
//!
//! 18 bytes: `d` (2), then 16 bytes whose low nibbles are weights 0–15 and high nibbles 16–31.

use super::{
    ActivationFormat, Block, PackRows, QuantisedBlock, Signed, blocks_at, half_at, of_one_length,
    parts, store_nibbles, store_scales,
};
use crate::arch::Simd;
use crate::panel::Panel;

/// 32 weights in 18 bytes.
pub(crate) enum Q4_0 {}

impl Block for Q4_0 {
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
            low[index] = scale * f32::from((byte & 15) as i8 - 8);
            high[index] = scale * f32::from((byte >> 4) as i8 - 8);
        }
    }
}

impl QuantisedBlock for Q4_0 {
    type Meaning = Signed;
    const OFFSET_LOG2: u32 = 3;

    #[inline(always)]
    fn unpack<S: Simd>(simd: S, rows: &PackRows<'_, Self::Raw>, panel: &mut Panel) {
        let (rows, groups) = of_one_length(rows);
        for group in 0..groups {
            let blocks = blocks_at(&rows, group);
            store_scales(simd, &blocks, group, panel);
            store_nibbles(
                simd,
                &parts(&blocks, 2),
                |quads| quads,
                &mut panel.quants[group],
            );
        }
    }
}
