//! BF16: the upper 16 bits of a single, widened exactly.

use super::{ActivationFormat, Block, FloatBlock};
use crate::arch::Simd;

/// One weight of 2 bytes.
pub(crate) enum BF16 {}

impl Block for BF16 {
    type Raw = [u8; 2];
    const ELEMENTS: usize = 1;
    const ACTIVATIONS: ActivationFormat = ActivationFormat::F32;

    #[inline(always)]
    fn blocks(row: &[u8]) -> &[Self::Raw] {
        row.as_chunks().0
    }

    #[inline(always)]
    fn dequantise(raw: &Self::Raw, out: &mut [f32]) {
        out[0] = f32::from_bits(u32::from(u16::from_le_bytes(*raw)) << 16);
    }
}

impl FloatBlock for BF16 {
    type Eight = [u8; 16];

    #[inline(always)]
    fn load<S: Simd>(simd: S, raw: &Self::Eight) -> S::Floats {
        simd.load_bf16(raw)
    }

    #[inline(always)]
    fn eights(row: &[u8]) -> (&[Self::Eight], &[Self::Raw]) {
        let (eights, rest) = row.as_chunks();
        (eights, rest.as_chunks().0)
    }
}
