//! Panels in pairs of 32-byte registers: AVX2, and AVX-VNNI where `VNNI`.
//!
//! Without VNNI, byte products go through `vpmaddubsw`, which adds pairs of products into
//! saturating 16-bit sums. With weights of at most 128 no sum can saturate, because activations are
//! at most 127 and 2·128·127 = 32512 fits. Wide weights are taken in two parts, the top bit and the
//! rest, neither of which is above 128.

use std::arch::x86_64::*;

use super::{Level, X86, Ymm};
use crate::arch::{PANEL_ROWS, Panels, Routine};

/// Wraps intrinsics that need the features an [`X86`] proves.
macro_rules! proven {
    ($($body:tt)*) => {
        // SAFETY: `self` exists only where the CPU has the level's features; pointers below come
        // from references to arrays of exactly the width accessed, and the accesses are unaligned.
        unsafe { $($body)* }
    };
}

impl Level for Ymm<false> {
    fn is_available() -> bool {
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn enter<R: Routine>(simd: X86<Self>, routine: R) -> R::Output {
        routine.run(simd)
    }
}

impl Level for Ymm<true> {
    fn is_available() -> bool {
        Ymm::<false>::is_available() && is_x86_feature_detected!("avxvnni")
    }

    #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
    unsafe fn enter<R: Routine>(simd: X86<Self>, routine: R) -> R::Output {
        routine.run(simd)
    }
}

impl<const VNNI: bool> X86<Ymm<VNNI>> {
    /// `counts + Σ weights·values` over each four bytes.
    #[inline(always)]
    fn dot<const WIDE: bool>(self, counts: __m256i, weights: __m256i, values: __m256i) -> __m256i {
        proven! {
            if VNNI {
                return _mm256_dpbusd_avx_epi32(counts, weights, values);
            }
            let ones = _mm256_set1_epi16(1);
            if !WIDE {
                let pairs = _mm256_maddubs_epi16(weights, values);
                return _mm256_add_epi32(counts, _mm256_madd_epi16(pairs, ones));
            }
            let top = _mm256_and_si256(weights, _mm256_set1_epi8(-128));
            let rest = _mm256_and_si256(weights, _mm256_set1_epi8(127));
            let top = _mm256_madd_epi16(_mm256_maddubs_epi16(top, values), ones);
            let rest = _mm256_madd_epi16(_mm256_maddubs_epi16(rest, values), ones);
            _mm256_add_epi32(counts, _mm256_add_epi32(top, rest))
        }
    }

    /// Transposes eight rows of eight 32-bit elements; element `i` of the rows goes to
    /// `out + 64·i`.
    ///
    /// # Safety
    ///
    /// Each row must be readable for 32 bytes, and `out` writable wherever the results go.
    #[inline(always)]
    unsafe fn transpose(self, rows: [*const u8; 8], out: *mut u8) {
        proven! {
            let rows = rows.map(|row| _mm256_loadu_si256(row.cast()));
            let pairs = [0, 2, 4, 6].map(|row| {
                let (a, b) = (rows[row], rows[row + 1]);
                [_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b)]
            });
            let quads = [0, 2].map(|pair| {
                let (a, b) = (pairs[pair], pairs[pair + 1]);
                [
                    _mm256_unpacklo_epi64(a[0], b[0]),
                    _mm256_unpackhi_epi64(a[0], b[0]),
                    _mm256_unpacklo_epi64(a[1], b[1]),
                    _mm256_unpackhi_epi64(a[1], b[1]),
                ]
            });
            for element in 0..4 {
                let (a, b) = (quads[0][element], quads[1][element]);
                let low = _mm256_permute2x128_si256::<0x20>(a, b);
                let high = _mm256_permute2x128_si256::<0x31>(a, b);
                _mm256_storeu_si256(out.add(64 * element).cast(), low);
                _mm256_storeu_si256(out.add(64 * (element + 4)).cast(), high);
            }
        }
    }

