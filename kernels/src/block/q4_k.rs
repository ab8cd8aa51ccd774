//! Q4_K: 256 nibbles in eight groups of 32, each with a six-bit scale and a six-bit minimum.
//! `w = (d · scale) · q - (dmin · minimum)`.
//!
//! 144 bytes: `d` (2), `dmin` (2), twelve bytes of packed scales and minima, then 128 bytes of
//! nibbles. Each run of 32 nibble bytes holds two groups: low nibbles, then high nibbles.
//!
//! The packed twelve bytes `p`: groups 0–3 have their scale in the low six bits of `p[g]` and
//! their minimum in those of `p[4+g]`; groups 4–7 have the low four bits of both in `p[8+g-4]`
//! (scale in the low nibble) and the upper two in the top bits of `p[g-4]` and `p[g]`.

use super::{ActivationFormat, Block, QuantisedBlock, RowPack, WithMinimum, half_at, part};
use crate::arch::Simd;

/// 256 weights in 144 bytes.
pub(crate) enum Q4K {}

impl Block for Q4K {
    type Raw = [u8; 144];
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
        for (group, weights) in out.chunks_exact_mut(32).enumerate() {
            let scale = scale * f32::from(scales[group]);
            let minimum = minimum * f32::from(minima[group]);
            let nibbles: &[u8; 32] = part(raw, 16 + group / 2 * 32);
            let shift = group % 2 * 4;
            for (weight, &byte) in weights.iter_mut().zip(nibbles) {
                *weight = scale * f32::from((byte >> shift) & 15) - minimum;
            }
        }
    }
}

impl QuantisedBlock for Q4K {
    type Meaning = WithMinimum;

    #[inline(always)]
    fn unpack<S: Simd>(simd: S, blocks: &[Self::Raw], out: &mut RowPack) {
        let raw = &blocks[0];
        unpack_head(simd, part(raw, 0), out);
        for (pair, quants) in out.quants.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            let nibbles = simd.load_bytes(part(raw, 16 + 32 * pair));
            simd.store_bytes(simd.bits::<0>(nibbles, 15), &mut quants[0]);
            simd.store_bytes(simd.bits::<4>(nibbles, 15), &mut quants[1]);
        }
    }
}

/// Unpacks what Q4_K and Q5_K blocks begin with: `d`, `dmin` and the packed scales and minima.
#[inline(always)]
pub(super) fn unpack_head<S: Simd>(simd: S, head: &[u8; 16], out: &mut RowPack) {
    let (scales, minima) = unpack_scales(part(head, 4));
    let scale = simd.splat(simd.f16(*part(head, 0)));
    let minimum = simd.splat(-simd.f16(*part(head, 2)));
    let scales = simd.multiply(scale, simd.load_small(&scales));
    let minima = simd.multiply(minimum, simd.load_small(&minima));
    simd.store(scales, &mut out.scales[0]);
    simd.store(minima, &mut out.minima[0]);
}

/// The eight scales and the eight minima, each below 64.
#[inline(always)]
pub(super) fn unpack_scales(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    const SIX_BITS: u32 = 0x3f3f_3f3f;
    const FOUR_BITS: u32 = 0x0f0f_0f0f;
    const TOP_BITS: u32 = 0x3030_3030;
    let first = u32::from_le_bytes(*part(packed, 0));
    let second = u32::from_le_bytes(*part(packed, 4));
    let third = u32::from_le_bytes(*part(packed, 8));
    let scales = [
        first & SIX_BITS,
        third & FOUR_BITS | (first >> 2) & TOP_BITS,
    ];
    let minima = [
        second & SIX_BITS,
        (third >> 4) & FOUR_BITS | (second >> 2) & TOP_BITS,
    ];
    (join(scales), join(minima))
}

/// Eight bytes from two little-endian words.
#[inline(always)]
fn join([low, high]: [u32; 2]) -> [u8; 8] {
    (u64::from(low) | u64::from(high) << 32).to_le_bytes()
}
