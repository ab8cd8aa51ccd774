//! IQ3_XXS: 256 weights, four at a time from a code book of 256, signs apart; scale per 32.
//! `w = ±(d · (0.5 + scale) · 0.5) · code`.
//!
//! 98 bytes: `d` (2), 64 indices (64), then a word of 32 bits per group: four sets of seven sign
//! bits (see [`signs_of_eight`]) and a four-bit scale on top.

use super::code_books::IQ3_XXS;
use super::coded::{CodedBlock, CodedGroup, coded_block, fours, signs_of_eight};
use super::part;

/// 256 weights in 98 bytes.
pub(crate) enum IQ3XXS {}

coded_block!(IQ3XXS);

impl CodedBlock for IQ3XXS {
    type Raw = [u8; 98];

    #[inline(always)]
    fn scale(raw: &Self::Raw) -> [u8; 2] {
        *part(raw, 0)
    }

    #[inline(always)]
    fn group(raw: &Self::Raw, scale: f32, group: usize) -> CodedGroup {
        let indices: &[u8; 8] = part(raw, 2 + 8 * group);
        let word = u32::from_le_bytes(*part(raw, 66 + 4 * group));
        CodedGroup {
            weights: fours(|four| IQ3_XXS[usize::from(indices[four])]),
            negative: signs_of_eight(std::array::from_fn(|eight| (word >> (7 * eight)) as u8)),
            scales: [scale * (0.5 + (word >> 28) as f32) * 0.5; 2],
        }
    }
}
