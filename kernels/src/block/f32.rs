//! F32: the weight itself, little-endian.

use super::{ActivationFormat, Block, FloatBlock};
use crate::arch::Simd;

/// One weight of 4 bytes.
pub(crate) enum F32 {}

impl Block for F32 {
    type Raw = [u8; 4];
    const ELEMENTS: usize = 1;
    const ACTIVATIONS: ActivationFormat = ActivationFormat::F32;

    #[inline(always)]
    fn blocks(row: &[u8]) -> &[Self::Raw] {
        row.as_chunks().0
    }

    #[inline(always)]
    fn dequantise(raw: &Self::Raw, out: &mut [f32]) {
        out[0] = f32::from_le_bytes(*raw);
    }
}

impl FloatBlock for F32 {
    type Eight = [u8; 32];

    #[inline(always)]
    fn load<S: Simd>(simd: S, raw: &Self::Eight) -> S::Floats {
        simd.load_f32(raw)
    }

    #[inline(always)]
    fn eights(row: &[u8]) -> (&[Self::Eight], &[Self::Raw]) {
        let (eights, rest) = row.as_chunks();
        (eights, rest.as_chunks().0)
    }
}
