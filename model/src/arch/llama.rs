//! LLaMA and its many relatives: SmolLM2, Mistral, TinyLlama, …

use emel_kernels::RopeStyle;

use super::pre_norm::PreNorm;
use crate::error::ModelError;
use crate::hyperparameters::Hyperparameters;
use crate::program::ProgramBuilder;

pub(super) fn describe(
    model: &mut ProgramBuilder<'_>,
    shape: &Hyperparameters,
) -> Result<(), ModelError> {
    if shape.experts > 0 {
        return Err(ModelError::Feature {
            architecture: shape.architecture.clone(),
            feature: format!("a mixture of {} experts", shape.experts),
        });
    }
    let family = PreNorm {
        // Converters permute Q and K so that neighbouring dimensions form a pair.
        rope_style: RopeStyle::Interleaved,
        norms_heads: false,
    };
    family.describe(model, shape)
}
