//! Qwen1.5 MoE and Qwen2 MoE: experts whose weights need not sum to one, and a shared
//! expert behind a gate. <https://arxiv.org/abs/2407.10671>

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
    let mixture = Mixture {
        normalises: false,
        ..Mixture::SOFTMAX
    };
    let keys = model.keys();
    let experts = Experts {
        mixture: mixture.read(&keys, shape)?,
        leading_dense: 0,
        shared_width: keys.nonzero_or("expert_shared_feed_forward_length", shape.feed_forward)?,
        gates_shared: true,
    };
    let family = PreNorm {
        experts: Some(experts),
        has_own_head: true,
        ..PreNorm::new(RopeStyle::Halves)
    };
    family.describe(model, shape)
}
