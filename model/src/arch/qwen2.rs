//! Qwen2 and Qwen2.5: biases on queries, keys and values, which the file brings along, and
//! in some models on the logits.
//! <https://arxiv.org/abs/2407.10671>

use emel_kernels::RopeStyle;

use super::pre_norm::PreNorm;
use crate::error::ModelError;
use crate::hyperparameters::Hyperparameters;
use crate::program::{Buffer, ProgramBuilder};

pub(super) fn describe(
    model: &mut ProgramBuilder<'_>,
    shape: &Hyperparameters,
) -> Result<(), ModelError> {
    PreNorm::new(RopeStyle::Halves).describe(model, shape)?;
    model.bias("output.bias", Buffer::Logits)
}
