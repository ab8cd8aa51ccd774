//! Sixteen lanes in single 64-byte registers: AVX-512 with VNNI.

use std::arch::x86_64::*;

use super::{BITS_TO_BYTES, Level, X86, Ymm, Zmm, quad};
use crate::arch::{PANEL_ROWS, Panels, Routine};

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
    /// Four rows of sixteen bytes.
    #[inline(always)]
    fn load_four(self, rows: [&[u8; 16]; 4]) -> __m512i {
        proven! {
            let first = _mm512_castsi128_si512(_mm_loadu_si128(rows[0].as_ptr().cast()));
            let two = _mm512_inserti32x4::<1>(first, _mm_loadu_si128(rows[1].as_ptr().cast()));
            let three = _mm512_inserti32x4::<2>(two, _mm_loadu_si128(rows[2].as_ptr().cast()));
            _mm512_inserti32x4::<3>(three, _mm_loadu_si128(rows[3].as_ptr().cast()))
        }
    }

    /// Two rows of thirty-two bytes.
    #[inline(always)]
    fn load_two(self, rows: [&[u8; 32]; 2]) -> __m512i {
        proven! {
            let low = _mm512_castsi256_si512(_mm256_loadu_si256(rows[0].as_ptr().cast()));
            _mm512_inserti64x4::<1>(low, _mm256_loadu_si256(rows[1].as_ptr().cast()))
        }
    }

    /// Transposes the 4 × 4 words that the 128-bit lanes of `a`, `b`, `c` and `d` hold: lane `l`
    /// of result `k` is word `k` of each operand's lane `l`.
    #[inline(always)]
    fn transpose(self, a: __m512i, b: __m512i, c: __m512i, d: __m512i) -> [__m512i; 4] {
        proven! {
            let (low, high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
            let (low_2, high_2) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
            [
                _mm512_unpacklo_epi64(low, low_2),
                _mm512_unpackhi_epi64(low, low_2),
                _mm512_unpacklo_epi64(high, high_2),
                _mm512_unpackhi_epi64(high, high_2),
            ]
        }
    }

    /// Transposes sixteen times sixteen words.
    #[inline(always)]
    fn transpose_sixteen(self, rows: [__m512i; PANEL_ROWS]) -> [__m512i; PANEL_ROWS] {
        let fours = [
            self.transpose(rows[0], rows[1], rows[2], rows[3]),
            self.transpose(rows[4], rows[5], rows[6], rows[7]),
            self.transpose(rows[8], rows[9], rows[10], rows[11]),
            self.transpose(rows[12], rows[13], rows[14], rows[15]),
        ];
        let mut out = rows;
        for word in 0..4 {
            proven! {
                // Now lanes of 128 bits: even and odd ones of two operands, then of all four.
                const EVEN: i32 = 0b10_00_10_00;
                const ODD: i32 = 0b11_01_11_01;
                let even = _mm512_shuffle_i32x4::<EVEN>(fours[0][word], fours[1][word]);
                let even_2 = _mm512_shuffle_i32x4::<EVEN>(fours[2][word], fours[3][word]);
                let odd = _mm512_shuffle_i32x4::<ODD>(fours[0][word], fours[1][word]);
                let odd_2 = _mm512_shuffle_i32x4::<ODD>(fours[2][word], fours[3][word]);
                out[word] = _mm512_shuffle_i32x4::<EVEN>(even, even_2);
                out[word + 4] = _mm512_shuffle_i32x4::<EVEN>(odd, odd_2);
                out[word + 8] = _mm512_shuffle_i32x4::<ODD>(even, even_2);
                out[word + 12] = _mm512_shuffle_i32x4::<ODD>(odd, odd_2);
            }
        }
        out
    }

    /// The first bytes of each of eight blocks of four rows: word `4·block + row`. Where a block
    /// begins at an odd address, the byte before it and its first.
    #[inline(always)]
    fn words_of_four_rows<const B: usize>(self, rows: [&[[u8; B]; 8]; 4]) -> __m512i {
        proven! {
            // A permutation overwrites its indices, but only those of its row.
            let mut words = _mm512_loadu_si512(BlockWords::<B>::INDICES.as_ptr().cast());
            for (row, blocks) in rows.into_iter().enumerate() {
                let bytes = blocks.as_flattened();
                let low: &[u8; 64] = bytes.first_chunk().expect("blocks of 16 bytes and more");
                let high: &[u8; 64] = bytes[4 * B..].first_chunk().expect("as many again");
                let low = _mm512_loadu_si512(low.as_ptr().cast());
                let high = _mm512_loadu_si512(high.as_ptr().cast());
                words = _mm512_mask2_permutex2var_epi16(low, words, 0x1111_1111 << row, high);
            }
            words
        }
    }

    /// As [`Panels::words_of_blocks`], four bytes, with a load for each.
    #[inline(always)]
    fn heads_of_blocks<const B: usize>(self, rows: &[&[[u8; B]; 8]; PANEL_ROWS]) -> [__m512i; 8] {
        let mut heads = [self.splat_counts(0); 8];
        for (row, blocks) in rows.iter().enumerate() {
            for (head, block) in heads.iter_mut().zip(*blocks) {
                let bytes: &[u8; 4] = block.first_chunk().expect("blocks of 4 bytes and more");
                let word = i32::from_le_bytes(*bytes);
                *head = proven! { _mm512_mask_set1_epi32(*head, 1 << row, word) };
            }
        }
        heads
    }

    /// One byte of each word: the low one, or the high one where the block's shift is 8.
    #[inline(always)]
    fn bytes_of_words(self, words: __m512i, shifts: &[u16; 32]) -> __m512i {
        proven! {
            let shifts = _mm512_loadu_si512(shifts.as_ptr().cast());
            _mm512_and_si512(_mm512_srlv_epi16(words, shifts), _mm512_set1_epi16(255))
        }
    }

    /// One shift per lane.
    #[inline(always)]
    fn shifts(self, shifts: &[u32; PANEL_ROWS]) -> __m512i {
        proven! { _mm512_loadu_si512(shifts.as_ptr().cast()) }
    }
}

