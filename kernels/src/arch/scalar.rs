//! The reference: every operation as a loop over its lanes.
//!
//! It runs anywhere and defines what the vector paths must return, bit for bit. It uses no
//! hardware conversion and no fused instruction unless the compiler has one for `f32::mul_add`,
//! whose result is the same either way.

use half::{bf16, f16};

use super::{PANEL_ROWS, Panels, Routine, Simd};

/// Plain Rust, on any CPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scalar;

impl Simd for Scalar {
    type Floats = [f32; 8];
    type Bytes = [u8; 32];

    #[inline(always)]
    fn run<R: Routine>(self, routine: R) -> R::Output {
        routine.run(self)
    }

    #[inline(always)]
    fn prefetch(self, _address: *const u8) {}

    #[inline(always)]
    fn splat(self, value: f32) -> [f32; 8] {
        [value; 8]
    }

    #[inline(always)]
    fn load(self, values: &[f32; 8]) -> [f32; 8] {
        *values
    }

    #[inline(always)]
    fn store(self, lanes: [f32; 8], out: &mut [f32; 8]) {
        *out = lanes;
    }

    #[inline(always)]
    fn load_f32(self, bytes: &[u8; 32]) -> [f32; 8] {
        let (words, _) = bytes.as_chunks::<4>();
        std::array::from_fn(|lane| f32::from_le_bytes(words[lane]))
    }

    #[inline(always)]
    fn load_f16(self, bytes: &[u8; 16]) -> [f32; 8] {
        let (words, _) = bytes.as_chunks::<2>();
        std::array::from_fn(|lane| self.f16(words[lane]))
    }

    #[inline(always)]
    fn load_bf16(self, bytes: &[u8; 16]) -> [f32; 8] {
        let (words, _) = bytes.as_chunks::<2>();
        std::array::from_fn(|lane| bf16::from_le_bytes(words[lane]).to_f32_const())
    }

    #[inline(always)]
    fn load_small(self, bytes: &[u8; 8]) -> [f32; 8] {
        bytes.map(f32::from)
    }

    #[inline(always)]
    fn store_f16(self, lanes: [f32; 8], out: &mut [u8; 16]) {
        let (words, _) = out.as_chunks_mut::<2>();
        for (word, lane) in words.iter_mut().zip(lanes) {
            *word = f16::from_f32_const(lane).to_le_bytes();
        }
    }

    #[inline(always)]
    fn f16(self, bytes: [u8; 2]) -> f32 {
        f16::from_le_bytes(bytes).to_f32_const()
    }

