//! LLaMA and its many relatives (SmolLM2, Mistral, TinyLlama, …): pre-norm blocks of
//! grouped-query attention with rotary positions, and a SwiGLU feed-forward network.
//! <https://arxiv.org/abs/2302.13971>, <https://arxiv.org/abs/2407.21783>

use emel_kernels::RopeStyle;

use crate::error::ModelError;
use crate::hyperparameters::Hyperparameters;
use crate::program::Buffer::{Attended, Branch, Key, Normed, Query, Residual, Value};
use crate::program::{Activation, Op, ProgramBuilder};

pub(super) fn describe(
    model: &mut ProgramBuilder<'_>,
    shape: &Hyperparameters,
) -> Result<(), ModelError> {
    if shape.experts > 0 {
        return Err(ModelError::Feature {
            architecture: shape.architecture.clone(),
            feature: format!("a mixture of {} experts", shape.experts),
        });
    }
    // Converters permute Q and K so that neighbouring dimensions form a pair.
    let rotation = model.rotation(
        RopeStyle::Interleaved,
        shape.rope_base,
        shape.rope_scaling,
        "rope_freqs.weight",
    )?;
    let (heads, kv_heads) = (shape.heads, shape.kv_heads);

    for layer in 0..shape.layers {
        let name = |part: &str| format!("blk.{layer}.{part}");
        model.begin_layer(layer);

        model.norm(&name("attn_norm.weight"), Residual, Normed)?;
        model.linear(&name("attn_q"), heads * shape.key_width, Normed, Query)?;
        model.linear(&name("attn_k"), kv_heads * shape.key_width, Normed, Key)?;
        model.linear(&name("attn_v"), kv_heads * shape.value_width, Normed, Value)?;
        model.rope(rotation);
        model.attention(1.0 / (shape.key_width as f32).sqrt(), None);
        model.linear(&name("attn_output"), shape.width, Attended, Branch)?;
        model.push(Op::Add);

        model.norm(&name("ffn_norm.weight"), Residual, Normed)?;
        model.gated_feed_forward(
            [&name("ffn_gate"), &name("ffn_up"), &name("ffn_down")],
            Activation::Silu,
        )?;
        model.push(Op::Add);
    }
    model.head()
}
