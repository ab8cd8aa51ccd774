//! The numbers that shape a model, from the metadata keys of its architecture.

use emel_kernels::RopeScaling;
use emel_loader::gguf::{Catalog, Metadata};

use crate::error::ModelError;
use crate::keys::{Keys, PerLayer};

/// What the architectures so far have in common.
#[derive(Debug, Clone, PartialEq)]
pub struct Hyperparameters {
    /// `general.architecture`, the prefix of the other keys.
    pub architecture: String,
    /// Blocks in the file: the layers, and after them those that predict further tokens.
    pub blocks: usize,
    /// Blocks that take part in the next token.
    pub layers: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads, the most that a layer has.
    pub kv_heads: usize,
    /// Those of each layer: 0 without attention, else a divisor of `heads`.
    pub layer_kv_heads: PerLayer,
    /// Width of a query or key head.
    pub key_width: usize,
    /// Width of a value head.
    pub value_width: usize,
    /// Width of the feed-forward network.
    pub feed_forward: usize,
    /// Experts of a mixture, 0 for a dense model.
    pub experts: usize,
    /// Experts that a token goes to.
    pub experts_used: usize,
    /// Width of one expert's feed-forward network.
    pub expert_feed_forward: usize,
    /// The context length the model was trained for.
    pub context_length: usize,
    /// ε of the RMS norms.
    pub norm_epsilon: f32,
    /// Dimensions of a head that are rotated.
    pub rope_width: usize,
    /// Base of the rotary frequencies.
    pub rope_base: f32,
    /// How rotary frequencies are stretched to longer contexts.
    pub rope_scaling: RopeScaling,
    /// The same in layers with a sliding window: as in llama.cpp, the type `none` leaves the
    /// factor to them.
    pub windowed_rope_scaling: RopeScaling,
    /// The context length before it was stretched.
    pub original_context: usize,
}

impl Hyperparameters {
    /// Reads them from the catalog's metadata.
    ///
    /// # Errors
    /// When one is missing, of the wrong type or impossible.
    pub fn read(catalog: &Catalog) -> Result<Self, ModelError> {
        let metadata = catalog.metadata();
        let key = "general.architecture";
        let architecture = Metadata::required(metadata.str(key)?, key, "a string")?;
        let keys = Keys::new(catalog, architecture);
        keys.check_required()?;
        if keys.bool("attention.causal")? == Some(false) {
            let expected = "true: tokens that look ahead are not supported";
            return Err(keys.refuse("attention.causal", false, expected));
        }
        let width = keys.size("embedding_length")?;
        let heads = keys.size("attention.head_count")?;
        let (experts, experts_used) = experts(&keys)?;
        let (feed_forward, expert_feed_forward) = feed_forward_widths(&keys, experts_used)?;
        let head_width = (width / heads).max(1);
        let key_width = keys.size_or("attention.key_length", head_width)?;
        let rope_width = keys.size_or("rope.dimension_count", key_width)?;
        if rope_width > key_width || !rope_width.is_multiple_of(2) {
            return Err(keys.refuse(
                "rope.dimension_count",
                rope_width,
                &format!("an even number up to the head's width {key_width}"),
            ));
        }
        let value_width = keys.size_or("attention.value_length", head_width)?;
        check_windowed_layers(&keys, key_width, value_width, rope_width)?;
        let context_length = keys.size("context_length")?;
        let original_context = keys
            .u32("rope.scaling.original_context_length")?
            .map_or(context_length, |found| found as usize);
        let scaling_type = keys.str("rope.scaling.type")?.unwrap_or("linear");
        let windowed_scaling_type = match scaling_type {
            "none" => "linear",
            other => other,
        };
        let blocks = keys.size("block_count")?;
        // Blocks at the end that predict further tokens take no part in the next one.
        let ahead = keys.count("nextn_predict_layers")?;
        if ahead >= blocks {
            return Err(keys.refuse(
                "nextn_predict_layers",
                ahead,
                &format!("fewer than the {blocks} blocks"),
            ));
        }
        let layer_kv_heads = kv_heads(&keys, blocks, heads)?;
        Ok(Self {
            architecture: architecture.to_owned(),
            blocks,
            layers: blocks - ahead,
            width,
            heads,
            kv_heads: layer_kv_heads.numbers().iter().copied().max().unwrap_or(0),
            layer_kv_heads,
            key_width,
            value_width,
            feed_forward,
            experts,
            experts_used,
            expert_feed_forward,
            context_length,
            original_context,
            norm_epsilon: keys.required_positive("attention.layer_norm_rms_epsilon")?,
            rope_width,
            rope_base: keys.positive("rope.freq_base", 10_000.0)?,
            rope_scaling: rope_scaling(&keys, scaling_type, context_length)?,
            windowed_rope_scaling: rope_scaling(&keys, windowed_scaling_type, context_length)?,
        })
    }
}

