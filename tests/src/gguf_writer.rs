//! Writes small GGUF files, right ones and wrong ones.
//!
//! The writer checks nothing, so that tests can describe a file that no honest
//! program would write.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use emel_loader::gguf::{Array, Catalog, TensorType, Value};

/// The alignment of a file that does not state one.
pub const ALIGNMENT_DEFAULT: u64 = 32;

/// A metadata value with the exact type it is written as.
#[derive(Debug, Clone, PartialEq)]
#[expect(
    missing_docs,
    reason = "the scalar variants are the format's own types"
)]
pub enum Field {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(Vec<u8>),
    U64(u64),
    I64(i64),
    F64(f64),
    /// An array whose elements are already encoded.
    Array {
        /// The format's id of the element type.
        element: u32,
        /// The number of elements.
        count: u64,
        /// The elements, little-endian.
        bytes: Vec<u8>,
    },
}

impl Field {
    /// A string value.
    pub fn string(text: impl AsRef<[u8]>) -> Self {
        Self::String(text.as_ref().to_owned())
    }

    /// An array of strings.
    pub fn strings<S: AsRef<[u8]>>(strings: impl IntoIterator<Item = S>) -> Self {
        let (mut count, mut bytes) = (0, Vec::new());
        for string in strings {
            put_string(&mut bytes, string.as_ref());
            count += 1;
        }
        Self::array(8, count, bytes)
    }

    /// An array of `i32`.
    pub fn i32s(numbers: &[i32]) -> Self {
        let bytes = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        Self::array(5, numbers.len() as u64, bytes)
    }

    /// An array of `i64`.
    pub fn i64s(numbers: &[i64]) -> Self {
        let bytes = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        Self::array(11, numbers.len() as u64, bytes)
    }

    /// An array of `f32`.
    pub fn f32s(numbers: &[f32]) -> Self {
        let bytes = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        Self::array(6, numbers.len() as u64, bytes)
    }

    /// An array of booleans.
    pub fn bools(flags: &[bool]) -> Self {
        let bytes = flags.iter().map(|&flag| flag.into()).collect();
        Self::array(7, flags.len() as u64, bytes)
    }

    /// The value as a loader gave it; `None` for an array of arrays, of which the
    /// loader keeps the length only. Integers are written with 32 bits where they
    /// fit, which is the width that readers ask for.
    pub fn from_value(value: &Value) -> Option<Self> {
        Some(match value {
            Value::Unsigned(number) => match u32::try_from(*number) {
                Ok(number) => Self::U32(number),
                Err(_) => Self::U64(*number),
            },
            Value::Signed(number) => match i32::try_from(*number) {
                Ok(number) => Self::I32(number),
                Err(_) => Self::I64(*number),
            },
            Value::Float(number) if f64::from(*number as f32) == *number => {
                Self::F32(*number as f32)
            }
            Value::Float(number) => Self::F64(*number),
            Value::Bool(flag) => Self::Bool(*flag),
            Value::String(text) => Self::String(text.clone()),
            Value::Array(Array::I32(numbers)) => Self::i32s(numbers),
            Value::Array(Array::I64(numbers)) => Self::i64s(numbers),
            Value::Array(Array::F32(numbers)) => Self::f32s(numbers),
            Value::Array(Array::Bool(flags)) => Self::bools(flags),
            Value::Array(Array::String(table)) => Self::strings(table.iter()),
            Value::Array(Array::Nested(_)) => return None,
        })
    }

    fn array(element: u32, count: u64, bytes: Vec<u8>) -> Self {
        Self::Array {
            element,
            count,
            bytes,
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::U8(number) => put_typed(out, 0, &number.to_le_bytes()),
            Self::I8(number) => put_typed(out, 1, &number.to_le_bytes()),
            Self::U16(number) => put_typed(out, 2, &number.to_le_bytes()),
            Self::I16(number) => put_typed(out, 3, &number.to_le_bytes()),
            Self::U32(number) => put_typed(out, 4, &number.to_le_bytes()),
            Self::I32(number) => put_typed(out, 5, &number.to_le_bytes()),
            Self::F32(number) => put_typed(out, 6, &number.to_le_bytes()),
            Self::Bool(flag) => put_typed(out, 7, &[u8::from(*flag)]),
            Self::String(text) => {
                put_typed(out, 8, &[]);
                put_string(out, text);
            }
            Self::Array {
                element,
                count,
                bytes,
            } => {
                put_typed(out, 9, &element.to_le_bytes());
                out.extend_from_slice(&count.to_le_bytes());
                out.extend_from_slice(bytes);
            }
            Self::U64(number) => put_typed(out, 10, &number.to_le_bytes()),
            Self::I64(number) => put_typed(out, 11, &number.to_le_bytes()),
            Self::F64(number) => put_typed(out, 12, &number.to_le_bytes()),
        }
    }
}

