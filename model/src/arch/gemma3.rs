//! Gemma 3: norms before and after each half of a block, normed queries and keys, five
//! layers with a sliding window for each one without, and a GeGLU feed-forward network.
//! <https://arxiv.org/abs/2503.19786>

use emel_kernels::{RopeScaling, RopeStyle};

use crate::error::ModelError;
use crate::hyperparameters::Hyperparameters;
use crate::program::Buffer::{Attended, Branch, Key, Normed, Query, Residual};
use crate::program::{Activation, Op, ProgramBuilder, Scores};

/// Every sixth layer looks at all positions.
const GLOBAL_EVERY: usize = 6;

/// Base of the rotary frequencies in windowed layers.
const LOCAL_ROPE_BASE: f32 = 10_000.0;

/// The 27B model, told by its number of layers, scales its scores by another width.
const LAYERS_27B: usize = 62;

pub(super) fn describe(
    model: &mut ProgramBuilder<'_>,
    shape: &Hyperparameters,
) -> Result<(), ModelError> {
    let halves = RopeStyle::Halves;
    let global = model.rotation(halves, shape.rope_base, shape.rope_scaling, "")?;
    let local = model.rotation(halves, LOCAL_ROPE_BASE, RopeScaling::None, "")?;
    let score_width = if shape.layers == LAYERS_27B {
        shape.width / shape.heads
    } else {
        shape.key_width
    };

    model.push(Op::Scale {
        buffer: Residual,
        factor: (shape.width as f32).sqrt(),
    });
    for layer in 0..shape.layers {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let is_global = (layer + 1).is_multiple_of(GLOBAL_EVERY);
        let rotation = if is_global { global } else { local };
        model.begin_layer(layer);

        model.norm(&name("attn_norm.weight"), Residual, Normed)?;
        model.query_key_value([&name("attn_q"), &name("attn_k"), &name("attn_v")])?;
        model.norm_heads(&name("attn_q_norm.weight"), Query, shape.key_width)?;
        model.norm_heads(&name("attn_k_norm.weight"), Key, shape.key_width)?;
        model.rope(rotation);
        let window = shape.sliding_window.filter(|_| !is_global);
        model.attention(Scores {
            scale: 1.0 / (score_width as f32).sqrt(),
            window,
            ..Scores::default()
        })?;
        model.linear(&name("attn_output"), shape.width, Attended, Branch)?;
        model.norm(&name("post_attention_norm.weight"), Branch, Branch)?;
        model.add(Branch, Residual);

        model.norm(&name("ffn_norm.weight"), Residual, Normed)?;
        model.gated_feed_forward(
            [&name("ffn_gate"), &name("ffn_up"), &name("ffn_down")],
            Activation::Gelu,
        )?;
        model.norm(&name("post_ffw_norm.weight"), Branch, Branch)?;
        model.add(Branch, Residual);
    }
    model.head()
}
