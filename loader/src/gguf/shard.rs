//! The names of a model's shards and the keys that tie them together.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use super::header::Header;
use super::{GgufError, Metadata, MetadataError};

const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";

/// What the first shard says about all of them.
pub(super) struct ShardName {
    /// The path up to the number, as in `folder/NAME`.
    prefix: OsString,
    /// How many shards there are, at least two.
    pub(super) count: u32,
    /// The tensors of all shards together.
    pub(super) tensors: u64,
}

impl ShardName {
    /// Reads the shard keys of an opened file; `None` when the model is one file.
    pub(super) fn of_first(path: &Path, metadata: &Metadata) -> Result<Option<Self>, GgufError> {
        let number = |key| metadata_number(path, metadata, key);
        let Some(count) = number(COUNT)?.filter(|&count| count > 1) else {
            return Ok(None);
        };
        let index = required(path, NUMBER, number(NUMBER)?)?;
        let tensors = required(path, TENSORS, number(TENSORS)?)?;
        if index >= count {
            return Err(GgufError::ShardMismatch {
                path: path.to_owned(),
                key: NUMBER,
                found: index.into(),
                expected: u64::from(count) - 1,
            });
        }
        let ending = ending(index, count);
        let Some(prefix) = strip_ending(path, &ending) else {
            return Err(GgufError::ShardName {
                path: path.to_owned(),
                count,
                expected: ending,
            });
        };
        let shards = Self {
            prefix,
            count,
            tensors: tensors.into(),
        };
        if index > 0 {
            return Err(GgufError::LaterShard {
                path: path.to_owned(),
                number: index + 1,
                count,
                first: shards.path(0),
            });
        }
        Ok(Some(shards))
    }

    /// Reads the header of the shard with this index (from zero) and checks that it
    /// is that shard.
    pub(super) fn read(&self, index: u32) -> Result<(PathBuf, Header), GgufError> {
        let path = self.path(index);
        let header = match Header::read(&path) {
            Err(GgufError::Open { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Err(GgufError::MissingShard {
                    path,
                    number: index + 1,
                    count: self.count,
                });
            }
            header => header?,
        };
        let expectations = [
            (NUMBER, u64::from(index)),
            (COUNT, u64::from(self.count)),
            (TENSORS, self.tensors),
        ];
        for (key, expected) in expectations {
            let found = metadata_number(&path, &header.metadata, key)?;
            let found = u64::from(required(&path, key, found)?);
            if found != expected {
                return Err(GgufError::ShardMismatch {
                    path,
                    key,
                    found,
                    expected,
                });
            }
        }
        Ok((path, header))
    }

    fn path(&self, index: u32) -> PathBuf {
        let mut path = self.prefix.clone();
        path.push(ending(index, self.count));
        path.into()
    }
}

/// How the name of the shard with this index ends.
fn ending(index: u32, count: u32) -> String {
    format!("-{:05}-of-{count:05}.gguf", u64::from(index) + 1)
}

fn strip_ending(path: &Path, ending: &str) -> Option<OsString> {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let prefix = path
        .as_os_str()
        .as_bytes()
        .strip_suffix(ending.as_bytes())?;
    Some(OsString::from_vec(prefix.to_owned()))
}

fn metadata_number(
    path: &Path,
    metadata: &Metadata,
    key: &'static str,
) -> Result<Option<u32>, GgufError> {
    metadata.u32(key).map_err(|source| GgufError::Metadata {
        path: path.to_owned(),
        source,
    })
}

fn required(path: &Path, key: &'static str, found: Option<u32>) -> Result<u32, GgufError> {
    found.ok_or_else(|| GgufError::Metadata {
        path: path.to_owned(),
        source: MetadataError::Missing {
            key: key.to_owned(),
            expected: "an integer in every shard",
        },
    })
}
