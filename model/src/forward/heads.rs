//! Operations on the heads of a buffer.

use emel_kernels::{Activations, Matrix, OutputView, Product};
use emel_loader::unit::Part;

use super::Forward;
use crate::program::{Buffer, HeadColumns};

impl Forward {
    /// RMS norm of the first columns of every token.
    pub(super) fn norm_columns(&mut self, buffer: Buffer, weight: usize) {
        let weight = &self.resident[weight];
        let width = self.activations.width(buffer);
        for row in self.activations.all_mut(buffer).chunks_exact_mut(width) {
            let columns = &mut row[..weight.len()];
            self.kernels
                .rms_norm_in_place(columns, weight, self.norm_epsilon);
        }
        self.changed(buffer);
    }

    /// Copies columns head by head; one head's go to all.
    pub(super) fn copy_heads(&mut self, from: HeadColumns, to: HeadColumns) {
        self.activations.set_width(to.buffer, to.buffer_width());
        let [values, out] = self.activations.several([from.buffer, to.buffer]);
        let tokens = values.chunks_exact(from.buffer_width());
        for (values, out) in tokens.zip(out.chunks_exact_mut(to.buffer_width())) {
            let heads = values.chunks_exact(from.head_width).cycle();
            for (values, out) in heads.zip(out.chunks_exact_mut(to.head_width)) {
                out[to.start..][..to.width].copy_from_slice(&values[from.start..][..from.width]);
            }
        }
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
        let stride = to.buffer_width();
        self.activations.set_width(to.buffer, stride);
        self.activations.set_width(Buffer::OneHead, from.width);
        let tokens = self.activations.tokens;
        let [values, one_head, out] =
            self.activations
                .several([from.buffer, Buffer::OneHead, to.buffer]);
        let end = part.first_row + part.rows;
        for head in part.first_row / to.width..end.div_ceil(to.width) {
            let inputs = values.chunks_exact(from.buffer_width());
            for (input, row) in inputs.zip(one_head.chunks_exact_mut(from.width)) {
                row.copy_from_slice(&input[head * from.head_width + from.start..][..from.width]);
            }
            let rows = part.first_row.max(head * to.width)..end.min((head + 1) * to.width);
            let within = rows.start - head * to.width;
            let product = Product {
                weights: weights.row_range(rows.start - part.first_row..rows.end - part.first_row),
                activations: Activations::F32 {
                    values: one_head,
                    columns: from.width,
                },
                tokens,
                output: OutputView::new(out, stride, head * to.head_width + to.start + within),
            };
            self.kernels.matmul_batch(&self.pool, &mut [product]);
        }
        self.changed(to.buffer);
    }
}