/// A tensor's description, with everything but its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// The name.
    pub name: String,
    /// The format's id of the type.
    pub type_id: u32,
    /// The dimensions, the fastest first.
    pub dims: Vec<u64>,
    /// Bytes of data, before padding.
    pub bytes: u64,
    /// The offset to state instead of the true one.
    pub stated_offset: Option<u64>,
}

/// Writes everything up to the first tensor's data. The data of each tensor is to
/// follow in order, each padded to `alignment`.
///
/// # Errors
/// When writing fails.
pub fn write_header(
    out: &mut impl Write,
    version: u32,
    fields: &[(String, Field)],
    tensors: &[Description],
    alignment: u64,
) -> io::Result<()> {
    let mut header = b"GGUF".to_vec();
    header.extend_from_slice(&version.to_le_bytes());
    header.extend_from_slice(&(tensors.len() as u64).to_le_bytes());
    header.extend_from_slice(&(fields.len() as u64).to_le_bytes());
    for (key, field) in fields {
        put_string(&mut header, key.as_bytes());
        field.put(&mut header);
    }
    let mut offset = 0_u64;
    for tensor in tensors {
        put_string(&mut header, tensor.name.as_bytes());
        header.extend_from_slice(&(tensor.dims.len() as u32).to_le_bytes());
        for dim in &tensor.dims {
            header.extend_from_slice(&dim.to_le_bytes());
        }
        header.extend_from_slice(&tensor.type_id.to_le_bytes());
        let stated = tensor.stated_offset.unwrap_or(offset);
        header.extend_from_slice(&stated.to_le_bytes());
        offset += tensor.bytes.next_multiple_of(alignment);
    }
    header.resize(header.len().next_multiple_of(alignment as usize), 0);
    out.write_all(&header)
}

/// The padding after `bytes` bytes of data.
pub fn padding(bytes: u64, alignment: u64) -> Vec<u8> {
    vec![0; (bytes.next_multiple_of(alignment) - bytes) as usize]
}

/// A GGUF file in the making.
#[derive(Debug, Clone)]
pub struct GgufWriter {
    version: u32,
    alignment: u64,
    fields: Vec<(String, Field)>,
    tensors: Vec<(Description, Vec<u8>)>,
}

impl GgufWriter {
    /// A file of version 3 with `general.architecture` and nothing else.
    pub fn new(architecture: &str) -> Self {
        let writer = Self {
            version: 3,
            alignment: ALIGNMENT_DEFAULT,
            fields: Vec::new(),
            tensors: Vec::new(),
        };
        writer.field("general.architecture", Field::string(architecture))
    }

    /// What a model's file holds, ready to be written in another way. Arrays of arrays
    /// are left out.
    ///
    /// # Panics
    /// When the file is no good model in one piece.
    pub fn copy_of(model: &Path) -> Self {
        let catalog = Catalog::open(model).expect("a good model");
        let bytes = std::fs::read(model).expect("a readable file");
        let fields = catalog.metadata().iter();
        let tensors = catalog.tensors().iter().map(|tensor| {
            let start = tensor.extent.offset as usize;
            let data = bytes[start..start + tensor.extent.bytes as usize].to_vec();
            let description = Description {
                name: tensor.name.clone(),
                type_id: tensor.tensor_type.id(),
                dims: tensor.dims.clone(),
                bytes: data.len() as u64,
                stated_offset: None,
            };
            (description, data)
        });
        Self {
            version: 3,
            alignment: ALIGNMENT_DEFAULT,
            fields: fields
                .filter_map(|(key, value)| Some((key.to_owned(), Field::from_value(value)?)))
                .collect(),
            tensors: tensors.collect(),
        }
    }

    /// Removes the metadata pairs with this key, if there are any, and the tensors with
    /// this name.
    #[must_use]
    pub fn without(mut self, name: &str) -> Self {
        self.fields.retain(|(key, _)| key != name);
        self.tensors.retain(|(tensor, _)| tensor.name != name);
        self
    }

    /// Whether there is a tensor of this name.
    pub fn has_tensor(&self, name: &str) -> bool {
        self.tensors.iter().any(|(tensor, _)| tensor.name == name)
    }

    /// Puts the tensors into the order of a key, made from their place so far and their name.
    #[must_use]
    pub fn sort_tensors_by_key<K: Ord>(mut self, key: impl Fn(usize, &str) -> K) -> Self {
        let mut keyed: Vec<_> = self.tensors.into_iter().enumerate().collect();
        keyed.sort_by_cached_key(|(index, (tensor, _))| key(*index, &tensor.name));
        self.tensors = keyed.into_iter().map(|(_, tensor)| tensor).collect();
        self
    }

