//! Q3_K: 256 three-bit weights in sixteen groups of 16, each with a six-bit scale.
//! `w = (d · (scale - 32)) · (q - 4)`.
//!
//! 110 bytes: 32 bytes of third bits, 64 bytes of lower bit pairs, twelve bytes of packed scales,
//! `d` (2). Weights come in two halves of 128, each of four runs of 32: run `r` of a half has its
//! lower two bits in bits `2r..2r+2` of the half's 32 bytes of pairs; weight `i` of run `n` of the
//! block has its third bit in bit `n` of byte `i`.
//!
//! The packed twelve bytes `p`: scale `g` has its low four bits in `p[g mod 8]` (the low nibble
//! for groups 0–7) and its upper two in bits `2k..2k+2` of `p[8 + g mod 4]`, `k = g / 4`.

use super::{ActivationFormat, Block, RowBlock, RowScales, SignedHalves, bit_pairs, half_at, part};
use crate::arch::Simd;

/// 256 weights in 110 bytes.
pub(crate) enum Q3K {}

impl Block for Q3K {
    type Raw = [u8; 110];
    const ELEMENTS: usize = 256;
    const ACTIVATIONS: ActivationFormat = ActivationFormat::Q8;

    #[inline(always)]
    fn blocks(row: &[u8]) -> &[Self::Raw] {
        row.as_chunks().0
    }

    #[inline(always)]
    fn dequantise(raw: &Self::Raw, out: &mut [f32]) {
        let scales = unpack_scales(half_at(raw, 108), part(raw, 96));
        let third: &[u8; 32] = part(raw, 0);
        for (run, weights) in out.chunks_exact_mut(32).enumerate() {
            let pairs: &[u8; 32] = part(raw, 32 + run / 4 * 32);
            for (index, weight) in weights.iter_mut().enumerate() {
                let pair = (pairs[index] >> (run % 4 * 2)) & 3;
                let third = ((third[index] >> run) & 1) << 2;
                *weight = scales[2 * run + index / 16] * f32::from((pair | third) as i8 - 4);
            }
        }
    }
}

impl RowBlock for Q3K {
    type Meaning = SignedHalves;
    const OFFSET_LOG2: u32 = 2;

    #[inline(always)]
    fn row_scales<S: Simd>(simd: S, blocks: &[Self::Raw]) -> RowScales {
        let raw = &blocks[0];
        let scales = unpack_scales(simd.f16(*part(raw, 108)), part(raw, 96));
        let mut out = RowScales::ZERO;
        for (group, pair) in scales.as_chunks().0.iter().enumerate() {
            [out.scales[0][group], out.scales[1][group]] = *pair;
        }
        out
    }

    #[inline(always)]
    fn row_quants<S: Simd>(simd: S, blocks: &[Self::Raw], groups: &mut [[u8; 32]; 8]) {
        let raw = &blocks[0];
        let third = simd.load_bytes(part(raw, 0));
        for half in 0..2 {
            let packed = simd.load_bytes(part(raw, 32 + 32 * half));
            for (group, pairs) in (4 * half..).zip(bit_pairs(simd, packed)) {
                let weights = simd.or(pairs, simd.where_bit(third, 1 << group, 4));
                simd.store_bytes(weights, &mut groups[group]);
            }
        }
    }
}

/// The sixteen scales times `scale`.
#[inline(always)]
fn unpack_scales(scale: f32, packed: &[u8; 12]) -> [f32; 16] {
    std::array::from_fn(|group| {
        let low = (packed[group % 8] >> (group / 8 * 4)) & 15;
        let upper = (packed[8 + group % 4] >> (group / 4 * 2)) & 3;
        scale * f32::from((low | upper << 4) as i8 - 32)
    })
}
