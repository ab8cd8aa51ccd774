//! The mixture of experts: tokens are sorted by the experts they go to, so that each
//! expert's rows meet all of theirs at once.

use arrayvec::ArrayVec;
use emel_kernels::{ActivationFormat, Matrix, OutputView, Product};
use emel_loader::expert_layout::EXPERTS_MAX;
use emel_loader::expert_layout::{EXPERT_PARTS, ExpertBytes};

use super::Forward;
use super::operations::activate;
use crate::program::{Buffer, ExpertGroup, MatrixShape, Program};
use crate::routing::{LossyRouting, Router, Routing, RoutingLoss};
use crate::routing_log::RoutingLog;

/// Products that share a fork and join: of the experts of a step with gate and up.
pub(super) const PRODUCTS_MAX: usize = 2 * EXPERTS_MAX;

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

    /// Chooses the experts of a mixture anew, by `rule`, for the only token of the batch: it
    /// has been routed and dispatched, and nothing has been computed since. The state knows
    /// from then on that it is not the model's own.
    ///
    /// # Panics
    /// When the batch has several tokens.
    pub fn relax_routing(
        &mut self,
        mixture: usize,
        rule: &LossyRouting,
        is_in_memory: impl Fn(usize) -> bool,
    ) -> RoutingLoss {
        // Every mixture has a router of its own, in the same order.
        let loss = self
            .routing
            .relax(&self.routers[mixture], rule, is_in_memory);
        if !loss.is_none() {
            self.dispatch(mixture);
            self.state.mark_lossy();
        }
        loss
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

    /// Makes room for the rows of experts and, if they want floats, copies every token's normed
    /// row to where they look for it.
    pub(super) fn dispatch(&mut self, group: usize) {
        let width = self.activations.width(Buffer::Normed);
        let choices = self.routing.choices_per_token();
        self.activations.set_width(Buffer::Routed, choices * width);
        let [gate, up, _] = self.expert_groups[group].matrices;
        if is_quantised(gate) && is_quantised(up) {
            return;
        }
        let [normed, routed] = self.activations.several([Buffer::Normed, Buffer::Routed]);
        let rows = routed.chunks_exact_mut(width);
        for (&token, row) in self.routing.tokens().iter().zip(rows) {
            row.copy_from_slice(&normed[token * width..][..width]);
        }
        self.changed(Buffer::Routed);
    }

    /// Computes some experts of a mixture, in rising order, on the rows of the tokens that
    /// go to them. Rows do not meet each other, so when an expert is computed, and with
    /// which others, does not show in the result.
    ///
    /// # Panics
    /// When the experts are out of order or too many, or have other bytes than their shape.
    pub fn run_experts(&mut self, group: usize, experts: &[ExpertBytes<'_>]) {
        let group = self.expert_groups[group];
        self.expert_rows.clear();
        for expert in experts {
            let rows = self.routing.rows_of_expert(expert.expert);
            self.expert_rows.extend(rows);
        }
        let [gate, up, down] = group.matrices;
        let choices = self.routing.choices_per_token();
        for buffer in [Buffer::Gate, Buffer::Up, Buffer::Gated] {
            self.activations.set_width(buffer, choices * gate.rows);
        }
        for matrix in [gate, up] {
            self.quantise(Buffer::Normed, matrix.format, matrix.columns);
        }
        self.multiply_experts(&group, &[0, 1], experts);
        self.gate_experts(&group, experts);
        if is_quantised(down) {
            let values = self.activations.all(Buffer::Gated);
            let (columns, rows) = (down.columns, &self.expert_rows);
            self.quantised_rows
                .quantise_tokens(&self.kernels, &self.pool, values, columns, rows);
        }
        self.multiply_experts(&group, &[2], experts);
        self.finish_products(&group, 2, Buffer::Routed, experts);
        for buffer in [Buffer::Gate, Buffer::Up, Buffer::Gated, Buffer::Routed] {
            self.changed(buffer);
        }
    }

    /// The experts' products with some of their matrices, which have the same input.
    fn multiply_experts(
        &mut self,
        group: &ExpertGroup,
        parts: &[usize],
        experts: &[ExpertBytes<'_>],
    ) {
        const OUTPUTS: [Buffer; EXPERT_PARTS] = [Buffer::Gate, Buffer::Up, Buffer::Routed];
        let buffers = [Buffer::Routed, Buffer::Gated, Buffer::Gate, Buffer::Up];
        let [routed, gated, gate, up] = self.activations.several(buffers);
        let mut products: ArrayVec<Product<'_>, PRODUCTS_MAX> = ArrayVec::new();
        let (input, outputs): (&[f32], &mut [&mut [f32]]) = match OUTPUTS[parts[0]] {
            Buffer::Routed => (gated, &mut [routed]),
            _ => (routed, &mut [gate, up]),
        };
        for (&part, out) in parts.iter().zip(outputs) {
            let shape = group.matrices[part];
            let (rows, columns) = (shape.rows, shape.columns);
            // What of the output comes after the experts before.
            let (mut out, mut done) = (std::mem::take(out), 0);
            for expert in experts {
                let inputs = self.routing.rows_of_expert(expert.expert);
                let (_, rest) = out.split_at_mut((inputs.start - done) * rows);
                let (output, rest) = rest.split_at_mut(inputs.len() * rows);
                (out, done) = (rest, inputs.end);
                let activations = match shape.format.activations() {
                    ActivationFormat::F32 => emel_kernels::Activations::F32 {
                        values: &input[inputs.start * columns..inputs.end * columns],
                        columns,
                    },
                    ActivationFormat::Q8 if part == 2 => {
                        let rows = self.quantised_rows.view();
                        emel_kernels::Activations::Q8(rows.token_range(inputs.clone()))
                    }
                    ActivationFormat::Q8 => {
                        let tokens = &self.routing.tokens()[inputs.clone()];
                        emel_kernels::Activations::Q8(self.quantised.view().tokens_of(tokens))
                    }
                };
                products.push(Product {
                    weights: Matrix::new(shape.format, rows, columns, expert.parts[part])
                        .expect("an expert's bytes are the rows of a checked tensor"),
                    activations,
                    tokens: inputs.len(),
                    output: OutputView::new(output, rows, 0),
                });
            }
        }
        self.kernels.matmul_batch(&self.pool, &mut products);
    }

    /// gated = activation(gate) · up, after both have got their scales and biases.
    fn gate_experts(&mut self, group: &ExpertGroup, experts: &[ExpertBytes<'_>]) {
        self.finish_products(group, 0, Buffer::Gate, experts);
        self.finish_products(group, 1, Buffer::Up, experts);
        let width = group.matrices[0].rows;
        let buffers = [Buffer::Gate, Buffer::Up, Buffer::Gated];
        let [gate, up, out] = self.activations.several(buffers);
        // Experts whose rows lie together are taken together.
        for run in self.expert_rows.chunk_by(|a, b| a + 1 == *b) {
            let rows = run[0] * width..(run[0] + run.len()) * width;
            let inputs = [&gate[rows.clone()], &up[rows.clone()]];
            let out = &mut out[rows];
            activate(&self.kernels, &self.pool, group.activation, inputs, out);
        }
    }

    /// Multiplies the rows of each expert with its scale and adds its bias, if the group has
    /// any.
    fn finish_products(
        &mut self,
        group: &ExpertGroup,
        part: usize,
        buffer: Buffer,
        experts: &[ExpertBytes<'_>],
    ) {
        let width = group.matrices[part].rows;
        let scales = group.scales[part].map(|weight| &self.resident[weight]);
        let biases = group.biases[part].map(|weight| &self.resident[weight]);
        if scales.is_none() && biases.is_none() {
            return;
        }
        let values = self.activations.all_mut(buffer);
        for ExpertBytes { expert, .. } in experts {
            let rows = self.routing.rows_of_expert(*expert);
            let values = &mut values[rows.start * width..rows.end * width];
            if let Some(scales) = scales {
                self.kernels.scale(values, scales[*expert]);
            }
            if let Some(biases) = biases {
                let bias = &biases[expert * width..][..width];
                for row in values.chunks_exact_mut(width) {
                    self.kernels.add(row, bias);
                }
            }
        }
    }

    /// Sums the answers of every token's experts, in the order in which it chose them.
    pub(super) fn combine(&mut self) {
        let width = self.activations.width(Buffer::Residual);
        self.activations.set_width(Buffer::Branch, width);
        let [routed, branch] = self.activations.several([Buffer::Routed, Buffer::Branch]);
        let (kernels, routing) = (self.kernels, &self.routing);
        self.pool.run_rows(branch, width, |tokens, branch| {
            branch.fill(0.0);
            for (token, sum) in tokens.zip(branch.chunks_exact_mut(width)) {
                let choices = routing.choices(token).iter();
                for (choice, row) in choices.zip(routing.rows(token)) {
                    let answer = &routed[row * width..][..width];
                    kernels.add_scaled(sum, answer, choice.weight);
                }
            }
        });
        self.changed(Buffer::Branch);
    }
}

fn is_quantised(matrix: MatrixShape) -> bool {
    matrix.format.activations() == ActivationFormat::Q8
}
