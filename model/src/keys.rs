//! Metadata keys under the prefix of a model's architecture, checked as they are read.

use emel_loader::gguf::{Array, Catalog, Metadata, MetadataError, Value};

use crate::arch::known_keys::{Absence, KnownKey, known_keys};
use crate::error::ModelError;

/// What a note says of a key that the architecture reads, where its value is 0.
const ZEROS: [(&str, &str); 4] = [
    ("rope.scaling.factor", "which is read as 1"),
    ("rope.scale_linear", "which is read as 1"),
    (
        "rope.scaling.original_context_length",
        "so YaRN takes the context length",
    ),
    (
        "expert_feed_forward_length",
        "so feed_forward_length / expert_used_count is used",
    ),
];

/// Keys that say how a model was trained, but by which llama.cpp computes in other architectures
/// only, and the value that changes nothing.
const PASSED_OVER: [(&str, f32); 5] = [
    ("attention.sliding_window", 0.0),
    ("rope.scaling.yarn_ext_factor", 1.0),
    ("rope.scaling.yarn_attn_factor", 1.0),
    ("rope.scaling.yarn_beta_fast", 32.0),
    ("rope.scaling.yarn_beta_slow", 1.0),
];

/// The keys of one architecture. Those that it does not know are as if the file had none.
#[derive(Debug, Clone, Copy)]
pub struct Keys<'a> {
    metadata: &'a Metadata,
    architecture: &'a str,
}

/// A number of each layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PerLayer {
    /// The same for all.
    Same(usize),
    /// Layer by layer.
    Each(Vec<usize>),
}

impl PerLayer {
    /// The number of a layer, 0 for one that does not exist.
    pub fn of(&self, layer: usize) -> usize {
        match self {
            Self::Same(number) => *number,
            Self::Each(numbers) => numbers.get(layer).copied().unwrap_or(0),
        }
    }

    /// All numbers that occur.
    pub fn numbers(&self) -> &[usize] {
        match self {
            Self::Same(number) => std::slice::from_ref(number),
            Self::Each(numbers) => numbers,
        }
    }
}

impl<'a> Keys<'a> {
    /// The catalog's keys that begin with `architecture.`.
    pub fn new(catalog: &'a Catalog, architecture: &'a str) -> Self {
        Self {
            metadata: catalog.metadata(),
            architecture,
        }
    }

    /// Checks that the file has what the architecture cannot do without.
    ///
    /// # Errors
    /// Names the first key that is missing.
    pub fn check_required(&self) -> Result<(), ModelError> {
        let is_missing =
            |key: &&KnownKey| self.requires(key.suffix) && self.value(key.suffix).is_none();
        match known_keys(self.architecture).find(is_missing) {
            Some(key) => Err(ModelError::MissingHyperparameter {
                key: self.name(key.suffix),
            }),
            None => Ok(()),
        }
    }

    /// What a user should know of the values in use: those that the file does not have, and those
    /// that it has and that are not used.
    pub fn notes(&self) -> Vec<String> {
        let missing = known_keys(self.architecture)
            .filter(|key| self.value(key.suffix).is_none())
            .filter_map(|key| {
                let (number, whose) = self.in_place_of(key)?;
                let name = self.name(key.suffix);
                Some(format!("`{name}` is missing; {number}, {whose}, is used"))
            });
        let number = |suffix| self.metadata.f32(&self.name(suffix)).ok().flatten();
        let zeros = ZEROS.iter().filter_map(|(suffix, meaning)| {
            let is_zero = self.knows(suffix) && number(suffix) == Some(0.0);
            is_zero.then(|| format!("`{}` is 0, {meaning}", self.name(suffix)))
        });
        let passed_over = PASSED_OVER.iter().filter_map(|&(suffix, neutral)| {
            let found = number(suffix).filter(|&found| found != neutral && found >= 0.0)?;
            let name = self.name(suffix);
            (!self.knows(suffix))
                .then(|| format!("`{name}` is {found}; it is passed over, as in llama.cpp"))
        });
        missing.chain(zeros).chain(passed_over).collect()
    }

    /// The keys under the architecture's prefix by which nothing is computed.
    pub fn unused(&self) -> Vec<String> {
        let prefix = self.name("");
        let is_unused = |key: &&str| {
            let suffix = key.strip_prefix(&prefix);
            // The number of tokens is known anyway.
            suffix.is_some_and(|suffix| suffix != "vocab_size" && !self.knows(suffix))
        };
        let keys = self.metadata.iter().map(|(key, _)| key);
        keys.filter(is_unused).map(str::to_owned).collect()
    }

    /// Whether no model of the architecture is without the key.
    pub fn requires(&self, suffix: &str) -> bool {
        let known = self.known(suffix);
        known.is_some_and(|key| key.absence == Absence::Refused)
    }

