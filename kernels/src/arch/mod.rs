//! One vocabulary of vector operations, and one folder per instruction set that speaks it.
//!
//! Every kernel of this crate is written once, against [`Simd`]: eight `f32` lanes, thirty-two
//! bytes, and, in [`Panels`], sixteen rows of a matrix side by side for the integer products. An
//! instruction set implements the traits; [`Scalar`] does so with plain loops and is the reference. Because an
//! operation is specified lane by lane, including which products are fused and in which order
//! lanes are summed, all instruction sets return identical bits, and the property tests hold
//! them to it.
//!
//! A type that implements [`Simd`] is a proof: it can only be obtained where the CPU has the
//! features, so its methods are safe. They are `#[inline(always)]` and must end up inside a
//! function compiled for those features; [`Simd::run`] is that function, entered once per kernel
//! call by `Kernels::dispatch`.
//!
//! NEON is a new folder here and a new arm in `path.rs`.

mod scalar;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86_64;

pub(crate) use scalar::Scalar;

/// Lanes of the canonical accumulator of `f32` dot products: element `i` goes to a lane that
/// depends only on `i`.
pub(crate) const LANES: usize = 8;

/// Rows of a matrix that an integer product computes side by side.
pub(crate) const PANEL_ROWS: usize = 16;

/// A kernel body, generic over the instruction set that will run it.
pub(crate) trait Routine {
    /// What the kernel returns.
    type Output;
    /// Runs the kernel. Implementations are `#[inline(always)]`.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// The vector operations of one instruction set.
///
/// `minimum` and `maximum` return their *second* operand when the comparison is unordered, so that
/// a NaN there propagates; this is what x86 does and what every implementation must do.
pub(crate) trait Simd: Panels + Send + Sync + 'static {
    /// Eight `f32`.
    type Floats: Copy;
    /// Thirty-two bytes, signed or unsigned as the operation says.
    type Bytes: Copy;

    /// Runs `routine` in a function compiled for this instruction set.
    fn run<R: Routine>(self, routine: R) -> R::Output;

    /// Asks for the cache line at an address, which need not be valid, to be on its way.
    fn prefetch(self, address: *const u8);
    /// All lanes `value`.
    fn splat(self, value: f32) -> Self::Floats;
    /// Eight consecutive values.
    fn load(self, values: &[f32; 8]) -> Self::Floats;
    /// Writes the eight lanes.
    fn store(self, lanes: Self::Floats, out: &mut [f32; 8]);
    /// Eight little-endian `f32`, at any alignment.
    fn load_f32(self, bytes: &[u8; 32]) -> Self::Floats;
    /// Eight little-endian IEEE half-precision values, converted exactly.
    fn load_f16(self, bytes: &[u8; 16]) -> Self::Floats;
    /// Eight little-endian bfloat16 values, converted exactly.
    fn load_bf16(self, bytes: &[u8; 16]) -> Self::Floats;
    /// Eight unsigned bytes as floats.
    fn load_small(self, bytes: &[u8; 8]) -> Self::Floats;
    /// Rounds to half precision, nearest even, little-endian.
    fn store_f16(self, lanes: Self::Floats, out: &mut [u8; 16]);
    /// One little-endian half-precision value.
    fn f16(self, bytes: [u8; 2]) -> f32;

