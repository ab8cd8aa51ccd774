//! Activations as a matrix product reads them: plain `f32`, or Q8.
//!
//! Q8 is the activation side of every integer dot product here. Sixteen values become 16 signed
//! bytes `q` in -127..=127 and one `f32` scale, `x ≈ scale · q` with `scale = max|x| / 127` and
//! `q` rounded to nearest, ties to even. Two such halves form a group of 32, which shares a weight
//! scale; a scale of its own for each half makes the error about a quarter smaller in the square.
//! Sums are kept too: `Σq` of a half, because weights are stored as unsigned bytes with an offset,
//! and `Σ scale · q` of a group, because formats with a minimum need `Σx`. Eight groups form a
//! pack, so that a K-quant block of 256 meets exactly one.
//!
//! A half whose scale would be below the smallest normal `f32` becomes zeros. Infinite or NaN
//! values give unspecified results for their rows and never a panic.

use crate::arch::{Routine, Simd, lane_of};
use crate::path::Kernels;
use crate::pool::Pool;
use crate::shared::SharedSlice;

/// Values in a pack.
pub(crate) const PACK_ELEMENTS: usize = 256;
/// Values that an integer dot product takes at once.
pub(crate) const GROUP_ELEMENTS: usize = 32;
/// Values that share a scale.
const HALF_ELEMENTS: usize = 16;
/// Halves in a pack.
const HALVES: usize = PACK_ELEMENTS / HALF_ELEMENTS;

/// 256 quantised activations.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Q8Pack {
    /// Scale per group: of its first half, and of its second.
    pub(crate) scales: [[f32; 8]; 2],
    /// What the quants of a group stand for, summed.
    pub(crate) sums: [f32; 8],
    /// The quants of each half, summed, in the order of [`lane_of`].
    pub(crate) counts: [i16; HALVES],
    /// The quants: for each four of a half, those of all halves in the order of [`lane_of`].
    pub(crate) quants: [[[i8; 4]; HALVES]; HALF_ELEMENTS / 4],
}

impl Q8Pack {
    const ZERO: Self = Self {
        scales: [[0.0; 8]; 2],
        sums: [0.0; 8],
        counts: [0; HALVES],
        quants: [[[0; 4]; HALVES]; HALF_ELEMENTS / 4],
    };
}

/// The input of a matrix product, `[tokens, columns]`.
#[derive(Clone, Copy)]
pub enum Activations<'a> {
    /// Plain values; works with every weight format. For quantised weights the product is then
    /// that of the dequantised weights: exact, and slower.
    F32 {
        /// Row-major values, `tokens · columns` of them.
        values: &'a [f32],
        /// Values per token.
        columns: usize,
    },
    /// Quantised values, for formats whose
    /// [`activations`](crate::Format::activations) are [`Q8`](crate::ActivationFormat::Q8).
    Q8(Q8View<'a>),
}

impl<'a> From<&'a Q8Activations> for Activations<'a> {
    fn from(activations: &'a Q8Activations) -> Self {
        Self::Q8(activations.view())
    }
}

impl Activations<'_> {
    /// Values per token.
    pub fn columns(&self) -> usize {
        match self {
            Self::F32 { columns, .. } => *columns,
            Self::Q8(view) => view.columns,
        }
    }

    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        match self {
            Self::F32 { values, columns } => values.len().checked_div(*columns).unwrap_or(0),
            Self::Q8(view) => view.tokens,
        }
    }
}

/// A buffer of Q8 activations, allocated once and quantised into again and again.
pub struct Q8Activations {
    packs: Vec<Q8Pack>,
    tokens: usize,
    columns: usize,
}

/// Some tokens of a [`Q8Activations`].
#[derive(Clone, Copy)]
pub struct Q8View<'a> {
    packs: &'a [Q8Pack],
    /// The tokens in sight, if not all in their order.
    chosen: Option<&'a [usize]>,
    tokens: usize,
    columns: usize,
}

impl Q8Activations {
    /// Bytes that [`Q8Activations::new`] allocates; the greatest number if there are more.
    pub fn required_bytes(max_tokens: usize, max_columns: usize) -> usize {
        max_tokens
            .saturating_mul(max_columns.div_ceil(PACK_ELEMENTS))
            .saturating_mul(size_of::<Q8Pack>())
    }

