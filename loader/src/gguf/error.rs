//! What can be wrong with a GGUF file.

use std::io;
use std::path::PathBuf;

use super::MetadataError;

/// Why a model file was not opened. Each message is one line that names the file,
/// what was found, what was expected and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The file cannot be opened.
    #[error("{path}: cannot open: {source}; check the path and its permissions", path = path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
    /// The path leads to something that is not a regular file.
    #[error("{path}: is {found}, expected a regular file; pass the path of a .gguf model", path = path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// What is there.
        found: &'static str,
    },
    /// The path leads to a folder.
    #[error("{path}: is a directory, expected a regular file; {models}", path = path.display())]
    Directory {
        /// The path.
        path: PathBuf,
        /// The models in it, in words.
        models: String,
    },
    /// The file has no bytes.
    #[error("{path}: the file is empty, expected a GGUF model; download it again", path = path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// A read failed.
    #[error("{path}: cannot read at byte {offset}: {source}; check the disk", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Where the read began.
        offset: u64,
        /// What the system answered.
        source: io::Error,
    },
    /// The file is of another known format.
    #[error("{path}: is {found}, expected a GGUF model; {advice}", path = path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What it is.
        found: &'static str,
        /// What to do instead.
        advice: &'static str,
    },
    /// The file does not begin with the four letters of the format.
    #[error("{path}: not a GGUF file: starts with {found}, expected \"GGUF\"; pass the path of a .gguf model", path = path.display())]
    Magic {
        /// The file.
        path: PathBuf,
        /// Its first bytes, quoted.
        found: String,
    },
    /// The file was written for a big-endian machine.
    #[error("{path}: a big-endian GGUF file (version {version}), expected a little-endian one; convert it or download the usual file", path = path.display())]
    BigEndian {
        /// The file.
        path: PathBuf,
        /// Its version, put right.
        version: u32,
    },
    /// The first version of the format, which nobody writes any more.
    #[error("{path}: GGUF version 1, expected 2 or 3; download a newer conversion of the model", path = path.display())]
    VersionOne {
        /// The file.
        path: PathBuf,
    },
    /// A version of the format that is not known.
    #[error("{path}: GGUF version {found}, expected 2 or 3; use a newer emel or another conversion of the model", path = path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// The version the file states.
        found: u32,
    },
    /// Something in the header needs more bytes than the file has.
    #[error("{path}: the file ends at byte {file_bytes} inside {inside} (wanted {wanted} bytes from byte {offset}); it is truncated, download it again", path = path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Its size.
        file_bytes: u64,
        /// What the bytes belong to.
        inside: String,
        /// Where they begin.
        offset: u64,
        /// How many are needed at least.
        wanted: u64,
    },
    /// The header breaks the format.
    #[error("{path}: {place}: {problem}; the file is damaged, download it again", path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The part of the header.
        place: String,
        /// What was found and what was expected.
        problem: String,
    },
    /// The header holds more than any model's does.
    #[error("{path}: {place} takes the header over {} MiB of memory, expected less; the file is damaged or no language model, download another", limit_bytes >> 20, path = path.display())]
    HeaderTooLarge {
        /// The file.
        path: PathBuf,
        /// The part of the header that does not fit any more.
        place: String,
        /// What a header may take.
        limit_bytes: u64,
    },
    /// A metadata key occurs twice.
    #[error("{path}: metadata key {key} occurs twice, expected once; the file is damaged, download it again", path = path.display())]
    DuplicateKey {
        /// The file.
        path: PathBuf,
        /// The key, quoted.
        key: String,
    },
    /// A key that the loader itself needs does not hold what it should.
    #[error("{path}: {source}; the file is damaged, download it again", path = path.display())]
    Metadata {
        /// The file.
        path: PathBuf,
        /// Key, found and expected.
        source: MetadataError,
    },
    /// `general.alignment` is not usable.
    #[error("{path}: `general.alignment` is {found}, expected a power of two from 8 to {max}; the file is damaged, download it again", path = path.display())]
    Alignment {
        /// The file.
        path: PathBuf,
        /// The alignment the file states.
        found: u32,
        /// The largest that is accepted.
        max: u32,
    },
    /// A tensor has a type this version does not know.
    #[error("{path}: tensor {tensor} has type {id}, expected a known GGML type; use a newer emel or another quantisation of the model", path = path.display())]
    TensorType {
        /// The file.
        path: PathBuf,
        /// The tensor, quoted.
        tensor: String,
        /// The type's id.
        id: u32,
    },
    /// A tensor has an impossible shape.
    #[error("{path}: tensor {tensor}: {problem}; the file is damaged, download it again", path = path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// The tensor, quoted.
        tensor: String,
        /// What was found and what was expected.
        problem: String,
    },
    /// A tensor does not begin on the file's alignment.
    #[error("{path}: tensor {tensor} begins at data offset {offset}, expected a multiple of {alignment}; the file is damaged, download it again", path = path.display())]
    Misaligned {
        /// The file.
        path: PathBuf,
        /// The tensor, quoted.
        tensor: String,
        /// Its offset from the start of the data.
        offset: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// A tensor passes the end of the file.
    #[error("{path}: tensor {tensor} needs {wanted} bytes from byte {offset}, found {found} before the end of the file at byte {file_bytes}; it is truncated, download it again", path = path.display())]
    TensorPastEnd {
        /// The file.
        path: PathBuf,
        /// The tensor, quoted.
        tensor: String,
        /// Where it begins in the file.
        offset: u64,
        /// Its size.
        wanted: u64,
        /// The bytes of it that the file has.
        found: u64,
        /// The size of the file.
        file_bytes: u64,
    },
    /// Two tensors share bytes.
    #[error("{path}: tensors {first} and {second} overlap at byte {offset}, expected separate bytes; the file is damaged, download it again", path = path.display())]
    Overlap {
        /// The file.
        path: PathBuf,
        /// The tensor that begins first, quoted.
        first: String,
        /// The tensor that begins inside it, quoted.
        second: String,
        /// Where the second begins in the file.
        offset: u64,
    },
    /// Two tensors have one name.
    #[error("{path}: tensor {tensor} occurs twice, expected once; the file is damaged, download it again", path = path.display())]
    DuplicateTensor {
        /// The file of the second.
        path: PathBuf,
        /// The tensor, quoted.
        tensor: String,
    },
    /// A shard other than the first was opened.
    #[error("{path}: shard {number} of {count}, expected the first; pass {first}", path = path.display(), first = first.display())]
    LaterShard {
        /// The file.
        path: PathBuf,
        /// Its number, from one.
        number: u32,
        /// How many shards there are.
        count: u32,
        /// The first shard.
        first: PathBuf,
    },
    /// A shard is not where it is expected.
    #[error("{path}: shard {number} of {count} is missing; download it into the folder of the first", path = path.display())]
    MissingShard {
        /// The path expected.
        path: PathBuf,
        /// Its number, from one.
        number: u32,
        /// How many shards there are.
        count: u32,
    },
    /// A shard's name does not let the other shards be found.
    #[error("{path}: one of {count} shards, expected a name that ends in {expected}; give the shards their original names", path = path.display())]
    ShardName {
        /// The file.
        path: PathBuf,
        /// How many shards there are.
        count: u32,
        /// The ending expected.
        expected: String,
    },
    /// A shard does not belong to the others.
    #[error("{path}: `{key}` is {found}, expected {expected}; the shards do not belong together, download them again", path = path.display())]
    ShardMismatch {
        /// The file.
        path: PathBuf,
        /// The key, or what was counted.
        key: &'static str,
        /// What the shard holds.
        found: u64,
        /// What the other shards ask for.
        expected: u64,
    },
}

/// A name from a file as one short line: quoted, control characters escaped.
pub(super) fn quote(bytes: &[u8]) -> String {
    const SHOWN: usize = 64;
    let text = String::from_utf8_lossy(bytes);
    let mut shown: String = text.chars().take(SHOWN).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    format!("{shown:?}")
}
