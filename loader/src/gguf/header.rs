//! The header of one GGUF file, read once from front to back.
//!
//! Every length in it is a claim. It is compared with the bytes the file still has
//! before anything is reserved for it, so a damaged file costs an error message and
//! not memory.

use std::path::Path;

use super::cursor::{Cursor, Flaw, reserved};
use super::error::quote;
use super::foreign::{Foreign, HEAD_BYTES, recognise};
use super::identity::FileIdentity;
use super::{Array, GgufError, Metadata, StringTable, Value};

/// Arrays of arrays are skipped down to this depth.
const NESTING_MAX: u32 = 4;

const RANK_MAX: u32 = 4;

/// The smallest metadata pair: a length, a one-letter key, a type and one byte.
const PAIR_BYTES_MIN: u64 = 8 + 1 + 4 + 1;

/// The smallest tensor description: a length, a letter, rank, one dimension, type
/// and offset.
const TENSOR_BYTES_MIN: u64 = 8 + 1 + 4 + 8 + 4 + 8;

/// A header as it stands in the file; shapes and offsets are not yet judged.
pub(super) struct Header {
    pub(super) identity: FileIdentity,
    pub(super) file_bytes: u64,
    pub(super) metadata: Metadata,
    pub(super) tensors: Vec<RawTensor>,
    /// The first byte after the header.
    pub(super) end: u64,
}

/// A tensor's description as it stands in the file.
pub(super) struct RawTensor {
    pub(super) name: String,
    pub(super) dims: Vec<u64>,
    pub(super) type_id: u32,
    /// From the start of the data section.
    pub(super) data_offset: u64,
}

impl Header {
    /// Reads the header of the file at `path`.
    pub(super) fn read(path: &Path) -> Result<Self, GgufError> {
        let mut cursor = Cursor::open(path)?;
        read_preamble(&mut cursor)?;
        let tensor_count = cursor.at("the header", Cursor::u64)?;
        let pair_count = cursor.at("the header", Cursor::u64)?;
        cursor.at("the metadata", |cursor| {
            cursor.expect_items(pair_count, PAIR_BYTES_MIN)
        })?;

        let mut metadata = Metadata::default();
        cursor.at("the metadata", |cursor| {
            cursor.keep(pair_count, size_of::<(String, Value)>())
        })?;
        for index in 0..pair_count {
            let (key, value) = read_pair(&mut cursor, index, pair_count)?;
            if metadata.get(&key).is_some() {
                return Err(GgufError::DuplicateKey {
                    path: path.to_owned(),
                    key: quote(key.as_bytes()),
                });
            }
            metadata.insert(key, value);
        }

        cursor.at("the tensor descriptions", |cursor| {
            cursor.expect_items(tensor_count, TENSOR_BYTES_MIN)
        })?;
        cursor.at("the tensor descriptions", |cursor| {
            cursor.keep(tensor_count, size_of::<RawTensor>())
        })?;
        let mut tensors = Vec::new();
        for index in 0..tensor_count {
            tensors.push(read_tensor(&mut cursor, index, tensor_count)?);
        }

        Ok(Self {
            identity: cursor.identity,
            file_bytes: cursor.file_bytes,
            metadata,
            tensors,
            end: cursor.position,
        })
    }
}

fn read_preamble(cursor: &mut Cursor) -> Result<(), GgufError> {
    let path = cursor.path.clone();
    let magic_bytes = cursor.file_bytes.min(4) as usize;
    let mut magic = [0; 4];
    cursor.at("the header", |cursor| {
        cursor.fill(&mut magic[..magic_bytes])
    })?;
    if &magic != b"GGUF" {
        return Err(other_format(cursor, &magic[..magic_bytes])?);
    }
    match cursor.at("the header", Cursor::u32)? {
        2 | 3 => Ok(()),
        1 => Err(GgufError::VersionOne { path }),
        found if matches!(found.swap_bytes(), 1..=0xffff) => Err(GgufError::BigEndian {
            path,
            version: found.swap_bytes(),
        }),
        found => Err(GgufError::Version { path, found }),
    }
}

