//! Rows of a KV cache: what attention reads and each token adds.
//!
//! A layer's keys are `[position][kv_head][head_dimension]`, values likewise, as `f16` or `f32`.
//! The cell of a position is its number.

use half::f16;

use crate::arch::{LANES, PANEL_ROWS, Routine, Simd, pad};
use crate::attention::VALUES_NEAR;
use crate::path::Kernels;

/// Keys or values of a layer, to read.
#[derive(Clone, Copy, Debug)]
pub enum KvSlice<'a> {
    /// Half precision.
    F16(&'a [f16]),
    /// Single precision.
    F32(&'a [f32]),
}

/// Keys or values of a layer, to write.
#[derive(Debug)]
pub enum KvSliceMut<'a> {
    /// Half precision; values are rounded to nearest, ties to even.
    F16(&'a mut [f16]),
    /// Single precision.
    F32(&'a mut [f32]),
}

/// A layer's keys and values.
#[derive(Clone, Copy, Debug)]
pub struct KvView<'a> {
    /// `[position][kv_head][head_dim_k]`.
    pub keys: KvSlice<'a>,
    /// `[position][kv_head][head_dim_v]`.
    pub values: KvSlice<'a>,
}

impl KvSlice<'_> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::F16(slice) => slice.len(),
            Self::F32(slice) => slice.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Kernels {
    /// Writes `values` into the cache from element `first` on. A token's row begins at
    /// `position · kv_heads · head_dimension`.
    ///
    /// # Panics
    ///
    /// If they reach past the end.
    pub fn store_kv(&self, cache: KvSliceMut<'_>, first: usize, values: &[f32]) {
        match cache {
            KvSliceMut::F16(cache) => {
                self.dispatch(StoreF16 {
                    values,
                    out: &mut cache[first..][..values.len()],
                });
            }
            KvSliceMut::F32(cache) => cache[first..][..values.len()].copy_from_slice(values),
        }
    }
}

struct StoreF16<'a> {
    values: &'a [f32],
    out: &'a mut [f16],
}

impl Routine for StoreF16<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (eights, rest) = self.values.as_chunks::<LANES>();
        let (outs, out_rest) = self.out.as_chunks_mut::<LANES>();
        for (eight, out) in eights.iter().zip(outs) {
            simd.store_f16(simd.load(eight), bytes_mut(out));
        }
        let mut padded = [f16::ZERO; LANES];
        simd.store_f16(simd.load(&pad(rest)), bytes_mut(&mut padded));
        out_rest.copy_from_slice(&padded[..out_rest.len()]);
    }
}

/// An element of a cache.
pub(crate) trait CacheElement: Copy + Sync {
    /// Zero, the padding of a head that is not whole lanes.
    const ZERO: Self;
    /// Eight elements of sixteen rows, converted exactly: `out[element][row]`.
    fn side_by_side<S: Simd>(
        simd: S,
        rows: &[&[Self; LANES]; PANEL_ROWS],
        out: &mut [[f32; PANEL_ROWS]; LANES],
    );
    /// Consecutive elements of a row, converted exactly.
    fn load_near<S: Simd>(
        simd: S,
        elements: &[Self; VALUES_NEAR],
        out: &mut [S::Rows; VALUES_NEAR / PANEL_ROWS],
    );
}

impl CacheElement for f32 {
    const ZERO: Self = 0.0;

    #[inline(always)]
    fn side_by_side<S: Simd>(
        simd: S,
        rows: &[&[Self; LANES]; PANEL_ROWS],
        out: &mut [[f32; PANEL_ROWS]; LANES],
    ) {
        let mut bytes = [floats_as_bytes(rows[0]); PANEL_ROWS];
        for (bytes, row) in bytes.iter_mut().zip(rows) {
            *bytes = floats_as_bytes(row);
        }
        for (quads, out) in simd.interleave(&bytes).into_iter().zip(out) {
            simd.store_rows(simd.words_as_rows(quads), out);
        }
    }

    #[inline(always)]
    fn load_near<S: Simd>(
        simd: S,
        elements: &[Self; VALUES_NEAR],
        out: &mut [S::Rows; VALUES_NEAR / PANEL_ROWS],
    ) {
        for (out, elements) in out.iter_mut().zip(elements.as_chunks().0) {
            *out = simd.load_rows(elements);
        }
    }
}

impl CacheElement for f16 {
    const ZERO: Self = f16::ZERO;

    #[inline(always)]
    fn side_by_side<S: Simd>(
        simd: S,
        rows: &[&[Self; LANES]; PANEL_ROWS],
        out: &mut [[f32; PANEL_ROWS]; LANES],
    ) {
        let mut halves = [bytes(rows[0]); PANEL_ROWS];
        for (halves, row) in halves.iter_mut().zip(rows) {
            *halves = bytes(row);
        }
        let pairs = out.as_chunks_mut::<2>().0;
        for (quads, out) in simd.interleave_half(&halves).into_iter().zip(pairs) {
            simd.store_rows(simd.half_as_rows(quads, 0), &mut out[0]);
            simd.store_rows(simd.half_as_rows(quads, 1), &mut out[1]);
        }
    }

    #[inline(always)]
    fn load_near<S: Simd>(
        simd: S,
        elements: &[Self; VALUES_NEAR],
        out: &mut [S::Rows; VALUES_NEAR / PANEL_ROWS],
    ) {
        for (out, elements) in out.iter_mut().zip(elements.as_chunks::<PANEL_ROWS>().0) {
            let eights = elements.as_chunks::<LANES>().0;
            *out = simd.load_halves([bytes(&eights[0]), bytes(&eights[1])]);
        }
    }
}

// The vector operations take little-endian bytes, as weights have them in a file.
#[cfg(target_endian = "big")]
compile_error!("the KV cache is read as little-endian halves");

/// Eight halves as bytes.
#[inline(always)]
fn bytes(eight: &[f16; LANES]) -> &[u8; 16] {
    // SAFETY: `f16` is a transparent `u16`, so eight are 16 initialised bytes.
    unsafe { &*std::ptr::from_ref(eight).cast() }
}

/// Eight floats as bytes.
#[inline(always)]
fn floats_as_bytes(eight: &[f32; LANES]) -> &[u8; 32] {
    // SAFETY: eight `f32` are 32 initialised bytes.
    unsafe { &*std::ptr::from_ref(eight).cast() }
}

/// Eight halves as bytes to write.
#[inline(always)]
fn bytes_mut(eight: &mut [f16; LANES]) -> &mut [u8; 16] {
    // SAFETY: as in `bytes`, and any bytes are valid halves.
    unsafe { &mut *std::ptr::from_mut(eight).cast() }
}
