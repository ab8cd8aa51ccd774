//! Q5_K: 256 five-bit weights in eight groups of 32, each with a six-bit scale and a six-bit
//! minimum. `w = (d · scale) · q - (dmin · minimum)`.
//!
//! 176 bytes: `d` (2), `dmin` (2), twelve bytes of scales and minima packed as in Q4_K, 32 bytes
//! of fifth bits, then 128 bytes of nibbles as in Q4_K. Weight `i` of group `g` has its fifth bit
//! in bit `g` of byte `i`.

use super::q4_k::{unpack_head, unpack_scales};
use super::{
    ActivationFormat, Block, PackRows, QuantisedBlock, WithMinimum, blocks_at, half_at, part, parts,
};
use crate::arch::Simd;
use crate::panel::Panel;

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
    fn unpack<S: Simd>(simd: S, rows: &PackRows<'_, Self::Raw>, panel: &mut Panel) {
        let blocks = blocks_at(rows, 0);
        unpack_head(simd, &parts(&blocks, 0), panel);
        let fifth = simd.interleave(&parts(&blocks, 16));
        for (pair, quants) in panel.quants.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            let quads = simd.interleave(&parts(&blocks, 48 + 32 * pair));
            for (quad, (quads, fifth)) in quads.into_iter().zip(fifth).enumerate() {
                for (half, quants) in quants.iter_mut().enumerate() {
                    let nibbles = simd.quad_bits(quads, 4 * half as u32, 15);
                    let fifth = simd.quad_bits(fifth, (2 * pair + half) as u32, 1);
                    simd.store_quads(simd.or_shifted(nibbles, fifth), &mut quants[quad]);
                }
            }
        }
    }
}
