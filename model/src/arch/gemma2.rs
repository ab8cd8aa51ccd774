//! Gemma 2: every second layer has a sliding window; scores and logits are capped.
//! <https://arxiv.org/abs/2408.00118>

use super::gemma::Gemma;
use super::window::Windows;
use crate::error::ModelError;
use crate::hyperparameters::Hyperparameters;
use crate::program::ProgramBuilder;

pub(super) fn describe(
    model: &mut ProgramBuilder<'_>,
    shape: &Hyperparameters,
) -> Result<(), ModelError> {
    let keys = model.keys();
    let window = keys.size_or("attention.sliding_window", 4096)?;
    let family = Gemma {
        windows: Some(Windows::read(&keys, shape, window, 2)?),
        local_rope: (
            keys.positive("rope.freq_base_swa", shape.rope_base)?,
            shape.windowed_rope_scaling,
        ),
        norms_heads: false,
        layers_27b: 46,
        is_tied: true,
        score_cap: Some(keys.positive("attn_logit_softcapping", 50.0)?),
        logit_cap: Some(keys.positive("final_logit_softcapping", 30.0)?),
    };
    family.describe(model, shape)
}
