//! Operations on the heads of a buffer.

use arrayvec::ArrayVec;
use emel_kernels::{Activations, Matrix, OutputView, Product};
use emel_loader::unit::Part;

use super::Forward;
use super::experts::PRODUCTS_MAX;
use crate::program::{Buffer, HeadColumns};

impl Forward {
    /// RMS norm of the first columns of every token.
    pub(super) fn norm_columns(&mut self, buffer: Buffer, weight: usize) {
        let (kernels, epsilon) = (self.kernels, self.norm_epsilon);
        let weight = self.resident[weight].as_slice();
        let width = self.activations.width(buffer);
        let values = self.activations.all_mut(buffer);
        self.pool.run_rows(values, width, |_, values| {
            for row in values.chunks_exact_mut(width) {
                kernels.rms_norm_in_place(&mut row[..weight.len()], weight, epsilon);
            }
        });
        self.changed(buffer);
    }

    /// Copies columns head by head; one head's go to all.
    pub(super) fn copy_heads(&mut self, from: HeadColumns, to: HeadColumns) {
        self.activations.set_width(to.buffer, to.buffer_width());
        let [values, out] = self.activations.several([from.buffer, to.buffer]);
        let (from_width, to_width) = (from.buffer_width(), to.buffer_width());
        self.pool.run_rows(out, to_width, |rows, out| {
            let tokens = values[rows.start * from_width..].chunks_exact(from_width);
            for (values, out) in tokens.zip(out.chunks_exact_mut(to_width)) {
                let heads = values.chunks_exact(from.head_width).cycle();
                for (values, out) in heads.zip(out.chunks_exact_mut(to.head_width)) {
                    let values = &values[from.start..][..from.width];
                    out[to.start..][..to.width].copy_from_slice(values);
                }
            }
        });
        self.changed(to.buffer);
    }

    /// Some rows of a matrix whose rows belong to the heads in turn, each head's against
    /// its own columns. They are few, so they meet plain activations.
    pub(super) fn multiply_heads(
        &mut self,
        matrix: usize,
        part: Part,
        bytes: &[u8],
        [from, to]: [HeadColumns; 2],
    ) {
        let shape = self.matrices[matrix];
        let weights = Matrix::new(shape.format, part.rows, shape.columns, bytes)
            .expect("units hold whole rows of checked tensors");
        let rows = HeadRows {
            weights,
            first: part.first_row,
            per_head: to.width,
        };
        self.activations.set_width(to.buffer, to.buffer_width());
        self.activations.set_width(Buffer::OneHead, from.width);
        if self.activations.tokens == 1 {
            self.multiply_heads_of_one(&rows, from, to);
        } else {
            self.multiply_heads_of_many(&rows, from, to);
        }
        self.changed(to.buffer);
    }

    /// All heads of one token share a fork and join: nothing of them overlaps.
    fn multiply_heads_of_one(&mut self, rows: &HeadRows<'_>, from: HeadColumns, to: HeadColumns) {
        let [values, out] = self.activations.several([from.buffer, to.buffer]);
        let mut outputs = out.chunks_exact_mut(to.head_width);
        let mut products: ArrayVec<Product<'_>, PRODUCTS_MAX> = ArrayVec::new();
        let mut next = 0;
        for (head, (weights, within)) in rows.heads() {
            let Some(output) = outputs.nth(head - next) else {
                break;
            };
            next = head + 1;
            if products.is_full() {
                self.kernels.matmul_batch(&self.pool, &mut products);
                products.clear();
            }
            products.push(Product {
                weights,
                activations: Activations::F32 {
                    values: &values[head * from.head_width + from.start..][..from.width],
                    columns: from.width,
                },
                tokens: 1,
                output: OutputView::new(output, to.head_width, to.start + within),
            });
        }
        self.kernels.matmul_batch(&self.pool, &mut products);
    }

    /// Head after head; what a head reads of the tokens is brought together first.
    fn multiply_heads_of_many(&mut self, rows: &HeadRows<'_>, from: HeadColumns, to: HeadColumns) {
        let tokens = self.activations.tokens;
        let buffers = [from.buffer, Buffer::OneHead, to.buffer];
        let [values, one_head, out] = self.activations.several(buffers);
        for (head, (weights, within)) in rows.heads() {
            let inputs = values.chunks_exact(from.buffer_width());
            for (input, row) in inputs.zip(one_head.chunks_exact_mut(from.width)) {
                row.copy_from_slice(&input[head * from.head_width + from.start..][..from.width]);
            }
            let start = head * to.head_width + to.start + within;
            let product = Product {
                weights,
                activations: Activations::F32 {
                    values: one_head,
                    columns: from.width,
                },
                tokens,
                output: OutputView::new(out, to.buffer_width(), start),
            };
            self.kernels.matmul_batch(&self.pool, &mut [product]);
        }
    }
}

/// Some rows of a matrix whose rows belong to heads.
struct HeadRows<'a> {
    weights: Matrix<'a>,
    /// The first of them in the matrix.
    first: usize,
    per_head: usize,
}

impl<'a> HeadRows<'a> {
    /// Each head with its rows, and how many of the head's come before them.
    fn heads(&self) -> impl Iterator<Item = (usize, (Matrix<'a>, usize))> {
        let (first, end) = (self.first, self.first + self.weights.rows());
        (first / self.per_head..end.div_ceil(self.per_head)).map(move |head| {
            let start = first.max(head * self.per_head);
            let end = end.min((head + 1) * self.per_head);
            let rows = self.weights.row_range(start - first..end - first);
            (head, (rows, start - head * self.per_head))
        })
    }
}
