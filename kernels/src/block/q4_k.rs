//! Q4_K: 256 nibbles in eight groups of 32, each with a six-bit scale and a six-bit minimum.
//! `w = (d · scale) · q - (dmin · minimum)`.
//!
//! 144 bytes: `d` (2), `dmin` (2), twelve bytes of packed scales and minima, then 128 bytes of
//! nibbles. Each run of 32 nibble bytes holds two groups: low nibbles, then high nibbles.
//!
//! The packed twelve bytes `p`: groups 0–3 have their scale in the low six bits of `p[g]` and
//! their minimum in those of `p[4+g]`; groups 4–7 have the low four bits of both in `p[8+g-4]`
//! (scale in the low nibble) and the upper two in the top bits of `p[g-4]` and `p[g]`.

use super::{ActivationFormat, Block, QuantisedBlock, half_at, part};
use crate::activations::Q8Pack;
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
    #[inline(always)]
    fn accumulate<S: Simd, const T: usize>(
        simd: S,
        raw: &Self::Raw,
        packs: [&Q8Pack; T],
        _group: usize,
        sums: &mut [S::Floats; T],
    ) {
        let products = begin(simd, part(raw, 0), packs, sums);
        for pair in 0..4 {
            let nibbles = simd.load_bytes(part(raw, 16 + 32 * pair));
            let weights = [simd.bits::<0>(nibbles, 15), simd.bits::<4>(nibbles, 15)];
            accumulate_pair(simd, weights, &products, packs, pair, sums);
        }
    }
}

/// Per token and half, the scales of weights and activations multiplied, for the eight groups.
pub(super) type Products<const T: usize> = [[[f32; 8]; 2]; T];

/// Adds the minima's share to the sums and returns the scales of the groups. `head` is what Q4_K
/// and Q5_K blocks begin with: `d`, `dmin` and the packed scales and minima.
#[inline(always)]
pub(super) fn begin<S: Simd, const T: usize>(
    simd: S,
    head: &[u8; 16],
    packs: [&Q8Pack; T],
    sums: &mut [S::Floats; T],
) -> Products<T> {
    let (scales, minima) = unpack_scales(part(head, 4));
    let scale = simd.splat(simd.f16(*part(head, 0)));
    let minimum = simd.splat(-simd.f16(*part(head, 2)));
    let scales = simd.multiply(scale, simd.load_small(&scales));
    let minima = simd.multiply(minimum, simd.load_small(&minima));

    // Lane `g` of the minima's share belongs to group `g`; only the sum of lanes matters.
    let mut products = [[[0.0; 8]; 2]; T];
    for token in 0..T {
        let pack = packs[token];
        sums[token] = simd.fused_multiply_add(minima, simd.load(&pack.sums), sums[token]);
        for (half, product) in pack.scales.iter().zip(&mut products[token]) {
            simd.store(simd.multiply(scales, simd.load(half)), product);
        }
    }
    products
}

/// Adds the weights of groups `2·pair` and `2·pair + 1`.
#[inline(always)]
pub(super) fn accumulate_pair<S: Simd, const T: usize>(
    simd: S,
    weights: [S::Bytes; 2],
    products: &Products<T>,
    packs: [&Q8Pack; T],
    pair: usize,
    sums: &mut [S::Floats; T],
) {
    for token in 0..T {
        for (weights, group) in weights.into_iter().zip(2 * pair..) {
            let quants = simd.load_signed(&packs[token].quants[group]);
            let dot = simd.dot_unsigned(weights, quants);
            let [first, second] = &products[token];
            let product = simd.splat_halves(first[group], second[group]);
            sums[token] = simd.fused_multiply_add(dot, product, sums[token]);
        }
    }
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
