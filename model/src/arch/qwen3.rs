//! Qwen3: normed queries and keys, and heads of their own width.
//! <https://arxiv.org/abs/2505.09388>

use emel_kernels::RopeStyle;

use super::pre_norm::{PreNorm, QueryKeyNorm};
use crate::error::ModelError;
use crate::hyperparameters::Hyperparameters;
use crate::program::ProgramBuilder;

pub(super) fn describe(
    model: &mut ProgramBuilder<'_>,
    shape: &Hyperparameters,
) -> Result<(), ModelError> {
    let family = PreNorm {
        query_key_norm: QueryKeyNorm::EachHead,
        ..PreNorm::new(RopeStyle::Halves)
    };
    family.describe(model, shape)
}