    /// Whether the architecture reads the key.
    pub fn knows(&self, suffix: &str) -> bool {
        self.known(suffix).is_some()
    }

    /// The error for a value that no model can have.
    pub fn refuse(&self, suffix: &str, found: impl ToString, expected: &str) -> ModelError {
        ModelError::Hyperparameter {
            key: self.name(suffix),
            found: found.to_string(),
            expected: expected.to_owned(),
        }
    }

    /// An integer; one that a converter wrote per layer counts if all layers agree.
    ///
    /// # Errors
    /// When it is of another type, negative, or different in the layers.
    pub fn u32(&self, suffix: &str) -> Result<Option<u32>, ModelError> {
        let name = self.name(suffix);
        if let Some(Value::Array(_)) = self.value(suffix) {
            let values = self.metadata.i32s(&name)?.unwrap_or_default();
            let first = values.first().copied();
            let agree = values.iter().all(|&value| Some(value) == first);
            return match first.and_then(|value| u32::try_from(value).ok()) {
                Some(value) if agree => Ok(Some(value)),
                _ => Err(self.refuse(suffix, "different in each layer", "one number")),
            };
        }
        self.read(suffix, Metadata::u32)
    }

    /// An integer of each layer: one number for all, or an array of as many as `layers`;
    /// `default` where the file has none.
    ///
    /// # Errors
    /// When it is of another type, negative, absurdly large, or not one for each layer.
    pub fn for_each_layer(
        &self,
        suffix: &str,
        layers: usize,
        default: usize,
    ) -> Result<PerLayer, ModelError> {
        let name = self.name(suffix);
        let Some(Value::Array(_)) = self.value(suffix) else {
            return Ok(PerLayer::Same(self.size_or(suffix, default)?));
        };
        let values = self.metadata.i32s(&name)?.unwrap_or_default();
        if values.len() != layers {
            let found = format!("{} numbers", values.len());
            return Err(self.refuse(suffix, found, &format!("one for each of {layers} layers")));
        }
        let checked = |&value: &i32| match usize::try_from(value) {
            Ok(0) => Ok(0),
            Ok(value) => self.checked_size(suffix, value),
            Err(_) => Err(self.refuse(suffix, value, "no negative number")),
        };
        let numbers: Result<_, _> = values.iter().map(checked).collect();
        Ok(PerLayer::Each(numbers?))
    }

    /// An integer that is 0 where the file has none.
    ///
    /// # Errors
    /// As [`Keys::u32`].
    pub fn count(&self, suffix: &str) -> Result<usize, ModelError> {
        Ok(self.u32(suffix)?.unwrap_or(0) as usize)
    }

    /// A required positive integer.
    ///
    /// # Errors
    /// When it is missing or out of range.
    pub fn size(&self, suffix: &str) -> Result<usize, ModelError> {
        let name = self.name(suffix);
        let found = Metadata::required(self.u32(suffix)?, &name, "a positive integer")?;
        self.checked_size(suffix, found as usize)
    }

    /// A positive integer, `default` where the file has none.
    ///
    /// # Errors
    /// When it is out of range.
    pub fn size_or(&self, suffix: &str, default: usize) -> Result<usize, ModelError> {
        let found = self.u32(suffix)?.map_or(default, |value| value as usize);
        self.checked_size(suffix, found)
    }

    /// A positive integer, `default` where the file has none or says 0.
    ///
    /// # Errors
    /// When it is out of range.
    pub fn nonzero_or(&self, suffix: &str, default: usize) -> Result<usize, ModelError> {
        match self.count(suffix)? {
            0 => self.checked_size(suffix, default),
            found => self.checked_size(suffix, found),
        }
    }

    /// A positive integer, if the file has it; 0 counts as none.
    ///
    /// # Errors
    /// When it is out of range.
    pub fn optional_size(&self, suffix: &str) -> Result<Option<usize>, ModelError> {
        match self.count(suffix)? {
            0 => Ok(None),
            found => self.checked_size(suffix, found).map(Some),
        }
    }

    /// A positive number, `default` where the file has none.
    ///
    /// # Errors
    /// When it is not positive or not finite.
    pub fn positive(&self, suffix: &str, default: f32) -> Result<f32, ModelError> {
        let found = self.number(suffix)?.unwrap_or(default);
        if found.is_finite() && found > 0.0 {
            Ok(found)
        } else {
            Err(self.refuse(suffix, found, "a positive number"))
        }
    }

