//! IQ3_S: 256 weights, four at a time from a code book of 512, signs apart; scale per 32.
//! `w = ±(d · (1 + 2 · scale)) · code`.
//!
//! 110 bytes: `d` (2), the low eight bits of 64 indices (64), their ninth bits (8), a sign bit per
//! weight (32), eight four-bit scales (4, first group in the low nibble).

use super::code_books::IQ3_S;
use super::coded::{CodedBlock, CodedGroup, coded_block, fours};
use super::part;

/// 256 weights in 110 bytes.
pub(crate) enum IQ3S {}

coded_block!(IQ3S);

impl CodedBlock for IQ3S {
    type Raw = [u8; 110];

    #[inline(always)]
    fn scale(raw: &Self::Raw) -> [u8; 2] {
        *part(raw, 0)
    }

    #[inline(always)]
    fn group(raw: &Self::Raw, scale: f32, group: usize) -> CodedGroup {
        let low: &[u8; 8] = part(raw, 2 + 8 * group);
        let ninth = raw[66 + group];
        let scale_bits = (raw[106 + group / 2] >> (group % 2 * 4)) & 15;
        CodedGroup {
            weights: fours(|four| {
                let ninth = usize::from((ninth >> four) & 1) << 8;
                IQ3_S[usize::from(low[four]) | ninth]
            }),
            negative: u32::from_le_bytes(*part(raw, 74 + 4 * group)),
            scales: [scale * f32::from(1 + 2 * scale_bits); 2],
        }
    }
}