    /// Room for `max_tokens` tokens of `max_columns` values, or any shape that needs no more.
    pub fn new(max_tokens: usize, max_columns: usize) -> Self {
        let packs = vec![Q8Pack::ZERO; max_tokens * max_columns.div_ceil(PACK_ELEMENTS)];
        Self {
            packs,
            tokens: 0,
            columns: 0,
        }
    }

    /// Quantises `values`, `[tokens, columns]`, over what was held before. Tokens are split over
    /// the pool.
    ///
    /// # Panics
    ///
    /// If `columns` is not a multiple of 32, `values` is not whole tokens, or they do not fit.
    pub fn quantise(&mut self, kernels: &Kernels, pool: &Pool, values: &[f32], columns: usize) {
        let tokens = self.reshape(values, columns);
        self.fill(kernels, pool, values, tokens, |task| task);
    }

    /// As [`Q8Activations::quantise`], but only the tokens of a rising list; what is held for
    /// the others is unspecified.
    ///
    /// # Panics
    ///
    /// As [`Q8Activations::quantise`], and if the list does not rise or reaches past the tokens.
    pub fn quantise_tokens(
        &mut self,
        kernels: &Kernels,
        pool: &Pool,
        values: &[f32],
        columns: usize,
        chosen: &[usize],
    ) {
        let tokens = self.reshape(values, columns);
        assert!(
            chosen.is_sorted_by(|a, b| a < b) && chosen.last().is_none_or(|&last| last < tokens),
            "the list of tokens must rise and end within them"
        );
        self.fill(kernels, pool, values, chosen.len(), |task| chosen[task]);
    }

    /// Takes the shape of `values`; returns the number of tokens.
    fn reshape(&mut self, values: &[f32], columns: usize) -> usize {
        assert!(
            columns > 0 && columns.is_multiple_of(GROUP_ELEMENTS),
            "{columns} columns are not whole groups of {GROUP_ELEMENTS}"
        );
        assert!(
            values.len().is_multiple_of(columns),
            "values must be whole tokens"
        );
        let tokens = values.len() / columns;
        assert!(
            tokens * columns.div_ceil(PACK_ELEMENTS) <= self.packs.len(),
            "{tokens} × {columns} values do not fit"
        );
        (self.tokens, self.columns) = (tokens, columns);
        tokens
    }

    /// Quantises a token for each task; `token_of` gives different tasks different tokens.
    fn fill(
        &mut self,
        kernels: &Kernels,
        pool: &Pool,
        values: &[f32],
        tasks: usize,
        token_of: impl Fn(usize) -> usize + Sync,
    ) {
        let columns = self.columns;
        let row_packs = columns.div_ceil(PACK_ELEMENTS);
        let packs = SharedSlice::new(&mut self.packs[..self.tokens * row_packs]);
        pool.run_tasks(tasks, |_, task| {
            let token = token_of(task);
            // SAFETY: each token is one task and owns its own run of packs.
            let packs = unsafe { packs.range(token * row_packs, row_packs) };
            let values = &values[token * columns..][..columns];
            kernels.dispatch(Quantise { values, packs });
        });
    }

    /// All tokens quantised last.
    pub fn view(&self) -> Q8View<'_> {
        let row_packs = self.columns.div_ceil(PACK_ELEMENTS);
        Q8View {
            packs: &self.packs[..self.tokens * row_packs],
            chosen: None,
            tokens: self.tokens,
            columns: self.columns,
        }
    }
}

impl<'a> Q8View<'a> {
    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Values per token.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The tokens of a range.
    ///
    /// # Panics
    ///
    /// If the range reaches past the last token.
    pub fn token_range(&self, tokens: std::ops::Range<usize>) -> Self {
        let row_packs = self.row_packs();
        let packs = match self.chosen {
            Some(_) => self.packs,
            None => &self.packs[tokens.start * row_packs..tokens.end * row_packs],
        };
        Self {
            packs,
            chosen: self.chosen.map(|chosen| &chosen[tokens.clone()]),
            tokens: tokens.len(),
            columns: self.columns,
        }
    }