/// What a file that begins with `start` is instead of a GGUF file.
fn other_format(cursor: &mut Cursor, start: &[u8]) -> Result<GgufError, GgufError> {
    let path = cursor.path.clone();
    let head_bytes = cursor.file_bytes.min(HEAD_BYTES as u64) as usize;
    let mut head = start.to_vec();
    head.resize(head_bytes, 0);
    cursor.at("the header", |cursor| cursor.fill(&mut head[start.len()..]))?;
    Ok(match recognise(&head, cursor.file_bytes) {
        Some(Foreign { found, advice }) => GgufError::Foreign {
            path,
            found,
            advice,
        },
        None => GgufError::Magic {
            path,
            found: quote(start),
        },
    })
}

fn read_pair(cursor: &mut Cursor, index: u64, count: u64) -> Result<(String, Value), GgufError> {
    let key = cursor
        .name()
        .map_err(|flaw| cursor.error(flaw, &format!("metadata pair {} of {count}", index + 1)))?;
    let value = read_value(cursor)
        .map_err(|flaw| cursor.error(flaw, &format!("the value of {}", quote(key.as_bytes()))))?;
    Ok((key, value))
}

fn read_tensor(cursor: &mut Cursor, index: u64, count: u64) -> Result<RawTensor, GgufError> {
    let name = cursor.name().map_err(|flaw| {
        let place = format!("the description of tensor {} of {count}", index + 1);
        cursor.error(flaw, &place)
    })?;
    let place = |name: &str| format!("the description of tensor {}", quote(name.as_bytes()));
    match read_description(cursor) {
        Ok((dims, type_id, data_offset)) => Ok(RawTensor {
            name,
            dims,
            type_id,
            data_offset,
        }),
        Err(flaw) => Err(cursor.error(flaw, &place(&name))),
    }
}

fn read_description(cursor: &mut Cursor) -> Result<(Vec<u64>, u32, u64), Flaw> {
    let rank = cursor.u32()?;
    if !(1..=RANK_MAX).contains(&rank) {
        return Err(Flaw::Bad(format!(
            "{rank} dimensions, expected 1 to {RANK_MAX}"
        )));
    }
    let mut dims = Vec::with_capacity(rank as usize);
    for _ in 0..rank {
        dims.push(cursor.u64()?);
    }
    Ok((dims, cursor.u32()?, cursor.u64()?))
}

fn read_value(cursor: &mut Cursor) -> Result<Value, Flaw> {
    let kind = Kind::read(cursor)?;
    Ok(match kind {
        Kind::U8 => Value::Unsigned(cursor.u8()?.into()),
        Kind::U16 => Value::Unsigned(cursor.u16()?.into()),
        Kind::U32 => Value::Unsigned(cursor.u32()?.into()),
        Kind::U64 => Value::Unsigned(cursor.u64()?),
        Kind::I8 => Value::Signed((cursor.u8()? as i8).into()),
        Kind::I16 => Value::Signed((cursor.u16()? as i16).into()),
        Kind::I32 => Value::Signed((cursor.u32()? as i32).into()),
        Kind::I64 => Value::Signed(cursor.u64()? as i64),
        Kind::F32 => Value::Float(f32::from_bits(cursor.u32()?).into()),
        Kind::F64 => Value::Float(f64::from_bits(cursor.u64()?)),
        Kind::Bool => Value::Bool(cursor.bool()?),
        Kind::String => {
            let mut string = Vec::new();
            cursor.string(&mut string)?;
            string.shrink_to_fit();
            Value::String(string)
        }
        Kind::Array => Value::Array(read_array(cursor)?),
    })
}

fn read_array(cursor: &mut Cursor) -> Result<Array, Flaw> {
    let kind = Kind::read(cursor)?;
    let count = cursor.u64()?;
    cursor.expect_items(count, kind.bytes_min())?;
    Ok(match kind {
        Kind::F32 => Array::F32(cursor.list(count, |w| Ok(f32::from_bits(w.u32()?)))?),
        Kind::F64 => Array::F32(cursor.list(count, |w| Ok(f64::from_bits(w.u64()?) as f32))?),
        Kind::Bool => Array::Bool(cursor.list(count, Cursor::bool)?),
        Kind::String => Array::String(read_strings(cursor, count)?),
        Kind::Array => {
            skip_arrays(cursor, count, NESTING_MAX)?;
            let count = usize::try_from(count).map_err(|_| Flaw::Bad("too long".to_owned()))?;
            Array::Nested(count)
        }
        Kind::U8 | Kind::U16 | Kind::U32 | Kind::U64 => read_integers(cursor, kind, count)?,
        Kind::I8 | Kind::I16 | Kind::I32 | Kind::I64 => read_integers(cursor, kind, count)?,
    })
}

