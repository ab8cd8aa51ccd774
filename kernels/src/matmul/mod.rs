//! Matrix products: rows of weights against the activations of one or many tokens.
//!
//! An output element is one row of weights times one token, and its bits depend on the row's
//! length and format only. Everything else here decides how many elements are in flight: the rows
//! of all products of a batch are split into shares, shares over the pool, and a worker hands the rows
//! that a share has of a product to `integer.rs` (quantised weights, Q8 activations; `single.rs` for one
//! token) or `float.rs` (`f32` activations; `float_panels.rs` for many tokens).

mod float;
mod float_panels;
mod integer;
mod packs;
mod room;
mod single;

use std::ops::Range;

use crate::activations::Activations;
use crate::arch::PANEL_ROWS;
use crate::block::{FloatBlock, FormatVisitor, QuantisedBlock};
use crate::matrix::Matrix;
use crate::path::Kernels;
use crate::pool::Pool;
use crate::shared::SharedSlice;

/// Rows that a share is rounded to, so that pairs of panels are full.
const SHARE_ROWS: usize = 2 * PANEL_ROWS;

/// Weight bytes times tokens below which waking the workers costs more than it saves (about a
/// microsecond of work).
const INLINE_WORK: usize = 32 * 1024;

/// Weight bytes times tokens in a share, at least: some microseconds of work.
const SHARE_WORK: usize = 128 * 1024;

/// Shares for each worker, at most: what one may be behind the others at the end is a share.
const SHARES_PER_WORKER: usize = 128;

/// Where a product goes: element `(token, row)` at `token · stride + offset + row`.
pub struct OutputView<'a> {
    values: SharedSlice<'a, f32>,
    stride: usize,
    offset: usize,
    /// Rows that it has room for beside other views.
    rows: usize,
}

impl<'a> OutputView<'a> {
    /// A view of `values` in which tokens are `stride` apart and row 0 is at `offset`.
    pub fn new(values: &'a mut [f32], stride: usize, offset: usize) -> Self {
        Self {
            values: SharedSlice::new(values),
            stride,
            offset,
            rows: usize::MAX,
        }
    }

    /// A view of the first `rows` rows, and one of the others: for products with parts of a matrix,
    /// in one batch.
    ///
    /// # Panics
    ///
    /// If there are not so many between a token and the next.
    pub fn split_rows(self, rows: usize) -> (Self, Self) {
        let all = self.rows.min(self.stride);
        assert!(rows <= all, "{rows} rows of a view of {all}");
        let rest = Self {
            offset: self.offset + rows,
            rows: all - rows,
            ..self
        };
        (Self { rows, ..self }, rest)
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
        let (mut work, mut strips) = (0, 0);
        for product in products.iter() {
            product.check();
            work += product.work();
            strips += product.weights.rows().div_ceil(SHARE_ROWS);
        }
        let products = &*products;
        let most = strips.min(SHARES_PER_WORKER * pool.threads());
        let shares = match work {
            ..INLINE_WORK => 1,
            // At least one for each worker.
            _ => (work / SHARE_WORK).max(pool.threads()).min(most),
        };
        pool.run_tasks(shares, |_, share| {
            // Only the last share has to end with the last row.
            let edges = [share, share + 1].map(|edge| work / shares * edge);
            let end = if share + 1 == shares { work } else { edges[1] };
            let mut before = 0;
            for product in products {
                if before >= end {
                    break;
                }
                let after = before + product.work();
                if after > edges[0] {
                    let rows = product.row_at(edges[0], before)..product.row_at(end, before);
                    if !rows.is_empty() {
                        product.weights.format().visit(Share {
                            kernels: *self,
                            product,
                            rows,
                        });
                    }
                }
                before = after;
            }
        });
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
        assert!(rows <= self.output.rows, "more rows than the view has");
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

    /// A measure of the cost of all rows.
    fn work(&self) -> usize {
        self.weights.rows() * self.row_work()
    }

    /// The row at which the share that begins at `edge` begins, when `before` is the work of the
    /// products before this one.
    fn row_at(&self, edge: usize, before: usize) -> usize {
        let within = edge.saturating_sub(before);
        let row = within.checked_div(self.row_work()).unwrap_or(0);
        row.next_multiple_of(SHARE_ROWS).min(self.weights.rows())
    }
}

/// Some rows of a product: what a worker does without a pause.
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
        // belongs to one share, and other products have other outputs: another slice, or another
        // part of a view that was split.
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
