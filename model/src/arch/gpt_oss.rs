//! gpt-oss: attention sinks, a window in every second layer, biases everywhere, and
//! experts with a clamped SwiGLU. <https://arxiv.org/abs/2508.10925>

use emel_kernels::RopeStyle;

use super::experts::Experts;
use super::pre_norm::PreNorm;
use super::window::Windows;
use crate::error::ModelError;
use crate::hyperparameters::Hyperparameters;
use crate::program::{Activation, Mixture, ProgramBuilder};
use crate::routing::Gating;

/// Parts of a layer that always have a bias.
const BIASED: [&str; 5] = [
    "attn_output",
    "ffn_gate_inp",
    "ffn_gate_exps",
    "ffn_up_exps",
    "ffn_down_exps",
];

pub(super) fn describe(
    model: &mut ProgramBuilder<'_>,
    shape: &Hyperparameters,
) -> Result<(), ModelError> {
    for layer in 0..shape.layers {
        for part in BIASED {
            model.require(&format!("blk.{layer}.{part}.bias"))?;
        }
    }
    let mixture = Mixture {
        gating: Gating::SoftmaxOfChosen,
        normalises: false,
        activation: Activation::ClampedSilu {
            alpha: 1.702,
            limit: 7.0,
        },
        ..Mixture::SOFTMAX
    };
    let keys = model.keys();
    let window = keys.size("attention.sliding_window")?;
    let family = PreNorm {
        windows: Some(Windows::read(&keys, shape, window, 2)?),
        local_rope_base: Some(keys.positive("rope.freq_base_swa", shape.rope_base)?),
        has_own_head: true,
        has_sinks: true,
        feed_forward_norm: "post_attention_norm",
        experts: Some(Experts::everywhere(mixture.read(&keys, shape)?)),
        ..PreNorm::new(RopeStyle::Halves)
    };
    family.describe(model, shape)
}
