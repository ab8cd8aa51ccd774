//! OLMoE: queries and keys normed over all heads, and experts whose weights need not sum
//! to one. <https://arxiv.org/abs/2409.02060>

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
    let mixture = Mixture {
        normalises: false,
        ..Mixture::SOFTMAX
    };
    let family = PreNorm {
        query_key_norm: QueryKeyNorm::AllHeads,
        experts: Some(Experts::everywhere(mixture.read(&model.keys(), shape)?)),
        has_own_head: true,
        ..PreNorm::new(RopeStyle::Halves)
    };
    family.describe(model, shape)
}
