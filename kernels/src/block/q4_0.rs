//! Q4_0: 32 nibbles and an `f16` scale. `w = d · (q - 8)`.
//!
//! 18 bytes: `d` (2), then 16 bytes whose low nibbles are weights 0–15 and high nibbles 16–31.

use super::{
    ActivationFormat, Block, PackRows, QuantisedBlock, Signed, blocks_at, half_at,
    halves_of_nibbles, parts, parts_of_eight, store_scales,
};
use crate::arch::Simd;
use crate::block::panel::{Panel, PanelScales};

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
    fn unpack_scales<S: Simd>(simd: S, rows: &PackRows<'_, Self::Raw>, scales: &mut PanelScales) {
        store_scales(simd, rows, scales);
    }

    #[inline(always)]
    fn unpack_row<S: Simd>(simd: S, blocks: &[Self::Raw]) -> [S::Quads; 4] {
        halves_of_nibbles(simd, &parts_of_eight(blocks, 2))
    }

    #[inline(always)]
    fn unpack_quants<S: Simd>(simd: S, rows: &PackRows<'_, Self::Raw>, panel: &mut Panel) {
        for (group, quants) in panel.quants.iter_mut().enumerate() {
            let quads = simd.interleave_half(&parts(&blocks_at(rows, group), 2));
            let (first, second) = quants.split_at_mut(4);
            for (quads, (first, second)) in quads.into_iter().zip(first.iter_mut().zip(second)) {
                simd.store_quads(simd.quad_bits(quads, 0, 15), first);
                simd.store_quads(simd.quad_bits(quads, 4, 15), second);
            }
        }
    }
}
