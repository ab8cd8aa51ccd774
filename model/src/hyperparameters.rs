//! The numbers that shape a model, from the metadata keys of its architecture.

use emel_kernels::RopeScaling;
use emel_loader::gguf::{Catalog, Metadata, Value};

use crate::error::ModelError;

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
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
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
        let keys = Keys {
            metadata,
            architecture,
        };
        let width = keys.size("embedding_length")?;
        let heads = keys.size("attention.head_count")?;
        let kv_heads = keys.size_or("attention.head_count_kv", heads)?;
        if !heads.is_multiple_of(kv_heads) {
            return Err(keys.refuse(
                "attention.head_count_kv",
                kv_heads,
                &format!("a divisor of the {heads} query heads"),
            ));
        }
        let experts = keys.count("expert_count")?;
        let (mut experts_used, mut feed_forward_default) = (0, None);
        if experts > 0 {
            experts_used = keys.size("expert_used_count")?;
            if experts_used > experts {
                return Err(keys.refuse(
                    "expert_used_count",
                    experts_used,
                    &format!("at most the {experts} experts"),
                ));
            }
            feed_forward_default = keys.optional_size("expert_feed_forward_length")?;
        }
        // A mixture without dense layers may leave the width of these out.
        let feed_forward = match feed_forward_default {
            Some(width) => keys.size_or("feed_forward_length", width)?,
            None => keys.size("feed_forward_length")?,
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
        Ok(Self {
            architecture: architecture.to_owned(),
            layers: keys.size("block_count")?,
            width,
            heads,
            kv_heads,
            key_width,
            value_width: keys.size_or("attention.value_length", key_width)?,
            feed_forward,
            experts,
            experts_used,
            expert_feed_forward: feed_forward_default.unwrap_or(feed_forward),
            context_length: keys.size("context_length")?,
            norm_epsilon: keys.positive("attention.layer_norm_rms_epsilon", 1e-5)?,
            rope_width,
            rope_base: keys.positive("rope.freq_base", 10_000.0)?,
            rope_scaling: keys.rope_scaling()?,
            sliding_window: keys
                .u32("attention.sliding_window")?
                .filter(|&window| window > 0)
                .map(|window| window as usize),
        })
    }
}

/// Metadata keys under the architecture's prefix.
struct Keys<'a> {
    metadata: &'a Metadata,
    architecture: &'a str,
}

impl Keys<'_> {
    fn name(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.architecture)
    }

    fn refuse(&self, suffix: &str, found: impl ToString, expected: &str) -> ModelError {
        ModelError::Hyperparameter {
            key: self.name(suffix),
            found: found.to_string(),
            expected: expected.to_owned(),
        }
    }

    /// An integer; one that a converter wrote per layer counts if all layers agree.
    fn u32(&self, suffix: &str) -> Result<Option<u32>, ModelError> {
        let name = self.name(suffix);
        if let Some(Value::Array(_)) = self.metadata.get(&name) {
            let values = self.metadata.i32s(&name)?.unwrap_or_default();
            let first = values.first().copied();
            let agree = values.iter().all(|&value| Some(value) == first);
            return match first.and_then(|value| u32::try_from(value).ok()) {
                Some(value) if agree => Ok(Some(value)),
                _ => Err(self.refuse(suffix, "different in each layer", "one number")),
            };
        }
        Ok(self.metadata.u32(&name)?)
    }

    /// A required positive integer.
    fn size(&self, suffix: &str) -> Result<usize, ModelError> {
        let name = self.name(suffix);
        let found = Metadata::required(self.u32(suffix)?, &name, "a positive integer")?;
        self.checked_size(suffix, found as usize)
    }

    /// A positive integer, if the file has it.
    fn optional_size(&self, suffix: &str) -> Result<Option<usize>, ModelError> {
        self.u32(suffix)?
            .map(|found| self.checked_size(suffix, found as usize))
            .transpose()
    }

    /// An integer that is 0 where the file has none.
    fn count(&self, suffix: &str) -> Result<usize, ModelError> {
        Ok(self.u32(suffix)?.unwrap_or(0) as usize)
    }

    fn size_or(&self, suffix: &str, default: usize) -> Result<usize, ModelError> {
        let found = self.u32(suffix)?.map_or(default, |value| value as usize);
        self.checked_size(suffix, found)
    }

    fn checked_size(&self, suffix: &str, found: usize) -> Result<usize, ModelError> {
        // Far above any model, and low enough that products of two fit 64 bits.
        if (1..=1 << 28).contains(&found) {
            Ok(found)
        } else {
            Err(self.refuse(suffix, found, "a positive integer below 2^28"))
        }
    }

    fn positive(&self, suffix: &str, default: f32) -> Result<f32, ModelError> {
        let found = self.metadata.f32(&self.name(suffix))?.unwrap_or(default);
        if found.is_finite() && found > 0.0 {
            Ok(found)
        } else {
            Err(self.refuse(suffix, found, "a positive number"))
        }
    }

    fn rope_scaling(&self) -> Result<RopeScaling, ModelError> {
        let name = self.name("rope.scaling.type");
        let positive = |suffix, default| self.positive(suffix, default).map(f64::from);
        let factor = positive("rope.scaling.factor", 1.0)?;
        match self.metadata.str(&name)?.unwrap_or("none") {
            "none" => Ok(RopeScaling::None),
            "linear" => Ok(RopeScaling::Linear { factor }),
            "yarn" => {
                let original = self.size("rope.scaling.original_context_length")?;
                Ok(RopeScaling::Yarn {
                    factor,
                    original_context: original,
                    ext_factor: 1.0,
                    attn_factor: positive("rope.scaling.attn_factor", 1.0)?,
                    beta_fast: positive("rope.scaling.yarn_beta_fast", 32.0)?,
                    beta_slow: positive("rope.scaling.yarn_beta_slow", 1.0)?,
                })
            }
            other => Err(ModelError::Feature {
                architecture: self.architecture.to_owned(),
                feature: format!("RoPE scaling `{other}`"),
            }),
        }
    }
}
