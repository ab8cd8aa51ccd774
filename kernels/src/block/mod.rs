//! Weight formats: how a GGUF tensor's bytes become numbers, one file per format.
//!
//! A row is a run of blocks; a block holds a fixed number of weights and their scales. Each file
//! gives its format's [`Block`] (size and exact dequantisation) and one of two ways to multiply:
//!
//! * [`FloatBlock`]: the weights are floats and meet `f32` activations directly;
//! * [`QuantisedBlock`]: the weights are small integers, which a format unpacks to unsigned bytes
//!   with their scales, and meet Q8 activations (see `activations.rs`) in integer dot products.
//!   [`RowBlock`] is a simpler way to be one.
//!
//! The IQ1 to IQ3 formats, whose weights are indices into code books, share `coded.rs` and the
//! tables of `code_books.rs`.
//!
//! A new format is a new file and a row in the table at the end of this one.

mod bf16;
mod code_books;
mod coded;
mod f16;
mod f32;
mod iq1_m;
mod iq1_s;
mod iq2_s;
mod iq2_xs;
mod iq2_xxs;
mod iq3_s;
mod iq3_xxs;
mod iq4_nl;
mod iq4_xs;
mod mxfp4;
pub(crate) mod panel;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod tq1_0;
mod tq2_0;

use crate::activations::GROUP_ELEMENTS;
use crate::arch::{PANEL_ROWS, Simd, lane_of};
use panel::{Panel, PanelScales};

/// How a dot product wants the activations of a format's matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivationFormat {
    /// Plain `f32`.
    F32,
    /// [`Q8Activations`](crate::Q8Activations). Plain `f32` also works and is exact but slower.
    Q8,
}

/// A format's size and exact meaning.
pub(crate) trait Block: 'static {
    /// The bytes of one block.
    type Raw: Copy + Send + Sync;
    /// Weights in a block, at most [`BLOCK_ELEMENTS_MAX`].
    const ELEMENTS: usize;
    /// How the matrix product wants its activations.
    const ACTIVATIONS: ActivationFormat;
    /// A row as blocks.
    fn blocks(row: &[u8]) -> &[Self::Raw];
    /// The weights of a block, bit for bit as the reference implementation of the format has
    /// them. `out` has [`Block::ELEMENTS`] places.
    fn dequantise(raw: &Self::Raw, out: &mut [f32]);
}

/// A format whose weights are floats: a block is one weight.
pub(crate) trait FloatBlock: Block {
    /// The bytes of eight weights.
    type Eight;
    /// Eight weights, converted exactly.
    fn load<S: Simd>(simd: S, raw: &Self::Eight) -> S::Floats;
    /// A row as groups of eight and the rest.
    fn eights(row: &[u8]) -> (&[Self::Eight], &[Self::Raw]);
}

/// A format whose weights meet Q8 activations. A block is 32 or 256 weights.
pub(crate) trait QuantisedBlock: Block {
    /// What unpacked bytes and scales stand for.
    type Meaning: Meaning;
    /// What is to be subtracted from an unpacked byte, as a power of two: its logarithm. Not used
    /// by formats with a minimum.
    const OFFSET_LOG2: u32 = 0;
    /// Unpacks the scales, and the minima if there are any, of 256 columns of sixteen rows.
    fn unpack_scales<S: Simd>(simd: S, rows: &PackRows<'_, Self::Raw>, scales: &mut PanelScales);
    /// Unpacks 256 weights of a row: the sixteen halves of its eight groups side by side in the
    /// order of [`lane_of`](crate::arch::lane_of), four bytes of each in each result.
    fn unpack_row<S: Simd>(simd: S, blocks: &[Self::Raw]) -> [S::Quads; 4];
    /// Unpacks the weights of 256 columns of sixteen rows, side by side. To lay packed bytes side by
    /// side and then unpack them takes fewer shuffles; common formats do so.
    #[inline(always)]
    fn unpack_quants<S: Simd>(simd: S, rows: &PackRows<'_, Self::Raw>, panel: &mut Panel)
    where
        Self: Sized,
    {
        panel.transpose_rows::<S, Self>(simd, rows);
    }
}

/// The blocks of 256 columns, one of 256 or eight of 32, of sixteen rows.
pub(crate) type PackRows<'a, R> = [&'a [R]; PANEL_ROWS];

/// A quantised format that unpacks to memory, which is simpler and slower.
pub(crate) trait RowBlock: Block {
    /// As [`QuantisedBlock::Meaning`].
    type Meaning: Meaning;
    /// As [`QuantisedBlock::OFFSET_LOG2`].
    const OFFSET_LOG2: u32 = 0;
    /// Unpacks the scales of 256 consecutive weights.
    fn row_scales<S: Simd>(simd: S, blocks: &[Self::Raw]) -> RowScales;
    /// Unpacks 256 consecutive weights, group by group.
    fn row_quants<S: Simd>(simd: S, blocks: &[Self::Raw], groups: &mut [[u8; GROUP_ELEMENTS]; 8]);
}

/// The scales of eight groups of a row.
pub(crate) struct RowScales {
    /// Of their first halves and of their second; the latter only if the format has scales per 16.
    scales: [[f32; 8]; 2],
    /// As the scales, if the format has minima.
    minima: [[f32; 8]; 2],
}

impl RowScales {
    const ZERO: Self = Self {
        scales: [[0.0; 8]; 2],
        minima: [[0.0; 8]; 2],
    };
}

impl<F: RowBlock> QuantisedBlock for F {
    type Meaning = F::Meaning;
    const OFFSET_LOG2: u32 = F::OFFSET_LOG2;