    /// A positive number, if the file has it; 0 counts as none.
    ///
    /// # Errors
    /// When it is negative or not finite.
    pub fn optional_positive(&self, suffix: &str) -> Result<Option<f32>, ModelError> {
        match self.number(suffix)? {
            None | Some(0.0) => Ok(None),
            Some(found) => self.positive(suffix, found).map(Some),
        }
    }

    /// A required positive number.
    ///
    /// # Errors
    /// When it is missing and the family has no value of its own, not positive or not finite.
    pub fn required_positive(&self, suffix: &str) -> Result<f32, ModelError> {
        let found = self.number(suffix)?;
        let found = Metadata::required(found, &self.name(suffix), "a positive number")?;
        self.positive(suffix, found)
    }

    /// A number, or the family's own where the file has none.
    ///
    /// # Errors
    /// When it is of another type.
    pub fn number(&self, suffix: &str) -> Result<Option<f32>, ModelError> {
        let found = self.read(suffix, Metadata::f32)?;
        let in_place = || self.in_place_of(self.known(suffix)?);
        Ok(found.or_else(|| in_place().map(|(number, _)| number)))
    }

    /// A factor, 1 where the file has none or says 0.
    ///
    /// # Errors
    /// When it is negative or not finite.
    pub fn factor(&self, suffix: &str) -> Result<f32, ModelError> {
        Ok(self.optional_positive(suffix)?.unwrap_or(1.0))
    }

    /// A switch, if the file has it.
    ///
    /// # Errors
    /// When it is of another type.
    pub fn bool(&self, suffix: &str) -> Result<Option<bool>, ModelError> {
        self.read(suffix, Metadata::bool)
    }

    /// A switch for each of `layers`, if the file has it, as booleans or as 0 and others.
    ///
    /// # Errors
    /// When it is of another type or length.
    pub fn flags(&self, suffix: &str, layers: usize) -> Result<Option<Vec<bool>>, ModelError> {
        let flags = match self.value(suffix) {
            None => return Ok(None),
            Some(Value::Array(Array::Bool(flags))) => flags.clone(),
            Some(Value::Array(Array::I32(flags))) => flags.iter().map(|&flag| flag != 0).collect(),
            Some(other) => {
                return Err(self.refuse(suffix, other.describe(), "a flag for each layer"));
            }
        };
        if flags.len() != layers {
            let found = format!("{} flags", flags.len());
            return Err(self.refuse(suffix, found, &format!("one for each of {layers} layers")));
        }
        Ok(Some(flags))
    }

    /// Whether the file has an array for a key.
    pub fn is_array(&self, suffix: &str) -> bool {
        matches!(self.value(suffix), Some(Value::Array(_)))
    }

    /// Several integers, if the file has them.
    ///
    /// # Errors
    /// When they are of another type.
    pub fn i32s(&self, suffix: &str) -> Result<Option<&'a [i32]>, ModelError> {
        self.read(suffix, Metadata::i32s)
    }

    /// A text, if the file has it.
    ///
    /// # Errors
    /// When it is of another type.
    pub fn str(&self, suffix: &str) -> Result<Option<&'a str>, ModelError> {
        self.read(suffix, Metadata::str)
    }

    /// The number that stands for a key that the file does not have, and whose it is.
    fn in_place_of(&self, key: &KnownKey) -> Option<(f32, &'static str)> {
        let own = "the family's own value";
        match key.absence {
            Absence::Own(number) => Some((number, own)),
            Absence::OwnWithout { other, number, .. } if self.value(other).is_none() => {
                Some((number, own))
            }
            Absence::OwnWithout { default, .. } => Some((default, "llama.cpp's value")),
            Absence::Default | Absence::Refused => None,
        }
    }

    /// What the table says of a key.
    fn known(&self, suffix: &str) -> Option<&'static KnownKey> {
        known_keys(self.architecture).find(|key| key.suffix == suffix)
    }

    /// The value of a key that the architecture knows.
    fn value(&self, suffix: &str) -> Option<&'a Value> {
        self.known(suffix)?;
        self.metadata.get(&self.name(suffix))
    }

    /// A value of one type.
    fn read<T>(
        &self,
        suffix: &str,
        read: impl FnOnce(&'a Metadata, &str) -> Result<Option<T>, MetadataError>,
    ) -> Result<Option<T>, ModelError> {
        match self.value(suffix) {
            Some(_) => Ok(read(self.metadata, &self.name(suffix))?),
            None => Ok(None),
        }
    }

    fn name(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.architecture)
    }

    fn checked_size(&self, suffix: &str, found: usize) -> Result<usize, ModelError> {
        // Far above any model, and low enough that products of two fit 64 bits.
        if (1..=1 << 28).contains(&found) {
            Ok(found)
        } else {
            Err(self.refuse(suffix, found, "a positive integer below 2^28"))
        }
    }
}
