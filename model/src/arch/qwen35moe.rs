//! Qwen3.5 MoE: three layers with the gated delta rule for each one with gated attention,
//! and in all a mixture of experts with a gated expert of every token.
//! <https://qwen.ai/blog?id=qwen3.5>, <https://arxiv.org/abs/2412.06464>

use emel_kernels::{DeltaRuleShape, RopeStyle};

use super::sections::{Dealing, check_sections};
use crate::error::ModelError;
use crate::hyperparameters::Hyperparameters;
use crate::program::Buffer::{Attended, Branch, Key, Normed, OutputGate, Query, Residual};
use crate::program::{Mixture, Op, ProgramBuilder, Scores};

/// A layer in so many has attention, where the file does not say.
const ATTENTION_EVERY: usize = 4;

pub(super) fn describe(
    model: &mut ProgramBuilder<'_>,
    shape: &Hyperparameters,
) -> Result<(), ModelError> {
    let rotation = model.rotation(RopeStyle::Halves)?;
    let delta = delta_rule(model)?;
    let taps = model.taps("ssm.conv_kernel")?;
    let keys = model.keys();
    check_sections(&keys, shape, Dealing::InTurns)?;
    let attention_every = keys.size_or("full_attention_interval", ATTENTION_EVERY)?;
    let recurrent = keys.flags("attention.recurrent_layers", shape.blocks)?;
    let is_recurrent = |layer: usize| match &recurrent {
        Some(flags) => flags[layer],
        None => !(layer + 1).is_multiple_of(attention_every),
    };
    let mixture = Mixture::SOFTMAX.read(&keys, shape)?;
    let shared_width = keys.nonzero_or("expert_shared_feed_forward_length", shape.feed_forward)?;
    for layer in 0..shape.layers {
        let block = format!("blk.{layer}");
        let name = |part: &str| format!("{block}.{part}");
        model.begin_layer(layer);

        model.norm(&name("attn_norm.weight"), Residual, Normed)?;
        if is_recurrent(layer) {
            model.gated_delta_net(&block, delta, taps)?;
        } else {
            model.gated_query_key_value(&block)?;
            model.norm_heads(&name("attn_q_norm.weight"), Query, shape.key_width)?;
            model.norm_heads(&name("attn_k_norm.weight"), Key, shape.key_width)?;
            model.rope(rotation);
            model.attention(Scores {
                scale: 1.0 / (shape.key_width as f32).sqrt(),
                ..Scores::default()
            })?;
            model.push(Op::SigmoidGate {
                buffer: Attended,
                gate: OutputGate,
            });
            model.linear(&name("attn_output"), shape.width, Attended, Branch)?;
        }
        model.add(Branch, Residual);

        model.norm(&name("post_attention_norm.weight"), Residual, Normed)?;
        model.mixture(&block, mixture)?;
        model.shared_experts(&block, shared_width, mixture.activation, true)?;
        model.add(Branch, Residual);
    }
    model.head()
}

/// Heads and widths of the delta rule, under the keys that state-space models brought.
fn delta_rule(model: &ProgramBuilder<'_>) -> Result<DeltaRuleShape, ModelError> {
    let keys = model.keys();
    let key_heads = keys.size("ssm.group_count")?;
    let value_heads = keys.size("ssm.time_step_rank")?;
    if !value_heads.is_multiple_of(key_heads) {
        let expected = format!("a multiple of the {key_heads} key heads");
        return Err(keys.refuse("ssm.time_step_rank", value_heads, &expected));
    }
    let values = keys.size("ssm.inner_size")?;
    let multiple = DeltaRuleShape::VALUE_MULTIPLE;
    if !values.is_multiple_of(value_heads * multiple) {
        let expected = format!("{value_heads} heads of a width that is a multiple of {multiple}");
        return Err(keys.refuse("ssm.inner_size", values, &expected));
    }
    Ok(DeltaRuleShape {
        key_heads,
        value_heads,
        key_width: keys.size("ssm.state_size")?,
        value_width: values / value_heads,
    })
}
