//! The mixture of experts as operations (Shazeer et al., 2017).

use emel_kernels::Format;
use emel_loader::expert_layout::{EXPERT_PARTS, ExpertPart, ExpertUse};

use super::builder::checked_format;
use super::{Activation, Buffer, MatrixShape, Op, ProgramBuilder};
use crate::error::ModelError;
use crate::hyperparameters::Hyperparameters;
use crate::keys::Keys;
use crate::routing::{ExpertGroups, Gating, Router};

/// What an expert's matrices are called in a file, in their order.
const PART_NAMES: [&str; EXPERT_PARTS] = ["gate", "up", "down"];

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
    /// Whether it is incomplete without a bias for the choice; others may have one.
    pub needs_choice_bias: bool,
    /// The activation function of an expert.
    pub activation: Activation,
}

/// The experts of a mixture: gated feed-forward networks of one shape.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpertGroup {
    /// One expert's gate, up and down matrices.
    pub matrices: [MatrixShape; EXPERT_PARTS],
    /// Indices of the resident weights that their products are multiplied with, `[experts]`.
    pub scales: [Option<usize>; EXPERT_PARTS],
    /// Indices of the resident weights that are then added, `[experts, rows]`.
    pub biases: [Option<usize>; EXPERT_PARTS],
    /// The activation function of the gate.
    pub activation: Activation,
}

impl Mixture {
    /// Softmax, weights that sum to one, SwiGLU.
    pub const SOFTMAX: Self = Self {
        gating: Gating::Softmax,
        normalises: true,
        scale: 1.0,
        groups: None,
        needs_choice_bias: false,
        activation: Activation::Silu,
    };

