//! IQ2_XS: 256 weights, eight at a time from a code book of 512, signs apart; scale per 16.
//! `w = ±(d · (0.5 + scale) · 0.25) · code`.
//!
//! 74 bytes: `d` (2), 32 words of 16 bits with a nine-bit index and seven sign bits (see
//! [`signs_of_eight`]), then sixteen four-bit scales (8, first half of a group in the low nibble).

use super::code_books::IQ2_XS;
use super::coded::{CodedBlock, CodedGroup, coded_block, eights, half_scales, signs_of_eight};
use super::part;

/// 256 weights in 74 bytes.
pub(crate) enum IQ2XS {}

coded_block!(IQ2XS);

impl CodedBlock for IQ2XS {
    type Raw = [u8; 74];

    #[inline(always)]
    fn scale(raw: &Self::Raw) -> [u8; 2] {
        *part(raw, 0)
    }

    #[inline(always)]
    fn group(raw: &Self::Raw, scale: f32, group: usize) -> CodedGroup {
        let words: [u16; 4] =
            std::array::from_fn(|eight| u16::from_le_bytes(*part(raw, 2 + 8 * group + 2 * eight)));
        CodedGroup {
            weights: eights(|eight| IQ2_XS[usize::from(words[eight] & 511)]),
            negative: signs_of_eight(words.map(|word| (word >> 9) as u8)),
            scales: half_scales(scale, raw[66 + group]),
        }
    }
}
