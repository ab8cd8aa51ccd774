//! Qwen3 with a mixture of experts in every layer.
//! <https://arxiv.org/abs/2505.09388>

use emel_kernels::RopeStyle;

use super::experts::Experts;
use super::pre_norm::{PreNorm, QueryKeyNorm};
use crate::error::ModelError;
use crate::hyperparameters::Hyperparameters;
use crate::program::{Mixture, ProgramBuilder};

pub(super) fn describe(
    model: &mut ProgramBuilder<'_>,
    shape: &Hyperparameters,
) -> Result<(), ModelError> {
    let mixture = Mixture::SOFTMAX.read(&model.keys(), shape)?;
    let family = PreNorm {
        query_key_norm: QueryKeyNorm::EachHead,
        experts: Some(Experts::everywhere(mixture)),
        ..PreNorm::new(RopeStyle::Halves)
    };
    family.describe(model, shape)
}
