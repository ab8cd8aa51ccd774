//! The decoder that most families share: pre-norm blocks of grouped-query attention with
//! rotary positions, and a SwiGLU feed-forward network. What tells them apart is data.
//! <https://arxiv.org/abs/2302.13971>, <https://arxiv.org/abs/2407.21783>

use emel_kernels::RopeStyle;

use crate::error::ModelError;
use crate::hyperparameters::Hyperparameters;
use crate::program::Buffer::{Attended, Branch, Key, Normed, Query, Residual};
use crate::program::{Activation, Mixture, ProgramBuilder, Scores};

/// What differs between the families.
pub(super) struct PreNorm {
    /// Which dimensions of a head rotate together.
    pub(super) rope_style: RopeStyle,
    /// Whether each query and key head is normed before it is rotated.
    pub(super) norms_heads: bool,
    /// The mixture of experts in place of the feed-forward network.
    pub(super) mixture: Option<Mixture>,
}

impl PreNorm {
    pub(super) fn describe(
        &self,
        model: &mut ProgramBuilder<'_>,
        shape: &Hyperparameters,
    ) -> Result<(), ModelError> {
        let rotation = model.rotation(
            self.rope_style,
            shape.rope_base,
            shape.rope_scaling,
            "rope_freqs.weight",
        )?;
        for layer in 0..shape.layers {
            let name = |part: &str| format!("blk.{layer}.{part}");
            model.begin_layer(layer);

            model.norm(&name("attn_norm.weight"), Residual, Normed)?;
            model.query_key_value([&name("attn_q"), &name("attn_k"), &name("attn_v")])?;
            if self.norms_heads {
                model.norm_heads(&name("attn_q_norm.weight"), Query, shape.key_width)?;
                model.norm_heads(&name("attn_k_norm.weight"), Key, shape.key_width)?;
            }
            model.rope(rotation);
            model.attention(Scores {
                scale: 1.0 / (shape.key_width as f32).sqrt(),
                ..Scores::default()
            })?;
            model.linear(&name("attn_output"), shape.width, Attended, Branch)?;
            model.add(Branch, Residual);

            model.norm(&name("ffn_norm.weight"), Residual, Normed)?;
            if let Some(mixture) = self.mixture {
                model.mixture(&format!("blk.{layer}"), mixture)?;
            } else {
                model.gated_feed_forward(
                    [&name("ffn_gate"), &name("ffn_up"), &name("ffn_down")],
                    Activation::Silu,
                )?;
            }
            model.add(Branch, Residual);
        }
        model.head()
    }
}
