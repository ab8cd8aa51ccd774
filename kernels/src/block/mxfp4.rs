//! MXFP4: 32 four-bit floats (E2M1) and a power of two, of the OCP microscaling formats.
//! `w = 2^(e - 128) · table[q]`, where the table holds twice the floats' values.
//!
//! 17 bytes: `e` (1), then 16 bytes whose low nibbles are weights 0–15 and high nibbles 16–31.

use super::{
    ActivationFormat, Block, PackRows, QuantisedBlock, Signed, eights, halves_of_indices,
    parts_of_eight, raised,
};
use crate::arch::Simd;
use crate::block::panel::PanelScales;

/// 32 weights in 17 bytes.
pub(crate) enum MXFP4 {}

impl Block for MXFP4 {
    type Raw = [u8; 17];
    const ELEMENTS: usize = 32;
    const ACTIVATIONS: ActivationFormat = ActivationFormat::Q8;

    #[inline(always)]
    fn blocks(row: &[u8]) -> &[Self::Raw] {
        row.as_chunks().0
    }

    #[inline(always)]
    fn dequantise(raw: &Self::Raw, out: &mut [f32]) {
        let scale = half_power(raw[0]);
        let (low, high) = out.split_at_mut(16);
        for (index, &byte) in raw[1..].iter().enumerate() {
            low[index] = scale * f32::from(DOUBLED[usize::from(byte & 15)]);
            high[index] = scale * f32::from(DOUBLED[usize::from(byte >> 4)]);
        }
    }
}

impl QuantisedBlock for MXFP4 {
    type Meaning = Signed;
    const OFFSET_LOG2: u32 = 4;

    #[inline(always)]
    fn unpack_scales<S: Simd>(simd: S, rows: &PackRows<'_, Self::Raw>, scales: &mut PanelScales) {
        let exponents = simd.words_of_blocks::<17, 1>(&eights(rows));
        for (exponents, scales) in exponents.into_iter().zip(&mut scales.scales[0]) {
            simd.store_rows(simd.powers_as_rows(exponents), scales);
        }
    }

    #[inline(always)]
    fn unpack_row<S: Simd>(simd: S, blocks: &[Self::Raw]) -> [S::Quads; 4] {
        halves_of_indices(simd, &parts_of_eight(blocks, 1), &RAISED)
    }
}

/// Twice what the sixteen E2M1 floats stand for; bit 3 is the sign.
const DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The table, 16 higher.
const RAISED: [u8; 16] = raised(DOUBLED, 16);

/// `2^(exponent - 128)`: half of the shared scale, because the table is doubled. The two smallest
/// are subnormal.
#[inline(always)]
fn half_power(exponent: u8) -> f32 {
    let exponent = u32::from(exponent);
    f32::from_bits(match exponent {
        0 | 1 => 0x0020_0000 << exponent,
        _ => (exponent - 1) << 23,
    })
}
