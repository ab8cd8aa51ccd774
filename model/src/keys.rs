//! Metadata keys under the prefix of a model's architecture, checked as they are read.

use emel_loader::gguf::{Catalog, Metadata, Value};

use crate::error::ModelError;

/// The keys of one architecture.
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
        let Some(Value::Array(_)) = self.metadata.get(&name) else {
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

    /// A positive integer, if the file has it.
    ///
    /// # Errors
    /// When it is out of range.
    pub fn optional_size(&self, suffix: &str) -> Result<Option<usize>, ModelError> {
        self.u32(suffix)?
            .map(|found| self.checked_size(suffix, found as usize))
            .transpose()
    }

    /// A positive integer, `default` where the file has none.
    ///
    /// # Errors
    /// When it is out of range.
    pub fn size_or(&self, suffix: &str, default: usize) -> Result<usize, ModelError> {
        let found = self.u32(suffix)?.map_or(default, |value| value as usize);
        self.checked_size(suffix, found)
    }

    /// A positive number, `default` where the file has none.
    ///
    /// # Errors
    /// When it is not positive or not finite.
    pub fn positive(&self, suffix: &str, default: f32) -> Result<f32, ModelError> {
        let found = self.metadata.f32(&self.name(suffix))?.unwrap_or(default);
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
        match self.metadata.f32(&self.name(suffix))? {
            None | Some(0.0) => Ok(None),
            Some(found) => self.positive(suffix, found).map(Some),
        }
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
        Ok(self.metadata.bool(&self.name(suffix))?)
    }

    /// A text, if the file has it.
    ///
    /// # Errors
    /// When it is of another type.
    pub fn str(&self, suffix: &str) -> Result<Option<&'a str>, ModelError> {
        Ok(self.metadata.str(&self.name(suffix))?)
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
