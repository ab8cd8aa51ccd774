//! Sixteen lanes in pairs of 32-byte registers: AVX2, and AVX-VNNI where `VNNI`.
//!
//! Without VNNI, byte products go through `vpmaddubsw`, which adds pairs of products into
//! saturating 16-bit sums. With weights of at most 128 no sum can saturate, because activations are
//! at most 127 and 2·128·127 = 32512 fits. Wide weights are taken in two parts, the top bit and the
//! rest, neither of which is above 128.

use std::arch::x86_64::*;

use super::{BITS_TO_BYTES, Level, X86, Ymm, quad};
use crate::arch::{PANEL_ROWS, Panels, Routine};

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

    /// Two rows of sixteen bytes.
    #[inline(always)]
    fn load_two(self, rows: [&[u8; 16]; 2]) -> __m256i {
        proven! {
            let low = _mm256_castsi128_si256(_mm_loadu_si128(rows[0].as_ptr().cast()));
            _mm256_inserti128_si256::<1>(low, _mm_loadu_si128(rows[1].as_ptr().cast()))
        }
    }

    /// Transposes the 4 × 4 words that the halves of `a`, `b`, `c` and `d` hold: half `h` of
    /// result `k` is word `k` of each operand's half `h`.
    #[inline(always)]
    fn transpose(self, a: __m256i, b: __m256i, c: __m256i, d: __m256i) -> [__m256i; 4] {
        proven! {
            let (low, high) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
            let (low_2, high_2) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
            [
                _mm256_unpacklo_epi64(low, low_2),
                _mm256_unpackhi_epi64(low, low_2),
                _mm256_unpacklo_epi64(high, high_2),
                _mm256_unpackhi_epi64(high, high_2),
            ]
        }
    }

    /// Sixteen bytes of eight rows: element `k` has bytes `4k..4k + 4` of each.
    #[inline(always)]
    fn eight_rows(self, rows: &[&[u8; 16]; PANEL_ROWS], first: usize) -> [__m256i; 4] {
        let two = |row: usize| self.load_two([rows[first + row], rows[first + row + 4]]);
        self.transpose(two(0), two(1), two(2), two(3))
    }

    /// `(word >> shift)` of each row.
    #[inline(always)]
    fn shifted(self, quads: [__m256i; 2], shift: u32) -> [__m256i; 2] {
        proven! {
            let shift = _mm256_set1_epi32(shift as i32);
            [_mm256_srlv_epi32(quads[0], shift), _mm256_srlv_epi32(quads[1], shift)]
        }
    }

    /// Transposes eight times eight words.
    #[inline(always)]
    fn transpose_eight(self, rows: [__m256i; 8]) -> [__m256i; 8] {
        let first = self.transpose(rows[0], rows[1], rows[2], rows[3]);
        let last = self.transpose(rows[4], rows[5], rows[6], rows[7]);
        let mut out = rows;
        for (word, (first, last)) in first.into_iter().zip(last).enumerate() {
            proven! {
                out[word] = _mm256_permute2x128_si256::<0x20>(first, last);
                out[word + 4] = _mm256_permute2x128_si256::<0x31>(first, last);
            }
        }
        out
    }

    /// Transposes sixteen times sixteen words.
    #[inline(always)]
    fn transpose_sixteen(self, rows: [[__m256i; 2]; PANEL_ROWS]) -> [[__m256i; 2]; PANEL_ROWS] {
        let mut out = rows;
        for half_of_rows in 0..2 {
            for half_of_words in 0..2 {
                let mut block = [rows[0][0]; 8];
                for (word, row) in block.iter_mut().zip(&rows[8 * half_of_rows..]) {
                    *word = row[half_of_words];
                }
                let block = self.transpose_eight(block);
                for (out, word) in out[8 * half_of_words..].iter_mut().zip(block) {
                    out[half_of_rows] = word;
                }
            }
        }
        out
    }

    /// In each run of four words: result `q` is word `q` of `a`, `a`, `b`, `b`.
    #[inline(always)]
    fn repeat(self, a: __m256i, b: __m256i) -> [__m256i; 4] {
        proven! {
            let (a, b) = (_mm256_castsi256_ps(a), _mm256_castsi256_ps(b));
            [
                _mm256_castps_si256(_mm256_shuffle_ps::<0b00_00_00_00>(a, b)),
                _mm256_castps_si256(_mm256_shuffle_ps::<0b01_01_01_01>(a, b)),
                _mm256_castps_si256(_mm256_shuffle_ps::<0b10_10_10_10>(a, b)),
                _mm256_castps_si256(_mm256_shuffle_ps::<0b11_11_11_11>(a, b)),
            ]
        }
    }

    /// `(word >> shift)`, a shift for each lane.
    #[inline(always)]
    fn shifted_each(self, quads: [__m256i; 2], shifts: &[u32; PANEL_ROWS]) -> [__m256i; 2] {
        let shifts = shifts.as_ptr();
        proven! {
            [
                _mm256_srlv_epi32(quads[0], _mm256_loadu_si256(shifts.cast())),
                _mm256_srlv_epi32(quads[1], _mm256_loadu_si256(shifts.add(8).cast())),
            ]
        }
    }

    /// `a & b` for both halves.
    #[inline(always)]
    fn and(self, a: [__m256i; 2], b: __m256i) -> [__m256i; 2] {
        proven! { [_mm256_and_si256(a[0], b), _mm256_and_si256(a[1], b)] }
    }
}

