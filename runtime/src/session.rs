//! Session files: a sequence's state on disk, so that another process can go on from it.
//!
//! ```text
//! "EMELSESS"                     8 bytes
//! version                        u32
//! KV type, as GGUF numbers it    u32
//! identity of the model          u64
//! flags                          u32: 1 for rotary factors beyond the original context,
//!                                2 if lossy routing has changed tokens, 4 for a text of
//!                                the caller's, such as the messages of a conversation
//! the first changed token        u64, only with flag 2
//! that text                      bytes as u64, then the bytes, only with flag 4
//! tokens                         u64, then a u32 for each
//! layers                         as emel_model::state writes them
//! XxHash64 of all the above      u64
//! ```
//!
//! All numbers are little-endian. A file is written beside its place and moved there when
//! it is whole, so there is never a part of one.

mod error;

use std::fs::{File, OpenOptions};
use std::hash::Hasher;
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use emel_loader::files::OpenFiles;
use emel_loader::gguf::{Catalog, Extent, Tensor};
use emel_loader::reader::{ReadError, read_blocking};
use emel_model::kv_cache::KvType;
use emel_model::state::{SequenceState, StateError};
use twox_hash::XxHash64;

pub use error::SessionError;

use crate::error::Error;
use crate::hashing::Hashing;
use crate::whole_file::{begins_with, end_of_links, file_beside, write_whole};

/// What a session begins with.
pub const MAGIC: [u8; 8] = *b"EMELSESS";
/// Changes whenever what follows it is laid out or computed otherwise.
const VERSION: u32 = 2;
/// Flags.
const LONG: u32 = 1;
const LOSSY: u32 = 2;
const ATTACHED: u32 = 4;

/// More than the messages of any context take.
const ATTACHMENT_BYTES_MAX: u64 = 256 << 20;

/// Tensors that are looked into to tell models of one shape apart, and how far. All but
/// the largest models have fewer.
const SAMPLES: usize = 4096;
const SAMPLE_BYTES: u64 = 512;

/// What a session has to fit: a model, and how its keys and values are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SessionKind {
    pub(crate) identity: u64,
    pub(crate) kv_type: KvType,
    /// As [`emel_model::program::Program::long_factors`] tells.
    pub(crate) long_factors: Option<(usize, bool)>,
    /// Whether what lossy routing has changed may be used.
    pub(crate) is_lossy: bool,
}

/// A session's file, with the hash of what has been read of it.
type SessionReader = Hashing<BufReader<File>>;

impl SessionKind {
    fn is_long(&self) -> bool {
        self.long_factors.is_some_and(|(_, is_long)| is_long)
    }

    /// Writes the state to `path` and says how many tokens it stands for. What is there
    /// already is replaced if it is a session and there are tokens, and its permissions are
    /// kept. Where a symbolic link is there, what it leads to is replaced.
    ///
    /// # Errors
    /// When the path holds something else, or cannot be written.
    pub(crate) fn save(
        &self,
        path: &Path,
        state: &SequenceState,
        attachment: &str,
    ) -> Result<usize, SessionError> {
        if path.exists() {
            if !is_session(path)? {
                return Err(SessionError::Foreign);
            }
            if state.tokens().is_empty() {
                return Ok(0);
            }
        }
        write_whole(path, |out| self.write(out, state, attachment)).map_err(SessionError::Write)?;
        Ok(state.tokens().len())
    }

