//! Keys and values in 8 bits: blocks of 32 elements, `x ≈ d · q`.
//!
//! The scale is `max|x| / 127` as a half, rounded up so that no quant is beyond 127, and quants are
//! rounded in units of that half. Reading them back is exact: seven bits times eleven fit an `f32`.
//! A block with a NaN reads as NaN; so does one with values beyond 127 times the greatest half, or
//! as infinities, as single values beyond it do where halves are kept.

use half::f16;

use super::VALUES_NEAR;
use super::{CacheUnit, KV_BLOCK_ELEMENTS, KvBlock};
use crate::activations::quants_of;
use crate::arch::{LANES, PANEL_ROWS, Routine, Simd};

/// Writes heads of `width` values, each to blocks of its own.
pub(super) struct Store<'a> {
    pub(super) values: &'a [f32],
    pub(super) width: usize,
    pub(super) out: &'a mut [KvBlock],
}

impl Routine for Store<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let heads = self.values.chunks_exact(self.width);
        let outs = self
            .out
            .chunks_exact_mut(self.width.div_ceil(KV_BLOCK_ELEMENTS));
        for (head, out) in heads.zip(outs) {
            let (whole, rest) = head.as_chunks();
            for (values, block) in whole.iter().zip(&mut *out) {
                quantise(simd, values, block);
            }
            if let Some(block) = out.get_mut(whole.len()) {
                let mut padded = [0.0; KV_BLOCK_ELEMENTS];
                padded[..rest.len()].copy_from_slice(rest);
                quantise(simd, &padded, block);
            }
        }
    }
}

#[inline(always)]
fn quantise<S: Simd>(simd: S, values: &[f32; KV_BLOCK_ELEMENTS], block: &mut KvBlock) {
    let mut lanes = [simd.splat(0.0); KV_BLOCK_ELEMENTS / LANES];
    let (mut greatest, mut sums) = (simd.splat(0.0), simd.splat(0.0));
    for (lanes, values) in lanes.iter_mut().zip(values.as_chunks().0) {
        *lanes = simd.load(values);
        greatest = simd.maximum(greatest, simd.absolute(*lanes));
        sums = simd.add(sums, simd.absolute(*lanes));
    }
    // A maximum may lose a NaN, a sum does not.
    let scale = if simd.sum(sums).is_nan() {
        f16::NAN.to_le_bytes()
    } else {
        half_not_below(simd, simd.greatest(greatest) / 127.0)
    };
    let stored = simd.f16(scale);
    let inverse = simd.splat(if stored > 0.0 { 1.0 / stored } else { 0.0 });
    let mut quants = [simd.splat(0.0); KV_BLOCK_ELEMENTS / LANES];
    for (quants, lanes) in quants.iter_mut().zip(lanes) {
        *quants = quants_of(simd, lanes, inverse);
    }
    let mut bytes = [0; KV_BLOCK_ELEMENTS];
    simd.narrow(quants, &mut bytes);
    block[..2].copy_from_slice(&scale);
    for (byte, quant) in block[2..].iter_mut().zip(bytes) {
        *byte = quant as u8;
    }
}

/// The least half that is no less than `value`, which is not negative.
#[inline(always)]
fn half_not_below<S: Simd>(simd: S, value: f32) -> [u8; 2] {
    let mut halves = [0; 2 * LANES];
    simd.store_f16(simd.splat(value), &mut halves);
    let nearest = [halves[0], halves[1]];
    if simd.f16(nearest) < value {
        (u16::from_le_bytes(nearest) + 1).to_le_bytes()
    } else {
        nearest
    }
}

impl CacheUnit for KvBlock {
    const ELEMENTS: usize = KV_BLOCK_ELEMENTS;

    #[inline(always)]
    fn unpack<S: Simd>(
        simd: S,
        heads: &[&[Self]; PANEL_ROWS],
        first: usize,
        out: &mut [[f32; PANEL_ROWS]],
    ) {
        let first = first / KV_BLOCK_ELEMENTS;
        let (whole, rest) = out.as_chunks_mut();
        for (index, out) in whole.iter_mut().enumerate() {
            unpack_blocks(simd, heads, first + index, out);
        }
        if !rest.is_empty() {
            let mut out = [[0.0; PANEL_ROWS]; KV_BLOCK_ELEMENTS];
            unpack_blocks(simd, heads, first + whole.len(), &mut out);
            rest.copy_from_slice(&out[..rest.len()]);
        }
    }

    #[inline(always)]
    fn load_near<S: Simd>(
        simd: S,
        head: &[Self],
        first: usize,
        out: &mut [S::Rows; VALUES_NEAR / PANEL_ROWS],
    ) {
        *out = [simd.load_rows(&[0.0; PANEL_ROWS]); VALUES_NEAR / PANEL_ROWS];
        let blocks = &head[first / KV_BLOCK_ELEMENTS..];
        for (block, out) in blocks.iter().zip(out.as_chunks_mut::<2>().0) {
            let (scale, quants) = parts(block);
            let scale = simd.f16(scale);
            let halves = quants.as_chunks().0;
            out[0] = simd.scale_rows(simd.load_signed_bytes(&halves[0]), scale);
            out[1] = simd.scale_rows(simd.load_signed_bytes(&halves[1]), scale);
        }
    }
}

/// Block `index` of sixteen heads: `out[element][head]`.
#[inline(always)]
fn unpack_blocks<S: Simd>(
    simd: S,
    heads: &[&[KvBlock]; PANEL_ROWS],
    index: usize,
    out: &mut [[f32; PANEL_ROWS]; KV_BLOCK_ELEMENTS],
) {
    let mut scales = [0; PANEL_ROWS];
    let mut rows = [parts(&heads[0][index]).1; PANEL_ROWS];
    for (head, (scale, row)) in heads.iter().zip(scales.iter_mut().zip(&mut rows)) {
        let (half, quants) = parts(&head[index]);
        (*scale, *row) = (u32::from(u16::from_le_bytes(half)), quants);
    }
    let scales = simd.half_as_rows(simd.load_words(&scales), 0);
    let fours = out.as_chunks_mut::<4>().0;
    for (quads, out) in simd.interleave(&rows).into_iter().zip(fours) {
        for (byte, out) in (0..4).zip(out) {
            let quants = simd.signed_byte_as_rows(quads, byte);
            simd.store_rows(simd.multiply_rows(quants, scales), out);
        }
    }
}

/// Scale and quants of a block.
#[inline(always)]
fn parts(block: &KvBlock) -> ([u8; 2], &[u8; KV_BLOCK_ELEMENTS]) {
    let (scale, quants) = block.split_first_chunk().expect("34 bytes");
    (*scale, quants.first_chunk().expect("32 of 34 bytes"))
}
