//! Panels in single 64-byte registers: AVX-512 with VNNI.

use std::arch::x86_64::*;

use super::{Level, X86, Ymm, Zmm};
use crate::arch::{PANEL_ROWS, Panels, Routine};

/// Wraps intrinsics that need the features an [`X86<Zmm>`] proves.
macro_rules! proven {
    ($($body:tt)*) => {
        // SAFETY: `self` exists only where the CPU has the level's features; pointers below come
        // from references to arrays of exactly the width accessed, and the accesses are unaligned.
        unsafe { $($body)* }
    };
}

impl Level for Zmm {
    fn is_available() -> bool {
        Ymm::<false>::is_available()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni")
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
    unsafe fn enter<R: Routine>(simd: X86<Self>, routine: R) -> R::Output {
        routine.run(simd)
    }
}

impl X86<Zmm> {
    /// Transposes sixteen rows of eight 32-bit elements; element `i` of the rows goes to
    /// `out + 64·i`.
    ///
    /// # Safety
    ///
    /// Each row must be readable for 32 bytes, and `out` writable for 512.
    #[inline(always)]
    unsafe fn interleave(self, rows: [*const u8; PANEL_ROWS], out: *mut u8) {
        proven! {
            // Two rows to a register, so chosen that four rows in order meet in the end.
            let two = |row: usize| {
                let low = _mm256_loadu_si256(rows[row].cast());
                let high = _mm256_loadu_si256(rows[row + 4].cast());
                _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
            };
            let quads = [0, 8].map(|first| {
                let [a, b, c, d] = [two(first), two(first + 1), two(first + 2), two(first + 3)];
                let (low, high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
                let (low_2, high_2) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
                [
                    _mm512_unpacklo_epi64(low, low_2),
                    _mm512_unpackhi_epi64(low, low_2),
                    _mm512_unpacklo_epi64(high, high_2),
                    _mm512_unpackhi_epi64(high, high_2),
                ]
            });
            for element in 0..4 {
                let (a, b) = (quads[0][element], quads[1][element]);
                let low = _mm512_shuffle_i32x4::<0b10_00_10_00>(a, b);
                let high = _mm512_shuffle_i32x4::<0b11_01_11_01>(a, b);
                _mm512_storeu_si512(out.add(64 * element).cast(), low);
                _mm512_storeu_si512(out.add(64 * (element + 4)).cast(), high);
            }
        }
    }
}

impl Panels for X86<Zmm> {
    type Rows = __m512;
    type Counts = __m512i;
    type Quads = __m512i;
    const MANY_REGISTERS: bool = true;

    #[inline(always)]
    fn load_rows(self, rows: &[f32; PANEL_ROWS]) -> __m512 {
        proven! { _mm512_loadu_ps(rows.as_ptr()) }
    }

    #[inline(always)]
    fn store_rows(self, rows: __m512, out: &mut [f32; PANEL_ROWS]) {
        proven! { _mm512_storeu_ps(out.as_mut_ptr(), rows) }
    }

    #[inline(always)]
    fn splat_counts(self, value: i32) -> __m512i {
        proven! { _mm512_set1_epi32(value) }
    }

    #[inline(always)]
    fn load_quads(self, quads: &[u8; 4 * PANEL_ROWS]) -> __m512i {
        proven! { _mm512_loadu_si512(quads.as_ptr().cast()) }
    }

    #[inline(always)]
    fn dot_quads<const WIDE: bool>(
        self,
        counts: __m512i,
        weights: __m512i,
        values: &[i8; 4],
    ) -> __m512i {
        let values = i32::from_le_bytes(values.map(|value| value as u8));
        proven! { _mm512_dpbusd_epi32(counts, weights, _mm512_set1_epi32(values)) }
    }

    #[inline(always)]
    fn counts_as_rows(self, counts: __m512i) -> __m512 {
        proven! { _mm512_cvtepi32_ps(counts) }
    }

    #[inline(always)]
    fn scale_rows(self, rows: __m512, scale: f32) -> __m512 {
        proven! { _mm512_mul_ps(rows, _mm512_set1_ps(scale)) }
    }

    #[inline(always)]
    fn add_products(self, a: __m512, b: __m512, sums: __m512) -> __m512 {
        proven! { _mm512_fmadd_ps(a, b, sums) }
    }

    #[inline(always)]
    fn add_scaled(self, a: __m512, scale: f32, sums: __m512) -> __m512 {
        proven! { _mm512_fmadd_ps(a, _mm512_set1_ps(scale), sums) }
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