    fn write(
        &self,
        out: &mut impl Write,
        state: &SequenceState,
        attachment: &str,
    ) -> io::Result<()> {
        let mut out = Hashing::new(out);
        out.write_all(&MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        out.write_all(&ggml_type(self.kv_type).to_le_bytes())?;
        out.write_all(&self.identity.to_le_bytes())?;
        let flags = [
            (self.is_long(), LONG),
            (state.lossy_from().is_some(), LOSSY),
            (!attachment.is_empty(), ATTACHED),
        ];
        let flags = flags.into_iter().filter(|(is_set, _)| *is_set);
        let flags: u32 = flags.map(|(_, flag)| flag).sum();
        out.write_all(&flags.to_le_bytes())?;
        if let Some(first) = state.lossy_from() {
            out.write_all(&(first as u64).to_le_bytes())?;
        }
        if !attachment.is_empty() {
            out.write_all(&(attachment.len() as u64).to_le_bytes())?;
            out.write_all(attachment.as_bytes())?;
        }
        state.write(&mut out)?;
        let Hashing { inner, hasher } = out;
        inner.write_all(&hasher.finish().to_le_bytes())
    }

    /// Replaces the state by the one in the file and says how many tokens it stands for.
    /// On an error the state is empty.
    ///
    /// # Errors
    /// When the file cannot be read, is none of this kind, or is damaged.
    pub(crate) fn restore(
        &self,
        path: &Path,
        state: &mut SequenceState,
        vocabulary: usize,
    ) -> Result<usize, SessionError> {
        state.clear();
        let outcome = self
            .restore_as_told(path, state, vocabulary)
            .map_err(|error| error.of_whole_file(path));
        if outcome.is_err() {
            state.clear();
        }
        outcome
    }

    /// As [`SessionKind::restore`], taking the header's word for what the file is.
    fn restore_as_told(
        &self,
        path: &Path,
        state: &mut SequenceState,
        vocabulary: usize,
    ) -> Result<usize, SessionError> {
        let (mut input, lossy_from) = self.open(path)?;
        state.read(&mut input)?;
        let Hashing { mut inner, hasher } = input;
        let is_whole = read_array(&mut inner)? == hasher.finish().to_le_bytes();
        let is_over = inner.read(&mut [0]).map_err(SessionError::Read)? == 0;
        let is_known = |&id: &u32| (id as usize) < vocabulary;
        if !(is_whole && is_over && state.tokens().iter().all(is_known)) {
            return Err(SessionError::Damaged);
        }
        if let Some(first) = lossy_from {
            state.set_lossy_from(first)?;
            if !self.is_lossy {
                return Ok(state.keep_exact());
            }
        }
        Ok(state.tokens().len())
    }

    /// Whether [`SessionKind::save`] could write to `path`, and, by the beginning of what
    /// is there, whether [`SessionKind::restore`] would take it.
    ///
    /// # Errors
    /// When the folder takes no files, or the file cannot be read or is none of this kind.
    pub(crate) fn check(&self, path: &Path, context: usize) -> Result<(), SessionError> {
        let path = &end_of_links(path).map_err(SessionError::Read)?;
        drop(file_beside(path).map_err(SessionError::Write)?);
        if !path.exists() {
            return Ok(());
        }
        let check = || {
            let tokens = u64::from_le_bytes(read_array(&mut self.open(path)?.0)?);
            if tokens > context as u64 {
                return Err(SessionError::TooLong { tokens, context });
            }
            Ok(())
        };
        check().map_err(|error: SessionError| error.of_whole_file(path))
    }

    /// A reader of a session of this kind, up to its tokens, and the first of these that
    /// lossy routing has changed.
    fn open(&self, path: &Path) -> Result<(SessionReader, Option<u64>), SessionError> {
        let (input, header) = open_session(path)?;
        if header.identity != self.identity {
            return Err(SessionError::OtherModel);
        }
        if header.kv_type != ggml_type(self.kv_type) {
            let found = KvType::ALL
                .iter()
                .find(|&&known| ggml_type(known) == header.kv_type);
            return Err(
                found.map_or(SessionError::Damaged, |&found| SessionError::KvType {
                    found,
                    expected: self.kv_type,
                }),
            );
        }
        match self.long_factors {
            _ if header.is_long == self.is_long() => Ok((input, header.lossy_from)),
            Some((original_context, _)) => Err(SessionError::RotaryFactors {
                is_long: header.is_long,
                original_context,
            }),
            None => Err(SessionError::Damaged),
        }
    }
}

/// The tokens of the session at `path`; 0 if there is none, or none that can be used, which
/// [`SessionKind::check`] says later.
pub(crate) fn saved_tokens(path: &Path) -> usize {
    let read = || -> Result<u64, SessionError> {
        let (mut input, _) = open_session(path)?;
        Ok(u64::from_le_bytes(read_array(&mut input)?))
    };
    read().map_or(0, |tokens| usize::try_from(tokens).unwrap_or(usize::MAX))
}

/// What a session's file says before its tokens.
struct Header {
    kv_type: u32,
    identity: u64,
    is_long: bool,
    lossy_from: Option<u64>,
    attachment: Option<Vec<u8>>,
}

/// A reader of a session of any kind, up to its tokens, and what came before them.
fn open_session(path: &Path) -> Result<(SessionReader, Header), SessionError> {
    let file = open_file(path)?;
    let mut input = Hashing::new(BufReader::new(file));
    if read_array(&mut input).map_err(foreign_if_short)? != MAGIC {
        return Err(SessionError::Foreign);
    }
    let found = u32::from_le_bytes(read_array(&mut input)?);
    if found != VERSION {
        return Err(SessionError::Version { found });
    }
    let kv_type = u32::from_le_bytes(read_array(&mut input)?);
    let identity = u64::from_le_bytes(read_array(&mut input)?);
    let flags = u32::from_le_bytes(read_array(&mut input)?);
    if flags & !(LONG | LOSSY | ATTACHED) != 0 {
        return Err(SessionError::Damaged);
    }
    let lossy_from = match flags & LOSSY {
        0 => None,
        _ => Some(u64::from_le_bytes(read_array(&mut input)?)),
    };
    let attachment = match flags & ATTACHED {
        0 => None,
        _ => Some(read_attachment(&mut input)?),
    };
    let header = Header {
        kv_type,
        identity,
        is_long: flags & LONG != 0,
        lossy_from,
        attachment,
    };
    Ok((input, header))
}

fn read_attachment(input: &mut impl Read) -> Result<Vec<u8>, SessionError> {
    let length = u64::from_le_bytes(read_array(input)?);
    let mut bytes = Vec::new();
    if length <= ATTACHMENT_BYTES_MAX {
        let mut attachment = input.take(length);
        attachment
            .read_to_end(&mut bytes)
            .map_err(SessionError::Read)?;
    }
    match bytes.len() as u64 == length {
        true => Ok(bytes),
        false => Err(SessionError::Damaged),
    }
}

/// The text that [`Engine::save_session_with`](crate::Engine::save_session_with) has put
/// into a session's file, if it has one. The whole file is read, to see that it is intact.
///
/// # Errors
/// When the file cannot be read, is no session, or is damaged.
pub fn session_attachment(path: impl AsRef<Path>) -> Result<Option<String>, Error> {
    let path = path.as_ref();
    let read = || {
        let Some(bytes) = open_session(path)?.1.attachment else {
            return Ok(None);
        };
        match String::from_utf8(bytes) {
            Ok(text) if is_whole(path)? => Ok(Some(text)),
            _ => Err(SessionError::Damaged),
        }
    };
    read().map_err(|source| Error::session(path, source))
}

impl SessionError {
    /// A header that does not fit says nothing if the file is damaged.
    fn of_whole_file(self, path: &Path) -> Self {
        let is_told_by_header = matches!(
            self,
            Self::OtherModel
                | Self::KvType { .. }
                | Self::RotaryFactors { .. }
                | Self::TooLong { .. }
        );
        if is_told_by_header && !is_whole(path).unwrap_or(false) {
            return Self::Damaged;
        }
        self
    }
}

/// Whether a file ends with the hash of what comes before.
fn is_whole(path: &Path) -> Result<bool, SessionError> {
    const HASH_BYTES: u64 = 8;
    let file = open_file(path)?;
    let bytes = file.metadata().map_err(SessionError::Read)?.len();
    let mut input = Hashing::new(BufReader::new(file));
    let mut hashed = (&mut input).take(bytes.saturating_sub(HASH_BYTES));
    io::copy(&mut hashed, &mut io::sink()).map_err(SessionError::Read)?;
    let Hashing { mut inner, hasher } = input;
    Ok(read_array(&mut inner)? == hasher.finish().to_le_bytes())
}

impl From<StateError> for SessionError {
    fn from(error: StateError) -> Self {
        match error {
            StateError::Read(error) => short_or(error),
            StateError::TooLong { tokens, context } => Self::TooLong { tokens, context },
            _ => Self::Damaged,
        }
    }
}

/// Tells a model from others: a hash of its hyperparameters, of its tensors' names,
/// types and shapes, of the vocabulary's size, and of samples of the weights. It is
/// computed when first asked for, because it reads from the drive.
#[derive(Debug)]
pub(crate) struct Identity {
    files: Arc<OpenFiles>,
    shape: XxHash64,
    samples: Vec<Extent>,
    known: Option<u64>,
}

impl Identity {
    pub(crate) fn new(catalog: &Catalog, vocabulary: usize, files: Arc<OpenFiles>) -> Self {
        let mut shape = XxHash64::with_seed(0);
        let architecture = catalog.metadata().str("general.architecture");
        let prefix = format!("{}.", architecture.ok().flatten().unwrap_or_default());
        for (key, value) in catalog.metadata().iter() {
            if key.starts_with(&prefix) {
                shape.write(format!("{key}={value:?}\n").as_bytes());
            }
        }
        let tensors = catalog.tensors();
        for tensor in tensors {
            let (name, dims) = (&tensor.name, &tensor.dims);
            let text = format!("{name}:{}:{dims:?}\n", tensor.tensor_type.id());
            shape.write(text.as_bytes());
        }
        shape.write(format!("{vocabulary} tokens\n").as_bytes());
        Self {
            files,
            shape,
            samples: samples(tensors),
            known: None,
        }
    }

