//! Matrix products: rows of weights against the activations of one or many tokens.
//!
//! An output element is one row of weights times one token, and its bits depend on the row's
//! length and format only. Everything else here decides how many elements are in flight: the rows
//! of all products of a batch are split over the pool, and a worker hands its rows of a product to
//! `integer.rs` (quantised weights, Q8 activations; `single.rs` for one token) or `float.rs` (`f32`
//! activations).

mod float;
mod integer;
mod single;

use std::ops::Range;

use crate::activations::Activations;
use crate::arch::PANEL_ROWS;
use crate::block::{FloatBlock, FormatVisitor, QuantisedBlock};
use crate::matrix::Matrix;
use crate::path::Kernels;
use crate::pool::Pool;
use crate::shared::SharedSlice;

/// Rows a worker's share is rounded to, so that panels are full.
const SHARE_ROWS: usize = PANEL_ROWS;

/// Weight bytes times tokens below which waking the workers costs more than it saves (about a
/// microsecond of work).
const INLINE_WORK: usize = 32 * 1024;

/// Where a product goes: element `(token, row)` at `token · stride + offset + row`.
pub struct OutputView<'a> {
    values: SharedSlice<'a, f32>,
    stride: usize,
    offset: usize,
}

impl<'a> OutputView<'a> {
    /// A view of `values` in which tokens are `stride` apart and row 0 is at `offset`.
    pub fn new(values: &'a mut [f32], stride: usize, offset: usize) -> Self {
        Self {
            values: SharedSlice::new(values),
            stride,
            offset,
        }
    }
}

/// One matrix product: `output[t, r] = Σ_c weights[r, c] · activations[t, c]` for the first
/// `tokens` tokens of the activations.
pub struct Product<'a> {
    /// The weights.
    pub weights: Matrix<'a>,
    /// The inputs.
    pub activations: Activations<'a>,
    /// How many tokens to compute.
    pub tokens: usize,
    /// The outputs.
    pub output: OutputView<'a>,
}

impl Kernels {
    /// `out[t·out_stride + out_offset + r] = Σ_c weights[r, c] · activations[t, c]` for every row
    /// and the first `tokens` tokens. Rows are split over the pool.
    ///
    /// # Panics
    ///
    /// If the shapes disagree, if `out` is too short or its tokens overlap, or if Q8 activations
    /// meet a format of floats.
    #[expect(clippy::too_many_arguments, reason = "a product and where it goes")]
    pub fn matmul(
        &self,
        pool: &Pool,
        weights: &Matrix<'_>,
        activations: Activations<'_>,
        tokens: usize,
        out: &mut [f32],
        out_stride: usize,
        out_offset: usize,
    ) {
        let output = OutputView::new(out, out_stride, out_offset);
        let product = Product {
            weights: *weights,
            activations,
            tokens,
            output,
        };
        self.matmul_batch(pool, &mut [product]);
    }

    /// Several products with one fork and join: the experts of a layer, or its query, key and
    /// value projections. The rows of all are split over the pool by their work.
    ///
    /// # Panics
    ///
    /// As [`Kernels::matmul`].
    pub fn matmul_batch(&self, pool: &Pool, products: &mut [Product<'_>]) {
        let mut work = 0;
        for product in products.iter() {
            product.check();
            work += product.weights.rows() * product.row_work();
        }
        let products = &*products;
        let workers = if work < INLINE_WORK {
            1
        } else {
            pool.threads()
        };
        let share = |worker: usize| {
            let bounds = [worker, worker + 1].map(|edge| work / workers * edge);
            let mut before = 0;
            for product in products {
                let end = if worker + 1 == workers {
                    work
                } else {
                    bounds[1]
                };
                let rows = product.row_at(bounds[0], before)..product.row_at(end, before);
                before += product.weights.rows() * product.row_work();
                if !rows.is_empty() {
                    product.weights.format().visit(Share {
                        kernels: *self,
                        product,
                        rows,
                    });
                }
            }
        };
        if workers == 1 {
            share(0);
        } else {
            pool.run(&share);
        }
    }
}

impl Product<'_> {
    /// Panics unless the shapes agree and every output element is in bounds and distinct.
    fn check(&self) {
        let (rows, columns) = (self.weights.rows(), self.weights.columns());
        assert_eq!(
            self.activations.columns(),
            columns,
            "activations must match the columns"
        );
        assert!(
            self.activations.tokens() >= self.tokens,
            "fewer activations than tokens"
        );
        if self.tokens == 0 || rows == 0 {
            return;
        }
        assert!(
            self.tokens == 1 || self.output.stride >= rows,
            "outputs of tokens overlap"
        );
        let last = (self.tokens - 1)
            .checked_mul(self.output.stride)
            .and_then(|start| start.checked_add(self.output.offset)?.checked_add(rows));
        assert!(
            last.is_some_and(|last| last <= self.output.values.len()),
            "output too short"
        );
    }

    /// A measure of the cost of one row.
    fn row_work(&self) -> usize {
        (self.weights.row_bytes() * self.tokens).max(1)
    }

    /// The row at which the share that begins at `edge` begins, when `before` is the work of the
    /// products before this one.
    fn row_at(&self, edge: usize, before: usize) -> usize {
        let within = edge.saturating_sub(before);
        let row = within.checked_div(self.row_work()).unwrap_or(0);
        row.next_multiple_of(SHARE_ROWS).min(self.weights.rows())
    }
}

/// Some rows of a product: what one worker does.
struct Share<'a> {
    kernels: Kernels,
    product: &'a Product<'a>,
    rows: Range<usize>,
}

impl Share<'_> {
    /// Writes the outputs of one token, rows `first_row..`.
    #[inline(always)]
    fn write(&self, token: usize, first_row: usize, values: &[f32]) {
        debug_assert!(self.rows.start <= first_row && first_row + values.len() <= self.rows.end);
        let output = &self.product.output;
        let start = token * output.stride + output.offset + first_row;
        // SAFETY: `Product::check` saw that elements of different rows and tokens differ; each row
        // belongs to one worker, and other products have other outputs.
        unsafe { output.values.range(start, values.len()) }.copy_from_slice(values);
    }
}

impl FormatVisitor for Share<'_> {
    type Output = ();

    fn float<F: FloatBlock>(self) {
        let Activations::F32 { values, columns } = self.product.activations else {
            panic!(
                "{} weights need f32 activations",
                self.product.weights.format()
            );
        };
        float::multiply_floats::<F>(&self, values, columns);
    }

    fn quantised<F: QuantisedBlock>(self) {
        match self.product.activations {
            Activations::Q8(view) => integer::multiply::<F>(&self, view),
            Activations::F32 { values, columns } => {
                float::multiply_dequantised::<F>(&self, values, columns);
            }
        }
    }
}
