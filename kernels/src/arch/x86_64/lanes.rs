//! The eight-lane vocabulary with AVX2, FMA and F16C, which every path on x86-64 shares.

use std::arch::x86_64::*;

use super::{Level, X86};
use crate::arch::{Panels, Routine, Simd};

impl<L: Level> X86<L> {
    /// Byte `i` is 255 where bit `i` of `bits` is set, else 0.
    #[inline(always)]
    fn bit_mask(self, bits: u32) -> __m256i {
        proven! {
            // Byte `i` of each half receives the byte of `bits` that holds its bit.
            let which = _mm256_setr_epi64x(
                0x0000_0000_0000_0000,
                0x0101_0101_0101_0101,
                0x0202_0202_0202_0202,
                0x0303_0303_0303_0303,
            );
            let spread = _mm256_shuffle_epi8(_mm256_set1_epi32(bits as i32), which);
            let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
            _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit)
        }
    }
}

impl<L: Level> Simd for X86<L>
where
    Self: Panels,
{
    type Floats = __m256;
    type Bytes = __m256i;

    #[inline(always)]
    fn run<R: Routine>(self, routine: R) -> R::Output {
        // SAFETY: `self` proves the features.
        unsafe { L::enter(self, routine) }
    }

    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        // A prefetch never faults, whatever the address.
        proven! { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }

    #[inline(always)]
    fn splat(self, value: f32) -> __m256 {
        proven! { _mm256_set1_ps(value) }
    }

    #[inline(always)]
    fn load(self, values: &[f32; 8]) -> __m256 {
        proven! { _mm256_loadu_ps(values.as_ptr()) }
    }

    #[inline(always)]
    fn store(self, lanes: __m256, out: &mut [f32; 8]) {
        proven! { _mm256_storeu_ps(out.as_mut_ptr(), lanes) }
    }

    #[inline(always)]
    fn load_f32(self, bytes: &[u8; 32]) -> __m256 {
        proven! { _mm256_loadu_ps(bytes.as_ptr().cast()) }
    }

    #[inline(always)]
    fn load_f16(self, bytes: &[u8; 16]) -> __m256 {
        proven! { _mm256_cvtph_ps(_mm_loadu_si128(bytes.as_ptr().cast())) }
    }

    #[inline(always)]
    fn load_bf16(self, bytes: &[u8; 16]) -> __m256 {
        proven! {
            let words = _mm256_cvtepu16_epi32(_mm_loadu_si128(bytes.as_ptr().cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words))
        }
    }

    #[inline(always)]
    fn load_small(self, bytes: &[u8; 8]) -> __m256 {
        proven! {
            let eight = _mm_cvtsi64_si128(i64::from_le_bytes(*bytes));
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight))
        }
    }

    #[inline(always)]
    fn store_f16(self, lanes: __m256, out: &mut [u8; 16]) {
        proven! {
            let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(lanes);
            _mm_storeu_si128(out.as_mut_ptr().cast(), halves)
        }
    }

    #[inline(always)]
    fn f16(self, bytes: [u8; 2]) -> f32 {
        let word = i32::from(u16::from_le_bytes(bytes));
        proven! { _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(word))) }
    }

    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        proven! { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    fn subtract(self, a: __m256, b: __m256) -> __m256 {
        proven! { _mm256_sub_ps(a, b) }
    }

    #[inline(always)]
    fn multiply(self, a: __m256, b: __m256) -> __m256 {
        proven! { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    fn divide(self, a: __m256, b: __m256) -> __m256 {
        proven! { _mm256_div_ps(a, b) }
    }

    #[inline(always)]
    fn fused_multiply_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        proven! { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn minimum(self, a: __m256, b: __m256) -> __m256 {
        proven! { _mm256_min_ps(a, b) }
    }

    #[inline(always)]
    fn maximum(self, a: __m256, b: __m256) -> __m256 {
        proven! { _mm256_max_ps(a, b) }
    }

    #[inline(always)]
    fn absolute(self, a: __m256) -> __m256 {
        proven! { _mm256_andnot_ps(_mm256_set1_ps(-0.0), a) }
    }

    #[inline(always)]
    fn round(self, a: __m256) -> __m256 {
        proven! { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }

    #[inline(always)]
    fn power_of_two(self, a: __m256) -> __m256 {
        proven! {
            let biased = _mm256_add_epi32(_mm256_cvtps_epi32(a), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
        }
    }

    #[inline(always)]
    fn zero_where_less(self, value: __m256, a: __m256, bound: __m256) -> __m256 {
        proven! { _mm256_and_ps(value, _mm256_cmp_ps::<_CMP_NLT_UQ>(a, bound)) }
    }

    #[inline(always)]
    fn sum(self, lanes: __m256) -> f32 {
        proven! {
            let quad = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps::<1>(lanes));
            let pair = _mm_add_ps(quad, _mm_movehl_ps(quad, quad));
            _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)))
        }
    }

    #[inline(always)]
    fn greatest(self, lanes: __m256) -> f32 {
        proven! {
            let quad = _mm_max_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps::<1>(lanes));
            let pair = _mm_max_ps(quad, _mm_movehl_ps(quad, quad));
            _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)))
        }
    }

    #[inline(always)]
    fn load_bytes(self, bytes: &[u8; 32]) -> __m256i {
        proven! { _mm256_loadu_si256(bytes.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store_bytes(self, bytes: __m256i, out: &mut [u8; 32]) {
        proven! { _mm256_storeu_si256(out.as_mut_ptr().cast(), bytes) }
    }

    #[inline(always)]
    fn where_bit(self, bytes: __m256i, bit: u8, value: u8) -> __m256i {
        proven! {
            let bit = _mm256_set1_epi8(bit as i8);
            let set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
            _mm256_and_si256(set, _mm256_set1_epi8(value as i8))
        }
    }

    #[inline(always)]
    fn negate_where(self, bytes: __m256i, bits: u32) -> __m256i {
        // -x is !x + 1, and the mask is both the inversion and -1.
        let set = self.bit_mask(bits);
        proven! { _mm256_sub_epi8(_mm256_xor_si256(bytes, set), set) }
    }

    #[inline(always)]
    fn add_byte(self, bytes: __m256i, value: u8) -> __m256i {
        proven! { _mm256_add_epi8(bytes, _mm256_set1_epi8(value as i8)) }
    }

    #[inline(always)]
    fn bits<const SHIFT: i32>(self, bytes: __m256i, mask: u8) -> __m256i {
        proven! {
            _mm256_and_si256(_mm256_srli_epi16::<SHIFT>(bytes), _mm256_set1_epi8(mask as i8))
        }
    }

    #[inline(always)]
    fn or(self, a: __m256i, b: __m256i) -> __m256i {
        proven! { _mm256_or_si256(a, b) }
    }

    #[inline(always)]
    fn narrow(self, lanes: [__m256; 4], out: &mut [i8; 32]) -> [i32; 2] {
        proven! {
            let first = _mm256_packs_epi32(_mm256_cvtps_epi32(lanes[0]), _mm256_cvtps_epi32(lanes[1]));
            let last = _mm256_packs_epi32(_mm256_cvtps_epi32(lanes[2]), _mm256_cvtps_epi32(lanes[3]));
            let words = _mm256_packs_epi16(first, last);
            // The packs work within 128-bit halves; this puts the groups of four back in order.
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            let bytes = _mm256_permutevar8x32_epi32(words, order);
            _mm256_storeu_si256(out.as_mut_ptr().cast(), bytes);
            let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
            let quads = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
            let pairs = _mm256_add_epi32(quads, _mm256_shuffle_epi32::<0b01_00_11_10>(quads));
            let sums = _mm256_add_epi32(pairs, _mm256_shuffle_epi32::<0b10_11_00_01>(pairs));
            let last = _mm256_extracti128_si256::<1>(sums);
            [_mm_cvtsi128_si32(_mm256_castsi256_si128(sums)), _mm_cvtsi128_si32(last)]
        }
    }
}
