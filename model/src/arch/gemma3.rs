//! Gemma 3: normed queries and keys, and five layers with a sliding window for each one
//! without. <https://arxiv.org/abs/2503.19786>

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
        global_every: 6,
        window: shape.sliding_window,
        local_rope_base: Some(keys.positive("rope.freq_base_swa", 10_000.0)?),
        norms_heads: true,
        layers_27b: 62,
        score_cap: None,
        logit_cap: keys.optional_positive("final_logit_softcapping")?,
    };
    family.describe(model, shape)
}