    /// Takes it from who has computed it already, of the same files.
    pub(crate) fn known(self, known: Option<u64>) -> Self {
        Self { known, ..self }
    }

    pub(crate) fn get(&mut self) -> Result<u64, ReadError> {
        if let Some(known) = self.known {
            return Ok(known);
        }
        let mut hasher = self.shape.clone();
        for sample in &self.samples {
            hasher.write(&read_blocking(&self.files, sample)?);
        }
        self.known = Some(hasher.finish());
        Ok(hasher.finish())
    }
}

/// The middle of every tensor, in the file's order. Of too many tensors, those whose names
/// hash lowest: a fixed step could meet the same kind of tensor in every layer, and miss
/// all that a fine-tune has changed.
fn samples(tensors: &[Tensor]) -> Vec<Extent> {
    let mut chosen: Vec<&Tensor> = tensors.iter().collect();
    if chosen.len() > SAMPLES {
        chosen.sort_by_key(|tensor| XxHash64::oneshot(0, tensor.name.as_bytes()));
        chosen.truncate(SAMPLES);
    }
    chosen.sort_by_key(|tensor| (tensor.extent.file, tensor.extent.offset));
    let middle = |tensor: &Tensor| {
        let extent = tensor.extent;
        let bytes = extent.bytes.min(SAMPLE_BYTES);
        Extent {
            offset: extent.offset + (extent.bytes - bytes) / 2,
            bytes,
            ..extent
        }
    };
    chosen.into_iter().map(middle).collect()
}

fn ggml_type(kv_type: KvType) -> u32 {
    match kv_type {
        KvType::F32 => 0,
        KvType::F16 => 1,
        KvType::Q8_0 => 8,
    }
}

fn open_file(path: &Path) -> Result<File, SessionError> {
    // Without O_NONBLOCK, opening a FIFO waits for a writer that may never come.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path);
    let file = file.map_err(SessionError::Read)?;
    let kind = file.metadata().map_err(SessionError::Read)?.file_type();
    if kind.is_file() {
        return Ok(file);
    }
    let found = if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a FIFO"
    } else {
        "a device"
    };
    Err(SessionError::NotAFile { found })
}

