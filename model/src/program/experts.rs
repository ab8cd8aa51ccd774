//! The mixture of experts as operations (Shazeer et al., 2017).

use super::builder::{checked_format, find};
use super::{Activation, Buffer, MatrixShape, Op, ProgramBuilder};
use crate::error::ModelError;
use crate::hyperparameters::Hyperparameters;
use crate::keys::Keys;
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

impl Mixture {
    /// Softmax, weights that sum to one, SwiGLU.
    pub const SOFTMAX: Self = Self {
        gating: Gating::Softmax,
        normalises: true,
        scale: 1.0,
        groups: None,
        activation: Activation::Silu,
    };

    /// A mixture with what the file says about its router; the rest stays.
    ///
    /// # Errors
    /// When the file says something that no router can do.
    pub fn read(self, keys: &Keys<'_>, shape: &Hyperparameters) -> Result<Self, ModelError> {
        Ok(Self {
            gating: match keys.count("expert_gating_func")? {
                0 => self.gating,
                1 => Gating::Softmax,
                2 => Gating::Sigmoid,
                3 => Gating::SoftmaxOfChosen,
                other => {
                    let expected = "1 (softmax), 2 (sigmoid) or 3 (softmax of the chosen)";
                    return Err(keys.refuse("expert_gating_func", other, expected));
                }
            },
            normalises: keys.bool("expert_weights_norm")?.unwrap_or(self.normalises),
            scale: keys.factor("expert_weights_scale")?,
            groups: groups(keys, shape)?,
            ..self
        })
    }
}

fn groups(keys: &Keys<'_>, shape: &Hyperparameters) -> Result<Option<ExpertGroups>, ModelError> {
    let count = keys.count("expert_group_count")?;
    // A dense model of a family with experts may still have the key.
    if count <= 1 || shape.experts == 0 {
        return Ok(None);
    }
    if !shape.experts.is_multiple_of(count) {
        let expected = format!("a divisor of the {} experts", shape.experts);
        return Err(keys.refuse("expert_group_count", count, &expected));
    }
    let used = keys.size("expert_group_used_count")?;
    let size = shape.experts / count;
    let least = shape.experts_used.div_ceil(size);
    if !(least..=count).contains(&used) {
        let expected = format!("{least} to {count} groups of {size} experts");
        return Err(keys.refuse("expert_group_used_count", used, &expected));
    }
    Ok(Some(ExpertGroups { count, used }))
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
        let experts = self.keys().size("expert_count")?;
        let shape = &self.program.hyperparameters;
        let (used, width, inner) = (shape.experts_used, shape.width, shape.expert_feed_forward);
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
        let names = ["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"].map(name);
        self.feed_forward_into(&names, inner, activation, Buffer::Shared)?;
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
