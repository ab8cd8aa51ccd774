//! IQ4_XS: 256 four-bit indices into the table of IQ4_NL, in eight groups of 32, each with a
//! six-bit scale. `w = (d · (scale - 32)) · table[q]`.
//!
//! 136 bytes: `d` (2), the upper two bits of the scales (2), the lower four (4, first group in the
//! low nibble), then 16 bytes per group whose low nibbles are indices 0–15 and high nibbles 16–31.

use super::iq4_nl::{RAISED_STEPS, STEPS};
use super::{
    ActivationFormat, Block, PackRows, QuantisedBlock, SignedWide, blocks_at, half_at,
    halves_of_indices, part,
};
use crate::arch::Simd;
use crate::block::panel::PanelScales;

/// 256 weights in 136 bytes.
pub(crate) enum IQ4XS {}

impl Block for IQ4XS {
    type Raw = [u8; 136];
    const ELEMENTS: usize = 256;
    const ACTIVATIONS: ActivationFormat = ActivationFormat::Q8;

    #[inline(always)]
    fn blocks(row: &[u8]) -> &[Self::Raw] {
        row.as_chunks().0
    }

    #[inline(always)]
    fn dequantise(raw: &Self::Raw, out: &mut [f32]) {
        let scales = unpack_scales(half_at(raw, 0), part(raw, 2));
        for (group, weights) in out.chunks_exact_mut(32).enumerate() {
            let scale = scales[group];
            let nibbles: &[u8; 16] = part(raw, 8 + 16 * group);
            let (low, high) = weights.split_at_mut(16);
            for (index, &byte) in nibbles.iter().enumerate() {
                low[index] = scale * f32::from(STEPS[usize::from(byte & 15)]);
                high[index] = scale * f32::from(STEPS[usize::from(byte >> 4)]);
            }
        }
    }
}

impl QuantisedBlock for IQ4XS {
    type Meaning = SignedWide;
    const OFFSET_LOG2: u32 = 7;

    #[inline(always)]
    fn unpack_scales<S: Simd>(simd: S, rows: &PackRows<'_, Self::Raw>, scales: &mut PanelScales) {
        for (row, block) in blocks_at(rows, 0).into_iter().enumerate() {
            let of_row = unpack_scales(simd.f16(*part(block, 0)), part(block, 2));
            for (scales, scale) in scales.scales[0].iter_mut().zip(of_row) {
                scales[row] = scale;
            }
        }
    }

    #[inline(always)]
    fn unpack_row<S: Simd>(simd: S, blocks: &[Self::Raw]) -> [S::Quads; 4] {
        let mut groups = [part(&blocks[0], 8); 8];
        for (index, group) in groups.iter_mut().enumerate() {
            *group = part(&blocks[0], 8 + 16 * index);
        }
        halves_of_indices(simd, &groups, &RAISED_STEPS)
    }
}

/// The eight scales times `scale`.
#[inline(always)]
fn unpack_scales(scale: f32, packed: &[u8; 6]) -> [f32; 8] {
    let upper = u16::from_le_bytes(*part(packed, 0));
    std::array::from_fn(|group| {
        let low = (packed[2 + group / 2] >> (group % 2 * 4)) & 15;
        let upper = ((upper >> (2 * group)) & 3) as u8;
        scale * f32::from((low | upper << 4) as i8 - 32)
    })
}
