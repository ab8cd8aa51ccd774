//! MiniMax-M2: queries and keys normed over all heads, of which a part rotates, and a
//! sigmoid router with a bias for the choice. <https://github.com/MiniMax-AI/MiniMax-M2>

use emel_kernels::RopeStyle;

use super::experts::Experts;
use super::pre_norm::{PreNorm, QueryKeyNorm};
use crate::error::ModelError;
use crate::hyperparameters::Hyperparameters;
use crate::program::{Mixture, ProgramBuilder};
use crate::routing::Gating;

pub(super) fn describe(
    model: &mut ProgramBuilder<'_>,
    shape: &Hyperparameters,
) -> Result<(), ModelError> {
    let mixture = Mixture {
        gating: Gating::Sigmoid,
        needs_choice_bias: true,
        ..Mixture::SOFTMAX
    };
    let family = PreNorm {
        query_key_norm: QueryKeyNorm::AllHeads,
        experts: Some(Experts::everywhere(mixture.read(&model.keys(), shape)?)),
        ..PreNorm::new(RopeStyle::Halves)
    };
    family.describe(model, shape)
}
