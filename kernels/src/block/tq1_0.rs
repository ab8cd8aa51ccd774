//! TQ1_0: 256 ternary weights, five to a byte, and an `f16` scale. `w = d · (q - 1)`.
//!
//! 54 bytes: 32 bytes of five weights, 16 bytes of five, 4 bytes of four, `d` (2). Digit `k` of
//! the first 32 bytes makes weights `32k..32k+32`, of the next 16 weights `160+16k..`, and of the
//! last 4 weights `240+4k..`.
//!
//! A byte `b` is a fraction: `b / 256`, in base 3, begins with its digits. Digit `k` is therefore
//! the integer part of three times the fractional part of `3^k · b / 256`.

use super::{ActivationFormat, Block, RowBlock, RowScales, Signed, half_at, part};
use crate::arch::Simd;

/// 256 weights in 54 bytes.
pub(crate) enum TQ1_0 {}

impl Block for TQ1_0 {
    type Raw = [u8; 54];
    const ELEMENTS: usize = 256;
    const ACTIVATIONS: ActivationFormat = ActivationFormat::Q8;

    #[inline(always)]
    fn blocks(row: &[u8]) -> &[Self::Raw] {
        row.as_chunks().0
    }

    #[inline(always)]
    fn dequantise(raw: &Self::Raw, out: &mut [f32]) {
        let scale = half_at(raw, 52);
        for (weight, digit) in out.iter_mut().zip(digits(raw).as_flattened()) {
            *weight = scale * f32::from(*digit as i8 - 1);
        }
    }
}

impl RowBlock for TQ1_0 {
    type Meaning = Signed;
    const OFFSET_LOG2: u32 = 0;

    #[inline(always)]
    fn row_scales<S: Simd>(simd: S, blocks: &[Self::Raw]) -> RowScales {
        let scale = simd.f16(*part(&blocks[0], 52));
        RowScales {
            scales: [[scale; 8]; 2],
            ..RowScales::ZERO
        }
    }

    #[inline(always)]
    fn row_quants<S: Simd>(_: S, blocks: &[Self::Raw], groups: &mut [[u8; 32]; 8]) {
        *groups = digits(&blocks[0]);
    }
}

/// The 256 digits, each 0, 1 or 2, in groups of 32.
#[inline(always)]
fn digits(raw: &[u8; 54]) -> [[u8; 32]; 8] {
    let mut groups = [[0; 32]; 8];
    let digits = groups.as_flattened_mut();
    write_digits::<32>(part(raw, 0), &mut digits[..160]);
    write_digits::<16>(part(raw, 32), &mut digits[160..240]);
    write_digits::<4>(part(raw, 48), &mut digits[240..]);
    groups
}

/// The first digit of `N` bytes, then their second, as many as `out` has room for.
#[inline(always)]
fn write_digits<const N: usize>(bytes: &[u8; N], out: &mut [u8]) {
    let mut fractions = *bytes;
    for digits in out.chunks_exact_mut(N) {
        for (digit, fraction) in digits.iter_mut().zip(&mut fractions) {
            *digit = ((u16::from(*fraction) * 3) >> 8) as u8;
            *fraction = fraction.wrapping_mul(3);
        }
    }
}
