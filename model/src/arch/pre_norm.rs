//! The decoder that most families share: pre-norm blocks of grouped-query attention with
//! rotary positions, and a gated feed-forward network or a mixture of them. What tells
//! them apart is data.
//! <https://arxiv.org/abs/2302.13971>, <https://arxiv.org/abs/2407.21783>

use emel_kernels::RopeStyle;

use super::experts::Experts;
use super::window::Windows;
use crate::error::ModelError;
use crate::hyperparameters::Hyperparameters;
use crate::program::Buffer::{Attended, Branch, Key, Logits, Normed, Query, Residual};
use crate::program::{Activation, ProgramBuilder, RotationFactors, Scores};

/// What differs between the families.
#[derive(Debug, Clone)]
pub(super) struct PreNorm {
    /// Which dimensions of a head rotate together.
    pub(super) rope_style: RopeStyle,
    /// Whether queries and keys rotate at all.
    pub(super) has_rope: bool,
    /// Whether all dimensions of a head do.
    pub(super) turns_whole_heads: bool,
    /// How queries and keys are normed before they are rotated.
    pub(super) query_key_norm: QueryKeyNorm,
    /// What scores are multiplied with; 1 / √(width of a head) if there is none.
    pub(super) attention_scale: Option<f32>,
    /// Layers that look back on some positions only.
    pub(super) windows: Option<Windows>,
    /// Base of the rotary frequencies in those, if it is another.
    pub(super) local_rope_base: Option<f32>,
    /// Whether each head has a score that takes part and has no value.
    pub(super) has_sinks: bool,
    /// Whether the output head is never the embedding.
    pub(super) has_own_head: bool,
    /// The norm before the feed-forward network.
    pub(super) feed_forward_norm: &'static str,
    /// The mixture of experts in place of the feed-forward network.
    pub(super) experts: Option<Experts>,
    /// What embeddings are multiplied with.
    pub(super) embedding_scale: f32,
    /// What each branch is multiplied with before it joins the residual stream.
    pub(super) residual_scale: f32,
    /// What logits are multiplied with.
    pub(super) logit_scale: f32,
}

/// Norms of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QueryKeyNorm {
    None,
    /// Each head by itself.
    EachHead,
    /// All heads of a token together.
    AllHeads,
}

impl PreNorm {
    /// Llama, but for the style of its rotation.
    pub(super) fn new(rope_style: RopeStyle) -> Self {
        Self {
            rope_style,
            has_rope: true,
            turns_whole_heads: true,
            query_key_norm: QueryKeyNorm::None,
            attention_scale: None,
            windows: None,
            local_rope_base: None,
            has_sinks: false,
            has_own_head: false,
            feed_forward_norm: "ffn_norm",
            experts: None,
            embedding_scale: 1.0,
            residual_scale: 1.0,
            logit_scale: 1.0,
        }
    }

    pub(super) fn describe(
        &self,
        model: &mut ProgramBuilder<'_>,
        shape: &Hyperparameters,
    ) -> Result<(), ModelError> {
        let rotation = model.rotation(self.rope_style)?;
        let scaling = shape.windowed_rope_scaling;
        let local = match self.local_rope_base {
            Some(base) if (base, scaling) != (shape.rope_base, shape.rope_scaling) => {
                model.rotation_with(self.rope_style, base, scaling, RotationFactors::None)
            }
            _ => rotation,
        };
        model.scale(Residual, self.embedding_scale);
        for layer in 0..shape.layers {
            let block = format!("blk.{layer}");
            let window = self.windows.as_ref().and_then(|windows| windows.of(layer));
            model.begin_layer(layer);

            model.norm(&format!("{block}.attn_norm.weight"), Residual, Normed)?;
            model.query_key_value(&block)?;
            self.norm_queries_and_keys(model, shape.key_width, &block)?;
            if self.has_rope {
                model.rope(if window.is_none() { rotation } else { local });
            }
            self.attend(model, shape, layer, window)?;
            model.linear(
                &format!("{block}.attn_output"),
                shape.width,
                Attended,
                Branch,
            )?;
            model.scale(Branch, self.residual_scale);
            model.add(Branch, Residual);

            let norm = format!("{block}.{}.weight", self.feed_forward_norm);
            model.norm(&norm, Residual, Normed)?;
            match &self.experts {
                Some(experts) => experts.feed_forward(model, &block, layer)?,
                None => model.feed_forward(&block, Activation::Silu)?,
            }
            model.scale(Branch, self.residual_scale);
            model.add(Branch, Residual);
        }
        self.check(model, shape)?;
        model.head()?;
        model.scale(Logits, self.logit_scale);
        Ok(())
    }

    /// What no model of the family has is refused.
    fn check(&self, model: &ProgramBuilder<'_>, shape: &Hyperparameters) -> Result<(), ModelError> {
        if self.turns_whole_heads && shape.rope_width != shape.key_width {
            let expected = format!("the head's width {}", shape.key_width);
            let suffix = "rope.dimension_count";
            return Err(model.keys().refuse(suffix, shape.rope_width, &expected));
        }
        let name = "output.weight";
        if self.has_own_head && !model.has(name) {
            return Err(ModelError::MissingTensor {
                name: name.to_owned(),
            });
        }
        Ok(())
    }

    fn norm_queries_and_keys(
        &self,
        model: &mut ProgramBuilder<'_>,
        head_width: usize,
        block: &str,
    ) -> Result<(), ModelError> {
        // Layers may differ in the number of their key heads.
        let [queries, keys] = match self.query_key_norm {
            QueryKeyNorm::None => return Ok(()),
            QueryKeyNorm::EachHead => [head_width; 2],
            QueryKeyNorm::AllHeads => [Query, Key].map(|buffer| model.width(buffer)),
        };
        let name = |part: &str| format!("{block}.{part}.weight");
        model.norm_heads(&name("attn_q_norm"), Query, queries)?;
        model.norm_heads(&name("attn_k_norm"), Key, keys)
    }

    fn attend(
        &self,
        model: &mut ProgramBuilder<'_>,
        shape: &Hyperparameters,
        layer: usize,
        window: Option<usize>,
    ) -> Result<(), ModelError> {
        let sinks = format!("blk.{layer}.attn_sinks.weight");
        model.attention(Scores {
            scale: self
                .attention_scale
                .unwrap_or(1.0 / (shape.key_width as f32).sqrt()),
            window,
            softcap: None,
            sinks: self.has_sinks.then_some(sinks.as_str()),
        })
    }
}
