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
    /// Number of blocks.
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
    /// The context length before it was stretched.
    pub original_context: usize,
    /// Positions that a windowed layer looks back on, itself included.
    pub sliding_window: Option<usize>,
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
        let width = keys.size("embedding_length")?;
        let heads = keys.size("attention.head_count")?;
        let (experts, experts_used, expert_width) = experts(&keys)?;
        // A mixture without dense layers may leave their width out.
        let feed_forward = match expert_width {
            Some(width) if keys.count("feed_forward_length")? == 0 => width,
            _ => keys.size("feed_forward_length")?,
        };
        let key_width = keys.size_or("attention.key_length", (width / heads).max(1))?;
        let rope_width = keys.size_or("rope.dimension_count", key_width)?;
        if rope_width > key_width || !rope_width.is_multiple_of(2) {
            return Err(keys.refuse(
                "rope.dimension_count",
                rope_width,
                &format!("an even number up to the head's width {key_width}"),
            ));
        }
        let context_length = keys.size("context_length")?;
        let original_context =
            keys.size_or("rope.scaling.original_context_length", context_length)?;
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
            layers: blocks - ahead,
            width,
            heads,
            kv_heads: layer_kv_heads.numbers().iter().copied().max().unwrap_or(0),
            layer_kv_heads,
            key_width,
            value_width: keys.size_or("attention.value_length", key_width)?,
            feed_forward,
            experts,
            experts_used,
            expert_feed_forward: expert_width.unwrap_or(feed_forward),
            context_length,
            original_context,
            norm_epsilon: keys.positive("attention.layer_norm_rms_epsilon", 1e-5)?,
            rope_width,
            rope_base: keys.positive("rope.freq_base", 10_000.0)?,
            rope_scaling: rope_scaling(&keys, original_context)?,
            sliding_window: keys
                .u32("attention.sliding_window")?
                .filter(|&window| window > 0)
                .map(|window| window as usize),
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

/// Experts, how many of them a token goes to, and the width of one if the file says it.
fn experts(keys: &Keys<'_>) -> Result<(usize, usize, Option<usize>), ModelError> {
    let experts = keys.count("expert_count")?;
    if experts == 0 {
        return Ok((0, 0, None));
    }
    let used = keys.size("expert_used_count")?;
    if used > experts {
        let expected = format!("at most the {experts} experts");
        return Err(keys.refuse("expert_used_count", used, &expected));
    }
    let width = keys.optional_size("expert_feed_forward_length")?;
    Ok((experts, used, width))
}

/// What `rope.scaling.*` says. A factor without a type means positions divided by it;
/// `rope.scale_linear` is the older name of the factor.
fn rope_scaling(keys: &Keys<'_>, original_context: usize) -> Result<RopeScaling, ModelError> {
    let positive = |suffix, default| keys.positive(suffix, default).map(f64::from);
    let older = keys.positive("rope.scale_linear", 1.0)?;
    let factor = positive("rope.scaling.factor", older)?;
    let attn_factor = positive("rope.scaling.attn_factor", 1.0)?
        * positive("rope.scaling.yarn_attn_factor", 1.0)?;
    let beta_fast = positive("rope.scaling.yarn_beta_fast", 32.0)?;
    let beta_slow = positive("rope.scaling.yarn_beta_slow", 1.0)?;
    // Without its ramp, YaRN is interpolation with a magnitude.
    let yarn = |factor, ext_factor| RopeScaling::Yarn {
        factor,
        original_context,
        ext_factor,
        attn_factor,
        beta_fast,
        beta_slow,
    };
    Ok(match keys.str("rope.scaling.type")?.unwrap_or("linear") {
        "yarn" => yarn(factor, positive("rope.scaling.yarn_ext_factor", 1.0)?),
        "linear" if attn_factor == 1.0 => RopeScaling::Linear { factor },
        "linear" => yarn(factor, 0.0),
        // The factors of LongRoPE are tensors; only its magnitude is a number.
        "none" | "longrope" if attn_factor == 1.0 => RopeScaling::None,
        "none" | "longrope" => yarn(1.0, 0.0),
        other => {
            let expected = "`none`, `linear`, `yarn` or `longrope`";
            return Err(keys.refuse("rope.scaling.type", other, expected));
        }
    })
}
