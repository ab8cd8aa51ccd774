//! IQ2_S: 256 weights, eight at a time from a code book of 1024, signs apart; scale per 16.
//! `w = ±(d · (0.5 + scale) · 0.25) · code`.
//!
//! 82 bytes: `d` (2), the low eight bits of 32 indices (32), a sign bit per weight (32), the upper
//! two bits of the indices (8), sixteen four-bit scales (8, first half of a group in the low
//! nibble).

use super::code_books::IQ2_S;
use super::coded::{CodedBlock, CodedGroup, coded_block, eights, half_scales};
use super::part;

/// 256 weights in 82 bytes.
pub(crate) enum IQ2S {}

coded_block!(IQ2S);

impl CodedBlock for IQ2S {
    type Raw = [u8; 82];

    #[inline(always)]
    fn scale(raw: &Self::Raw) -> [u8; 2] {
        *part(raw, 0)
    }

    #[inline(always)]
    fn group(raw: &Self::Raw, scale: f32, group: usize) -> CodedGroup {
        let low: &[u8; 4] = part(raw, 2 + 4 * group);
        let upper = usize::from(raw[66 + group]);
        CodedGroup {
            weights: eights(|eight| {
                let upper = (upper >> (2 * eight)) & 3;
                IQ2_S[usize::from(low[eight]) | upper << 8]
            }),
            negative: u32::from_le_bytes(*part(raw, 34 + 4 * group)),
            scales: half_scales(scale, raw[74 + group]),
        }
    }
}