fn read_integers(cursor: &mut Cursor, kind: Kind, count: u64) -> Result<Array, Flaw> {
    cursor.keep(count, size_of::<i32>())?;
    let mut narrow: Vec<i32> = Vec::with_capacity(reserved(count));
    for index in 0..count {
        let number = read_integer(cursor, kind)?;
        if let Ok(number) = i32::try_from(number) {
            narrow.push(number);
            continue;
        }
        cursor.keep(count, size_of::<i64>())?;
        let mut wide: Vec<i64> = narrow.into_iter().map(i64::from).collect();
        wide.push(number);
        for _ in index + 1..count {
            wide.push(read_integer(cursor, kind)?);
        }
        wide.shrink_to_fit();
        return Ok(Array::I64(wide));
    }
    narrow.shrink_to_fit();
    Ok(Array::I32(narrow))
}

fn read_integer(cursor: &mut Cursor, kind: Kind) -> Result<i64, Flaw> {
    Ok(match kind {
        Kind::U8 => cursor.u8()?.into(),
        Kind::I8 => i64::from(cursor.u8()? as i8),
        Kind::U16 => cursor.u16()?.into(),
        Kind::I16 => i64::from(cursor.u16()? as i16),
        Kind::U32 => cursor.u32()?.into(),
        Kind::I32 => i64::from(cursor.u32()? as i32),
        Kind::U64 => {
            let number = cursor.u64()?;
            i64::try_from(number).map_err(|_| {
                Flaw::Bad(format!(
                    "an array holds {number}, expected at most {}",
                    i64::MAX
                ))
            })?
        }
        _ => cursor.u64()? as i64,
    })
}

fn read_strings(cursor: &mut Cursor, count: u64) -> Result<StringTable, Flaw> {
    cursor.keep(count, size_of::<u32>())?;
    let mut table = StringTable::default();
    let mut string = Vec::new();
    for _ in 0..count {
        cursor.string(&mut string)?;
        if !table.push(&string) {
            return Err(Flaw::Bad("an array of strings over 4 GiB".to_owned()));
        }
    }
    table.shrink_to_fit();
    Ok(table)
}

fn skip_arrays(cursor: &mut Cursor, count: u64, depth: u32) -> Result<(), Flaw> {
    if depth == 0 {
        return Err(Flaw::Bad(format!(
            "arrays nested deeper than {NESTING_MAX}, expected a flat array"
        )));
    }
    // Nothing of it is kept, but counting it as if it were bounds the time.
    cursor.keep(count, size_of::<u64>())?;
    for _ in 0..count {
        let kind = Kind::read(cursor)?;
        let inner = cursor.u64()?;
        let bytes = cursor.expect_items(inner, kind.bytes_min())?;
        match kind {
            Kind::Array => skip_arrays(cursor, inner, depth - 1)?,
            Kind::String => {
                cursor.keep(inner, size_of::<u64>())?;
                for _ in 0..inner {
                    let length = cursor.u64()?;
                    cursor.skip(length)?;
                }
            }
            _ => cursor.skip(bytes)?,
        }
    }
    Ok(())
}

/// The type of a metadata value.
#[derive(Clone, Copy)]
enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

impl Kind {
    /// In the order of the ids in the file.
    const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::String,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    fn read(cursor: &mut Cursor) -> Result<Self, Flaw> {
        let id = cursor.u32()?;
        let known = usize::try_from(id).ok().and_then(|id| Self::ALL.get(id));
        known.copied().ok_or_else(|| {
            Flaw::Bad(format!(
                "value type {id}, expected 0 to {}",
                Self::ALL.len() - 1
            ))
        })
    }

    /// The fewest bytes one value of this type takes in the file.
    fn bytes_min(self) -> u64 {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::String => 8,
            Self::Array => 12,
        }
    }
}
