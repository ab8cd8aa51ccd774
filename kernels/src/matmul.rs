//! Matrix products: rows of weights against the activations of one or many tokens.
//!
//! An output element is one row of weights times one token. It is summed in eight lanes from the
//! first block to the last and reduced by one fixed tree ([`Simd::sum`]), so its bits depend on
//! the row's length and format only. Everything else here decides how many elements are in flight:
//! rows are split over the pool; a worker takes its rows in strips of a few, so that several
//! dependency chains and several streams from memory overlap; with many tokens, a strip meets
//! four tokens at a time and unpacks each weight block once for the four.

use std::marker::PhantomData;
use std::ops::Range;

use crate::activations::{Activations, PACK_ELEMENTS, Q8View};
use crate::arch::{LANES, Routine, Simd, pad};
use crate::block::{BLOCK_ELEMENTS_MAX, FloatBlock, FormatVisitor, QuantisedBlock};
use crate::matrix::Matrix;
use crate::path::Kernels;
use crate::pool::Pool;
use crate::shared::SharedSlice;

/// Tokens whose activations are kept near while a worker's rows pass by: 32 tokens of 4096
/// columns are 160 KiB, within a second-level cache.
const TOKENS_NEAR: usize = 32;

/// Rows a worker's share is rounded to, so that strips are full.
const SHARE_ROWS: usize = 4;

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

impl FormatVisitor for Share<'_> {
    type Output = ();

    fn float<F: FloatBlock>(self) {
        let Activations::F32 { values, columns } = self.product.activations else {
            panic!(
                "{} weights need f32 activations",
                self.product.weights.format()
            );
        };
        let walk = FloatDots::<F> {
            values,
            columns,
            format: PhantomData,
        };
        self.kernels.dispatch(Walk {
            share: &self,
            dots: walk,
        });
    }

    fn quantised<F: QuantisedBlock>(self) {
        match self.product.activations {
            Activations::Q8(view) => {
                let dots = IntegerDots::<F> {
                    view,
                    format: PhantomData,
                };
                self.kernels.dispatch(Walk { share: &self, dots });
            }
            Activations::F32 { values, columns } => {
                let dots = ExactDots::<F> {
                    values,
                    columns,
                    format: PhantomData,
                };
                self.kernels.dispatch(Walk { share: &self, dots });
            }
        }
    }
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
        let Product {
            weights, output, ..
        } = self.share.product;
        let rows = std::array::from_fn(|index| weights.row(first_row + index));
        let sums = self.dots.strip::<S, R, T>(simd, rows, first_token);
        for (row, sums) in (first_row..).zip(sums) {
            for (token, lanes) in (first_token..).zip(sums) {
                let index = token * output.stride + output.offset + row;
                // SAFETY: `Product::check` saw that elements of different rows and tokens differ;
                // each row belongs to one worker, and other products have other outputs.
                unsafe { output.values.write(index, simd.sum(lanes)) };
            }
        }
    }
}

/// Quantised weights and Q8 activations.
struct IntegerDots<'a, F> {
    view: Q8View<'a>,
    format: PhantomData<F>,
}

impl<F: QuantisedBlock> Dots for IntegerDots<'_, F> {
    #[inline(always)]
    fn strip<S: Simd, const R: usize, const T: usize>(
        &self,
        simd: S,
        rows: [&[u8]; R],
        first_token: usize,
    ) -> [[S::Floats; T]; R] {
        let blocks_per_pack = PACK_ELEMENTS / F::ELEMENTS;
        let mut rows = rows.map(F::blocks);
        let mut tokens: [_; T] = std::array::from_fn(|token| self.view.token(first_token + token));
        let mut sums = [[simd.splat(0.0); T]; R];
        let blocks = rows[0].len();
        let (whole, rest) = (blocks / blocks_per_pack, blocks % blocks_per_pack);
        // Equal lengths, stated so that the loops below need no bounds checks.
        rows = rows.map(|row| &row[..blocks]);
        tokens = tokens.map(|token| &token[..blocks.div_ceil(blocks_per_pack)]);
        for pack in 0..whole {
            for group in 0..blocks_per_pack {
                for row in 0..R {
                    let raw = &rows[row][pack * blocks_per_pack + group];
                    if T == 1 && group == 0 {
                        prefetch_next::<S, F, R>(simd, raw, blocks);
                    }
                    let packs = std::array::from_fn(|token| &tokens[token][pack]);
                    F::accumulate(simd, raw, packs, group, &mut sums[row]);
                }
            }
        }
        for group in 0..rest {
            for row in 0..R {
                let raw = &rows[row][whole * blocks_per_pack + group];
                let packs = std::array::from_fn(|token| &tokens[token][whole]);
                F::accumulate(simd, raw, packs, group, &mut sums[row]);
            }
        }
        sums
    }
}

/// Prefetches the 256 weights at the same place in the next strip of `R` rows.
///
/// The rows of small formats are shorter than a page, where the hardware's own prefetchers stop
/// and start again; without this, decode runs at less than half of memory's speed.
#[inline(always)]
fn prefetch_next<S: Simd, F: QuantisedBlock, const R: usize>(
    simd: S,
    raw: &F::Raw,
    row_blocks: usize,
) {
    const LINE_BYTES: usize = 64;
    let pack_bytes = size_of::<F::Raw>() * (PACK_ELEMENTS / F::ELEMENTS);
    let next = std::ptr::from_ref(raw)
        .wrapping_add(R * row_blocks)
        .cast::<u8>();
    for line in 0..pack_bytes.div_ceil(LINE_BYTES) {
        simd.prefetch(next.wrapping_add(line * LINE_BYTES));
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