    #[inline(always)]
    fn add(self, a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|lane| a[lane] + b[lane])
    }

    #[inline(always)]
    fn subtract(self, a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|lane| a[lane] - b[lane])
    }

    #[inline(always)]
    fn multiply(self, a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|lane| a[lane] * b[lane])
    }

    #[inline(always)]
    fn divide(self, a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|lane| a[lane] / b[lane])
    }

    #[inline(always)]
    fn fused_multiply_add(self, a: [f32; 8], b: [f32; 8], c: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|lane| a[lane].mul_add(b[lane], c[lane]))
    }

    #[inline(always)]
    fn minimum(self, a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|lane| if a[lane] < b[lane] { a[lane] } else { b[lane] })
    }

    #[inline(always)]
    fn maximum(self, a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|lane| greater(a[lane], b[lane]))
    }

    #[inline(always)]
    fn absolute(self, a: [f32; 8]) -> [f32; 8] {
        a.map(f32::abs)
    }

    #[inline(always)]
    fn round(self, a: [f32; 8]) -> [f32; 8] {
        a.map(f32::round_ties_even)
    }

    #[inline(always)]
    fn power_of_two(self, a: [f32; 8]) -> [f32; 8] {
        a.map(|exponent| f32::from_bits(((exponent as i32).wrapping_add(127) as u32) << 23))
    }

    #[inline(always)]
    fn zero_where_less(self, value: [f32; 8], a: [f32; 8], bound: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|lane| {
            if a[lane] < bound[lane] {
                0.0
            } else {
                value[lane]
            }
        })
    }

    #[inline(always)]
    fn sum(self, l: [f32; 8]) -> f32 {
        ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]))
    }

    #[inline(always)]
    fn greatest(self, l: [f32; 8]) -> f32 {
        let even = greater(greater(l[0], l[4]), greater(l[2], l[6]));
        let odd = greater(greater(l[1], l[5]), greater(l[3], l[7]));
        greater(even, odd)
    }

    #[inline(always)]
    fn load_bytes(self, bytes: &[u8; 32]) -> [u8; 32] {
        *bytes
    }

    #[inline(always)]
    fn store_bytes(self, bytes: [u8; 32], out: &mut [u8; 32]) {
        *out = bytes;
    }

    #[inline(always)]
    fn where_bit(self, bytes: [u8; 32], bit: u8, value: u8) -> [u8; 32] {
        bytes.map(|byte| if byte & bit == bit { value } else { 0 })
    }

    #[inline(always)]
    fn negate_where(self, bytes: [u8; 32], bits: u32) -> [u8; 32] {
        std::array::from_fn(|index| {
            if (bits >> index) & 1 == 1 {
                bytes[index].wrapping_neg()
            } else {
                bytes[index]
            }
        })
    }

    #[inline(always)]
    fn add_byte(self, bytes: [u8; 32], value: u8) -> [u8; 32] {
        bytes.map(|byte| byte.wrapping_add(value))
    }

    #[inline(always)]
    fn bits<const SHIFT: i32>(self, bytes: [u8; 32], mask: u8) -> [u8; 32] {
        bytes.map(|byte| (byte >> SHIFT) & mask)
    }

    #[inline(always)]
    fn or(self, a: [u8; 32], b: [u8; 32]) -> [u8; 32] {
        std::array::from_fn(|index| a[index] | b[index])
    }

    #[inline(always)]
    fn narrow(self, lanes: [[f32; 8]; 4], out: &mut [i8; 32]) -> [i32; 2] {
        for (byte, lane) in out.iter_mut().zip(lanes.as_flattened()) {
            *byte = *lane as i8;
        }
        let sum = |half: &[i8]| half.iter().map(|&byte| i32::from(byte)).sum();
        [sum(&out[..16]), sum(&out[16..])]
    }
}

impl Panels for Scalar {
    type Rows = [f32; PANEL_ROWS];
    type Counts = [i32; PANEL_ROWS];
    type Quads = [[u8; 4]; PANEL_ROWS];
    const MANY_REGISTERS: bool = false;

    #[inline(always)]
    fn load_rows(self, rows: &[f32; PANEL_ROWS]) -> Self::Rows {
        *rows
    }

    #[inline(always)]
    fn store_rows(self, rows: Self::Rows, out: &mut [f32; PANEL_ROWS]) {
        *out = rows;
    }

    #[inline(always)]
    fn splat_counts(self, value: i32) -> Self::Counts {
        [value; PANEL_ROWS]
    }

    #[inline(always)]
    fn offset_counts(self, counts: &[i16; PANEL_ROWS], shift: u32) -> Self::Counts {
        counts.map(|count| -(i32::from(count) << shift))
    }

    #[inline(always)]
    fn load_quads(self, quads: &[u8; 4 * PANEL_ROWS]) -> Self::Quads {
        let (quads, _) = quads.as_chunks();
        std::array::from_fn(|row| quads[row])
    }

    #[inline(always)]
    fn dot_quads<const WIDE: bool>(
        self,
        counts: Self::Counts,
        weights: Self::Quads,
        values: &[i8; 4],
    ) -> Self::Counts {
        std::array::from_fn(|row| {
            let pairs = weights[row].into_iter().zip(values);
            let products = pairs.map(|(weight, value)| i32::from(weight) * i32::from(*value));
            counts[row] + products.sum::<i32>()
        })
    }

