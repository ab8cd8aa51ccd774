//! Rows of a KV cache: what attention reads and each token adds.
//!
//! A layer's keys are `[position][kv_head][head_dimension]`, values likewise, as `f16` or `f32`.
//! The cell of a position is its number.

use half::f16;

use crate::arch::{LANES, Routine, Simd, pad};
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

/// An element of a cache, loaded eight at a time.
pub(crate) trait CacheElement: Copy + Sync {
    /// Zero, the padding of a head that is not whole lanes.
    const ZERO: Self;
    /// Eight elements, converted exactly.
    fn load<S: Simd>(simd: S, eight: &[Self; LANES]) -> S::Floats;
}

impl CacheElement for f32 {
    const ZERO: Self = 0.0;

    #[inline(always)]
    fn load<S: Simd>(simd: S, eight: &[Self; LANES]) -> S::Floats {
        simd.load(eight)
    }
}

impl CacheElement for f16 {
    const ZERO: Self = f16::ZERO;

    #[inline(always)]
    fn load<S: Simd>(simd: S, eight: &[Self; LANES]) -> S::Floats {
        simd.load_f16(bytes(eight))
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

/// Eight halves as bytes to write.
#[inline(always)]
fn bytes_mut(eight: &mut [f16; LANES]) -> &mut [u8; 16] {
    // SAFETY: as in `bytes`, and any bytes are valid halves.
    unsafe { &mut *std::ptr::from_mut(eight).cast() }
}
