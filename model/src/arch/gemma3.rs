//! Gemma 3: normed queries and keys, and five layers with a sliding window for each one
//! without. <https://arxiv.org/abs/2503.19786>

use emel_kernels::RopeScaling;

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
    // Without a window all layers are global.
    let windows = keys
        .optional_size("attention.sliding_window")?
        .map(|window| Windows::read(&keys, shape, window, 6))
        .transpose()?;
    // What is near is not stretched.
    let local_scaling = match shape.rope_scaling {
        RopeScaling::Yarn {
            attn_factor: 1.0, ..
        } => RopeScaling::None,
        RopeScaling::Yarn {
            original_context,
            ext_factor,
            attn_factor,
            beta_fast,
            beta_slow,
            ..
        } => RopeScaling::Yarn {
            factor: 1.0,
            original_context,
            ext_factor,
            attn_factor,
            beta_fast,
            beta_slow,
        },
        RopeScaling::None | RopeScaling::Linear { .. } => RopeScaling::None,
    };
    let family = Gemma {
        windows,
        local_rope: (
            keys.positive("rope.freq_base_swa", 10_000.0)?,
            local_scaling,
        ),
        norms_heads: true,
        layers_27b: 62,
        is_tied: false,
        score_cap: None,
        logit_cap: keys.optional_positive("final_logit_softcapping")?,
    };
    family.describe(model, shape)
}
