//! GLM-4.5: dense layers before the mixtures, shared experts, and a sigmoid router with
//! a bias for the choice. <https://arxiv.org/abs/2508.06471>

use emel_kernels::RopeStyle;

use super::experts::Experts;
use super::pre_norm::{PreNorm, QueryKeyNorm};
use super::sections::{Dealing, check_sections};
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
        normalises: false,
        needs_choice_bias: true,
        ..Mixture::SOFTMAX
    };
    let keys = model.keys();
    check_sections(&keys, shape, Dealing::InRuns)?;
    let experts = Experts {
        mixture: mixture.read(&keys, shape)?,
        leading_dense: keys.count("leading_dense_block_count")?,
        shared_width: keys.count("expert_shared_count")? * shape.expert_feed_forward,
        gates_shared: false,
    };
    // The smaller of its models have no norms of queries and keys.
    let has_norm = |layer| model.has(&format!("blk.{layer}.attn_q_norm.weight"));
    let query_key_norm = if (0..shape.layers).any(has_norm) {
        QueryKeyNorm::EachHead
    } else {
        QueryKeyNorm::None
    };
    let family = PreNorm {
        query_key_norm,
        feed_forward_norm: "post_attention_norm",
        experts: Some(experts),
        turns_whole_heads: false,
        ..PreNorm::new(RopeStyle::Halves)
    };
    family.describe(model, shape)
}
