//! Products with `f32` activations: weights that are floats, and dequantised weights, which is
//! exact and slower.
//!
//! An output element is summed in eight lanes, columns in ascending order, and reduced by one fixed
//! tree ([`Simd::sum`]). Rows are taken a few at a time, so that several dependency chains and
//! several streams from memory overlap; with many tokens, a strip of rows meets four at a time.

use std::marker::PhantomData;
use std::ops::Range;

use super::Share;
use crate::arch::{LANES, Routine, Simd, pad};
use crate::block::{BLOCK_ELEMENTS_MAX, FloatBlock, QuantisedBlock};

/// Tokens whose activations are kept near while a worker's rows pass by: 32 tokens of 4096
/// columns are 512 KiB, within a second-level cache.
const TOKENS_NEAR: usize = 32;

/// The share's rows, weights of floats.
pub(super) fn multiply_floats<F: FloatBlock>(share: &Share<'_>, values: &[f32], columns: usize) {
    let dots = FloatDots::<F> {
        values,
        columns,
        format: PhantomData,
    };
    share.kernels.dispatch(Walk { share, dots });
}

/// The share's rows, quantised weights.
pub(super) fn multiply_dequantised<F: QuantisedBlock>(
    share: &Share<'_>,
    values: &[f32],
    columns: usize,
) {
    let dots = ExactDots::<F> {
        values,
        columns,
        format: PhantomData,
    };
    share.kernels.dispatch(Walk { share, dots });
}

/// How a strip of weight rows meets a few tokens, for one pairing of weights and activations.
trait Dots {
    /// The `R × T` dot products of `rows` with tokens `first_token..first_token + T`.
    fn strip<S: Simd, const R: usize, const T: usize>(
        &self,
        simd: S,
        rows: [&[u8]; R],
        first_token: usize,
    ) -> [[S::Floats; T]; R];
}

/// The order in which a worker visits its elements.
struct Walk<'a, D> {
    share: &'a Share<'a>,
    dots: D,
}

impl<D: Dots> Routine for Walk<'_, D> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let tokens = self.share.product.tokens;
        if tokens == 1 {
            return self.rows_of::<S, 4, 1>(simd, 0);
        }
        let mut near = 0;
        while near < tokens {
            let end = (near + TOKENS_NEAR).min(tokens);
            self.rows_near(simd, near..end);
            near = end;
        }
    }
}

impl<D: Dots> Walk<'_, D> {
    /// All rows of the share against one group of `T` tokens, `R` rows at a time.
    #[inline(always)]
    fn rows_of<S: Simd, const R: usize, const T: usize>(&self, simd: S, first_token: usize) {
        let Range { start, end } = self.share.rows;
        let mut row = start;
        while row + R <= end {
            self.strip::<S, R, T>(simd, row, first_token);
            row += R;
        }
        while row < end {
            self.strip::<S, 1, T>(simd, row, first_token);
            row += 1;
        }
    }

    /// All rows of the share against a run of tokens small enough to stay in cache.
    #[inline(always)]
    fn rows_near<S: Simd>(&self, simd: S, tokens: Range<usize>) {
        let Range { start, end } = self.share.rows;
        let mut row = start;
        while row + 2 <= end {
            self.tokens_of::<S, 2>(simd, row, tokens.clone());
            row += 2;
        }
        if row < end {
            self.tokens_of::<S, 1>(simd, row, tokens);
        }
    }

    /// One strip of rows against a run of tokens, four at a time.
    #[inline(always)]
    fn tokens_of<S: Simd, const R: usize>(&self, simd: S, row: usize, tokens: Range<usize>) {
        let mut token = tokens.start;
        while token + 4 <= tokens.end {
            self.strip::<S, R, 4>(simd, row, token);
            token += 4;
        }
        if token + 2 <= tokens.end {
            self.strip::<S, R, 2>(simd, row, token);
            token += 2;
        }
        if token < tokens.end {
            self.strip::<S, R, 1>(simd, row, token);
        }
    }

    /// Computes and writes one strip.
    #[inline(always)]
    fn strip<S: Simd, const R: usize, const T: usize>(
        &self,
        simd: S,
        first_row: usize,
        first_token: usize,
    ) {
        let weights = self.share.product.weights;
        let rows = std::array::from_fn(|index| weights.row(first_row + index));
        let sums = self.dots.strip::<S, R, T>(simd, rows, first_token);
        for (row, sums) in (first_row..).zip(sums) {
            for (token, lanes) in (first_token..).zip(sums) {
                self.share.write(token, row, &[simd.sum(lanes)]);
            }
        }
    }
}