    /// `a + b`.
    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a - b`.
    fn subtract(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a · b`, rounded.
    fn multiply(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a / b`.
    fn divide(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a · b + c`, rounded once.
    fn fused_multiply_add(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// `if a < b { a } else { b }`.
    fn minimum(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `if a > b { a } else { b }`.
    fn maximum(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// Absolute value.
    fn absolute(self, a: Self::Floats) -> Self::Floats;
    /// Nearest integer, ties to even.
    fn round(self, a: Self::Floats) -> Self::Floats;
    /// `2^a` for integral `a` in `-126..=127`; any other `a` gives an unspecified finite or
    /// infinite value.
    fn power_of_two(self, a: Self::Floats) -> Self::Floats;
    /// `0` where `a < bound`, `value` elsewhere (also where `a` is NaN).
    fn zero_where_less(
        self,
        value: Self::Floats,
        a: Self::Floats,
        bound: Self::Floats,
    ) -> Self::Floats;
    /// `((l0+l4)+(l2+l6)) + ((l1+l5)+(l3+l7))`: the one way lanes become a sum.
    fn sum(self, lanes: Self::Floats) -> f32;
    /// The greatest lane, by the same tree and the rule of [`Simd::maximum`].
    fn greatest(self, lanes: Self::Floats) -> f32;
    /// Thirty-two bytes as they are.
    fn load_bytes(self, bytes: &[u8; 32]) -> Self::Bytes;
    /// Writes thirty-two bytes.
    fn store_bytes(self, bytes: Self::Bytes, out: &mut [u8; 32]);
    /// `value` where a byte has the bit `bit` (one of eight) set, else 0.
    fn where_bit(self, bytes: Self::Bytes, bit: u8, value: u8) -> Self::Bytes;
    /// Byte `i` is negated (wrapping) where bit `i` of `bits` is set.
    fn negate_where(self, bytes: Self::Bytes, bits: u32) -> Self::Bytes;
    /// `(byte >> SHIFT) & mask` for each byte. The mask must clear the top `SHIFT` bits.
    fn bits<const SHIFT: i32>(self, bytes: Self::Bytes, mask: u8) -> Self::Bytes;
    /// `a | b`.
    fn or(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// `byte + value`, wrapping.
    fn add_byte(self, bytes: Self::Bytes, value: u8) -> Self::Bytes;
    /// Four vectors of integral lanes in `-127..=127`, narrowed to bytes in order. The sums of
    /// the first 16 and of the last are returned.
    fn narrow(self, lanes: [Self::Floats; 4], out: &mut [i8; 32]) -> [i32; 2];
}

/// Sixteen lanes of four bytes or one number: what integer products are made of.
///
/// The lanes are either sixteen rows of a matrix side by side, or the sixteen halves of 256 columns
/// of one row, in the order of [`lane_of`]; the transpositions turn one into the other. Nothing
/// else mixes lanes, and nothing is summed across them.
pub(crate) trait Panels: Copy {
    /// One `f32` per lane.
    type Rows: Copy;
    /// One 32-bit integer per lane.
    type Counts: Copy;
    /// Four consecutive weights, unsigned bytes, per lane.
    type Quads: Copy;
    /// Whether there are registers for two panels times four tokens (32 of 64 bytes), rather than
    /// one panel times three (16 of 32 bytes).
    const MANY_REGISTERS: bool;

    /// One value per row.
    fn load_rows(self, rows: &[f32; PANEL_ROWS]) -> Self::Rows;
    /// Writes one value per row.
    fn store_rows(self, rows: Self::Rows, out: &mut [f32; PANEL_ROWS]);
    /// All lanes `value`.
    fn splat_counts(self, value: i32) -> Self::Counts;
    /// `-count · 2^shift` for each lane.
    fn offset_counts(self, counts: &[i16; PANEL_ROWS], shift: u32) -> Self::Counts;
    /// Four weights per lane, lane after lane.
    fn load_quads(self, quads: &[u8; 4 * PANEL_ROWS]) -> Self::Quads;
    /// `counts + Σ weights[i]·values[i]` over the four, exactly; every lane meets the same values.
    /// Weights are at most 128 unless `WIDE`; values are at least -127.
    fn dot_quads<const WIDE: bool>(
        self,
        counts: Self::Counts,
        weights: Self::Quads,
        values: &[i8; 4],
    ) -> Self::Counts;
    /// As [`Panels::dot_quads`], where every lane meets four values of its own.
    fn dot_lanes<const WIDE: bool>(
        self,
        counts: Self::Counts,
        weights: Self::Quads,
        values: &[[i8; 4]; PANEL_ROWS],
    ) -> Self::Counts;
    /// The counts as `f32`. They are below 2²⁴ in magnitude, so this is exact.
    fn counts_as_rows(self, counts: Self::Counts) -> Self::Rows;
    /// `rows · scale`, rounded.
    fn scale_rows(self, rows: Self::Rows, scale: f32) -> Self::Rows;
    /// `a · b + sums`, rounded once.
    fn add_products(self, a: Self::Rows, b: Self::Rows, sums: Self::Rows) -> Self::Rows;
    /// `a · scale + sums`, rounded once.
    fn add_scaled(self, a: Self::Rows, scale: f32, sums: Self::Rows) -> Self::Rows;
    /// Lane `l` of result `k` is lane `k` of operand `l`.
    fn transpose_counts(self, counts: [Self::Counts; PANEL_ROWS]) -> [Self::Counts; PANEL_ROWS];
    /// As [`Panels::transpose_counts`].
    fn transpose_quads(self, quads: [Self::Quads; PANEL_ROWS]) -> [Self::Quads; PANEL_ROWS];
    /// Thirty-two bytes of each row, four at a time: element `q` has bytes `4q..4q + 4`.
    fn interleave(self, rows: &[&[u8; 32]; PANEL_ROWS]) -> [Self::Quads; 8];
    /// As [`Panels::interleave`], sixteen bytes.
    fn interleave_half(self, rows: &[&[u8; 16]; PANEL_ROWS]) -> [Self::Quads; 4];
    /// Twice thirty-two bytes.
    fn load_pair(self, bytes: [&[u8; 32]; 2]) -> Self::Quads;
    /// Twice sixteen bytes, each of them two times: `[a, a, b, b]`.
    fn load_twice(self, bytes: [&[u8; 16]; 2]) -> Self::Quads;
    /// In each run of four lanes: lane `k` of result `q` is lane `q` of operand `k`.
    fn transpose_fours(self, quads: [Self::Quads; 4]) -> [Self::Quads; 4];
    /// In each run of four lanes: result `q` is lane `q` of `a`, `a`, `b`, `b`.
    fn repeat_lanes(self, a: Self::Quads, b: Self::Quads) -> [Self::Quads; 4];
    /// In each run of four lanes: result `q` is lane `q` of `a`, `b`, `a`, `b`.
    fn alternate_lanes(self, a: Self::Quads, b: Self::Quads) -> [Self::Quads; 4];
    /// Writes four bytes per lane, lane after lane.
    fn store_quads(self, quads: Self::Quads, out: &mut [u8; 4 * PANEL_ROWS]);
    /// Four bytes per lane, as a little-endian word each.
    fn load_words(self, words: &[u32; PANEL_ROWS]) -> Self::Quads;
    /// The first `N` bytes (1, 2 or 4) of each of eight consecutive blocks of sixteen rows, as
    /// words: element `k` has those of block `k`, one row per lane.
    #[inline(always)]
    fn words_of_blocks<const B: usize, const N: usize>(
        self,
        rows: &[&[[u8; B]; 8]; PANEL_ROWS],
    ) -> [Self::Quads; 8] {
        let mut out = [self.load_words(&[0; PANEL_ROWS]); 8];
        for (block, out) in out.iter_mut().enumerate() {
            let mut words = [0; PANEL_ROWS];
            for (word, row) in words.iter_mut().zip(rows) {
                let mut bytes = [0; 4];
                bytes[..N].copy_from_slice(&row[block][..N]);
                *word = u32::from_le_bytes(bytes);
            }
            *out = self.load_words(&words);
        }
        out
    }
    /// `(word >> shift) & mask` of each lane's four bytes as one word, `mask` repeated in each byte.
    fn quad_bits(self, quads: Self::Quads, shift: u32, mask: u8) -> Self::Quads;
    /// As [`Panels::quad_bits`], each lane shifted by its own number of bits.
    fn quad_bits_each(
        self,
        quads: Self::Quads,
        shifts: &[u32; PANEL_ROWS],
        mask: u8,
    ) -> Self::Quads;
    /// Bits `shift..shift + 4` of each lane's word as four bytes of 0 or 1.
    fn bits_as_quads(self, words: Self::Quads, shifts: &[u32; PANEL_ROWS]) -> Self::Quads;
    /// `a | b << 4`, where no bit of `b` leaves its byte.
    fn or_shifted(self, a: Self::Quads, b: Self::Quads) -> Self::Quads;
    /// `table[byte]` for bytes below 16.
    fn look_up_quads(self, table: &[u8; 16], quads: Self::Quads) -> Self::Quads;
    /// Every byte's top bit inverted: signed bytes become unsigned ones that are 128 higher.
    fn raise_quads(self, quads: Self::Quads) -> Self::Quads;
    /// Byte `index` of each lane's four, unsigned.
    fn byte_as_rows(self, quads: Self::Quads, index: u32) -> Self::Rows;
    /// Byte `index` of each lane's four, signed.
    fn signed_byte_as_rows(self, quads: Self::Quads, index: u32) -> Self::Rows;
    /// The half-precision value in the low (0) or high (1) two bytes of each lane's four.
    fn half_as_rows(self, quads: Self::Quads, index: u32) -> Self::Rows;
    /// Each lane's four bytes as the bits of an `f32`.
    fn words_as_rows(self, quads: Self::Quads) -> Self::Rows;
    /// `2^(word - 128)` for words below 256; the two smallest are subnormal.
    fn powers_as_rows(self, words: Self::Quads) -> Self::Rows;
    /// Sixteen little-endian half-precision values, converted exactly.
    fn load_halves(self, halves: [&[u8; 16]; 2]) -> Self::Rows;
    /// Sixteen consecutive signed bytes.
    fn load_signed_bytes(self, bytes: &[u8; PANEL_ROWS]) -> Self::Rows;
    /// `a · b`, rounded.
    fn multiply_rows(self, a: Self::Rows, b: Self::Rows) -> Self::Rows;
}

/// Where half `half` (0 or 1) of group `group` (of eight) lies when the lanes are the halves of
/// 256 columns: groups 0–3 before 4–7, and of four groups the first halves before the second, so
/// that four groups' bytes, one group after the other, come into this order by transpositions of
/// 4 × 4 lanes.
#[inline(always)]
pub(crate) const fn lane_of(group: usize, half: usize) -> usize {
    group / 4 * 8 + half * 4 + group % 4
}

/// Fewer than eight values, padded with zeros.
#[inline(always)]
pub(crate) fn pad(values: &[f32]) -> [f32; LANES] {
    let mut padded = [0.0; LANES];
    padded[..values.len()].copy_from_slice(values);
    padded
}

/// `e^x` to about one unit in the last place, the same on every path.
///
/// `x = n·ln 2 + r`, the Taylor series of `e^r` to degree 7 (its remainder is below 5e-9 on
/// |r| ≤ ln 2 / 2), then a multiplication by `2^n`. Below -87 the result is 0, above 88 it stays
/// at `e^88`; NaN stays NaN.
#[inline(always)]
pub(crate) fn exponential<S: Simd>(simd: S, x: S::Floats) -> S::Floats {
    const LN_2_HIGH: f32 = 0.693_145_75;
    const LN_2_LOW: f32 = 1.428_606_8e-6;
    const COEFFICIENTS: [f32; 7] = [
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ];
    let lowest = simd.splat(-87.0);
    let clamped = simd.maximum(lowest, simd.minimum(simd.splat(88.0), x));
    let n = simd.round(simd.multiply(clamped, simd.splat(std::f32::consts::LOG2_E)));
    let r = simd.fused_multiply_add(n, simd.splat(-LN_2_HIGH), clamped);
    let r = simd.fused_multiply_add(n, simd.splat(-LN_2_LOW), r);
    let mut series = simd.splat(1.0 / 5040.0);
    for coefficient in COEFFICIENTS {
        series = simd.fused_multiply_add(series, r, simd.splat(coefficient));
    }
    simd.zero_where_less(simd.multiply(series, simd.power_of_two(n)), x, lowest)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `e^x` of eight values.
    struct Exponential([f32; LANES]);

    impl Routine for Exponential {
        type Output = [f32; LANES];

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> [f32; LANES] {
            let mut out = [0.0; LANES];
            simd.store(exponential(simd, simd.load(&self.0)), &mut out);
            out
        }
    }

    #[test]
    fn exponentials_are_within_two_units_in_the_last_place_on_every_path() {
        for step in 0..100_000 {
            let first = -87.0 + step as f32 * (175.0 / 100_000.0);
            let x = std::array::from_fn(|lane| first + lane as f32 * 1e-4);
            let reference = Scalar.run(Exponential(x));
            for (x, found) in x.into_iter().zip(reference) {
                let expected = f64::from(x.min(88.0)).exp();
                let error = (f64::from(found) / expected - 1.0).abs();
                assert!(error < 2.0 * f64::from(f32::EPSILON), "e^{x}: {found}");
            }
            for kernels in crate::Kernels::all() {
                let found = kernels.dispatch(Exponential(x));
                assert_eq!(found.map(f32::to_bits), reference.map(f32::to_bits));
            }
        }
    }

    #[test]
    fn exponentials_of_extremes_are_defined() {
        let x = [
            f32::NEG_INFINITY,
            -1e30,
            -88.0,
            f32::INFINITY,
            1e30,
            f32::NAN,
            0.0,
            -0.0,
        ];
        for kernels in crate::Kernels::all() {
            let found = kernels.dispatch(Exponential(x));
            assert_eq!(found[..3], [0.0; 3]);
            assert!(found[3] > 1e38 && found[3] == found[4] && found[3].is_finite());
            assert!(found[5].is_nan());
            assert_eq!(found[6..], [1.0; 2]);
        }
    }
}