fn is_session(path: &Path) -> Result<bool, SessionError> {
    begins_with(open_file(path)?, MAGIC).map_err(SessionError::Read)
}

fn read_array<const N: usize>(input: &mut impl Read) -> Result<[u8; N], SessionError> {
    let mut bytes = [0; N];
    input.read_exact(&mut bytes).map_err(short_or)?;
    Ok(bytes)
}

/// An error of reading, where the file should go on.
fn short_or(error: io::Error) -> SessionError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => SessionError::Damaged,
        _ => SessionError::Read(error),
    }
}

/// A file too short for the first bytes is none of ours.
fn foreign_if_short(error: SessionError) -> SessionError {
    match error {
        SessionError::Damaged => SessionError::Foreign,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use emel_loader::gguf::TensorType;

    /// As many layers, each of 16 tensors of 10000 bytes.
    fn layers(count: usize) -> Vec<Tensor> {
        let tensor = |index: usize| Tensor {
            name: format!("blk.{}.{}", index / 16, index % 16),
            tensor_type: TensorType::F32,
            dims: vec![2500],
            extent: Extent {
                file: 0,
                offset: index as u64 * 10_000,
                bytes: 10_000,
            },
        };
        (0..count * 16).map(tensor).collect()
    }

    #[test]
    fn the_middle_of_every_tensor_is_sampled() {
        let found = samples(&layers(4));
        let offsets: Vec<u64> = found.iter().map(|extent| extent.offset).collect();
        let expected: Vec<u64> = (0..64).map(|index| index * 10_000 + 4744).collect();
        assert_eq!(offsets, expected);
        assert!(found.iter().all(|extent| extent.bytes == 512));
    }

    #[test]
    fn of_too_many_tensors_some_of_each_kind_are_sampled() {
        let found = samples(&layers(512));
        assert_eq!(found.len(), 4096);
        let mut counts = [0; 16];
        for extent in found {
            counts[(extent.offset / 10_000 % 16) as usize] += 1;
        }
        // Half of the 512 of each kind, give or take.
        assert!(
            counts.iter().all(|count| (180..330).contains(count)),
            "{counts:?}"
        );
    }
}
