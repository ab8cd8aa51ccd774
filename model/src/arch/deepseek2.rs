//! DeepSeek-V2, V3 and R1, Kimi K2, …: latent attention, and after some dense layers a
//! mixture of experts in groups, with experts of every token.
//! <https://arxiv.org/abs/2405.04434>, <https://arxiv.org/abs/2412.19437>

use emel_kernels::{RopeScaling, RopeStyle};

use super::experts::Experts;
use crate::error::ModelError;
use crate::hyperparameters::Hyperparameters;
use crate::program::Buffer::{Branch, Normed, Residual};
use crate::program::{LatentShape, Mixture, ProgramBuilder, RotationFactors};

pub(super) fn describe(
    model: &mut ProgramBuilder<'_>,
    shape: &Hyperparameters,
) -> Result<(), ModelError> {
    let latent = latent_shape(model, shape)?;
    let (scaling, score_scale) = stretched(model, shape)?;
    let rotation = model.rotation_with(
        RopeStyle::Interleaved,
        shape.rope_base,
        scaling,
        RotationFactors::None,
    );
    let key_width = (latent.nope + latent.rope) as f32;
    let keys = model.keys();
    let mixture = Mixture {
        normalises: false,
        ..Mixture::SOFTMAX
    }
    .read(&keys, shape)?;
    let experts = Experts {
        mixture,
        // Without experts all layers are dense.
        leading_dense: match shape.experts {
            0 => shape.layers,
            _ => keys.count("leading_dense_block_count")?,
        },
        shared_width: keys.count("expert_shared_count")? * shape.expert_feed_forward,
        gates_shared: false,
    };
    for layer in 0..shape.layers {
        let block = format!("blk.{layer}");
        let name = |part: &str| format!("{block}.{part}");
        model.begin_layer(layer);

        model.norm(&name("attn_norm.weight"), Residual, Normed)?;
        model.latent_attention(&block, latent, rotation, score_scale / key_width.sqrt())?;
        model.add(Branch, Residual);

        model.norm(&name("ffn_norm.weight"), Residual, Normed)?;
        experts.feed_forward(model, &block, layer)?;
        model.add(Branch, Residual);
    }
    model.head()
}

/// Widths of latent attention. `key_length` and `value_length` are those of the latent
/// vectors where a file has the `_mla` keys, and the heads' own where it is older.
fn latent_shape(
    model: &ProgramBuilder<'_>,
    shape: &Hyperparameters,
) -> Result<LatentShape, ModelError> {
    let keys = model.keys();
    let key = keys.size_or("attention.key_length_mla", shape.key_width)?;
    let rope = shape.rope_width;
    if key <= rope {
        let expected = format!("more than the {rope} dimensions that turn");
        return Err(keys.refuse("attention.key_length_mla", key, &expected));
    }
    Ok(LatentShape {
        latent: keys.size("attention.kv_lora_rank")?,
        // The small models project queries directly.
        query_latent: match model.has("blk.0.attn_q.weight") {
            true => None,
            false => Some(keys.size("attention.q_lora_rank")?),
        },
        nope: key - rope,
        rope,
        value: keys.size_or("attention.value_length_mla", shape.value_width)?,
    })
}

/// YaRN as DeepSeek applies it: scores grow with the context, by the square of
/// `1 + 0.1 · multiplier · ln factor`, and in place of that the rotation does not. Files
/// hold a tenth of the multiplier; those without one have both grow.
fn stretched(
    model: &ProgramBuilder<'_>,
    shape: &Hyperparameters,
) -> Result<(RopeScaling, f32), ModelError> {
    let multiplier = model
        .keys()
        .optional_positive("rope.scaling.yarn_log_multiplier")?;
    let mut scaling = shape.rope_scaling;
    let RopeScaling::Yarn {
        factor,
        attn_factor,
        ext_factor,
        ..
    } = &mut scaling
    else {
        return Ok((scaling, 1.0));
    };
    if *ext_factor == 0.0 {
        return Ok((scaling, 1.0));
    }
    let growth = |share: f64| 1.0 + share * factor.ln();
    let scores = *attn_factor * growth(multiplier.map_or(0.1, f64::from));
    if multiplier.is_some() {
        *attn_factor /= growth(0.1);
    }
    Ok((scaling, scores.powi(2) as f32))
}
