//! DeepSeek-V2, V3 and R1, Kimi K2, …: latent attention, and after some dense layers a
//! mixture of experts in groups, with experts of every token.
//! <https://arxiv.org/abs/2405.04434>, <https://arxiv.org/abs/2412.19437>

use emel_kernels::{RopeScaling, RopeStyle};

use super::experts::Experts;
use crate::error::ModelError;
use crate::hyperparameters::Hyperparameters;
use crate::keys::Keys;
use crate::program::Buffer::{Branch, Normed, Residual};
use crate::program::{LatentShape, Mixture, PositionGrowth, ProgramBuilder, RotationFactors};
use crate::routing::Gating;

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
        gating: gating(model, shape)?,
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
        shared_width: match shape.experts {
            0 => 0,
            _ => keys.size("expert_shared_count")? * shape.expert_feed_forward,
        },
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

/// How routers share where the file does not say: DeepSeek-V2's do by softmax, those of
/// GLM-4.7-Flash, known by its depth and vocabulary, by sigmoid.
fn gating(model: &ProgramBuilder<'_>, shape: &Hyperparameters) -> Result<Gating, ModelError> {
    let vocabulary = model
        .keys()
        .u32("vocab_size")?
        .map_or(model.vocabulary(), |tokens| tokens as usize);
    let is_glm = matches!(shape.layers, 47 | 48) && vocabulary == 154_880;
    Ok(if is_glm {
        Gating::Sigmoid
    } else {
        Gating::Softmax
    })
}

/// Growth of scores by position, as in Mistral Large 3; 0 is none.
fn growth(keys: &Keys<'_>) -> Result<Option<PositionGrowth>, ModelError> {
    let scale = keys.number("attention.temperature_scale")?.unwrap_or(0.0);
    if !scale.is_finite() {
        return Err(keys.refuse("attention.temperature_scale", scale, "a finite number"));
    }
    if scale == 0.0 {
        return Ok(None);
    }
    let length = keys.size("attention.temperature_length")?;
    Ok(Some(PositionGrowth { scale, length }))
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
    let latent = keys.size("attention.kv_lora_rank")?;
    // Queries meet the latent vectors themselves, which all heads share.
    if !model.has("blk.0.attn_kv_b.weight") {
        for (suffix, found, expected) in [
            ("attention.key_length", shape.key_width, latent + rope),
            ("attention.head_count_kv", shape.kv_heads, 1),
        ] {
            if found != expected {
                return Err(keys.refuse(suffix, found, &expected.to_string()));
            }
        }
    }
    Ok(LatentShape {
        latent,
        // The small models project queries directly.
        query_latent: match model.has("blk.0.attn_q.weight") {
            true => None,
            false => Some(keys.size("attention.q_lora_rank")?),
        },
        nope: key - rope,
        rope,
        value: keys.size_or("attention.value_length_mla", shape.value_width)?,
        growth: growth(&keys)?,
    })
}

/// YaRN as DeepSeek applies it: scores grow with the context, by the square of
/// `1 + 0.1 · multiplier · ln factor`, and in place of that the rotation does not. Files
/// hold a tenth of the multiplier; without one, and without YaRN, both grow.
fn stretched(
    model: &ProgramBuilder<'_>,
    shape: &Hyperparameters,
) -> Result<(RopeScaling, f32), ModelError> {
    let multiplier = model
        .keys()
        .optional_positive("rope.scaling.yarn_log_multiplier")?;
    let mut scaling = shape.rope_scaling;
    let mut is_yarn = false;
    let (factor, magnitude) = match &mut scaling {
        RopeScaling::None => (1.0, 1.0),
        RopeScaling::Linear { factor } => (*factor, 1.0),
        RopeScaling::Yarn {
            factor,
            attn_factor,
            ext_factor,
            ..
        } => {
            let magnitude = *attn_factor;
            is_yarn = *ext_factor != 0.0;
            if is_yarn && multiplier.is_some() {
                *attn_factor /= 1.0 + 0.1 * factor.ln();
            }
            (*factor, magnitude)
        }
    };
    let growth = |share: f64| 1.0 + share * factor.ln();
    let scores = match multiplier.map(f64::from) {
        None => magnitude * growth(0.1),
        Some(share) if is_yarn => magnitude * growth(share),
        Some(share) => magnitude * growth(0.1) * growth(share),
    };
    Ok((scaling, scores.powi(2) as f32))
}
