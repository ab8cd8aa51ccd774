//! Qwen2 and Qwen2.5: biases on queries, keys and values, which the file brings along.
//! <https://arxiv.org/abs/2407.10671>

use emel_kernels::RopeStyle;

use super::pre_norm::PreNorm;
use crate::error::ModelError;
use crate::hyperparameters::Hyperparameters;
use crate::program::ProgramBuilder;

pub(super) fn describe(
    model: &mut ProgramBuilder<'_>,
    shape: &Hyperparameters,
) -> Result<(), ModelError> {
    PreNorm::new(RopeStyle::Halves).describe(model, shape)
}