    #[inline(always)]
    fn dot_lanes<const WIDE: bool>(
        self,
        counts: Self::Counts,
        weights: Self::Quads,
        values: &[[i8; 4]; PANEL_ROWS],
    ) -> Self::Counts {
        std::array::from_fn(|lane| {
            let pairs = weights[lane].into_iter().zip(values[lane]);
            let products = pairs.map(|(weight, value)| i32::from(weight) * i32::from(value));
            counts[lane] + products.sum::<i32>()
        })
    }

    #[inline(always)]
    fn counts_as_rows(self, counts: Self::Counts) -> Self::Rows {
        counts.map(|count| count as f32)
    }

    #[inline(always)]
    fn scale_rows(self, rows: Self::Rows, scale: f32) -> Self::Rows {
        rows.map(|row| row * scale)
    }

    #[inline(always)]
    fn add_products(self, a: Self::Rows, b: Self::Rows, sums: Self::Rows) -> Self::Rows {
        std::array::from_fn(|row| a[row].mul_add(b[row], sums[row]))
    }

    #[inline(always)]
    fn add_scaled(self, a: Self::Rows, scale: f32, sums: Self::Rows) -> Self::Rows {
        std::array::from_fn(|row| a[row].mul_add(scale, sums[row]))
    }

    #[inline(always)]
    fn transpose_counts(self, counts: [Self::Counts; PANEL_ROWS]) -> [Self::Counts; PANEL_ROWS] {
        transposed(counts)
    }

    #[inline(always)]
    fn transpose_quads(self, quads: [Self::Quads; PANEL_ROWS]) -> [Self::Quads; PANEL_ROWS] {
        transposed(quads)
    }

    #[inline(always)]
    fn load_pair(self, bytes: [&[u8; 32]; 2]) -> Self::Quads {
        std::array::from_fn(|lane| bytes[lane / 8].as_chunks().0[lane % 8])
    }

    #[inline(always)]
    fn load_twice(self, bytes: [&[u8; 16]; 2]) -> Self::Quads {
        std::array::from_fn(|lane| bytes[lane / 8].as_chunks().0[lane % 4])
    }

    #[inline(always)]
    fn transpose_fours(self, quads: [Self::Quads; 4]) -> [Self::Quads; 4] {
        fours(|word, lane| quads[lane % 4][lane / 4 * 4 + word])
    }

    #[inline(always)]
    fn repeat_lanes(self, a: Self::Quads, b: Self::Quads) -> [Self::Quads; 4] {
        fours(|word, lane| [a, a, b, b][lane % 4][lane / 4 * 4 + word])
    }

    #[inline(always)]
    fn alternate_lanes(self, a: Self::Quads, b: Self::Quads) -> [Self::Quads; 4] {
        fours(|word, lane| [a, b, a, b][lane % 4][lane / 4 * 4 + word])
    }

    #[inline(always)]
    fn interleave(self, rows: &[&[u8; 32]; PANEL_ROWS]) -> [Self::Quads; 8] {
        std::array::from_fn(|quad| rows.map(|row| row.as_chunks::<4>().0[quad]))
    }

    #[inline(always)]
    fn interleave_half(self, rows: &[&[u8; 16]; PANEL_ROWS]) -> [Self::Quads; 4] {
        std::array::from_fn(|quad| rows.map(|row| row.as_chunks::<4>().0[quad]))
    }

    #[inline(always)]
    fn store_quads(self, quads: Self::Quads, out: &mut [u8; 4 * PANEL_ROWS]) {
        out.copy_from_slice(quads.as_flattened());
    }

    #[inline(always)]
    fn load_words(self, words: &[u32; PANEL_ROWS]) -> Self::Quads {
        words.map(u32::to_le_bytes)
    }

    #[inline(always)]
    fn quad_bits(self, quads: Self::Quads, shift: u32, mask: u8) -> Self::Quads {
        let mask = u32::from_le_bytes([mask; 4]);
        quads.map(|quad| ((u32::from_le_bytes(quad) >> shift) & mask).to_le_bytes())
    }

