//! Products of the tokens with the program's matrices. A fork and join is not free, and at its end the
//! workers wait for the slowest; so products that follow each other and have the same input share one.

use arrayvec::ArrayVec;
use emel_kernels::{ActivationFormat, Format, Matrix, OutputView, Product};
use emel_loader::unit::Part;

use super::Forward;
use crate::program::{Buffer, MatrixShape, Op};
use crate::steps::Work;

/// Products that share a fork and join, at most.
const JOINED_MAX: usize = 64;

/// Buffers that these write, at most.
const OUTPUTS_MAX: usize = 8;

/// Some rows of a matrix that wait for others with the same input.
struct Rows<'a> {
    linear: Linear,
    part: Part,
    bytes: &'a [u8],
}

/// output = matrix · input.
#[derive(Clone, Copy)]
struct Linear {
    shape: MatrixShape,
    input: Buffer,
    output: Buffer,
}

impl Forward {
    /// Does a step's work; `bytes` are those of its unit.
    pub fn run(&mut self, work: &[Work], bytes: &[u8]) {
        self.run_together([(work, bytes)]);
    }

    /// Does the work of several steps, one after the other, each with the bytes of its unit.
    pub fn run_together<'a>(&mut self, steps: impl IntoIterator<Item = (&'a [Work], &'a [u8])>) {
        let mut joined = ArrayVec::new();
        for (work, bytes) in steps {
            for piece in work {
                match *piece {
                    Work::Op(op) => {
                        self.multiply(&mut joined);
                        self.apply(op);
                    }
                    Work::Rows(op, part) => {
                        let bytes = &bytes[part.offset..part.offset + part.bytes];
                        self.join(&mut joined, op, part, bytes);
                    }
                }
            }
        }
        self.multiply(&mut joined);
    }

    /// Adds rows to those that wait, or has these multiplied first.
    fn join<'a>(
        &mut self,
        joined: &mut ArrayVec<Rows<'a>, JOINED_MAX>,
        op: usize,
        part: Part,
        bytes: &'a [u8],
    ) {
        let (matrix, input, output) = match self.ops[op] {
            Op::Linear {
                matrix,
                input,
                output,
            } => (matrix, input, output),
            Op::LinearHeads { matrix, from, to } => {
                self.multiply(joined);
                return self.multiply_heads(matrix, part, bytes, [from, to]);
            }
            _ => unreachable!("only products have rows"),
        };
        let rows = Rows {
            linear: Linear {
                shape: self.matrices[matrix],
                input,
                output,
            },
            part,
            bytes,
        };
        if joined.is_full() || !rows.may_join(joined) {
            self.multiply(joined);
        }
        joined.push(rows);
    }

    /// Multiplies all rows that wait.
    fn multiply(&mut self, joined: &mut ArrayVec<Rows<'_>, JOINED_MAX>) {
        let Some(input) = joined.first().map(|rows| rows.linear.input) else {
            return;
        };
        let mut outputs: ArrayVec<Buffer, OUTPUTS_MAX> = ArrayVec::new();
        for Rows { linear, .. } in &*joined {
            self.quantise(input, linear.shape.format, linear.shape.columns);
            if outputs.last() != Some(&linear.output) {
                self.activations.set_width(linear.output, linear.shape.rows);
                outputs.push(linear.output);
            }
        }
        let tokens = self.activations.tokens;
        let (values, buffers) = self
            .activations
            .one_and_others::<OUTPUTS_MAX>(input, &outputs);
        let mut products: ArrayVec<Product<'_>, JOINED_MAX> = ArrayVec::new();
        let mut rest = joined.as_slice();
        for (&output, out) in outputs.iter().zip(buffers) {
            let count = rest.partition_point(|rows| rows.linear.output == output);
            let (parts, others) = rest.split_at(count);
            rest = others;
            let stride = parts[0].linear.shape.rows;
            let mut view = OutputView::new(out, stride, parts[0].part.first_row);
            for Rows {
                linear: Linear { shape, .. },
                part,
                bytes,
            } in parts
            {
                let (output, next) = view.split_rows(part.rows);
                view = next;
                products.push(Product {
                    weights: Matrix::new(shape.format, part.rows, shape.columns, bytes)
                        .expect("units hold whole rows of checked tensors"),
                    activations: match shape.format.activations() {
                        ActivationFormat::F32 => emel_kernels::Activations::F32 {
                            values,
                            columns: shape.columns,
                        },
                        ActivationFormat::Q8 => (&self.quantised).into(),
                    },
                    tokens,
                    output,
                });
            }
        }
        self.kernels.matmul_batch(&self.pool, &mut products);
        drop(products);
        for &output in &outputs {
            self.changed(output);
        }
        joined.clear();
    }

    /// Sees to it that the input is there in the form that the format wants.
    pub(super) fn quantise(&mut self, input: Buffer, format: Format, columns: usize) {
        if format.activations() == ActivationFormat::Q8 && self.quantised_of != Some(input) {
            let values = self.activations.all(input);
            self.quantised
                .quantise(&self.kernels, &self.pool, values, columns);
            self.quantised_of = Some(input);
        }
    }

    pub(super) fn changed(&mut self, buffer: Buffer) {
        if self.quantised_of == Some(buffer) {
            self.quantised_of = None;
        }
    }
}

impl Rows<'_> {
    /// Whether nothing of what waits has to be there first: the input is the same, and the output is
    /// another one, or the rows are the next of the same matrix.
    fn may_join(&self, joined: &[Rows<'_>]) -> bool {
        let Some(last) = joined.last() else {
            return true;
        };
        if last.linear.input != self.linear.input {
            return false;
        }
        if last.linear.output == self.linear.output {
            return last.part.weight == self.part.weight
                && last.part.first_row + last.part.rows == self.part.first_row;
        }
        let outputs = joined.chunk_by(|a, b| a.linear.output == b.linear.output);
        let others = outputs
            .clone()
            .all(|rows| rows[0].linear.output != self.linear.output);
        others && outputs.count() < OUTPUTS_MAX
    }
}
