//! IQ1_S: 256 weights, eight at a time from a code book of 2048, moved by an eighth up or down per
//! 32; scale per 32. `w = (d · (2 · scale + 1)) · (code ± 1/8)`.
//!
//! 50 bytes: `d` (2), the low eight bits of 32 indices (32), then a word of 16 bits per group: the
//! upper three bits of its four indices, a three-bit scale, and on top a bit that is set for down.

use super::coded::{CodedBlock, CodedGroup, EIGHTH, coded_block, moved_eights};
use super::part;

/// 256 weights in 50 bytes.
pub(crate) enum IQ1S {}

coded_block!(IQ1S);

impl CodedBlock for IQ1S {
    type Raw = [u8; 50];

    #[inline(always)]
    fn scale(raw: &Self::Raw) -> [u8; 2] {
        *part(raw, 0)
    }

    #[inline(always)]
    fn group(raw: &Self::Raw, scale: f32, group: usize) -> CodedGroup {
        let low: &[u8; 4] = part(raw, 2 + 4 * group);
        let word = u16::from_le_bytes(*part(raw, 34 + 2 * group));
        CodedGroup {
            weights: moved_eights(|eight| {
                let upper = usize::from((word >> (3 * eight)) & 7);
                (usize::from(low[eight]) | upper << 8, word >> 15 == 1)
            }),
            negative: 0,
            scales: [scale * f32::from(2 * ((word >> 12) & 7) + 1) * EIGHTH; 2],
        }
    }
}
