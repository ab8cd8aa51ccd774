//! The mixture of experts as operations (Shazeer et al., 2017).

use super::{Activation, Buffer, MatrixShape, Op, ProgramBuilder, checked_format, find};
use crate::error::ModelError;
use crate::routing::{ExpertGroups, Gating, Router};

/// What differs between the families' mixtures.
#[derive(Debug, Clone, Copy)]
pub struct Mixture {
    /// How logits become shares.
    pub gating: Gating,
    /// Whether the chosen shares are made to sum to one.
    pub normalises: bool,
    /// What they are multiplied with.
    pub scale: f32,
    /// Groups of experts.
    pub groups: Option<ExpertGroups>,
    /// The activation function of an expert.
    pub activation: Activation,
}

impl ProgramBuilder<'_> {
    /// A mixture of experts of the normed stream, into the branch: the router
    /// `{block}.ffn_gate_inp` and the experts `{block}.ffn_{gate,up,down}_exps`, with
    /// biases where the file has them, and `{block}.exp_probs_b` for the choice. An
    /// expert is a gated feed-forward network, `expert_feed_forward` wide.
    ///
    /// # Errors
    /// When a tensor is missing or of another size.
    pub fn mixture(&mut self, block: &str, mixture: Mixture) -> Result<(), ModelError> {
        let shape = &self.program.hyperparameters;
        let (experts, used) = (shape.experts, shape.experts_used);
        let (width, inner) = (shape.width, shape.expert_feed_forward);
        let name = |part: &str| format!("{block}.{part}");

        self.linear(
            &name("ffn_gate_inp"),
            experts,
            Buffer::Normed,
            Buffer::RouterLogits,
        )?;
        let bias = ["exp_probs_b.bias", "exp_probs_b"].map(name);
        let bias = bias.iter().find(|name| self.has(name));
        let bias = bias.map(|name| self.resident(name, experts)).transpose()?;
        self.program.routers.push(Router {
            experts,
            used,
            gating: mixture.gating,
            bias,
            groups: mixture.groups,
            normalises: mixture.normalises,
            scale: mixture.scale,
        });
        self.push(Op::Route {
            router: self.program.routers.len() - 1,
        });

        self.widen(Buffer::Routed, used * width);
        self.push(Op::Dispatch);
        self.experts(&name("ffn_gate_exps"), inner, Buffer::Routed, Buffer::Gate)?;
        self.experts(&name("ffn_up_exps"), inner, Buffer::Routed, Buffer::Up)?;
        self.widen(Buffer::Gated, used * inner);
        self.push(Op::Gated {
            activation: mixture.activation,
        });
        self.experts(&name("ffn_down_exps"), width, Buffer::Gated, Buffer::Routed)?;
        self.widen(Buffer::Branch, width);
        self.push(Op::Combine);
        Ok(())
    }

    /// Adds the experts of every token, `{block}.ffn_{gate,up,down}_shexp`, to the
    /// branch: a gated feed-forward network `inner` wide, times
    /// σ(`{block}.ffn_gate_inp_shexp` · x) where the file has that.
    ///
    /// # Errors
    /// When a tensor is missing or of another size.
    pub fn shared_experts(
        &mut self,
        block: &str,
        inner: usize,
        activation: Activation,
    ) -> Result<(), ModelError> {
        let name = |part: &str| format!("{block}.{part}");
        let gate = name("ffn_gate_inp_shexp");
        let is_gated = self.has(&format!("{gate}.weight"));
        if is_gated {
            self.linear(&gate, 1, Buffer::Normed, Buffer::SharedGate)?;
        }
        let [gate, up, down] = ["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"].map(name);
        self.feed_forward_into([&gate, &up, &down], inner, activation, Buffer::Shared)?;
        if is_gated {
            self.push(Op::SigmoidGate {
                buffer: Buffer::Shared,
                gate: Buffer::SharedGate,
            });
        }
        self.add(Buffer::Shared, Buffer::Branch);
        Ok(())
    }

    /// `name.weight`, `[experts, rows, columns]`, and `name.bias` if the file has one.
    fn experts(
        &mut self,
        name: &str,
        rows: usize,
        input: Buffer,
        output: Buffer,
    ) -> Result<(), ModelError> {
        let shape = &self.program.hyperparameters;
        let (experts, used) = (shape.experts, shape.experts_used);
        let columns = self.width(input) / used;
        let weight = format!("{name}.weight");
        let (index, tensor) = find(self.catalog, &weight)?;
        let expected = [columns, rows, experts].map(|size| size as u64);
        if tensor.dims != expected {
            let text = |dims: &[u64]| {
                let sizes: Vec<String> = dims.iter().map(u64::to_string).collect();
                sizes.join(" × ")
            };
            return Err(ModelError::Shape {
                name: weight,
                found: text(&tensor.dims),
                expected: text(&expected),
            });
        }
        let matrix = MatrixShape {
            format: checked_format(tensor)?,
            rows: rows * experts,
            columns,
            experts,
            inputs_per_token: used,
        };
        self.widen(output, used * rows);
        let matrix = self.declare(index, matrix);
        self.push(Op::Experts {
            matrix,
            input,
            output,
        });
        let bias = format!("{name}.bias");
        if self.has(&bias) {
            let weight = self.resident_rows(&bias, rows, experts)?;
            self.push(Op::ExpertBias {
                buffer: output,
                weight,
            });
        }
        Ok(())
    }
}
