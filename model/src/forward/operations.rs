//! Operations without a matrix. What a token becomes does not depend on the others, so the rows of
//! many tokens are split over the pool.

use std::ops::Range;

use emel_kernels::{AttentionInput, AttentionShape, Kernels, Pool};

use super::Forward;
use crate::program::{Activation, Buffer, Op, PositionGrowth};

impl Forward {
    /// An operation without a matrix.
    pub(super) fn apply(&mut self, op: usize) {
        match self.ops[op] {
            Op::Norm {
                input,
                output,
                weight,
            } => self.norm(input, output, weight),
            Op::Linear { .. } | Op::LinearHeads { .. } => {
                unreachable!("products come with rows")
            }
            Op::Experts { .. } => unreachable!("experts come with their weights"),
            Op::WeightScale { buffer, weight } => {
                let factor = self.resident[weight][0];
                self.change_values(buffer, |kernels, values| kernels.scale(values, factor));
            }
            Op::Bias { buffer, weight } => self.add_bias(buffer, weight),
            Op::Rope {
                buffer,
                heads,
                start,
                rotation,
            } => self.rotate(buffer, heads, start, rotation),
            Op::Attention { .. } => self.attend(op),
            Op::Gated { activation } => self.gate(activation),
            Op::Add { from, to } => {
                self.combine_values(to, from, |kernels, sum, values| kernels.add(sum, values));
            }
            Op::Columns {
                input,
                start,
                width,
                output,
            } => self.take_columns(input, start..start + width, output),
            Op::Scale { buffer, factor } => {
                self.change_values(buffer, |kernels, values| kernels.scale(values, factor));
            }
            Op::ScaleByPosition { buffer, growth } => self.scale_by_position(buffer, growth),
            Op::SigmoidGate { buffer, gate } => self.gate_by_sigmoid(buffer, gate),
            Op::Softcap { buffer, cap } => {
                self.change_values(buffer, |kernels, values| kernels.softcap(values, cap));
            }
            Op::Route { router } => self.route(router),
            Op::LookAhead { router } => self.look_ahead(router),
            Op::Dispatch { group } => self.dispatch(group),
            Op::Combine => self.combine(),
            Op::NormColumns { buffer, weight } => self.norm_columns(buffer, weight),
            Op::CopyHeads { from, to } => self.copy_heads(from, to),
            Op::Multiply { buffer, by } => {
                self.combine_values(buffer, by, |kernels, values, factors| {
                    kernels.multiply(values, factors);
                });
            }
            Op::Silu { buffer } => self.change_values(buffer, Kernels::silu),
            Op::SiluGate { buffer, gate } => {
                self.combine_values(buffer, gate, |kernels, values, gates| {
                    kernels.gate_by_silu(values, gates);
                });
            }
            Op::Convolution { state, weight } => self.convolve(state, weight),
            Op::DeltaRule {
                state,
                shape,
                rate,
                bias,
            } => self.delta_rule(state, &shape, [rate, bias]),
            Op::KeepLogitTokens => {
                self.activations
                    .keep_last(Buffer::Residual, self.logit_tokens);
                self.quantised_of = None;
            }
        }
    }

    /// Changes every value by itself.
    fn change_values(&mut self, buffer: Buffer, change: impl Fn(&Kernels, &mut [f32]) + Sync) {
        let kernels = self.kernels;
        let values = self.activations.all_mut(buffer);
        self.pool
            .run_rows(values, 1, |_, values| change(&kernels, values));
        self.changed(buffer);
    }

    /// Changes every value of a buffer by that of another.
    fn combine_values(
        &mut self,
        buffer: Buffer,
        by: Buffer,
        change: impl Fn(&Kernels, &mut [f32], &[f32]) + Sync,
    ) {
        let kernels = self.kernels;
        let [values, others] = self.activations.several([buffer, by]);
        assert_eq!(values.len(), others.len(), "values and what changes them");
        self.pool.run_rows(values, 1, |run, values| {
            change(&kernels, values, &others[run]);
        });
        self.changed(buffer);
    }

    fn scale_by_position(&mut self, buffer: Buffer, growth: PositionGrowth) {
        let width = self.activations.width(buffer);
        let rows = self.activations.all_mut(buffer).chunks_exact_mut(width);
        for (row, &position) in rows.zip(&self.positions) {
            self.kernels.scale(row, growth.factor(position));
        }
        self.changed(buffer);
    }

    fn gate_by_sigmoid(&mut self, buffer: Buffer, gate: Buffer) {
        let kernels = self.kernels;
        let [values, gates] = self.activations.several([buffer, gate]);
        // A gate counts for a run of values.
        let run = values.len().checked_div(gates.len()).unwrap_or(0);
        self.pool.run_rows(values, run, |rows, values| {
            kernels.sigmoid_gate(values, &gates[rows]);
        });
        self.changed(buffer);
    }

