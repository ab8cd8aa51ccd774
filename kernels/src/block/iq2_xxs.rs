//! IQ2_XXS: 256 weights, eight at a time from a code book of 256, signs apart; scale per 32.
//! `w = ±(d · (0.5 + scale) · 0.25) · code`.
//!
//! 66 bytes: `d` (2), then eight bytes per group: four indices, and a word of 32 bits with four
//! sets of seven sign bits (see [`signs_of_eight`]) and a four-bit scale on top.

use super::code_books::IQ2_XXS;
use super::coded::{CodedBlock, CodedGroup, coded_block, eights, signs_of_eight};
use super::part;

/// 256 weights in 66 bytes.
pub(crate) enum IQ2XXS {}

coded_block!(IQ2XXS);

impl CodedBlock for IQ2XXS {
    type Raw = [u8; 66];

    #[inline(always)]
    fn scale(raw: &Self::Raw) -> [u8; 2] {
        *part(raw, 0)
    }

    #[inline(always)]
    fn group(raw: &Self::Raw, scale: f32, group: usize) -> CodedGroup {
        let indices: &[u8; 4] = part(raw, 2 + 8 * group);
        let word = u32::from_le_bytes(*part(raw, 6 + 8 * group));
        CodedGroup {
            weights: eights(|eight| IQ2_XXS[usize::from(indices[eight])]),
            negative: signs_of_eight(std::array::from_fn(|eight| (word >> (7 * eight)) as u8)),
            scales: [scale * (0.5 + (word >> 28) as f32) * 0.25; 2],
        }
    }
}
