//! MiniMax-M2: queries and keys normed over all heads, of which a part rotates, and a
//! router with a bias for the choice. <https://github.com/MiniMax-AI/MiniMax-M2>

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
    let keys = model.keys();
    let (suffix, width) = (
        "expert_feed_forward_length",
        keys.size("feed_forward_length")?,
    );
    if shape.expert_feed_forward != width {
        let expected = format!("feed_forward_length, {width}");
        return Err(keys.refuse(suffix, keys.count(suffix)?, &expected));
    }
    let mixture = Mixture {
        needs_choice_bias: true,
        ..Mixture::SOFTMAX
    }
    .read(&keys, shape)?;
    let family = PreNorm {
        query_key_norm: QueryKeyNorm::AllHeads,
        experts: Some(Experts::everywhere(mixture)),
        turns_whole_heads: false,
        has_own_head: true,
        ..PreNorm::new(RopeStyle::Halves)
    };
    family.describe(model, shape)
}