    fn norm(&mut self, input: Buffer, output: Buffer, weight: usize) {
        let (kernels, epsilon) = (self.kernels, self.norm_epsilon);
        let weight = self.resident[weight].as_slice();
        let width = weight.len();
        if input == output {
            let values = self.activations.all_mut(input);
            self.pool.run_rows(values, width, |_, values| {
                kernels.rms_norm_in_place(values, weight, epsilon);
            });
        } else {
            let output_width = self.activations.width(input);
            self.activations.set_width(output, output_width);
            let [values, out] = self.activations.several([input, output]);
            self.pool.run_rows(out, width, |rows, out| {
                let values = &values[rows.start * width..rows.end * width];
                kernels.rms_norm(values, weight, epsilon, out);
            });
        }
        self.changed(output);
    }

    fn add_bias(&mut self, buffer: Buffer, weight: usize) {
        let kernels = self.kernels;
        let bias = self.resident[weight].as_slice();
        let values = self.activations.all_mut(buffer);
        self.pool.run_rows(values, bias.len(), |_, values| {
            for row in values.chunks_exact_mut(bias.len()) {
                kernels.add(row, bias);
            }
        });
        self.changed(buffer);
    }

    fn rotate(&mut self, buffer: Buffer, heads: usize, start: usize, rotation: usize) {
        let (rotation, _, table) = &self.rotations[rotation];
        let head_width = self.activations.width(buffer) / heads;
        let values = self.activations.all_mut(buffer);
        let pool = &self.pool;
        self.kernels.rope_from(
            pool,
            rotation.style,
            table,
            values,
            heads,
            head_width,
            start,
        );
        self.changed(buffer);
    }

    /// The attention operation at index `op`.
    fn attend(&mut self, op: usize) {
        let Op::Attention {
            state,
            scale,
            softcap,
            sinks,
        } = self.ops[op]
        else {
            unreachable!("called for attention");
        };
        let cache = self.state.cache_mut(state);
        let tokens = [Buffer::Key, Buffer::Value].map(|buffer| self.activations.all(buffer));
        let position = self.positions.first().copied().unwrap_or(0);
        cache.store(&self.kernels, position, self.positions.len(), tokens);
        let kept = cache.shape();
        let shape = AttentionShape {
            heads: self.heads,
            kv_heads: kept.kv_heads,
            head_dim_k: kept.key_width,
            head_dim_v: kept.value_width.unwrap_or(kept.key_width),
            scale,
            window: kept.window,
            softcap,
        };
        self.activations
            .set_width(Buffer::Attended, shape.heads * shape.head_dim_v);
        let [queries, out] = self.activations.several([Buffer::Query, Buffer::Attended]);
        let input = AttentionInput {
            queries,
            kv: cache.view(),
            first: cache.first(),
            positions: &self.positions,
            sinks: sinks.map(|index| self.resident[index].as_slice()),
        };
        self.kernels
            .attention(&self.pool, &shape, &input, out, &mut self.scratch);
        self.changed(Buffer::Attended);
    }

    fn gate(&mut self, activation: Activation) {
        let width = self.activations.width(Buffer::Gate);
        self.activations.set_width(Buffer::Gated, width);
        let [gate, up, out] = self
            .activations
            .several([Buffer::Gate, Buffer::Up, Buffer::Gated]);
        activate(&self.kernels, &self.pool, activation, [gate, up], out);
        self.changed(Buffer::Gated);
    }

    fn take_columns(&mut self, input: Buffer, columns: Range<usize>, output: Buffer) {
        self.activations.set_width(output, columns.len());
        let (from, to) = (self.activations.width(input), columns.len());
        let [values, out] = self.activations.several([input, output]);
        self.pool.run_rows(out, to, |rows, out| {
            let values = values[rows.start * from..].chunks_exact(from);
            for (row, out) in values.zip(out.chunks_exact_mut(to)) {
                out.copy_from_slice(&row[columns.clone()]);
            }
        });
        self.changed(output);
    }
}

/// out = activation(gate) · up.
pub(super) fn activate(
    kernels: &Kernels,
    pool: &Pool,
    activation: Activation,
    [gate, up]: [&[f32]; 2],
    out: &mut [f32],
) {
    assert_eq!(gate.len(), out.len(), "a gate for every value");
    pool.run_rows(out, 1, |run, out| {
        let (gate, up) = (&gate[run.clone()], &up[run]);
        match activation {
            Activation::Silu => kernels.swiglu(gate, up, out),
            Activation::Gelu => kernels.geglu(gate, up, out),
            Activation::ClampedSilu { alpha, limit } => {
                kernels.swiglu_clamped(gate, up, alpha, limit, out);
            }
        }
    });
}
