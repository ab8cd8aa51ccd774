//! Granite 3: Llama with scaled embeddings, branches, scores and logits; with experts,
//! Granite MoE. <https://arxiv.org/abs/2408.13359>

use emel_kernels::RopeStyle;

use super::experts::Experts;
use super::pre_norm::PreNorm;
use crate::error::ModelError;
use crate::hyperparameters::Hyperparameters;
use crate::program::{Mixture, ProgramBuilder};

pub(super) fn describe(
    model: &mut ProgramBuilder<'_>,
    shape: &Hyperparameters,
) -> Result<(), ModelError> {
    let keys = model.keys();
    let shared = keys.count("expert_shared_feed_forward_length")?;
    let experts = Experts {
        mixture: Mixture::SOFTMAX.read(&keys, shape)?,
        leading_dense: 0,
        shared_width: shared,
        gates_shared: false,
    };
    let family = PreNorm {
        experts: (shape.experts > 0).then_some(experts),
        attention_scale: keys.optional_positive("attention.scale")?,
        embedding_scale: keys.factor("embedding_scale")?,
        residual_scale: keys.factor("residual_scale")?,
        logit_scale: 1.0 / keys.required_positive("logit_scale")?,
        // Models that go without positions say so here.
        has_rope: keys.bool("rope.scaling.finetuned")?.unwrap_or(true),
        ..PreNorm::new(RopeStyle::Interleaved)
    };
    family.describe(model, shape)
}
