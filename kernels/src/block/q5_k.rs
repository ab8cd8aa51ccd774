//! Q5_K: 256 five-bit weights in eight groups of 32, each with a six-bit scale and a six-bit
//! minimum. `w = (d · scale) · q - (dmin · minimum)`.
//!
//! 176 bytes: `d` (2), `dmin` (2), twelve bytes of scales and minima packed as in Q4_K, 32 bytes
//! of fifth bits, then 128 bytes of nibbles as in Q4_K. Weight `i` of group `g` has its fifth bit
//! in bit `g` of byte `i`.

use super::q4_k::{halves_of_pairs, unpack_head, unpack_scales};
use super::{
    ActivationFormat, Block, PackRows, QuantisedBlock, WithMinimum, blocks_at, half_at, part, parts,
};
use crate::arch::{PANEL_ROWS, Simd};
use crate::block::panel::PanelScales;

/// 256 weights in 176 bytes.
pub(crate) enum Q5K {}

impl Block for Q5K {
    type Raw = [u8; 176];
    const ELEMENTS: usize = 256;
    const ACTIVATIONS: ActivationFormat = ActivationFormat::Q8;

    #[inline(always)]
    fn blocks(row: &[u8]) -> &[Self::Raw] {
        row.as_chunks().0
    }

    #[inline(always)]
    fn dequantise(raw: &Self::Raw, out: &mut [f32]) {
        let (scales, minima) = unpack_scales(part(raw, 4));
        let (scale, minimum) = (half_at(raw, 0), half_at(raw, 2));
        let fifth: &[u8; 32] = part(raw, 16);
        for (group, weights) in out.chunks_exact_mut(32).enumerate() {
            let scale = scale * f32::from(scales[group]);
            let minimum = minimum * f32::from(minima[group]);
            let nibbles: &[u8; 32] = part(raw, 48 + group / 2 * 32);
            for (index, weight) in weights.iter_mut().enumerate() {
                let nibble = (nibbles[index] >> (group % 2 * 4)) & 15;
                let fifth = ((fifth[index] >> group) & 1) << 4;
                *weight = scale * f32::from(nibble | fifth) - minimum;
            }
        }
    }
}

impl QuantisedBlock for Q5K {
    type Meaning = WithMinimum;

    #[inline(always)]
    fn unpack_scales<S: Simd>(simd: S, rows: &PackRows<'_, Self::Raw>, scales: &mut PanelScales) {
        unpack_head(simd, &parts(&blocks_at(rows, 0), 0), scales);
    }

    #[inline(always)]
    fn unpack_row<S: Simd>(simd: S, blocks: &[Self::Raw]) -> [S::Quads; 4] {
        /// The group that each lane belongs to.
        const GROUPS: [u32; PANEL_ROWS] = [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7];
        let mut quads = halves_of_pairs(simd, part(&blocks[0], 48));
        let fifth = simd.load_pair([part(&blocks[0], 16); 2]);
        for (quads, fifth) in quads.iter_mut().zip(simd.repeat_lanes(fifth, fifth)) {
            *quads = simd.or_shifted(*quads, simd.quad_bits_each(fifth, &GROUPS, 1));
        }
        quads
    }
}