    /// Both halves of a panel.
    ///
    /// # Safety
    ///
    /// Each row must be readable for 32 bytes, and `out` writable for 512.
    #[inline(always)]
    unsafe fn interleave(self, rows: [*const u8; PANEL_ROWS], out: *mut u8) {
        for half in 0..2 {
            let rows = std::array::from_fn(|row| rows[8 * half + row]);
            // SAFETY: by the caller's promise; the two halves of each 64 bytes are apart.
            unsafe { self.transpose(rows, out.add(32 * half)) };
        }
    }
}

impl<const VNNI: bool> Panels for X86<Ymm<VNNI>> {
    type Rows = [__m256; 2];
    type Counts = [__m256i; 2];
    type Quads = [__m256i; 2];
    const MANY_REGISTERS: bool = false;

    #[inline(always)]
    fn load_rows(self, rows: &[f32; PANEL_ROWS]) -> Self::Rows {
        let rows = rows.as_ptr();
        proven! { [_mm256_loadu_ps(rows), _mm256_loadu_ps(rows.add(8))] }
    }

    #[inline(always)]
    fn store_rows(self, rows: Self::Rows, out: &mut [f32; PANEL_ROWS]) {
        let out = out.as_mut_ptr();
        proven! {
            _mm256_storeu_ps(out, rows[0]);
            _mm256_storeu_ps(out.add(8), rows[1]);
        }
    }

    #[inline(always)]
    fn splat_counts(self, value: i32) -> Self::Counts {
        proven! { [_mm256_set1_epi32(value); 2] }
    }

    #[inline(always)]
    fn load_quads(self, quads: &[u8; 4 * PANEL_ROWS]) -> Self::Quads {
        let quads = quads.as_ptr();
        proven! { [_mm256_loadu_si256(quads.cast()), _mm256_loadu_si256(quads.add(32).cast())] }
    }

    #[inline(always)]
    fn dot_quads<const WIDE: bool>(
        self,
        counts: Self::Counts,
        weights: Self::Quads,
        values: &[i8; 4],
    ) -> Self::Counts {
        let values = i32::from_le_bytes(values.map(|value| value as u8));
        let values = proven! { _mm256_set1_epi32(values) };
        [
            self.dot::<WIDE>(counts[0], weights[0], values),
            self.dot::<WIDE>(counts[1], weights[1], values),
        ]
    }

    #[inline(always)]
    fn counts_as_rows(self, counts: Self::Counts) -> Self::Rows {
        proven! { [_mm256_cvtepi32_ps(counts[0]), _mm256_cvtepi32_ps(counts[1])] }
    }

    #[inline(always)]
    fn scale_rows(self, rows: Self::Rows, scale: f32) -> Self::Rows {
        proven! {
            let scale = _mm256_set1_ps(scale);
            [_mm256_mul_ps(rows[0], scale), _mm256_mul_ps(rows[1], scale)]
        }
    }

    #[inline(always)]
    fn add_products(self, a: Self::Rows, b: Self::Rows, sums: Self::Rows) -> Self::Rows {
        proven! {
            [
                _mm256_fmadd_ps(a[0], b[0], sums[0]),
                _mm256_fmadd_ps(a[1], b[1], sums[1]),
            ]
        }
    }

    #[inline(always)]
    fn add_scaled(self, a: Self::Rows, scale: f32, sums: Self::Rows) -> Self::Rows {
        let scale = proven! { _mm256_set1_ps(scale) };
        self.add_products(a, [scale; 2], sums)
    }

    #[inline(always)]
    fn interleave_bytes(self, rows: [&[u8; 32]; PANEL_ROWS], out: &mut [[u8; 4 * PANEL_ROWS]; 8]) {
        // SAFETY: rows are 32 bytes and `out` is 512.
        unsafe { self.interleave(rows.map(|row| row.as_ptr()), out.as_mut_ptr().cast()) }
    }

    #[inline(always)]
    fn interleave_floats(self, rows: [&[f32; 8]; PANEL_ROWS], out: &mut [[f32; PANEL_ROWS]; 8]) {
        let rows = rows.map(|row| row.as_ptr().cast());
        // SAFETY: rows are 32 bytes and `out` is 512.
        unsafe { self.interleave(rows, out.as_mut_ptr().cast()) }
    }
}
