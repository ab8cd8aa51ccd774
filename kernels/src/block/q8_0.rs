//! Q8_0: 32 signed bytes and an `f16` scale. `w = d · q`.
//!
//! 34 bytes: `d` (2), then `q[0..32]`. Well-made files keep `q` in -127..=127; a hostile one may
//! hold -128, which the signed dot product allows.

use super::{
    ActivationFormat, Block, PackRows, QuantisedBlock, SignedWide, blocks_at, half_at,
    halves_of_groups, part, parts, parts_of_eight,
};
use crate::arch::{PANEL_ROWS, Simd};
use crate::block::panel::{Panel, PanelScales};

/// 32 weights in 34 bytes.
pub(crate) enum Q8_0 {}

impl Block for Q8_0 {
    type Raw = [u8; 34];
    const ELEMENTS: usize = 32;
    const ACTIVATIONS: ActivationFormat = ActivationFormat::Q8;

    #[inline(always)]
    fn blocks(row: &[u8]) -> &[Self::Raw] {
        row.as_chunks().0
    }

    #[inline(always)]
    fn dequantise(raw: &Self::Raw, out: &mut [f32]) {
        let scale = half_at(raw, 0);
        for (weight, &quant) in out.iter_mut().zip(&raw[2..]) {
            *weight = scale * f32::from(quant as i8);
        }
    }
}

impl QuantisedBlock for Q8_0 {
    type Meaning = SignedWide;
    const OFFSET_LOG2: u32 = 7;

    #[inline(always)]
    fn unpack_scales<S: Simd>(simd: S, rows: &PackRows<'_, Self::Raw>, scales: &mut PanelScales) {
        // Blocks are most of a cache line apart: loads of two bytes, in the order in which
        // memory brings them, cost less here than gathering them in registers.
        for (group, scales) in scales.scales[0].iter_mut().enumerate() {
            let mut halves = [0; PANEL_ROWS];
            for (half, block) in halves.iter_mut().zip(blocks_at(rows, group)) {
                *half = u32::from(u16::from_le_bytes(*part(block, 0)));
            }
            simd.store_rows(simd.half_as_rows(simd.load_words(&halves), 0), scales);
        }
    }

    #[inline(always)]
    fn unpack_row<S: Simd>(simd: S, blocks: &[Self::Raw]) -> [S::Quads; 4] {
        let mut quads = halves_of_groups(simd, &parts_of_eight(blocks, 2));
        for quads in &mut quads {
            *quads = simd.raise_quads(*quads);
        }
        quads
    }

    #[inline(always)]
    fn unpack_quants<S: Simd>(simd: S, rows: &PackRows<'_, Self::Raw>, panel: &mut Panel) {
        for (group, quants) in panel.quants.iter_mut().enumerate() {
            let quads = simd.interleave(&parts(&blocks_at(rows, group), 2));
            for (quads, out) in quads.into_iter().zip(quants) {
                simd.store_quads(simd.raise_quads(quads), out);
            }
        }
    }
}
