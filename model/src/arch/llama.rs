//! LLaMA and its many relatives: SmolLM2, Mistral, TinyLlama, … and, with experts,
//! Mixtral. <https://arxiv.org/abs/2401.04088>

use emel_kernels::RopeStyle;

use super::pre_norm::PreNorm;
use crate::error::ModelError;
use crate::hyperparameters::Hyperparameters;
use crate::program::{Activation, Mixture, ProgramBuilder};
use crate::routing::Gating;

const MIXTRAL: Mixture = Mixture {
    gating: Gating::Softmax,
    normalises: true,
    scale: 1.0,
    groups: None,
    activation: Activation::Silu,
};

pub(super) fn describe(
    model: &mut ProgramBuilder<'_>,
    shape: &Hyperparameters,
) -> Result<(), ModelError> {
    let family = PreNorm {
        // Converters permute Q and K so that neighbouring dimensions form a pair.
        rope_style: RopeStyle::Interleaved,
        norms_heads: false,
        mixture: (shape.experts > 0).then_some(MIXTRAL),
    };
    family.describe(model, shape)
}
