//! Rows of a KV cache: what attention reads and each token adds.
//!
//! A layer's keys are `[position][kv_head][head_dimension]`, values likewise, as `f16`, `f32` or
//! blocks of Q8_0. The cell of a position is its number.

mod q8_0;

use half::f16;

use crate::arch::{LANES, PANEL_ROWS, Routine, Simd, pad};
use crate::path::Kernels;

/// Elements of a head whose sums over the positions are kept in registers.
pub(crate) const VALUES_NEAR: usize = 64;

/// Elements in a [`KvBlock`].
pub const KV_BLOCK_ELEMENTS: usize = 32;

/// 32 elements as GGUF's Q8_0 lays them out: a half-precision scale, little-endian, and 32 signed
/// bytes. A head begins with a block of its own, so one whose width is no multiple of 32 leaves
/// the end of its last block unused.
pub type KvBlock = [u8; 34];

/// Keys or values of a layer, to read.
#[derive(Clone, Copy, Debug)]
pub enum KvSlice<'a> {
    /// Half precision.
    F16(&'a [f16]),
    /// Single precision.
    F32(&'a [f32]),
    /// 8 bits, and a scale for each 32 elements.
    Q8_0(&'a [KvBlock]),
}

/// Keys or values of a layer, to write.
#[derive(Debug)]
pub enum KvSliceMut<'a> {
    /// Half precision; values are rounded to nearest, ties to even.
    F16(&'a mut [f16]),
    /// Single precision.
    F32(&'a mut [f32]),
    /// 8 bits, and a scale for each 32 elements.
    Q8_0(&'a mut [KvBlock]),
}

/// A layer's keys and values, both kept in the same way.
#[derive(Clone, Copy, Debug)]
pub struct KvView<'a> {
    /// `[position][kv_head][head_dim_k]`.
    pub keys: KvSlice<'a>,
    /// `[position][kv_head][head_dim_v]`.
    pub values: KvSlice<'a>,
}

impl KvSlice<'_> {
    /// Heads of `width` elements that fit; as many as one likes of no elements.
    pub fn heads(&self, width: usize) -> usize {
        let heads = match self {
            Self::F16(elements) => elements.len().checked_div(width),
            Self::F32(elements) => elements.len().checked_div(width),
            Self::Q8_0(blocks) => blocks.len().checked_div(width.div_ceil(KV_BLOCK_ELEMENTS)),
        };
        heads.unwrap_or(usize::MAX)
    }
}

impl Kernels {
    /// Writes `values`, heads of `width` elements, into the cache from head `first` on. A token's
    /// heads begin at `position · kv_heads`.
    ///
    /// # Panics
    ///
    /// If they are no whole heads or reach past the end.
    pub fn store_kv(&self, cache: KvSliceMut<'_>, first: usize, width: usize, values: &[f32]) {
        if values.is_empty() {
            return;
        }
        match cache {
            KvSliceMut::F16(cache) => {
                self.dispatch(StoreF16 {
                    values,
                    out: &mut cache[first * width..][..values.len()],
                });
            }
            KvSliceMut::F32(cache) => {
                cache[first * width..][..values.len()].copy_from_slice(values);
            }
            KvSliceMut::Q8_0(cache) => {
                assert!(values.len().is_multiple_of(width), "values are whole heads");
                let head_blocks = width.div_ceil(KV_BLOCK_ELEMENTS);
                let blocks = values.len() / width * head_blocks;
                self.dispatch(q8_0::Store {
                    values,
                    width,
                    out: &mut cache[first * head_blocks..][..blocks],
                });
            }
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

/// What a cache is made of: elements, or blocks of them. A head is a whole number of units.
pub(crate) trait CacheUnit: Copy + Sync {
    /// Elements in a unit.
    const ELEMENTS: usize;
    /// Elements `first..first + out.len()` of sixteen heads, converted exactly:
    /// `out[element][head]`. `first` is a multiple of 32.
    fn unpack<S: Simd>(
        simd: S,
        heads: &[&[Self]; PANEL_ROWS],
        first: usize,
        out: &mut [[f32; PANEL_ROWS]],
    );
    /// Elements of a head from `first` on, a multiple of 32, converted exactly; zeros follow the
    /// last unit.
    fn load_near<S: Simd>(
        simd: S,
        head: &[Self],
        first: usize,
        out: &mut [S::Rows; VALUES_NEAR / PANEL_ROWS],
    );
}

impl<E: CacheElement> CacheUnit for E {
    const ELEMENTS: usize = 1;

    #[inline(always)]
    fn unpack<S: Simd>(
        simd: S,
        heads: &[&[Self]; PANEL_ROWS],
        first: usize,
        out: &mut [[f32; PANEL_ROWS]],
    ) {
        let end = first + out.len();
        let (eights, rest) = out.as_chunks_mut::<LANES>();
        for (index, out) in eights.iter_mut().enumerate() {
            let element = first + index * LANES;
            let mut parts = [heads[0][element..].first_chunk().expect("eight"); PANEL_ROWS];
            for (part, head) in parts.iter_mut().zip(heads) {
                *part = head[element..].first_chunk().expect("eight elements");
            }
            E::side_by_side(simd, &parts, out);
        }
        if rest.is_empty() {
            return;
        }
        let mut padded = [[E::ZERO; LANES]; PANEL_ROWS];
        for (padded, head) in padded.iter_mut().zip(heads) {
            padded[..rest.len()].copy_from_slice(&head[end - rest.len()..end]);
        }
        let mut parts = [&padded[0]; PANEL_ROWS];
        for (part, padded) in parts.iter_mut().zip(&padded) {
            *part = padded;
        }
        let mut out = [[0.0; PANEL_ROWS]; LANES];
        E::side_by_side(simd, &parts, &mut out);
        rest.copy_from_slice(&out[..rest.len()]);
    }

    #[inline(always)]
    fn load_near<S: Simd>(
        simd: S,
        head: &[Self],
        first: usize,
        out: &mut [S::Rows; VALUES_NEAR / PANEL_ROWS],
    ) {
        let elements = &head[first..];
        if let Some(elements) = elements.first_chunk() {
            return E::load_elements(simd, elements, out);
        }
        let mut padded = [E::ZERO; VALUES_NEAR];
        padded[..elements.len()].copy_from_slice(elements);
        E::load_elements(simd, &padded, out);
    }
}

/// An element that is a number by itself.
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
    fn load_elements<S: Simd>(
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
    fn load_elements<S: Simd>(
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
    fn load_elements<S: Simd>(
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
compile_error!("the KV cache and panels of floats are read as little-endian bytes");

/// Eight halves as bytes.
#[inline(always)]
fn bytes(eight: &[f16; LANES]) -> &[u8; 16] {
    // SAFETY: `f16` is a transparent `u16`, so eight are 16 initialised bytes.
    unsafe { &*std::ptr::from_ref(eight).cast() }
}

/// Eight floats as bytes.
#[inline(always)]
pub(crate) fn floats_as_bytes(eight: &[f32; LANES]) -> &[u8; 32] {
    // SAFETY: eight `f32` are 32 initialised bytes.
    unsafe { &*std::ptr::from_ref(eight).cast() }
}

/// Eight halves as bytes to write.
#[inline(always)]
fn bytes_mut(eight: &mut [f16; LANES]) -> &mut [u8; 16] {
    // SAFETY: as in `bytes`, and any bytes are valid halves.
    unsafe { &mut *std::ptr::from_mut(eight).cast() }
}
