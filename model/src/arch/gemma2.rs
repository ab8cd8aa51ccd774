//! Gemma 2: every second layer has a sliding window; scores and logits are capped.
//! <https://arxiv.org/abs/2408.00118>

use super::gemma::Gemma;
use crate::error::ModelError;
use crate::hyperparameters::Hyperparameters;
use crate::program::ProgramBuilder;

pub(super) fn describe(
    model: &mut ProgramBuilder<'_>,
    shape: &Hyperparameters,
) -> Result<(), ModelError> {
    let keys = model.keys();
    let family = Gemma {
        global_every: 2,
        window: Some(shape.sliding_window.unwrap_or(4096)),
        local_rope_base: None,
        norms_heads: false,
        layers_27b: 46,
        score_cap: Some(keys.positive("attn_logit_softcapping", 50.0)?),
        logit_cap: Some(keys.positive("final_logit_softcapping", 30.0)?),
    };
    family.describe(model, shape)
}