/// Weights of floats and `f32` activations.
struct FloatDots<'a, F> {
    values: &'a [f32],
    columns: usize,
    format: PhantomData<F>,
}

impl<F: FloatBlock> Dots for FloatDots<'_, F> {
    #[inline(always)]
    fn strip<S: Simd, const R: usize, const T: usize>(
        &self,
        simd: S,
        rows: [&[u8]; R],
        first_token: usize,
    ) -> [[S::Floats; T]; R] {
        let mut sums = [[simd.splat(0.0); T]; R];
        let tokens: [&[f32]; T] = std::array::from_fn(|token| {
            &self.values[(first_token + token) * self.columns..][..self.columns]
        });
        let whole = self.columns / LANES;
        let eights = rows.map(|row| &F::eights(row).0[..whole]);
        let token_eights = tokens.map(|token| &token.as_chunks::<LANES>().0[..whole]);
        for chunk in 0..whole {
            for row in 0..R {
                let weights = F::load(simd, &eights[row][chunk]);
                for token in 0..T {
                    let values = simd.load(&token_eights[token][chunk]);
                    sums[row][token] = simd.fused_multiply_add(weights, values, sums[row][token]);
                }
            }
        }
        if self.columns.is_multiple_of(LANES) {
            return sums;
        }
        for row in 0..R {
            let mut padded = [0.0; LANES];
            for (weight, raw) in padded.iter_mut().zip(F::eights(rows[row]).1) {
                F::dequantise(raw, std::slice::from_mut(weight));
            }
            for token in 0..T {
                let values = pad(&tokens[token][whole * LANES..]);
                let (weights, values) = (simd.load(&padded), simd.load(&values));
                sums[row][token] = simd.fused_multiply_add(weights, values, sums[row][token]);
            }
        }
        sums
    }
}

/// Quantised weights and `f32` activations: every block is dequantised where it is needed.
struct ExactDots<'a, F> {
    values: &'a [f32],
    columns: usize,
    format: PhantomData<F>,
}

impl<F: QuantisedBlock> Dots for ExactDots<'_, F> {
    #[inline(always)]
    fn strip<S: Simd, const R: usize, const T: usize>(
        &self,
        simd: S,
        rows: [&[u8]; R],
        first_token: usize,
    ) -> [[S::Floats; T]; R] {
        let mut sums = [[simd.splat(0.0); T]; R];
        let mut weights = [0.0; BLOCK_ELEMENTS_MAX];
        let weights = &mut weights[..F::ELEMENTS];
        for (row, sums) in rows.into_iter().zip(&mut sums) {
            for (block, raw) in F::blocks(row).iter().enumerate() {
                F::dequantise(raw, weights);
                for (token, sum) in sums.iter_mut().enumerate() {
                    let start = (first_token + token) * self.columns + block * F::ELEMENTS;
                    let values = &self.values[start..][..F::ELEMENTS];
                    let pairs = weights
                        .as_chunks::<LANES>()
                        .0
                        .iter()
                        .zip(values.as_chunks().0);
                    for (weights, values) in pairs {
                        let (weights, values) = (simd.load(weights), simd.load(values));
                        *sum = simd.fused_multiply_add(weights, values, *sum);
                    }
                }
            }
        }
        sums
    }
}
