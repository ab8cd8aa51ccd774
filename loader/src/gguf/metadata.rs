//! Metadata of a GGUF file: typed key-value pairs.
//!
//! Arrays are kept in their own compact form (a vocabulary of 260,000 strings is
//! one byte buffer and one offset table), because they count against the budget.

use std::collections::BTreeMap;

/// A metadata key that is missing or does not hold what its reader expects.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetadataError {
    /// A required key is absent.
    #[error("metadata key `{key}` is missing, expected {expected}")]
    Missing {
        /// The key that was asked for.
        key: String,
        /// The type that was asked for.
        expected: &'static str,
    },
    /// The key holds another type, or a number that does not fit.
    #[error("metadata key `{key}` holds {found}, expected {expected}")]
    Type {
        /// The key that was asked for.
        key: String,
        /// The type that was asked for.
        expected: &'static str,
        /// What the file holds.
        found: String,
    },
}

/// One metadata value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Any unsigned integer type.
    Unsigned(u64),
    /// Any signed integer type.
    Signed(i64),
    /// `f32` or `f64`.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// A string; GGUF asks for UTF-8, but files exist that break the rule.
    String(Vec<u8>),
    /// An array of one element type.
    Array(Array),
}

/// An array value. Integer arrays of any width are widened or narrowed to `i32`
/// when every element fits, else to `i64`.
#[derive(Debug, Clone, PartialEq)]
pub enum Array {
    /// Integers that all fit in 32 bits.
    I32(Vec<i32>),
    /// Integers of which some need 64 bits.
    I64(Vec<i64>),
    /// `f32` elements, or `f64` rounded.
    F32(Vec<f32>),
    /// Booleans.
    Bool(Vec<bool>),
    /// Strings.
    String(StringTable),
    /// Arrays of arrays, which no model is known to use; only the length is kept.
    Nested(usize),
}

/// Many byte strings in one buffer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StringTable {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl StringTable {
    /// Appends one string. Returns `false`, leaving the table as it was, when the
    /// table would pass 4 GiB.
    pub fn push(&mut self, string: &[u8]) -> bool {
        let Ok(end) = u32::try_from(self.bytes.len() + string.len()) else {
            return false;
        };
        self.bytes.extend_from_slice(string);
        self.ends.push(end);
        true
    }

    /// The number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no string.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The string at `index`, or `None` past the end.
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)? as usize;
        let start = if index == 0 {
            0
        } else {
            self.ends[index - 1] as usize
        };
        Some(&self.bytes[start..end])
    }

    /// All strings in order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    /// Gives back the spare capacity of growing.
    pub fn shrink_to_fit(&mut self) {
        self.bytes.shrink_to_fit();
        self.ends.shrink_to_fit();
    }

    /// Heap bytes held.
    pub fn heap_bytes(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * size_of::<u32>()
    }
}

/// The key-value pairs of a GGUF header.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metadata {
    entries: BTreeMap<String, Value>,
}

impl Metadata {
    /// Adds or replaces a value; returns the one it replaces.
    pub fn insert(&mut self, key: String, value: Value) -> Option<Value> {
        self.entries.insert(key, value)
    }

    /// The raw value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.entries.get(key)
    }

    /// Takes the value of `key` out, so that a large array need not be held twice.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        self.entries.remove(key)
    }

    /// Drops all arrays, once whoever needs one has read it: nothing else in a header
    /// is large.
    pub fn drop_arrays(&mut self) {
        self.entries
            .retain(|_, value| !matches!(value, Value::Array(_)));
    }

    /// All pairs, in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries
            .iter()
            .map(|(key, value)| (key.as_str(), value))
    }

    /// An integer that fits `u32`, if the key is present.
    ///
    /// # Errors
    /// When the key holds something else.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, MetadataError> {
        self.typed(key, "an integer of 32 bits", |value| match value {
            Value::Unsigned(number) => u32::try_from(*number).ok(),
            Value::Signed(number) => u32::try_from(*number).ok(),
            _ => None,
        })
    }

    /// A floating-point number (an integer is taken as one), if the key is present.
    ///
    /// # Errors
    /// When the key holds something else.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, MetadataError> {
        self.typed(key, "a number", |value| match value {
            Value::Float(number) => Some(*number as f32),
            Value::Unsigned(number) => Some(*number as f32),
            Value::Signed(number) => Some(*number as f32),
            _ => None,
        })
    }

    /// A boolean, if the key is present.
    ///
    /// # Errors
    /// When the key holds something else.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, MetadataError> {
        self.typed(key, "a boolean", |value| match value {
            Value::Bool(flag) => Some(*flag),
            _ => None,
        })
    }

    /// A UTF-8 string, if the key is present.
    ///
    /// # Errors
    /// When the key holds something else.
    pub fn str(&self, key: &str) -> Result<Option<&str>, MetadataError> {
        self.typed(key, "a UTF-8 string", |value| match value {
            Value::String(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        })
    }

    /// An array of strings, if the key is present.
    ///
    /// # Errors
    /// When the key holds something else.
    pub fn strings(&self, key: &str) -> Result<Option<&StringTable>, MetadataError> {
        self.typed(key, "an array of strings", |value| match value {
            Value::Array(Array::String(table)) => Some(table),
            _ => None,
        })
    }

    /// An array of floating-point numbers, if the key is present.
    ///
    /// # Errors
    /// When the key holds something else.
    pub fn f32s(&self, key: &str) -> Result<Option<&[f32]>, MetadataError> {
        self.typed(key, "an array of numbers", |value| match value {
            Value::Array(Array::F32(numbers)) => Some(numbers.as_slice()),
            _ => None,
        })
    }

    /// An array of integers that fit 32 bits, if the key is present.
    ///
    /// # Errors
    /// When the key holds something else.
    pub fn i32s(&self, key: &str) -> Result<Option<&[i32]>, MetadataError> {
        self.typed(key, "an array of 32-bit integers", |value| match value {
            Value::Array(Array::I32(numbers)) => Some(numbers.as_slice()),
            _ => None,
        })
    }

    /// Turns an absent optional value into the error that names its key.
    ///
    /// # Errors
    /// [`MetadataError::Missing`] when `value` is `None`.
    pub fn required<T>(
        value: Option<T>,
        key: &str,
        expected: &'static str,
    ) -> Result<T, MetadataError> {
        value.ok_or_else(|| MetadataError::Missing {
            key: key.to_owned(),
            expected,
        })
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, MetadataError> {
        let Some(value) = self.entries.get(key) else {
            return Ok(None);
        };
        match convert(value) {
            Some(converted) => Ok(Some(converted)),
            None => Err(MetadataError::Type {
                key: key.to_owned(),
                expected,
                found: value.describe(),
            }),
        }
    }
}

impl Value {
    /// A short description for error messages.
    pub fn describe(&self) -> String {
        match self {
            Self::Unsigned(number) => format!("the integer {number}"),
            Self::Signed(number) => format!("the integer {number}"),
            Self::Float(number) => format!("the number {number}"),
            Self::Bool(flag) => format!("the boolean {flag}"),
            Self::String(bytes) => {
                let text = String::from_utf8_lossy(bytes);
                let start: String = text.chars().take(40).collect();
                format!("the string {start:?}")
            }
            Self::Array(array) => format!("an array of {} elements", array.len()),
        }
    }
}

impl Array {
    /// The number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::I32(numbers) => numbers.len(),
            Self::I64(numbers) => numbers.len(),
            Self::F32(numbers) => numbers.len(),
            Self::Bool(flags) => flags.len(),
            Self::String(table) => table.len(),
            Self::Nested(length) => *length,
        }
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