/// Four times the first eight lanes and the last.
#[inline(always)]
fn pairs(first: [__m256i; 4], last: [__m256i; 4]) -> [[__m256i; 2]; 4] {
    [
        [first[0], last[0]],
        [first[1], last[1]],
        [first[2], last[2]],
        [first[3], last[3]],
    ]
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
    fn offset_counts(self, counts: &[i16; PANEL_ROWS], shift: u32) -> Self::Counts {
        let counts = counts.as_ptr();
        proven! {
            let shift = _mm_cvtsi32_si128(shift as i32);
            let low = _mm256_cvtepi16_epi32(_mm_loadu_si128(counts.cast()));
            let high = _mm256_cvtepi16_epi32(_mm_loadu_si128(counts.add(8).cast()));
            let zero = _mm256_setzero_si256();
            [
                _mm256_sub_epi32(zero, _mm256_sll_epi32(low, shift)),
                _mm256_sub_epi32(zero, _mm256_sll_epi32(high, shift)),
            ]
        }
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
        let values = quad(values);
        let values = proven! { _mm256_set1_epi32(values) };
        [
            self.dot::<WIDE>(counts[0], weights[0], values),
            self.dot::<WIDE>(counts[1], weights[1], values),
        ]
    }

    #[inline(always)]
    fn dot_lanes<const WIDE: bool>(
        self,
        counts: Self::Counts,
        weights: Self::Quads,
        values: &[[i8; 4]; PANEL_ROWS],
    ) -> Self::Counts {
        let values = values.as_ptr();
        let [low, high] = proven! {
            [_mm256_loadu_si256(values.cast()), _mm256_loadu_si256(values.add(8).cast())]
        };
        [
            self.dot::<WIDE>(counts[0], weights[0], low),
            self.dot::<WIDE>(counts[1], weights[1], high),
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
    fn transpose_counts(self, counts: [Self::Counts; PANEL_ROWS]) -> [Self::Counts; PANEL_ROWS] {
        self.transpose_sixteen(counts)
    }

    #[inline(always)]
    fn transpose_quads(self, quads: [Self::Quads; PANEL_ROWS]) -> [Self::Quads; PANEL_ROWS] {
        self.transpose_sixteen(quads)
    }

    #[inline(always)]
    fn load_pair(self, bytes: [&[u8; 32]; 2]) -> Self::Quads {
        proven! {
            [
                _mm256_loadu_si256(bytes[0].as_ptr().cast()),
                _mm256_loadu_si256(bytes[1].as_ptr().cast()),
            ]
        }
    }

    #[inline(always)]
    fn load_twice(self, bytes: [&[u8; 16]; 2]) -> Self::Quads {
        proven! {
            [
                _mm256_broadcastsi128_si256(_mm_loadu_si128(bytes[0].as_ptr().cast())),
                _mm256_broadcastsi128_si256(_mm_loadu_si128(bytes[1].as_ptr().cast())),
            ]
        }
    }

    #[inline(always)]
    fn transpose_fours(self, quads: [Self::Quads; 4]) -> [Self::Quads; 4] {
        let [a, b, c, d] = quads;
        let low = self.transpose(a[0], b[0], c[0], d[0]);
        let high = self.transpose(a[1], b[1], c[1], d[1]);
        pairs(low, high)
    }

    #[inline(always)]
    fn repeat_lanes(self, a: Self::Quads, b: Self::Quads) -> [Self::Quads; 4] {
        pairs(self.repeat(a[0], b[0]), self.repeat(a[1], b[1]))
    }

    #[inline(always)]
    fn alternate_lanes(self, a: Self::Quads, b: Self::Quads) -> [Self::Quads; 4] {
        pairs(
            self.transpose(a[0], b[0], a[0], b[0]),
            self.transpose(a[1], b[1], a[1], b[1]),
        )
    }

    #[inline(always)]
    fn interleave(self, rows: &[&[u8; 32]; PANEL_ROWS]) -> [Self::Quads; 8] {
        let mut low = [rows[0].first_chunk().expect("16 of 32 bytes"); PANEL_ROWS];
        let mut high = low;
        for (row, (low, high)) in rows.iter().zip(low.iter_mut().zip(&mut high)) {
            let halves = row.as_chunks().0;
            (*low, *high) = (&halves[0], &halves[1]);
        }
        let [a, b, c, d] = self.interleave_half(&low);
        let [e, f, g, h] = self.interleave_half(&high);
        [a, b, c, d, e, f, g, h]
    }

    #[inline(always)]
    fn interleave_half(self, rows: &[&[u8; 16]; PANEL_ROWS]) -> [Self::Quads; 4] {
        pairs(self.eight_rows(rows, 0), self.eight_rows(rows, 8))
    }

    #[inline(always)]
    fn store_quads(self, quads: Self::Quads, out: &mut [u8; 4 * PANEL_ROWS]) {
        let out = out.as_mut_ptr();
        proven! {
            _mm256_storeu_si256(out.cast(), quads[0]);
            _mm256_storeu_si256(out.add(32).cast(), quads[1]);
        }
    }

    #[inline(always)]
    fn load_words(self, words: &[u32; PANEL_ROWS]) -> Self::Quads {
        let words = words.as_ptr();
        proven! { [_mm256_loadu_si256(words.cast()), _mm256_loadu_si256(words.add(8).cast())] }
    }

    #[inline(always)]
    fn quad_bits(self, quads: Self::Quads, shift: u32, mask: u8) -> Self::Quads {
        let mask = proven! { _mm256_set1_epi8(mask as i8) };
        self.and(self.shifted(quads, shift), mask)
    }

    #[inline(always)]
    fn quad_bits_each(
        self,
        quads: Self::Quads,
        shifts: &[u32; PANEL_ROWS],
        mask: u8,
    ) -> Self::Quads {
        let mask = proven! { _mm256_set1_epi8(mask as i8) };
        self.and(self.shifted_each(quads, shifts), mask)
    }

    #[inline(always)]
    fn bits_as_quads(self, words: Self::Quads, shifts: &[u32; PANEL_ROWS]) -> Self::Quads {
        let shifted = self.shifted_each(words, shifts);
        proven! {
            let four = self.and(shifted, _mm256_set1_epi32(15));
            let factor = _mm256_set1_epi32(BITS_TO_BYTES);
            let first = _mm256_mullo_epi32(four[0], factor);
            let last = _mm256_mullo_epi32(four[1], factor);
            self.and([first, last], _mm256_set1_epi8(1))
        }
    }

    #[inline(always)]
    fn or_shifted(self, a: Self::Quads, b: Self::Quads) -> Self::Quads {
        proven! {
            [
                _mm256_or_si256(a[0], _mm256_slli_epi32::<4>(b[0])),
                _mm256_or_si256(a[1], _mm256_slli_epi32::<4>(b[1])),
            ]
        }
    }

    #[inline(always)]
    fn look_up_quads(self, table: &[u8; 16], quads: Self::Quads) -> Self::Quads {
        proven! {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            [_mm256_shuffle_epi8(table, quads[0]), _mm256_shuffle_epi8(table, quads[1])]
        }
    }

    #[inline(always)]
    fn raise_quads(self, quads: Self::Quads) -> Self::Quads {
        proven! {
            let top = _mm256_set1_epi8(-128);
            [_mm256_xor_si256(quads[0], top), _mm256_xor_si256(quads[1], top)]
        }
    }

    #[inline(always)]
    fn byte_as_rows(self, quads: Self::Quads, index: u32) -> Self::Rows {
        let mask = proven! { _mm256_set1_epi32(255) };
        self.counts_as_rows(self.and(self.shifted(quads, 8 * index), mask))
    }

    #[inline(always)]
    fn signed_byte_as_rows(self, quads: Self::Quads, index: u32) -> Self::Rows {
        proven! {
            let shift = _mm256_set1_epi32(24 - 8 * index as i32);
            let first = _mm256_srai_epi32::<24>(_mm256_sllv_epi32(quads[0], shift));
            let last = _mm256_srai_epi32::<24>(_mm256_sllv_epi32(quads[1], shift));
            self.counts_as_rows([first, last])
        }
    }

    #[inline(always)]
    fn half_as_rows(self, quads: Self::Quads, index: u32) -> Self::Rows {
        proven! {
            let words = self.and(self.shifted(quads, 16 * index), _mm256_set1_epi32(0xffff));
            // The pack works within 128-bit halves; the permutation puts the quarters in order.
            let packed = _mm256_packus_epi32(words[0], words[1]);
            let halves = _mm256_permute4x64_epi64::<0b11_01_10_00>(packed);
            [
                _mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
                _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(halves)),
            ]
        }
    }

    #[inline(always)]
    fn words_as_rows(self, quads: Self::Quads) -> Self::Rows {
        proven! { [_mm256_castsi256_ps(quads[0]), _mm256_castsi256_ps(quads[1])] }
    }

    #[inline(always)]
    fn powers_as_rows(self, words: Self::Quads) -> Self::Rows {
        let power = |exponent| {
            // As the scalar path has it.
            proven! {
                let one = _mm256_set1_epi32(1);
                let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(exponent, one));
                let subnormal = _mm256_slli_epi32::<21>(_mm256_add_epi32(exponent, one));
                _mm256_castsi256_ps(_mm256_max_epi32(normal, subnormal))
            }
        };
        [power(words[0]), power(words[1])]
    }

    #[inline(always)]
    fn load_halves(self, halves: [&[u8; 16]; 2]) -> Self::Rows {
        proven! {
            [
                _mm256_cvtph_ps(_mm_loadu_si128(halves[0].as_ptr().cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(halves[1].as_ptr().cast())),
            ]
        }
    }

    #[inline(always)]
    fn load_signed_bytes(self, bytes: &[u8; PANEL_ROWS]) -> Self::Rows {
        proven! {
            let bytes = _mm_loadu_si128(bytes.as_ptr().cast());
            let last = _mm_unpackhi_epi64(bytes, bytes);
            self.counts_as_rows([_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(last)])
        }
    }

    #[inline(always)]
    fn multiply_rows(self, a: Self::Rows, b: Self::Rows) -> Self::Rows {
        proven! { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }
}