/// Where the first bytes of eight blocks of `B` bytes are found in two loads of 64 bytes, one from
/// the first block and one from the fifth.
struct BlockWords<const B: usize>;

impl<const B: usize> BlockWords<B> {
    /// Whether each load has the beginnings of four blocks and ends within the eight.
    const FIT: bool = 16 <= B && 3 * B + 2 <= 64;

    /// For word `4·block + row`: its place in the first load or, 32 higher, in the second.
    const INDICES: [u16; 32] = {
        let mut indices = [0; 32];
        let mut index = 0;
        while index < 32 {
            let block = index / 4;
            indices[index] = (32 * (block / 4) + block % 4 * B / 2) as u16;
            index += 1;
        }
        indices
    };

    /// How far the block's first byte is up in the word: 0 or 8 bits.
    const SHIFTS: [u16; 32] = {
        let mut shifts = [0; 32];
        let mut index = 0;
        while index < 32 {
            shifts[index] = (8 * (index / 4 % 4 * B % 2)) as u16;
            index += 1;
        }
        shifts
    };
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
    fn offset_counts(self, counts: &[i16; PANEL_ROWS], shift: u32) -> __m512i {
        proven! {
            let counts = _mm512_cvtepi16_epi32(_mm256_loadu_si256(counts.as_ptr().cast()));
            let moved = _mm512_sllv_epi32(counts, _mm512_set1_epi32(shift as i32));
            _mm512_sub_epi32(_mm512_setzero_si512(), moved)
        }
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
        let values = quad(values);
        proven! { _mm512_dpbusd_epi32(counts, weights, _mm512_set1_epi32(values)) }
    }