    /// Takes out the tensors whose name ends so, which are of F32; their names and numbers.
    pub fn take_f32(&mut self, suffix: &str) -> Vec<(String, Vec<f32>)> {
        self.tensors
            .extract_if(.., |(tensor, _)| tensor.name.ends_with(suffix))
            .map(|(tensor, data)| {
                let (numbers, _) = data.as_chunks();
                let numbers = numbers.iter().map(|&bytes| f32::from_le_bytes(bytes));
                (tensor.name, numbers.collect())
            })
            .collect()
    }

    /// States another version.
    #[must_use]
    pub fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    /// Adds a metadata pair, even when the key is there already.
    #[must_use]
    pub fn field(mut self, key: &str, field: Field) -> Self {
        self.fields.push((key.to_owned(), field));
        self
    }

    /// States `general.alignment` and lays the tensors out by it.
    #[must_use]
    pub fn alignment(mut self, alignment: u32) -> Self {
        self.alignment = alignment.into();
        self.field("general.alignment", Field::U32(alignment))
    }

    /// Adds a tensor with these bytes, whether or not they fit its shape.
    #[must_use]
    pub fn tensor(self, name: &str, tensor_type: TensorType, dims: &[u64], data: Vec<u8>) -> Self {
        self.tensor_of_type_id(name, tensor_type.id(), dims, data)
    }

    /// Adds an F32 tensor.
    #[must_use]
    pub fn f32_tensor(self, name: &str, dims: &[u64], numbers: &[f32]) -> Self {
        let data = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        self.tensor(name, TensorType::F32, dims, data)
    }

    /// Adds a tensor of any type id.
    #[must_use]
    pub fn tensor_of_type_id(
        mut self,
        name: &str,
        type_id: u32,
        dims: &[u64],
        data: Vec<u8>,
    ) -> Self {
        let description = Description {
            name: name.to_owned(),
            type_id,
            dims: dims.to_owned(),
            bytes: data.len() as u64,
            stated_offset: None,
        };
        self.tensors.push((description, data));
        self
    }

    /// States another offset for the tensor added last.
    #[must_use]
    pub fn stating_offset(mut self, offset: u64) -> Self {
        if let Some((description, _)) = self.tensors.last_mut() {
            description.stated_offset = Some(offset);
        }
        self
    }

    /// The file's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let descriptions: Vec<Description> =
            self.tensors.iter().map(|(it, _)| it.clone()).collect();
        write_header(
            &mut out,
            self.version,
            &self.fields,
            &descriptions,
            self.alignment,
        )
        .expect("writing to memory cannot fail");
        for (_, data) in &self.tensors {
            out.extend_from_slice(data);
            out.extend(padding(data.len() as u64, self.alignment));
        }
        out
    }

    /// Writes the file.
    ///
    /// # Errors
    /// When writing fails.
    pub fn write(&self, path: impl AsRef<Path>) -> io::Result<()> {
        std::fs::write(path, self.to_bytes())
    }

    /// Writes the model as `count` shards named after `name` into `folder`: the
    /// metadata in the first and the tensors spread over all, in order.
    /// `first_holds_tensors` says whether the first has tensors too.
    ///
    /// # Errors
    /// When writing fails.
    pub fn write_shards(
        &self,
        folder: &Path,
        name: &str,
        count: u16,
        first_holds_tensors: bool,
    ) -> io::Result<Vec<PathBuf>> {
        let holders = usize::from(count) - usize::from(!first_holds_tensors);
        let tensors_each = self.tensors.len().div_ceil(holders.max(1)).max(1);
        let mut chunks = self.tensors.chunks(tensors_each);
        let mut paths = Vec::new();
        for index in 0..count {
            let mut shard = Self {
                fields: Vec::new(),
                tensors: Vec::new(),
                alignment: ALIGNMENT_DEFAULT,
                ..*self
            };
            if index == 0 {
                shard.fields.clone_from(&self.fields);
                shard.alignment = self.alignment;
            }
            if index > 0 || first_holds_tensors {
                shard.tensors = chunks.next().unwrap_or_default().to_vec();
            }
            let shard = shard
                .field("split.no", Field::U16(index))
                .field("split.count", Field::U16(count))
                .field("split.tensors.count", Field::I32(self.tensors.len() as i32));
            let path = folder.join(format!("{name}-{:05}-of-{count:05}.gguf", index + 1));
            shard.write(&path)?;
            paths.push(path);
        }
        Ok(paths)
    }
}

fn put_typed(out: &mut Vec<u8>, type_id: u32, bytes: &[u8]) {
    out.extend_from_slice(&type_id.to_le_bytes());
    out.extend_from_slice(bytes);
}

fn put_string(out: &mut Vec<u8>, text: &[u8]) {
    out.extend_from_slice(&(text.len() as u64).to_le_bytes());
    out.extend_from_slice(text);
}
