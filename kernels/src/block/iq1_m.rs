//! IQ1_M: 256 weights, eight at a time from the code book of IQ1_S, moved by an eighth up or down
//! per 8; scale per 16. `w = (d · (2 · scale + 1)) · (code ± 1/8)`.
//!
//! 56 bytes: the low eight bits of 32 indices (32), a nibble per index with its upper three bits
//! and a bit that is set for down (16), then four words of 16 bits with four three-bit scales each
//! and, in their top nibbles, `d` from its lowest nibble to its highest (8).

use super::coded::{CodedBlock, CodedGroup, EIGHTH, coded_block, moved_eights};
use super::part;

/// 256 weights in 56 bytes.
pub(crate) enum IQ1M {}

coded_block!(IQ1M);

impl CodedBlock for IQ1M {
    type Raw = [u8; 56];

    #[inline(always)]
    fn scale(raw: &Self::Raw) -> [u8; 2] {
        let nibbles = |first: usize| (raw[first] >> 4) | raw[first + 2] & 0xf0;
        [nibbles(49), nibbles(53)]
    }

    #[inline(always)]
    fn group(raw: &Self::Raw, scale: f32, group: usize) -> CodedGroup {
        let low: &[u8; 4] = part(raw, 4 * group);
        let upper = usize::from(u16::from_le_bytes(*part(raw, 32 + 2 * group)));
        let word = u16::from_le_bytes(*part(raw, 48 + group / 2 * 2));
        CodedGroup {
            weights: moved_eights(|eight| {
                let nibble = upper >> (4 * eight);
                (usize::from(low[eight]) | (nibble & 7) << 8, nibble & 8 != 0)
            }),
            negative: 0,
            scales: [0, 3].map(|shift| {
                let bits = (word >> (group % 2 * 6 + shift)) & 7;
                scale * f32::from(2 * bits + 1) * EIGHTH
            }),
        }
    }
}