    #[inline(always)]
    fn quad_bits_each(
        self,
        quads: Self::Quads,
        shifts: &[u32; PANEL_ROWS],
        mask: u8,
    ) -> Self::Quads {
        let mask = u32::from_le_bytes([mask; 4]);
        std::array::from_fn(|lane| {
            ((u32::from_le_bytes(quads[lane]) >> shifts[lane]) & mask).to_le_bytes()
        })
    }

    #[inline(always)]
    fn bits_as_quads(self, words: Self::Quads, shifts: &[u32; PANEL_ROWS]) -> Self::Quads {
        std::array::from_fn(|lane| {
            let bits = u32::from_le_bytes(words[lane]) >> shifts[lane];
            [bits, bits >> 1, bits >> 2, bits >> 3].map(|bit| (bit & 1) as u8)
        })
    }

    #[inline(always)]
    fn or_shifted(self, a: Self::Quads, b: Self::Quads) -> Self::Quads {
        std::array::from_fn(|row| std::array::from_fn(|index| a[row][index] | b[row][index] << 4))
    }

    #[inline(always)]
    fn look_up_quads(self, table: &[u8; 16], quads: Self::Quads) -> Self::Quads {
        quads.map(|quad| quad.map(|byte| table[usize::from(byte & 15)]))
    }

    #[inline(always)]
    fn raise_quads(self, quads: Self::Quads) -> Self::Quads {
        quads.map(|quad| quad.map(|byte| byte ^ 0x80))
    }

    #[inline(always)]
    fn byte_as_rows(self, quads: Self::Quads, index: u32) -> Self::Rows {
        quads.map(|quad| f32::from(quad[index as usize]))
    }

    #[inline(always)]
    fn signed_byte_as_rows(self, quads: Self::Quads, index: u32) -> Self::Rows {
        quads.map(|quad| f32::from(quad[index as usize] as i8))
    }

    #[inline(always)]
    fn half_as_rows(self, quads: Self::Quads, index: u32) -> Self::Rows {
        quads.map(|quad| self.f16(quad.as_chunks().0[index as usize]))
    }

    #[inline(always)]
    fn words_as_rows(self, quads: Self::Quads) -> Self::Rows {
        quads.map(f32::from_le_bytes)
    }

    #[inline(always)]
    fn powers_as_rows(self, words: Self::Quads) -> Self::Rows {
        words.map(|word| {
            let exponent = i32::from_le_bytes(word);
            // The greater one is the subnormal one only where it must be, for 0 and 1.
            f32::from_bits(((exponent - 1) << 23).max((exponent + 1) << 21) as u32)
        })
    }

    #[inline(always)]
    fn load_halves(self, halves: [&[u8; 16]; 2]) -> Self::Rows {
        std::array::from_fn(|row| self.f16(halves[row / 8].as_chunks().0[row % 8]))
    }

    #[inline(always)]
    fn load_signed_bytes(self, bytes: &[u8; PANEL_ROWS]) -> Self::Rows {
        bytes.map(|byte| f32::from(byte as i8))
    }

    #[inline(always)]
    fn multiply_rows(self, a: Self::Rows, b: Self::Rows) -> Self::Rows {
        std::array::from_fn(|row| a[row] * b[row])
    }
}

/// Lane `l` of result `k` is lane `k` of operand `l`.
#[inline(always)]
fn transposed<T: Copy>(lanes: [[T; PANEL_ROWS]; PANEL_ROWS]) -> [[T; PANEL_ROWS]; PANEL_ROWS] {
    std::array::from_fn(|row| std::array::from_fn(|column| lanes[column][row]))
}

/// Four results from `quad(result, lane)`.
#[inline(always)]
fn fours(quad: impl Fn(usize, usize) -> [u8; 4]) -> [[[u8; 4]; PANEL_ROWS]; 4] {
    std::array::from_fn(|result| std::array::from_fn(|lane| quad(result, lane)))
}

/// The greater value; the second when unordered.
#[inline(always)]
fn greater(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}