    #[inline(always)]
    fn dot_lanes<const WIDE: bool>(
        self,
        counts: __m512i,
        weights: __m512i,
        values: &[[i8; 4]; PANEL_ROWS],
    ) -> __m512i {
        proven! {
            let values = _mm512_loadu_si512(values.as_ptr().cast());
            _mm512_dpbusd_epi32(counts, weights, values)
        }
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
    fn transpose_counts(self, counts: [__m512i; PANEL_ROWS]) -> [__m512i; PANEL_ROWS] {
        self.transpose_sixteen(counts)
    }

    #[inline(always)]
    fn transpose_quads(self, quads: [__m512i; PANEL_ROWS]) -> [__m512i; PANEL_ROWS] {
        self.transpose_sixteen(quads)
    }

    #[inline(always)]
    fn load_pair(self, bytes: [&[u8; 32]; 2]) -> __m512i {
        self.load_two(bytes)
    }

    #[inline(always)]
    fn load_twice(self, bytes: [&[u8; 16]; 2]) -> __m512i {
        proven! {
            let low = _mm512_broadcast_i32x4(_mm_loadu_si128(bytes[0].as_ptr().cast()));
            let high = _mm_loadu_si128(bytes[1].as_ptr().cast());
            _mm512_mask_broadcast_i32x4(low, 0xff00, high)
        }
    }

    #[inline(always)]
    fn transpose_fours(self, quads: [__m512i; 4]) -> [__m512i; 4] {
        self.transpose(quads[0], quads[1], quads[2], quads[3])
    }

    #[inline(always)]
    fn repeat_lanes(self, a: __m512i, b: __m512i) -> [__m512i; 4] {
        proven! {
            let (a, b) = (_mm512_castsi512_ps(a), _mm512_castsi512_ps(b));
            [
                _mm512_castps_si512(_mm512_shuffle_ps::<0b00_00_00_00>(a, b)),
                _mm512_castps_si512(_mm512_shuffle_ps::<0b01_01_01_01>(a, b)),
                _mm512_castps_si512(_mm512_shuffle_ps::<0b10_10_10_10>(a, b)),
                _mm512_castps_si512(_mm512_shuffle_ps::<0b11_11_11_11>(a, b)),
            ]
        }
    }

    #[inline(always)]
    fn alternate_lanes(self, a: __m512i, b: __m512i) -> [__m512i; 4] {
        proven! {
            let (low, high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
            [
                _mm512_unpacklo_epi64(low, low),
                _mm512_unpackhi_epi64(low, low),
                _mm512_unpacklo_epi64(high, high),
                _mm512_unpackhi_epi64(high, high),
            ]
        }
    }

    #[inline(always)]
    fn interleave(self, rows: &[&[u8; 32]; PANEL_ROWS]) -> [__m512i; 8] {
        // Rows are paired so that, after the transposition, four rows in order share a lane.
        let first = self.transpose(
            self.load_two([rows[0], rows[4]]),
            self.load_two([rows[1], rows[5]]),
            self.load_two([rows[2], rows[6]]),
            self.load_two([rows[3], rows[7]]),
        );
        let last = self.transpose(
            self.load_two([rows[8], rows[12]]),
            self.load_two([rows[9], rows[13]]),
            self.load_two([rows[10], rows[14]]),
            self.load_two([rows[11], rows[15]]),
        );
        proven! {
            [
                _mm512_shuffle_i32x4::<0b10_00_10_00>(first[0], last[0]),
                _mm512_shuffle_i32x4::<0b10_00_10_00>(first[1], last[1]),
                _mm512_shuffle_i32x4::<0b10_00_10_00>(first[2], last[2]),
                _mm512_shuffle_i32x4::<0b10_00_10_00>(first[3], last[3]),
                _mm512_shuffle_i32x4::<0b11_01_11_01>(first[0], last[0]),
                _mm512_shuffle_i32x4::<0b11_01_11_01>(first[1], last[1]),
                _mm512_shuffle_i32x4::<0b11_01_11_01>(first[2], last[2]),
                _mm512_shuffle_i32x4::<0b11_01_11_01>(first[3], last[3]),
            ]
        }
    }

    #[inline(always)]
    fn interleave_half(self, rows: &[&[u8; 16]; PANEL_ROWS]) -> [__m512i; 4] {
        self.transpose(
            self.load_four([rows[0], rows[4], rows[8], rows[12]]),
            self.load_four([rows[1], rows[5], rows[9], rows[13]]),
            self.load_four([rows[2], rows[6], rows[10], rows[14]]),
            self.load_four([rows[3], rows[7], rows[11], rows[15]]),
        )
    }

    #[inline(always)]
    fn store_quads(self, quads: __m512i, out: &mut [u8; 4 * PANEL_ROWS]) {
        proven! { _mm512_storeu_si512(out.as_mut_ptr().cast(), quads) }
    }

    #[inline(always)]
    fn load_words(self, words: &[u32; PANEL_ROWS]) -> __m512i {
        proven! { _mm512_loadu_si512(words.as_ptr().cast()) }
    }

    #[inline(always)]
    fn words_of_blocks<const B: usize, const N: usize>(
        self,
        rows: &[&[[u8; B]; 8]; PANEL_ROWS],
    ) -> [__m512i; 8] {
        if N == 4 || !BlockWords::<B>::FIT || (N == 2 && !B.is_multiple_of(2)) {
            let mut heads = self.heads_of_blocks(rows);
            for head in &mut heads {
                let mask = u32::MAX >> (32 - 8 * N);
                *head = proven! { _mm512_and_si512(*head, _mm512_set1_epi32(mask as i32)) };
            }
            return heads;
        }
        let mut fours = [
            self.words_of_four_rows([rows[0], rows[1], rows[2], rows[3]]),
            self.words_of_four_rows([rows[4], rows[5], rows[6], rows[7]]),
            self.words_of_four_rows([rows[8], rows[9], rows[10], rows[11]]),
            self.words_of_four_rows([rows[12], rows[13], rows[14], rows[15]]),
        ];
        if N == 1 {
            for four in &mut fours {
                *four = self.bytes_of_words(*four, &BlockWords::<B>::SHIFTS);
            }
        }
        proven! {
            // In 128-bit lanes: sixteen bytes of two blocks of four rows; then of one block.
            let even = _mm512_unpacklo_epi64(fours[0], fours[1]);
            let even_2 = _mm512_unpacklo_epi64(fours[2], fours[3]);
            let odd = _mm512_unpackhi_epi64(fours[0], fours[1]);
            let odd_2 = _mm512_unpackhi_epi64(fours[2], fours[3]);
            let first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
            let last = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
            let pairs = [
                _mm512_permutex2var_epi64(even, first, even_2),
                _mm512_permutex2var_epi64(odd, first, odd_2),
                _mm512_permutex2var_epi64(even, last, even_2),
                _mm512_permutex2var_epi64(odd, last, odd_2),
            ];
            [
                _mm512_cvtepu16_epi32(_mm512_castsi512_si256(pairs[0])),
                _mm512_cvtepu16_epi32(_mm512_castsi512_si256(pairs[1])),
                _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64::<1>(pairs[0])),
                _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64::<1>(pairs[1])),
                _mm512_cvtepu16_epi32(_mm512_castsi512_si256(pairs[2])),
                _mm512_cvtepu16_epi32(_mm512_castsi512_si256(pairs[3])),
                _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64::<1>(pairs[2])),
                _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64::<1>(pairs[3])),
            ]
        }
    }

    #[inline(always)]
    fn quad_bits(self, quads: __m512i, shift: u32, mask: u8) -> __m512i {
        proven! {
            let shifted = _mm512_srlv_epi32(quads, _mm512_set1_epi32(shift as i32));
            _mm512_and_si512(shifted, _mm512_set1_epi8(mask as i8))
        }
    }

    #[inline(always)]
    fn quad_bits_each(self, quads: __m512i, shifts: &[u32; PANEL_ROWS], mask: u8) -> __m512i {
        proven! {
            let shifted = _mm512_srlv_epi32(quads, self.shifts(shifts));
            _mm512_and_si512(shifted, _mm512_set1_epi8(mask as i8))
        }
    }

    #[inline(always)]
    fn bits_as_quads(self, words: __m512i, shifts: &[u32; PANEL_ROWS]) -> __m512i {
        proven! {
            let shifted = _mm512_srlv_epi32(words, self.shifts(shifts));
            let four = _mm512_and_si512(shifted, _mm512_set1_epi32(15));
            let spread = _mm512_mullo_epi32(four, _mm512_set1_epi32(BITS_TO_BYTES));
            _mm512_and_si512(spread, _mm512_set1_epi8(1))
        }
    }

    #[inline(always)]
    fn or_shifted(self, a: __m512i, b: __m512i) -> __m512i {
        proven! { _mm512_or_si512(a, _mm512_slli_epi32::<4>(b)) }
    }

    #[inline(always)]
    fn look_up_quads(self, table: &[u8; 16], quads: __m512i) -> __m512i {
        proven! {
            let table = _mm_loadu_si128(table.as_ptr().cast());
            _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), quads)
        }
    }

    #[inline(always)]
    fn raise_quads(self, quads: __m512i) -> __m512i {
        proven! { _mm512_xor_si512(quads, _mm512_set1_epi8(-128)) }
    }

    #[inline(always)]
    fn byte_as_rows(self, quads: __m512i, index: u32) -> __m512 {
        proven! {
            let shifted = _mm512_srlv_epi32(quads, _mm512_set1_epi32(8 * index as i32));
            _mm512_cvtepi32_ps(_mm512_and_si512(shifted, _mm512_set1_epi32(255)))
        }
    }

    #[inline(always)]
    fn signed_byte_as_rows(self, quads: __m512i, index: u32) -> __m512 {
        proven! {
            let shift = _mm512_set1_epi32(24 - 8 * index as i32);
            _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(_mm512_sllv_epi32(quads, shift)))
        }
    }

    #[inline(always)]
    fn half_as_rows(self, quads: __m512i, index: u32) -> __m512 {
        proven! {
            let shifted = _mm512_srlv_epi32(quads, _mm512_set1_epi32(16 * index as i32));
            _mm512_cvtph_ps(_mm512_cvtepi32_epi16(shifted))
        }
    }

    #[inline(always)]
    fn words_as_rows(self, quads: __m512i) -> __m512 {
        proven! { _mm512_castsi512_ps(quads) }
    }

    #[inline(always)]
    fn powers_as_rows(self, words: __m512i) -> __m512 {
        // As the scalar path has it.
        proven! {
            let one = _mm512_set1_epi32(1);
            let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(words, one));
            let subnormal = _mm512_slli_epi32::<21>(_mm512_add_epi32(words, one));
            _mm512_castsi512_ps(_mm512_max_epi32(normal, subnormal))
        }
    }

    #[inline(always)]
    fn load_halves(self, halves: [&[u8; 16]; 2]) -> __m512 {
        proven! {
            let low = _mm_loadu_si128(halves[0].as_ptr().cast());
            let high = _mm_loadu_si128(halves[1].as_ptr().cast());
            _mm512_cvtph_ps(_mm256_set_m128i(high, low))
        }
    }

    #[inline(always)]
    fn load_signed_bytes(self, bytes: &[u8; PANEL_ROWS]) -> __m512 {
        proven! {
            let bytes = _mm_loadu_si128(bytes.as_ptr().cast());
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))
        }
    }

    #[inline(always)]
    fn multiply_rows(self, a: __m512, b: __m512) -> __m512 {
        proven! { _mm512_mul_ps(a, b) }
    }
}
