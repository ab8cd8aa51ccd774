//! LLaMA and its many relatives: SmolLM2, Mistral, TinyLlama, … and, with experts,
//! Mixtral. <https://arxiv.org/abs/2302.13971>, <https://arxiv.org/abs/2401.04088>

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
    let mixture = Mixture::SOFTMAX.read(&model.keys(), shape)?;
    let family = PreNorm {
        experts: (shape.experts > 0).then(|| Experts::everywhere(mixture)),
        // Converters permute Q and K so that neighbouring dimensions form a pair.
        ..PreNorm::new(RopeStyle::Interleaved)
    };
    family.describe(model, shape)
}
