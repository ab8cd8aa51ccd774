//! Phi-3 and Phi-4: queries, keys and values in one matrix, gate and up in another, and
//! LongRoPE. <https://arxiv.org/abs/2404.14219>

use emel_kernels::RopeStyle;

use super::pre_norm::PreNorm;
use crate::error::ModelError;
use crate::hyperparameters::Hyperparameters;
use crate::program::ProgramBuilder;

pub(super) fn describe(
    model: &mut ProgramBuilder<'_>,
    shape: &Hyperparameters,
) -> Result<(), ModelError> {
    let family = PreNorm {
        turns_whole_heads: false,
        ..PreNorm::new(RopeStyle::Halves)
    };
    family.describe(model, shape)
}
