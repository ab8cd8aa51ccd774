//! LFM2: short convolutions in most layers, grouped-query attention with normed queries
//! and keys in the others; LFM2-MoE has a mixture of experts after its first layers.
//! <https://arxiv.org/abs/2511.23404>

use emel_kernels::RopeStyle;

use super::experts::Experts;
use super::window::Windows;
use crate::error::ModelError;
use crate::hyperparameters::Hyperparameters;
use crate::program::Buffer::{Attended, Branch, Key, Normed, Query, Residual};
use crate::program::{Mixture, ProgramBuilder, Scores};

pub(super) fn describe(
    model: &mut ProgramBuilder<'_>,
    shape: &Hyperparameters,
) -> Result<(), ModelError> {
    let rotation = model.rotation(RopeStyle::Halves)?;
    let taps = model.taps("shortconv.l_cache")?;
    let keys = model.keys();
    let windows = keys
        .optional_size("attention.sliding_window")?
        .map(|window| Windows::everywhere(shape, window));
    let mixture = Mixture {
        needs_choice_bias: true,
        ..Mixture::SOFTMAX
    }
    .read(&keys, shape)?;
    let experts = Experts {
        // Without experts all layers are dense.
        leading_dense: match shape.experts {
            0 => shape.layers,
            _ => keys.count("leading_dense_block_count")?,
        },
        ..Experts::everywhere(mixture)
    };
    for layer in 0..shape.layers {
        let block = format!("blk.{layer}");
        let name = |part: &str| format!("{block}.{part}");
        model.begin_layer(layer);

        model.norm(&name("attn_norm.weight"), Residual, Normed)?;
        if shape.layer_kv_heads.of(layer) == 0 {
            model.gated_short_convolution(&name("shortconv"), taps)?;
        } else {
            model.query_key_value(&block)?;
            model.norm_heads(&name("attn_q_norm.weight"), Query, shape.key_width)?;
            model.norm_heads(&name("attn_k_norm.weight"), Key, shape.key_width)?;
            model.rope(rotation);
            model.attention(Scores {
                scale: 1.0 / (shape.key_width as f32).sqrt(),
                window: windows.as_ref().and_then(|windows| windows.of(layer)),
                ..Scores::default()
            })?;
            model.linear(&name("attn_output"), shape.width, Attended, Branch)?;
        }
        model.add(Branch, Residual);

        model.norm(&name("ffn_norm.weight"), Residual, Normed)?;
        experts.feed_forward(model, &block, layer)?;
        model.add(Branch, Residual);
    }
    // Its published name; converters have kept it.
    model.head_after("token_embd_norm.weight")
}