    /// The tokens of a list, in its order.
    ///
    /// # Panics
    ///
    /// If these are some tokens of a list already, or the list names one past the last.
    pub fn tokens_of(&self, chosen: &'a [usize]) -> Self {
        assert!(self.chosen.is_none(), "a list of tokens of a list");
        assert!(
            chosen.iter().all(|&token| token < self.tokens),
            "the list reaches past the {} tokens",
            self.tokens
        );
        Self {
            chosen: Some(chosen),
            tokens: chosen.len(),
            ..*self
        }
    }

    /// Packs per token.
    #[inline(always)]
    pub(crate) fn row_packs(&self) -> usize {
        self.columns.div_ceil(PACK_ELEMENTS)
    }

    /// Pack `pack` of token `token`: columns `256·pack..`.
    #[inline(always)]
    pub(crate) fn pack(&self, token: usize, pack: usize) -> &'a Q8Pack {
        let token = self.chosen.map_or(token, |chosen| chosen[token]);
        &self.packs[token * self.row_packs() + pack]
    }
}

/// Quantises one token's row.
struct Quantise<'a> {
    values: &'a [f32],
    packs: &'a mut [Q8Pack],
}

impl Routine for Quantise<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (values, pack) in self.values.chunks(PACK_ELEMENTS).zip(self.packs) {
            let (groups, _) = values.as_chunks::<GROUP_ELEMENTS>();
            for (group, values) in groups.iter().enumerate() {
                let mut quants = [0; GROUP_ELEMENTS];
                let (scales, sums) = quantise_group(simd, values, &mut quants);
                let (halves, _) = quants.as_chunks::<HALF_ELEMENTS>();
                for (half, quants) in halves.iter().enumerate() {
                    let lane = lane_of(group, half);
                    pack.scales[half][group] = scales[half];
                    pack.counts[lane] = sums[half] as i16;
                    for (lanes, four) in pack.quants.iter_mut().zip(quants.as_chunks().0) {
                        lanes[lane] = *four;
                    }
                }
                pack.sums[group] = scales[0].mul_add(sums[0] as f32, scales[1] * sums[1] as f32);
            }
        }
    }
}

/// Quantises 32 values; returns the scales of the two halves and the sums of their quants.
#[inline(always)]
fn quantise_group<S: Simd>(
    simd: S,
    values: &[f32; GROUP_ELEMENTS],
    quants: &mut [i8; GROUP_ELEMENTS],
) -> ([f32; 2], [i32; 2]) {
    let (halves, _) = values.as_chunks::<HALF_ELEMENTS>();
    // Written out: intrinsics in the closure of a `map` are not always inlined.
    let first = quantise_half(simd, &halves[0]);
    let second = quantise_half(simd, &halves[1]);
    let lanes = [first.0[0], first.0[1], second.0[0], second.0[1]];
    let sums = simd.narrow(lanes, quants);
    ([first.1, second.1], sums)
}

/// The quants of 16 values, as integral floats, and their scale.
#[inline(always)]
fn quantise_half<S: Simd>(simd: S, values: &[f32; HALF_ELEMENTS]) -> ([S::Floats; 2], f32) {
    let (eights, _) = values.as_chunks::<8>();
    let lanes = [simd.load(&eights[0]), simd.load(&eights[1])];
    let (first, second) = (simd.absolute(lanes[0]), simd.absolute(lanes[1]));
    // Zero first, so that a NaN in the values stays.
    let greatest = simd.maximum(simd.maximum(simd.splat(0.0), first), second);
    let mut scale = simd.greatest(greatest) / 127.0;
    let mut inverse = 1.0 / scale;
    if scale < f32::MIN_POSITIVE {
        (scale, inverse) = (0.0, 0.0);
    }
    let inverse = simd.splat(inverse);
    let quants = [
        quants_of(simd, lanes[0], inverse),
        quants_of(simd, lanes[1], inverse),
    ];
    (quants, scale)
}

/// Eight values in units of their scale, rounded.
#[inline(always)]
pub(crate) fn quants_of<S: Simd>(simd: S, lanes: S::Floats, inverse: S::Floats) -> S::Floats {
    // The limits come second so that a NaN becomes one of them: a quant is never -128.
    let bounded = simd.minimum(simd.multiply(lanes, inverse), simd.splat(127.0));
    simd.round(simd.maximum(bounded, simd.splat(-127.0)))
}
