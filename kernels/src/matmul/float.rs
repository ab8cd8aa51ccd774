//! Products with `f32` activations: weights that are floats, and dequantised weights, which is
//! exact and slower.
//!
//! An output element is summed in eight lanes, columns in ascending order, and reduced by one fixed
//! tree ([`Simd::sum`]).
//!
//! * One token (here): a vector's lanes are the eight lanes of a sum. Rows are taken a few at a time,
//!   so that several dependency chains and several streams from memory overlap.
//! * Many tokens ([`float_panels`](super::float_panels)): a vector's lanes are sixteen rows.

use std::marker::PhantomData;
use std::ops::Range;

use super::Share;
use super::float_panels::{self, Dequantised, Floats, last_eight};
use crate::arch::{LANES, Routine, Simd, pad};
use crate::block::{BLOCK_ELEMENTS_MAX, FloatBlock, QuantisedBlock};

/// Rows that are taken at a time.
const ROWS: usize = 4;

/// A strip of rows up to this long ends before the hardware's prefetchers run far ahead.
const SHORT_STRIP_BYTES: usize = 16 << 10;

/// What a prefetch brings.
const LINE_BYTES: usize = 64;

/// The share's rows, weights of floats.
pub(super) fn multiply_floats<F: FloatBlock>(share: &Share<'_>, values: &[f32], columns: usize) {
    match share.product.tokens {
        0 => {}
        1 => Single::<FloatDots<F>>::multiply(share, &values[..columns]),
        _ => float_panels::multiply::<Floats<F>>(share, values, columns),
    }
}

/// The share's rows, quantised weights.
pub(super) fn multiply_dequantised<F: QuantisedBlock>(
    share: &Share<'_>,
    values: &[f32],
    columns: usize,
) {
    match share.product.tokens {
        0 => {}
        1 => Single::<ExactDots<F>>::multiply(share, &values[..columns]),
        _ => float_panels::multiply::<Dequantised<F>>(share, values, columns),
    }
}

/// How a strip of weight rows meets the activations.
trait Dots {
    /// The lanes of the rows' dot products with the values. The next rows begin `strip_bytes` after
    /// these.
    fn strip<S: Simd, const R: usize>(
        simd: S,
        rows: [&[u8]; R],
        values: &[f32],
        strip_bytes: usize,
    ) -> [S::Floats; R];
}

/// The share's rows against one token.
struct Single<'a, D> {
    share: &'a Share<'a>,
    values: &'a [f32],
    format: PhantomData<D>,
}

impl<D: Dots> Routine for Single<'_, D> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Range { start, end } = self.share.rows;
        let mut row = start;
        while row + ROWS <= end {
            self.strip::<S, ROWS>(simd, row);
            row += ROWS;
        }
        while row < end {
            self.strip::<S, 1>(simd, row);
            row += 1;
        }
    }
}

impl<'a, D: Dots> Single<'a, D> {
    fn multiply(share: &'a Share<'a>, values: &'a [f32]) {
        share.kernels.dispatch(Self {
            share,
            values,
            format: PhantomData,
        });
    }

    /// Computes and writes one strip.
    #[inline(always)]
    fn strip<S: Simd, const R: usize>(&self, simd: S, first_row: usize) {
        let weights = self.share.product.weights;
        let rows = std::array::from_fn(|index| weights.row(first_row + index));
        let sums = D::strip::<S, R>(simd, rows, self.values, R * weights.row_bytes());
        for (row, lanes) in (first_row..).zip(sums) {
            self.share.write(0, row, &[simd.sum(lanes)]);
        }
    }
}

/// Weights of floats.
struct FloatDots<F>(PhantomData<F>);

impl<F: FloatBlock> Dots for FloatDots<F> {
    #[inline(always)]
    fn strip<S: Simd, const R: usize>(
        simd: S,
        rows: [&[u8]; R],
        values: &[f32],
        strip_bytes: usize,
    ) -> [S::Floats; R] {
        let mut sums = [simd.splat(0.0); R];
        let (value_eights, values_rest) = values.as_chunks::<LANES>();
        let whole = value_eights.len();
        let eights = rows.map(|row| &F::eights(row).0[..whole]);
        let eights_per_line = LINE_BYTES / size_of::<F::Eight>();
        // Of long rows of floats the hardware's own prefetchers bring enough; a line of halves is
        // more work.
        let prefetches = eights_per_line > 2 || strip_bytes <= SHORT_STRIP_BYTES;
        for chunk in 0..whole {
            if prefetches && chunk.is_multiple_of(eights_per_line) {
                for eights in eights {
                    let address = eights[chunk..].as_ptr().cast::<u8>();
                    simd.prefetch(address.wrapping_add(strip_bytes));
                }
            }
            let values = simd.load(&value_eights[chunk]);
            for row in 0..R {
                let weights = F::load(simd, &eights[row][chunk]);
                sums[row] = simd.fused_multiply_add(weights, values, sums[row]);
            }
        }
        if values_rest.is_empty() {
            return sums;
        }
        let values = simd.load(&pad(values_rest));
        for row in 0..R {
            let weights = simd.load(&last_eight::<F>(rows[row]));
            sums[row] = simd.fused_multiply_add(weights, values, sums[row]);
        }
        sums
    }
}

/// Quantised weights: every block is dequantised where it is needed.
struct ExactDots<F>(PhantomData<F>);

impl<F: QuantisedBlock> Dots for ExactDots<F> {
    #[inline(always)]
    fn strip<S: Simd, const R: usize>(
        simd: S,
        rows: [&[u8]; R],
        values: &[f32],
        _strip_bytes: usize,
    ) -> [S::Floats; R] {
        let mut sums = [simd.splat(0.0); R];
        let mut weights = [0.0; BLOCK_ELEMENTS_MAX];
        let weights = &mut weights[..F::ELEMENTS];
        for (row, sum) in rows.into_iter().zip(&mut sums) {
            for (raw, values) in F::blocks(row).iter().zip(values.chunks_exact(F::ELEMENTS)) {
                F::dequantise(raw, weights);
                let pairs = weights.as_chunks::<LANES>().0.iter();
                for (weights, values) in pairs.zip(values.as_chunks().0) {
                    let (weights, values) = (simd.load(weights), simd.load(values));
                    *sum = simd.fused_multiply_add(weights, values, *sum);
                }
            }
        }
        sums
    }
}
