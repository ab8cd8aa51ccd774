//! The mixture of experts: tokens are sorted by the experts they go to, so that each
//! expert's rows meet all of theirs at once.

use arrayvec::ArrayVec;
use emel_kernels::{ActivationFormat, Matrix, OutputView, Product};

use super::Forward;
use crate::program::{Buffer, MatrixShape, Program};
use crate::routing::{Router, Routing};
use crate::routing_log::RoutingLog;

/// Products that share a fork and join. More experts than any model chooses for a token.
pub(super) const PRODUCTS_MAX: usize = 32;

/// The routing of a pass, and what the next mixture's was guessed to be.
pub(super) struct LoggedRouting {
    pub(super) log: RoutingLog,
    ahead: Routing,
    guesses: usize,
}

impl LoggedRouting {
    pub(super) fn new(program: &Program, tokens: usize, guesses: usize) -> Self {
        let (experts, used) = program.routing_max();
        Self {
            log: RoutingLog::new(tokens, program.routers.len(), [used, guesses]),
            ahead: Routing::new(tokens, experts, guesses),
            guesses,
        }
    }
}

impl Forward {
    /// Chooses the experts of every token.
    pub(super) fn route(&mut self, router: usize) {
        let router = &self.routers[router];
        let bias = router.bias.map(|index| self.resident[index].as_slice());
        let logits = self.activations.all(Buffer::RouterLogits);
        self.routing.route(router, logits, bias);
        if let Some(logged) = &mut self.logged {
            logged.log.add(&self.routing);
        }
    }

    /// Guesses the experts that a router further on will choose.
    pub(super) fn look_ahead(&mut self, router: usize) {
        let Some(logged) = &mut self.logged else {
            unreachable!("only a program that logs looks ahead");
        };
        let router = Router {
            used: logged.guesses,
            ..self.routers[router].clone()
        };
        let bias = router.bias.map(|index| self.resident[index].as_slice());
        let logits = self.activations.all(Buffer::AheadLogits);
        logged.ahead.route(&router, logits, bias);
        logged.log.add_guesses(&logged.ahead);
    }

    /// Copies every token's normed row to where its experts look for it.
    pub(super) fn dispatch(&mut self) {
        let width = self.activations.width(Buffer::Normed);
        let rows = self.routing.tokens().len();
        let per_token = rows.checked_div(self.activations.tokens).unwrap_or(0);
        self.activations
            .set_width(Buffer::Routed, per_token * width);
        let [normed, routed] = self.activations.several([Buffer::Normed, Buffer::Routed]);
        for (&token, row) in self
            .routing
            .tokens()
            .iter()
            .zip(routed.chunks_exact_mut(width))
        {
            row.copy_from_slice(&normed[token * width..][..width]);
        }
        self.changed(Buffer::Routed);
    }

    /// Some rows of a matrix of experts, from `first_row` on: each expert's against the
    /// input's rows that chose it.
    pub(super) fn multiply_experts(
        &mut self,
        shape: &MatrixShape,
        first_row: usize,
        weights: &Matrix<'_>,
        [input, output]: [Buffer; 2],
    ) {
        let (columns, expert_rows) = (shape.columns, shape.rows_per_expert());
        self.activations
            .set_width(output, shape.inputs_per_token * expert_rows);
        let [values, mut out] = self.activations.several([input, output]);
        // What of the output comes after the experts before.
        let mut done = 0;
        let mut products: ArrayVec<Product<'_>, PRODUCTS_MAX> = ArrayVec::new();
        let end_row = first_row + weights.rows();
        for expert in first_row / expert_rows..end_row.div_ceil(expert_rows) {
            let inputs = self.routing.rows_of_expert(expert);
            if inputs.is_empty() {
                continue;
            }
            let start = first_row.max(expert * expert_rows);
            let end = end_row.min((expert + 1) * expert_rows);
            let (_, rest) = out.split_at_mut((inputs.start - done) * expert_rows);
            let (outputs, rest) = rest.split_at_mut(inputs.len() * expert_rows);
            (out, done) = (rest, inputs.end);
            let activations = match shape.format.activations() {
                ActivationFormat::F32 => emel_kernels::Activations::F32 {
                    values: &values[inputs.start * columns..inputs.end * columns],
                    columns,
                },
                ActivationFormat::Q8 => {
                    let rows = self.quantised.view().token_range(inputs.clone());
                    emel_kernels::Activations::Q8(rows)
                }
            };
            if products.is_full() {
                self.kernels.matmul_batch(&self.pool, &mut products);
                products.clear();
            }
            products.push(Product {
                weights: weights.row_range(start - first_row..end - first_row),
                activations,
                tokens: inputs.len(),
                output: OutputView::new(outputs, expert_rows, start - expert * expert_rows),
            });
        }
        self.kernels.matmul_batch(&self.pool, &mut products);
    }

    /// Adds each expert's bias to its rows.
    pub(super) fn add_expert_bias(&mut self, buffer: Buffer, weight: usize) {
        let biases = &self.resident[weight];
        let width = biases.len() / self.routing.experts();
        let values = self.activations.all_mut(buffer);
        for (expert, bias) in biases.chunks_exact(width).enumerate() {
            let rows = self.routing.rows_of_expert(expert);
            for row in values[rows.start * width..rows.end * width].chunks_exact_mut(width) {
                self.kernels.add(row, bias);
            }
        }
        self.changed(buffer);
    }

    /// Sums the answers of every token's experts, in the order in which it chose them.
    pub(super) fn combine(&mut self) {
        let width = self.activations.width(Buffer::Residual);
        self.activations.set_width(Buffer::Branch, width);
        let [routed, branch] = self.activations.several([Buffer::Routed, Buffer::Branch]);
        branch.fill(0.0);
        for (token, sum) in branch.chunks_exact_mut(width).enumerate() {
            let choices = self.routing.choices(token).iter();
            for (choice, row) in choices.zip(self.routing.rows(token)) {
                let answer = &routed[row * width..][..width];
                self.kernels.add_scaled(sum, answer, choice.weight);
            }
        }
        self.changed(Buffer::Branch);
    }
}
