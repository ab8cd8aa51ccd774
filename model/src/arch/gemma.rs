//! What Gemma 2 and Gemma 3 share: norms before and after each half of a block, scaled
//! embeddings, a GeGLU feed-forward network, and layers with a sliding window between
//! those without.
//! <https://arxiv.org/abs/2408.00118>, <https://arxiv.org/abs/2503.19786>

use emel_kernels::{RopeScaling, RopeStyle};

use super::window::Windows;
use crate::error::ModelError;
use crate::hyperparameters::Hyperparameters;
use crate::program::Buffer::{Attended, Branch, Key, Logits, Normed, Query, Residual};
use crate::program::{Activation, Op, ProgramBuilder, RotationFactors, Scores};

/// What differs between them.
#[derive(Debug, Clone)]
pub(super) struct Gemma {
    /// Layers that look back on some positions only.
    pub(super) windows: Option<Windows>,
    /// Base and scaling of the rotary frequencies in those.
    pub(super) local_rope: (f32, RopeScaling),
    /// Whether each query and key head is normed before it is rotated.
    pub(super) norms_heads: bool,
    /// The 27B model, told by its number of layers, scales its scores by another width.
    pub(super) layers_27b: usize,
    /// Whether the output head is always the embedding.
    pub(super) is_tied: bool,
    /// The limit of attention's scores.
    pub(super) score_cap: Option<f32>,
    /// The limit of logits.
    pub(super) logit_cap: Option<f32>,
}

impl Gemma {
    pub(super) fn describe(
        &self,
        model: &mut ProgramBuilder<'_>,
        shape: &Hyperparameters,
    ) -> Result<(), ModelError> {
        let style = RopeStyle::Halves;
        let global = model.rotation(style)?;
        let local = match self.local_rope {
            _ if self.windows.is_none() => global,
            same if same == (shape.rope_base, shape.rope_scaling) => global,
            (base, scaling) => model.rotation_with(style, base, scaling, RotationFactors::None),
        };
        let score_width = if shape.layers == self.layers_27b {
            shape.width / shape.heads
        } else {
            shape.key_width
        };

        model.scale(Residual, (shape.width as f32).sqrt());
        for layer in 0..shape.layers {
            let block = format!("blk.{layer}");
            let name = |part: &str| format!("{block}.{part}.weight");
            let window = self.windows.as_ref().and_then(|windows| windows.of(layer));
            model.begin_layer(layer);

            model.norm(&name("attn_norm"), Residual, Normed)?;
            model.query_key_value(&block)?;
            if self.norms_heads {
                model.norm_heads(&name("attn_q_norm"), Query, shape.key_width)?;
                model.norm_heads(&name("attn_k_norm"), Key, shape.key_width)?;
            }
            model.rope(if window.is_none() { global } else { local });
            model.attention(Scores {
                scale: 1.0 / (score_width as f32).sqrt(),
                window,
                softcap: self.score_cap,
                sinks: None,
            })?;
            model.linear(
                &format!("{block}.attn_output"),
                shape.width,
                Attended,
                Branch,
            )?;
            model.norm(&name("post_attention_norm"), Branch, Branch)?;
            model.add(Branch, Residual);

            model.norm(&name("ffn_norm"), Residual, Normed)?;
            model.feed_forward(&block, Activation::Gelu)?;
            model.norm(&name("post_ffw_norm"), Branch, Branch)?;
            model.add(Branch, Residual);
        }
        match self.is_tied {
            true => model.tied_head()?,
            false => model.head()?,
        }
        if let Some(cap) = self.logit_cap {
            model.push(Op::Softcap {
                buffer: Logits,
                cap,
            });
        }
        Ok(())
    }
}
