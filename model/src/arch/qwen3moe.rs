//! Qwen3 with a mixture of experts in every layer.
//! <https://arxiv.org/abs/2505.09388>

use emel_kernels::RopeStyle;

use super::pre_norm::PreNorm;
use crate::error::ModelError;
use crate::hyperparameters::Hyperparameters;
use crate::program::{Activation, Mixture, ProgramBuilder};
use crate::routing::Gating;

pub(super) fn describe(
    model: &mut ProgramBuilder<'_>,
    shape: &Hyperparameters,
) -> Result<(), ModelError> {
    let family = PreNorm {
        rope_style: RopeStyle::Halves,
        norms_heads: true,
        mixture: Some(Mixture {
            gating: Gating::Softmax,
            normalises: true,
            scale: 1.0,
            groups: None,
            activation: Activation::Silu,
        }),
    };
    family.describe(model, shape)
}