    #[inline(always)]
    fn unpack_scales<S: Simd>(simd: S, rows: &PackRows<'_, F::Raw>, scales: &mut PanelScales) {
        for (row, blocks) in rows.iter().enumerate() {
            let of_row = F::row_scales(simd, blocks);
            for half in 0..1 + usize::from(F::Meaning::HALVES) {
                for group in 0..8 {
                    scales.scales[half][group][row] = of_row.scales[half][group];
                    if F::Meaning::HAS_MINIMUM {
                        scales.minima[half][group][row] = of_row.minima[half][group];
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn unpack_row<S: Simd>(simd: S, blocks: &[F::Raw]) -> [S::Quads; 4] {
        let mut groups = [[0; GROUP_ELEMENTS]; 8];
        F::row_quants(simd, blocks, &mut groups);
        halves_of_groups(simd, &groups.each_ref())
    }
}

/// The halves of eight groups, as [`QuantisedBlock::unpack_row`] returns them.
#[inline(always)]
fn halves_of_groups<S: Simd>(simd: S, groups: &[&[u8; GROUP_ELEMENTS]; 8]) -> [S::Quads; 4] {
    simd.transpose_fours([
        simd.load_pair([groups[0], groups[4]]),
        simd.load_pair([groups[1], groups[5]]),
        simd.load_pair([groups[2], groups[6]]),
        simd.load_pair([groups[3], groups[7]]),
    ])
}

/// The halves of eight groups whose bytes hold a weight of the first half in their low nibbles and
/// one of the second half in their high nibbles.
#[inline(always)]
fn halves_of_nibbles<S: Simd>(simd: S, groups: &[&[u8; 16]; 8]) -> [S::Quads; 4] {
    const SHIFTS: [u32; PANEL_ROWS] = [0, 0, 0, 0, 4, 4, 4, 4, 0, 0, 0, 0, 4, 4, 4, 4];
    let mut quads = simd.transpose_fours([
        simd.load_twice([groups[0], groups[4]]),
        simd.load_twice([groups[1], groups[5]]),
        simd.load_twice([groups[2], groups[6]]),
        simd.load_twice([groups[3], groups[7]]),
    ]);
    for quads in &mut quads {
        *quads = simd.quad_bits_each(*quads, &SHIFTS, 15);
    }
    quads
}

/// As [`halves_of_nibbles`], and each nibble through a table.
#[inline(always)]
fn halves_of_indices<S: Simd>(simd: S, groups: &[&[u8; 16]; 8], table: &[u8; 16]) -> [S::Quads; 4] {
    let mut quads = halves_of_nibbles(simd, groups);
    for quads in &mut quads {
        *quads = simd.look_up_quads(table, *quads);
    }
    quads
}

/// As [`halves_of_nibbles`], with a fifth bit for each weight: bit `i` of a group's word is weight
/// `i`'s.
#[inline(always)]
fn halves_of_nibbles_and_fifth_bits<S: Simd>(
    simd: S,
    groups: &[&[u8; 16]; 8],
    fifth: &[&[u8; 4]; 8],
) -> [S::Quads; 4] {
    /// Where the bits of four weights are: weights `4·quad..` of the lane's half.
    const SHIFTS: [[u32; PANEL_ROWS]; 4] = {
        let mut shifts = [[0; PANEL_ROWS]; 4];
        let mut quad = 0;
        while quad < 4 {
            let mut lane = 0;
            while lane < PANEL_ROWS {
                shifts[quad][lane] = (16 * (lane / 4 % 2) + 4 * quad) as u32;
                lane += 1;
            }
            quad += 1;
        }
        shifts
    };
    let mut words = [0; PANEL_ROWS];
    for (group, bits) in fifth.iter().enumerate() {
        let word = u32::from_le_bytes(**bits);
        words[lane_of(group, 0)] = word;
        words[lane_of(group, 1)] = word;
    }
    let words = simd.load_words(&words);
    let mut quads = halves_of_nibbles(simd, groups);
    for (quads, shifts) in quads.iter_mut().zip(&SHIFTS) {
        *quads = simd.or_shifted(*quads, simd.bits_as_quads(words, shifts));
    }
    quads
}

/// `N` bytes of each of eight blocks from `offset`.
#[inline(always)]
fn parts_of_eight<const N: usize, const B: usize>(
    blocks: &[[u8; B]],
    offset: usize,
) -> [&[u8; N]; 8] {
    let blocks: &[[u8; B]; 8] = blocks.first_chunk().expect("a pack of blocks of 32");
    let mut parts = [part(&blocks[0], offset); 8];
    for (part_of, block) in parts.iter_mut().zip(blocks) {
        *part_of = part(block, offset);
    }
    parts
}

/// Block `index` of each row.
#[inline(always)]
fn blocks_at<'a, R>(rows: &PackRows<'a, R>, index: usize) -> [&'a R; PANEL_ROWS] {
    let mut blocks = [&rows[0][index]; PANEL_ROWS];
    for (block, row) in blocks.iter_mut().zip(rows) {
        *block = &row[index];
    }
    blocks
}

/// `N` bytes of each block from `offset`.
#[inline(always)]
fn parts<'a, const N: usize, const B: usize>(
    blocks: &[&'a [u8; B]; PANEL_ROWS],
    offset: usize,
) -> [&'a [u8; N]; PANEL_ROWS] {
    let mut parts = [part(blocks[0], offset); PANEL_ROWS];
    for (part_of, block) in parts.iter_mut().zip(blocks) {
        *part_of = part(*block, offset);
    }
    parts
}

/// The eight blocks of 32 of each row.
#[inline(always)]
fn eights<'a, const B: usize>(rows: &PackRows<'a, [u8; B]>) -> [&'a [[u8; B]; 8]; PANEL_ROWS] {
    let eight = |row: &'a [[u8; B]]| row.first_chunk().expect("a pack of blocks of 32");
    let mut eights = [eight(rows[0]); PANEL_ROWS];
    for (of_row, row) in eights.iter_mut().zip(rows) {
        *of_row = eight(row);
    }
    eights
}

/// Writes the half-precision scales that blocks of 32 begin with.
#[inline(always)]
fn store_scales<S: Simd, const B: usize>(
    simd: S,
    rows: &PackRows<'_, [u8; B]>,
    scales: &mut PanelScales,
) {
    let halves = simd.words_of_blocks::<B, 2>(&eights(rows));
    for (halves, scales) in halves.into_iter().zip(&mut scales.scales[0]) {
        simd.store_rows(simd.half_as_rows(halves, 0), scales);
    }
}

/// Writes the half-precision scales and minima that blocks of 32 begin with.
#[inline(always)]
fn store_scales_and_minima<S: Simd, const B: usize>(
    simd: S,
    rows: &PackRows<'_, [u8; B]>,
    scales: &mut PanelScales,
) {
    let heads = simd.words_of_blocks::<B, 4>(&eights(rows));
    for (group, head) in heads.into_iter().enumerate() {
        simd.store_rows(simd.half_as_rows(head, 0), &mut scales.scales[0][group]);
        simd.store_rows(simd.half_as_rows(head, 1), &mut scales.minima[0][group]);
    }
}

/// How a weight follows from its unpacked byte `q`, as constants that a kernel is compiled for.
pub(crate) trait Meaning: 'static {
    /// `w = scale · q + minimum` if set, else `w = scale · (q - 2^OFFSET_LOG2)`.
    const HAS_MINIMUM: bool;
    /// Scales and minima are per 16 weights rather than 32.
    const HALVES: bool;
    /// Bytes may be above 128.
    const WIDE: bool;
}

/// Declares the meanings that formats have.
macro_rules! meanings {
    ($($name:ident: $minimum:literal, $halves:literal, $wide:literal, $documentation:literal;)*) => {$(
        #[doc = $documentation]
        pub(crate) enum $name {}

        impl Meaning for $name {
            const HAS_MINIMUM: bool = $minimum;
            const HALVES: bool = $halves;
            const WIDE: bool = $wide;
        }
    )*};
}

meanings! {
    Signed: false, false, false, "An offset, a scale per 32.";
    SignedWide: false, false, true, "An offset, a scale per 32, bytes of any value.";
    SignedHalves: false, true, false, "An offset, a scale per 16.";
    WithMinimum: true, false, false, "A scale and a minimum per 32.";
    WithMinimumHalves: true, true, false, "A scale and a minimum per 16.";
}

/// Blocks of 32 in 256 columns.
pub(crate) const BLOCKS_PER_PACK_MAX: usize = 8;

/// The widest block of any format.
pub(crate) const BLOCK_ELEMENTS_MAX: usize = 256;

/// The four bit pairs of 32 bytes, lowest first.
#[inline(always)]
fn bit_pairs<S: Simd>(simd: S, bytes: S::Bytes) -> [S::Bytes; 4] {
    [
        simd.bits::<0>(bytes, 3),
        simd.bits::<2>(bytes, 3),
        simd.bits::<4>(bytes, 3),
        simd.bits::<6>(bytes, 3),
    ]
}

/// A table of signed values moved up by `offset`, so that none is negative.
const fn raised(table: [i8; 16], offset: i16) -> [u8; 16] {
    let mut raised = [0; 16];
    let mut index = 0;
    while index < 16 {
        raised[index] = (table[index] as i16 + offset) as u8;
        index += 1;
    }
    raised
}

/// `N` bytes of a block from `offset`; the compiler sees that they are inside.
#[inline(always)]
fn part<const N: usize>(raw: &[u8], offset: usize) -> &[u8; N] {
    raw[offset..]
        .first_chunk()
        .expect("the part lies inside the block")
}

/// The half-precision value at `offset`, for the scalar dequantisation.
#[inline(always)]
fn half_at(raw: &[u8], offset: usize) -> f32 {
    ::half::f16::from_le_bytes(*part(raw, offset)).to_f32_const()
}

/// Work that is generic over the format.
pub(crate) trait FormatVisitor {
    /// What the work returns.
    type Output;
    /// A format of floats.
    fn float<F: FloatBlock>(self) -> Self::Output;
    /// A format of quantised blocks.
    fn quantised<F: QuantisedBlock>(self) -> Self::Output;
}

/// Declares [`Format`] and everything that is a table over the formats.
macro_rules! formats {
    ($($variant:ident, $kind:ident, $block:ty, $ggml_type:literal, $name:literal, $documentation:literal;)*) => {
        /// A tensor's weight format.
        #[expect(non_camel_case_types, reason = "the names of the formats")]
        #[non_exhaustive]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Format {
            $(#[doc = $documentation] $variant,)*
        }

        impl Format {
            /// Every format these kernels compute with.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The format of a GGUF tensor type, `None` for one these kernels do not know.
            pub fn from_ggml_type(ggml_type: u32) -> Option<Self> {
                match ggml_type {
                    $($ggml_type => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// The GGUF tensor type.
            pub fn ggml_type(self) -> u32 {
                match self { $(Self::$variant => $ggml_type,)* }
            }

            /// The name the field knows it by, such as `Q4_K`.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Weights in a block: 1, 32 or 256.
            pub fn block_elements(self) -> usize {
                match self { $(Self::$variant => <$block as Block>::ELEMENTS,)* }
            }

            /// Bytes in a block.
            pub fn block_bytes(self) -> usize {
                match self { $(Self::$variant => size_of::<<$block as Block>::Raw>(),)* }
            }

            /// The activations a matrix product with this format is fastest with.
            pub fn activations(self) -> ActivationFormat {
                match self { $(Self::$variant => <$block as Block>::ACTIVATIONS,)* }
            }

            /// Calls the visitor with the format's block type.
            pub(crate) fn visit<V: FormatVisitor>(self, visitor: V) -> V::Output {
                match self { $(Self::$variant => visitor.$kind::<$block>(),)* }
            }
        }
    };
}

impl Format {
    /// Bytes of a row of `columns` weights. `None` if the row is not whole blocks, or its size
    /// does not fit a `usize`.
    pub fn row_bytes(self, columns: usize) -> Option<usize> {
        if !columns.is_multiple_of(self.block_elements()) {
            return None;
        }
        (columns / self.block_elements()).checked_mul(self.block_bytes())
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.name())
    }
}

formats! {
    F32, float, f32::F32, 0, "F32", "IEEE single precision.";
    F16, float, f16::F16, 1, "F16", "IEEE half precision.";
    BF16, float, bf16::BF16, 30, "BF16", "bfloat16: the upper half of a single.";
    Q4_0, quantised, q4_0::Q4_0, 2, "Q4_0", "32 four-bit weights around zero, one scale.";
    Q4_1, quantised, q4_1::Q4_1, 3, "Q4_1", "32 four-bit weights, a scale and a minimum.";
    Q5_0, quantised, q5_0::Q5_0, 6, "Q5_0", "32 five-bit weights around zero, one scale.";
    Q5_1, quantised, q5_1::Q5_1, 7, "Q5_1", "32 five-bit weights, a scale and a minimum.";
    Q8_0, quantised, q8_0::Q8_0, 8, "Q8_0", "32 eight-bit weights, one scale.";
    Q2_K, quantised, q2_k::Q2K, 10, "Q2_K", "256 two-bit weights; scale and minimum per 16.";
    Q3_K, quantised, q3_k::Q3K, 11, "Q3_K", "256 three-bit weights around zero; scale per 16.";
    Q4_K, quantised, q4_k::Q4K, 12, "Q4_K", "256 four-bit weights; scale and minimum per 32.";
    Q5_K, quantised, q5_k::Q5K, 13, "Q5_K", "256 five-bit weights; scale and minimum per 32.";
    Q6_K, quantised, q6_k::Q6K, 14, "Q6_K", "256 six-bit weights around zero; scale per 16.";
    IQ1_S, quantised, iq1_s::IQ1S, 19, "IQ1_S", "256 weights, codes of eight from 2048; scale per 32.";
    IQ1_M, quantised, iq1_m::IQ1M, 29, "IQ1_M", "256 weights, codes of eight from 2048; scale per 16.";
    IQ2_XXS, quantised, iq2_xxs::IQ2XXS, 16, "IQ2_XXS", "256 weights, codes of eight from 256; scale per 32.";
    IQ2_XS, quantised, iq2_xs::IQ2XS, 17, "IQ2_XS", "256 weights, codes of eight from 512; scale per 16.";
    IQ2_S, quantised, iq2_s::IQ2S, 22, "IQ2_S", "256 weights, codes of eight from 1024; scale per 16.";
    IQ3_XXS, quantised, iq3_xxs::IQ3XXS, 18, "IQ3_XXS", "256 weights, codes of four from 256; scale per 32.";
    IQ3_S, quantised, iq3_s::IQ3S, 21, "IQ3_S", "256 weights, codes of four from 512; scale per 32.";
    IQ4_NL, quantised, iq4_nl::IQ4NL, 20, "IQ4_NL", "32 four-bit unequal steps, one scale.";
    IQ4_XS, quantised, iq4_xs::IQ4XS, 23, "IQ4_XS", "256 four-bit unequal steps; scale per 32.";
    TQ1_0, quantised, tq1_0::TQ1_0, 34, "TQ1_0", "256 ternary weights, five to a byte; one scale.";
    TQ2_0, quantised, tq2_0::TQ2_0, 35, "TQ2_0", "256 ternary weights, four to a byte; one scale.";
    MXFP4, quantised, mxfp4::MXFP4, 39, "MXFP4", "32 four-bit floats, a power of two as scale.";
}