    /// A mixture with what the file says about its router; the rest stays.
    ///
    /// # Errors
    /// When the file says something that no router can do.
    pub fn read(self, keys: &Keys<'_>, shape: &Hyperparameters) -> Result<Self, ModelError> {
        Ok(Self {
            gating: match keys.count("expert_gating_func")? {
                0 if !keys.requires("expert_gating_func") => self.gating,
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
        let [bias, older] = ["exp_probs_b.bias", "exp_probs_b"].map(name);
        let bias = if self.has(&older) { older } else { bias };
        let bias = (mixture.needs_choice_bias || self.takes_bias(&bias))
            .then(|| self.resident(&bias, experts))
            .transpose()?;
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

        for (buffer, row) in [
            (Buffer::Routed, width),
            (Buffer::Gate, inner),
            (Buffer::Up, inner),
            (Buffer::Gated, inner),
        ] {
            self.widen(buffer, used * row);
        }
        let group = self.program.expert_groups.len();
        self.push(Op::Dispatch { group });
        self.experts(block, mixture.activation)?;
        self.push(Op::Experts { group });
        self.widen(Buffer::Branch, width);
        self.push(Op::Combine);
        Ok(())
    }

    /// Adds the experts of every token, `{block}.ffn_{gate,up,down}_shexp`, to the
    /// branch that a mixture has just been written to: a gated feed-forward network `inner`
    /// wide, times σ(`{block}.ffn_gate_inp_shexp` · x) if it is gated.
    ///
    /// # Errors
    /// When a tensor is missing or of another size.
    pub fn shared_experts(
        &mut self,
        block: &str,
        inner: usize,
        activation: Activation,
        is_gated: bool,
    ) -> Result<(), ModelError> {
        // They are computed while those that a token has chosen are read.
        let chosen = self.program.ops.len() - 2;
        let chosen = self.program.ops.split_off(chosen);
        debug_assert!(matches!(chosen[..], [Op::Experts { .. }, Op::Combine]));
        let name = |part: &str| format!("{block}.{part}");
        let gate = name("ffn_gate_inp_shexp");
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
        self.program.ops.extend(chosen);
        self.add(Buffer::Shared, Buffer::Branch);
        Ok(())
    }

    /// Declares the experts `{block}.ffn_{gate,up,down}_exps`, with scales and biases where
    /// the file has them.
    fn experts(&mut self, block: &str, activation: Activation) -> Result<(), ModelError> {
        let shape = &self.program.hyperparameters;
        let (experts, used) = (shape.experts, shape.experts_used);
        let (width, inner) = (shape.width, shape.expert_feed_forward);
        let (gate, gate_matrix) = self.expert_part(block, 0, [width, inner])?;
        let (up, up_matrix) = self.expert_part(block, 1, [width, inner])?;
        let (down, down_matrix) = self.expert_part(block, 2, [inner, width])?;
        let matrices = [gate_matrix, up_matrix, down_matrix];
        let mut scales = [None; EXPERT_PARTS];
        let mut biases = [None; EXPERT_PARTS];
        for part in 0..EXPERT_PARTS {
            let name = format!("{block}.ffn_{}_exps", PART_NAMES[part]);
            let [scale, bias] = ["scale", "bias"].map(|kind| format!("{name}.{kind}"));
            // llama.cpp has none beside gate and up in one tensor, nor beside each expert's own.
            if self.takes_scale(&scale) && self.has(&format!("{name}.weight")) {
                scales[part] = Some(self.resident(&scale, experts)?);
            }
            if self.takes_bias(&bias) {
                biases[part] = Some(self.resident_rows(&bias, matrices[part].rows, experts)?);
            }
        }
        self.program.expert_groups.push(ExpertGroup {
            matrices,
            scales,
            biases,
            activation,
        });
        self.program.expert_uses.push(ExpertUse {
            parts: [gate, up, down],
            experts,
            used,
        });
        Ok(())
    }

    /// Where the rows of one of the experts' matrices are, and one expert's matrix: in
    /// `{block}.ffn_{gate,up,down}_exps`, for gate and up in `{block}.ffn_gate_up_exps`, where
    /// an expert's rows of the gate come first, or, as converters once wrote them, with each
    /// expert in a tensor of its own, `{block}.ffn_{gate,up,down}.{expert}`.
    fn expert_part(
        &mut self,
        block: &str,
        part: usize,
        [columns, rows]: [usize; 2],
    ) -> Result<(ExpertPart, MatrixShape), ModelError> {
        let name = PART_NAMES[part];
        let experts = self.program.hyperparameters.experts;
        let fused = format!("{block}.ffn_gate_up_exps.weight");
        if part < 2 && self.has(&fused) {
            let (tensor, format) = self.expert_tensor(&fused, &[columns, 2 * rows, experts])?;
            let part = ExpertPart::Stacked {
                tensor,
                matrices: 2,
                matrix: part,
            };
            return Ok((part, MatrixShape::new(format, rows, columns)));
        }
        let stacked = format!("{block}.ffn_{name}_exps.weight");
        let separate = |expert| format!("{block}.ffn_{name}.{expert}.weight");
        if self.has(&stacked) || !self.has(&separate(0)) {
            let (tensor, format) = self.expert_tensor(&stacked, &[columns, rows, experts])?;
            let part = ExpertPart::alone(tensor);
            return Ok((part, MatrixShape::new(format, rows, columns)));
        }
        let (_, format) = self.expert_tensor(&separate(0), &[columns, rows])?;
        let mut tensors = Vec::with_capacity(experts);
        for expert in 0..experts {
            let (tensor, found) = self.expert_tensor(&separate(expert), &[columns, rows])?;
            if found != format {
                return Err(ModelError::TensorType {
                    name: separate(expert),
                    found: found.name().to_owned(),
                    supported: format!("{}, as expert 0 has it", format.name()),
                });
            }
            tensors.push(tensor);
        }
        let part = ExpertPart::Separate(tensors);
        Ok((part, MatrixShape::new(format, rows, columns)))
    }

    /// A tensor of experts that has exactly these dimensions, and its format.
    fn expert_tensor(&mut self, name: &str, dims: &[usize]) -> Result<(usize, Format), ModelError> {
        let (index, tensor) = self.take(name)?;
        let expected: Vec<u64> = dims.iter().map(|&size| size as u64).collect();
        if tensor.dims != expected {
            let text = |dims: &[u64]| {
                let sizes: Vec<String> = dims.iter().map(u64::to_string).collect();
                sizes.join(" × ")
            };
            return Err(ModelError::Shape {
                name: name.to_owned(),
                found: text(&tensor.dims),
                expected: text(&expected),
            });
        }
        Ok((index, checked_format(tensor)?))
    }
}