/// Key and value heads of each layer.
fn kv_heads(keys: &Keys<'_>, layers: usize, heads: usize) -> Result<PerLayer, ModelError> {
    let suffix = "attention.head_count_kv";
    let found = keys.for_each_layer(suffix, layers, heads)?;
    let refuse = |kv_heads: usize, expected: String| Err(keys.refuse(suffix, kv_heads, &expected));
    for &kv_heads in found.numbers() {
        if kv_heads != 0 && !heads.is_multiple_of(kv_heads) {
            return refuse(kv_heads, format!("a divisor of the {heads} query heads"));
        }
    }
    if found.numbers().iter().all(|&kv_heads| kv_heads == 0) {
        return refuse(0, "heads in some layer".to_owned());
    }
    Ok(found)
}

/// Experts, and how many of them a token goes to.
fn experts(keys: &Keys<'_>) -> Result<(usize, usize), ModelError> {
    let experts = keys.count("expert_count")?;
    if experts == 0 {
        return Ok((0, 0));
    }
    let used = keys.size("expert_used_count")?;
    if used > experts {
        let expected = format!("at most the {experts} experts");
        return Err(keys.refuse("expert_used_count", used, &expected));
    }
    Ok((experts, used))
}

/// Widths of the feed-forward network and of an expert's. A mixture without dense layers may
/// leave the first out; where the file does not say the second, those that a token goes to are
/// together as wide as the first.
fn feed_forward_widths(keys: &Keys<'_>, experts_used: usize) -> Result<(usize, usize), ModelError> {
    let suffix = "expert_feed_forward_length";
    if experts_used == 0 || !keys.knows(suffix) {
        let width = keys.size("feed_forward_length")?;
        return Ok((width, width));
    }
    let expert_width = match keys.count(suffix)? {
        0 if !keys.requires(suffix) => keys.size("feed_forward_length")? / experts_used,
        _ => keys.size(suffix)?,
    };
    match keys.count("feed_forward_length")? {
        _ if expert_width == 0 => Err(keys.refuse(suffix, 0, "a positive integer")),
        0 => Ok((expert_width, expert_width)),
        _ => Ok((keys.size("feed_forward_length")?, expert_width)),
    }
}

/// Heads of layers with a sliding window are as wide as those of the others.
fn check_windowed_layers(
    keys: &Keys<'_>,
    key_width: usize,
    value_width: usize,
    rope_width: usize,
) -> Result<(), ModelError> {
    for (suffix, expected) in [
        ("attention.key_length_swa", key_width),
        ("attention.value_length_swa", value_width),
        ("rope.dimension_count_swa", rope_width),
    ] {
        if let Some(found) = keys.u32(suffix)?
            && found as usize != expected
        {
            let expected = format!("{expected}, as in layers without a window");
            return Err(keys.refuse(suffix, found, &expected));
        }
    }
    Ok(())
}

/// What `rope.scaling.*` says. A factor without a type means positions divided by it;
/// `rope.scale_linear` is the older name of the factor, and 0 is none.
fn rope_scaling(
    keys: &Keys<'_>,
    scaling_type: &str,
    context_length: usize,
) -> Result<RopeScaling, ModelError> {
    let name = match keys.number("rope.scaling.factor")? {
        Some(_) => "rope.scaling.factor",
        None => "rope.scale_linear",
    };
    let factor = f64::from(keys.factor(name)?);
    let attn_factor = f64::from(keys.positive("rope.scaling.attn_factor", 1.0)?);
    let original_context =
        keys.nonzero_or("rope.scaling.original_context_length", context_length)?;
    // Without its ramp, YaRN is interpolation with a magnitude.
    let yarn = |factor, ext_factor| RopeScaling::Yarn {
        factor,
        original_context,
        ext_factor,
        attn_factor,
        beta_fast: 32.0,
        beta_slow: 1.0,
    };
    Ok(match scaling_type {
        "yarn" => yarn(factor, 1.0),
        // The factors of LongRoPE are tensors.
        "linear" | "longrope" if attn_factor != 1.0 => yarn(factor, 0.0),
        "linear" => RopeScaling::Linear { factor },
        "longrope" if factor != 1.0 => RopeScaling::Linear { factor },
        "none" if attn_factor != 1.0 => yarn(1.0, 0.0),
        "none" | "longrope" => RopeScaling::None,
        other => {
            let expected = "`none`, `linear`, `yarn` or `longrope`";
            return Err(keys.refuse("rope.scaling.type", other, expected));
        }
    })
}
