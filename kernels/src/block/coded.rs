//! What the formats with a code book have in common.
//!
//! Their weights are stored four or eight at a time as an index into a code book (see
//! `code_books.rs`), with signs and scales apart. A format says how one group of 32 is laid out
//! ([`CodedBlock`]); gathering codes does not vectorise, so that is scalar, and only the signs and
//! the dot product go through vectors.

use super::RowScales;
use super::code_books::IQ1_S;
use crate::arch::{Scalar, Simd};

/// A format of 256 weights from a code book.
pub(crate) trait CodedBlock: 'static {
    /// The bytes of one block.
    type Raw: Copy + Send + Sync;
    /// The half-precision scale of the block.
    fn scale(raw: &Self::Raw) -> [u8; 2];
    /// Group `group` of 32 weights, given the block's scale as a float.
    fn group(raw: &Self::Raw, scale: f32, group: usize) -> CodedGroup;
}

/// 32 weights: `scale · ±weight`, one scale for each half.
pub(crate) struct CodedGroup {
    /// Signed bytes, at most 62 in magnitude.
    pub(super) weights: [u8; 32],
    /// Which weights to negate.
    pub(super) negative: u32,
    /// The scales of weights 0–15 and of 16–31.
    pub(super) scales: [f32; 2],
}

/// Implements [`Block`](super::Block) and [`RowBlock`](super::RowBlock) for a [`CodedBlock`].
macro_rules! coded_block {
    ($block:ty) => {
        impl $crate::block::Block for $block {
            type Raw = <$block as CodedBlock>::Raw;
            const ELEMENTS: usize = 256;
            const ACTIVATIONS: $crate::block::ActivationFormat =
                $crate::block::ActivationFormat::Q8;

            #[inline(always)]
            fn blocks(row: &[u8]) -> &[Self::Raw] {
                row.as_chunks().0
            }

            #[inline(always)]
            fn dequantise(raw: &Self::Raw, out: &mut [f32]) {
                $crate::block::coded::dequantise::<$block>(raw, out);
            }
        }

        impl $crate::block::RowBlock for $block {
            // Halves also where a format has one scale per 32: these are bound by their look-ups.
            type Meaning = $crate::block::SignedHalves;
            const OFFSET_LOG2: u32 = 6;

            #[inline(always)]
            fn row_scales<S: $crate::arch::Simd>(
                simd: S,
                blocks: &[Self::Raw],
            ) -> $crate::block::RowScales {
                $crate::block::coded::scales::<$block, S>(simd, &blocks[0])
            }

            #[inline(always)]
            fn row_quants<S: $crate::arch::Simd>(
                simd: S,
                blocks: &[Self::Raw],
                groups: &mut [[u8; 32]; 8],
            ) {
                $crate::block::coded::quants::<$block, S>(simd, &blocks[0], groups);
            }
        }
    };
}
pub(super) use coded_block;

#[inline(always)]
pub(super) fn dequantise<C: CodedBlock>(raw: &C::Raw, out: &mut [f32]) {
    let scale = Scalar.f16(C::scale(raw));
    for (index, out) in out.chunks_exact_mut(32).enumerate() {
        let group = C::group(raw, scale, index);
        let weights = Scalar.negate_where(group.weights, group.negative);
        for (place, (out, weight)) in out.iter_mut().zip(weights).enumerate() {
            *out = group.scales[place / 16] * f32::from(weight as i8);
        }
    }
}

#[inline(always)]
pub(super) fn scales<C: CodedBlock, S: Simd>(simd: S, raw: &C::Raw) -> RowScales {
    let scale = simd.f16(C::scale(raw));
    let mut out = RowScales::ZERO;
    for index in 0..8 {
        let scales = C::group(raw, scale, index).scales;
        [out.scales[0][index], out.scales[1][index]] = scales;
    }
    out
}

#[inline(always)]
pub(super) fn quants<C: CodedBlock, S: Simd>(simd: S, raw: &C::Raw, groups: &mut [[u8; 32]; 8]) {
    for (index, out) in groups.iter_mut().enumerate() {
        let group = C::group(raw, 0.0, index);
        let weights = simd.negate_where(simd.load_bytes(&group.weights), group.negative);
        simd.store_bytes(simd.add_byte(weights, 64), out);
    }
}

/// 32 bytes from eight codes of four.
#[inline(always)]
pub(super) fn fours(code: impl Fn(usize) -> [u8; 4]) -> [u8; 32] {
    let mut weights = [0; 32];
    for (four, bytes) in weights.as_chunks_mut().0.iter_mut().enumerate() {
        *bytes = code(four);
    }
    weights
}

/// 32 bytes from four codes of eight.
#[inline(always)]
pub(super) fn eights(code: impl Fn(usize) -> [u8; 8]) -> [u8; 32] {
    let mut weights = [0; 32];
    for (eight, bytes) in weights.as_chunks_mut().0.iter_mut().enumerate() {
        *bytes = code(eight);
    }
    weights
}

/// The scale that goes with [`moved_eights`].
pub(super) const EIGHTH: f32 = 0.125;

/// 32 signed bytes from four codes of [`IQ1_S`], in eighths: `8 · code + 1`, or `- 1` where the
/// second part of what `code` returns (after the index) says down.
#[inline(always)]
pub(super) fn moved_eights(code: impl Fn(usize) -> (usize, bool)) -> [u8; 32] {
    eights(|eight| {
        let (index, down) = code(eight);
        // The bytes of the code book are 8 above what they mean.
        let offset = if down { 9 } else { 7 };
        IQ1_S[index].map(|byte| byte.wrapping_sub(offset))
    })
}

/// Sign bits of four times eight weights from seven stored bits each (bit 7 of a byte is
/// ignored): the eighth makes the number of negative weights even.
#[inline(always)]
pub(super) fn signs_of_eight(stored: [u8; 4]) -> u32 {
    let seven = u32::from_le_bytes(stored) & 0x7f7f_7f7f;
    let mut parity = seven ^ seven >> 4;
    parity ^= parity >> 2;
    parity ^= parity >> 1;
    seven | (parity & 0x0101_0101) << 7
}

/// The scales of a group of IQ2_XS or IQ2_S: first half in the low nibble.
#[inline(always)]
pub(super) fn half_scales(scale: f32, nibbles: u8) -> [f32; 2] {
    [nibbles & 15, nibbles >> 4].map(|nibble| scale * (0.5 + f32::from(nibble)) * 0.25)
}
