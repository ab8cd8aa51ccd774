//! Session files: a sequence's state on disk, so that another process can go on from it.
//!
//! ```text
//! "EMELSESS"                     8 bytes
//! version                        u32
//! KV type, as GGUF numbers it    u32
//! identity of the model          u64
//! rotary factors                 u32: 1 for those beyond the original context, else 0
//! tokens                         u64, then a u32 for each
//! layers                         as emel_model::state writes them
//! XxHash64 of all the above      u64
//! ```
//!
//! All numbers are little-endian. A file is written beside its place and moved there when
//! it is whole, so there is never a part of one.

use std::fs::File;
use std::hash::Hasher;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;
use std::sync::Arc;

use emel_loader::files::OpenFiles;
use emel_loader::gguf::{Catalog, Extent};
use emel_loader::reader::ReadError;
use emel_model::kv_cache::KvType;
use emel_model::state::{SequenceState, StateError};
use tempfile::NamedTempFile;
use twox_hash::XxHash64;

const MAGIC: [u8; 8] = *b"EMELSESS";
/// Changes whenever what follows it is laid out or computed otherwise.
const VERSION: u32 = 2;

/// Tensors that are looked into to tell models of one shape apart, and how far.
const SAMPLES: usize = 64;
const SAMPLE_BYTES: u64 = 4096;

/// Why a session cannot be saved or restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The file cannot be opened or read.
    #[error("cannot read the session: {0}; check the path and its permissions")]
    Read(io::Error),
    /// The file cannot be written.
    #[error("cannot write the session: {0}; check the folder, its permissions and the disk")]
    Write(io::Error),
    /// The file is something else.
    #[error("this is not a session, expected one that emel has saved; choose another name")]
    Foreign,
    /// The file is from another version of emel.
    #[error(
        "the session has format {found}, expected {VERSION}; delete it to start over, or use the version of emel that saved it"
    )]
    Version {
        /// The format's number.
        found: u32,
    },
    /// The session belongs to another model.
    #[error("the session is of another model; choose another name, or delete it to start over")]
    OtherModel,
    /// Keys and values are kept in another way.
    #[error(
        "the session keeps keys and values as {found}, expected {}; run with --kv {found}, or delete it to start over",
        expected.name()
    )]
    KvType {
        /// How the session keeps them.
        found: String,
        /// How the engine does.
        expected: KvType,
    },
    /// Keys were rotated with the factors of the other side of the original context.
    #[error(
        "the session was computed with a context of {} {original_context} tokens, expected one on the same side; run with -c {}, or delete it to start over",
        if *is_long { "more than" } else { "up to" },
        if *is_long { format!("{} or more", original_context + 1) } else { format!("{original_context} or less") }
    )]
    RotaryFactors {
        /// Whether the session was computed beyond the original context.
        is_long: bool,
        /// Positions that the model knew before it was stretched.
        original_context: usize,
    },
    /// The session is longer than the context.
    #[error("the session has {tokens} tokens and the context holds {context}; raise -c")]
    TooLong {
        /// Tokens of the session.
        tokens: u64,
        /// Tokens of the context.
        context: usize,
    },
    /// The file is cut off, or some of its bytes have changed.
    #[error("the session is damaged or cut off; delete it to start over")]
    Damaged,
    /// The model's own file cannot be read.
    #[error(transparent)]
    Model(#[from] ReadError),
}

/// What a session has to fit: a model, and how its keys and values are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SessionKind {
    identity: u64,
    kv_type: KvType,
    /// As [`emel_model::program::Program::long_factors`] tells.
    long_factors: Option<(usize, bool)>,
}

impl SessionKind {
    pub(crate) fn new(identity: u64, kv_type: KvType, long_factors: Option<(usize, bool)>) -> Self {
        Self {
            identity,
            kv_type,
            long_factors,
        }
    }

    fn is_long(&self) -> bool {
        self.long_factors.is_some_and(|(_, is_long)| is_long)
    }

    /// Writes the state to `path` and says how many tokens it stands for. What is there
    /// already is replaced if it is a session.
    ///
    /// # Errors
    /// When the path holds something else, or cannot be written.
    pub(crate) fn save(&self, path: &Path, state: &SequenceState) -> Result<usize, SessionError> {
        if path.exists() && !is_session(path)? {
            return Err(SessionError::Foreign);
        }
        let mut file = file_beside(path)?;
        self.write(file.as_file_mut(), state)
            .and_then(|()| file.as_file().sync_all())
            .map_err(SessionError::Write)?;
        file.persist(path)
            .map_err(|error| SessionError::Write(error.error))?;
        Ok(state.tokens().len())
    }

    fn write(&self, file: &mut File, state: &SequenceState) -> io::Result<()> {
        let mut out = Hashing::new(BufWriter::new(file));
        out.write_all(&MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        out.write_all(&ggml_type(self.kv_type).to_le_bytes())?;
        out.write_all(&self.identity.to_le_bytes())?;
        out.write_all(&u32::from(self.is_long()).to_le_bytes())?;
        state.write(&mut out)?;
        let Hashing { mut inner, hasher } = out;
        inner.write_all(&hasher.finish().to_le_bytes())?;
        inner.flush()
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
        let mut input = self.open(path)?;
        let outcome = state.read(&mut input).map_err(SessionError::from);
        let outcome = outcome.and_then(|()| {
            let Hashing { mut inner, hasher } = input;
            let is_whole = read_array(&mut inner)? == hasher.finish().to_le_bytes();
            let is_over = inner.read(&mut [0]).map_err(SessionError::Read)? == 0;
            let is_known = |&id: &u32| (id as usize) < vocabulary;
            if is_whole && is_over && state.tokens().iter().all(is_known) {
                Ok(state.tokens().len())
            } else {
                Err(SessionError::Damaged)
            }
        });
        if outcome.is_err() {
            state.clear();
        }
        outcome
    }

    /// Whether [`SessionKind::save`] could write to `path`, and, by the beginning of what
    /// is there, whether [`SessionKind::restore`] would take it.
    ///
    /// # Errors
    /// When the folder takes no files, or the file cannot be read or is none of this kind.
    pub(crate) fn check(&self, path: &Path, context: usize) -> Result<(), SessionError> {
        drop(file_beside(path)?);
        if !path.exists() {
            return Ok(());
        }
        let tokens = u64::from_le_bytes(read_array(&mut self.open(path)?)?);
        if tokens > context as u64 {
            return Err(SessionError::TooLong { tokens, context });
        }
        Ok(())
    }

    /// A reader of a session of this kind, up to its tokens.
    fn open(&self, path: &Path) -> Result<Hashing<BufReader<File>>, SessionError> {
        let file = File::open(path).map_err(SessionError::Read)?;
        let mut input = Hashing::new(BufReader::new(file));
        if read_array(&mut input).map_err(foreign_if_short)? != MAGIC {
            return Err(SessionError::Foreign);
        }
        let found = u32::from_le_bytes(read_array(&mut input)?);
        if found != VERSION {
            return Err(SessionError::Version { found });
        }
        let kv_type = u32::from_le_bytes(read_array(&mut input)?);
        if u64::from_le_bytes(read_array(&mut input)?) != self.identity {
            return Err(SessionError::OtherModel);
        }
        if kv_type != ggml_type(self.kv_type) {
            let known = [KvType::F32, KvType::F16];
            let found = known.iter().find(|&&known| ggml_type(known) == kv_type);
            return Err(SessionError::KvType {
                found: found.map_or(format!("type {kv_type}"), |found| found.name().to_owned()),
                expected: self.kv_type,
            });
        }
        let is_long = match u32::from_le_bytes(read_array(&mut input)?) {
            0 => false,
            1 => true,
            _ => return Err(SessionError::Damaged),
        };
        match self.long_factors {
            _ if is_long == self.is_long() => Ok(input),
            Some((original_context, _)) => Err(SessionError::RotaryFactors {
                is_long,
                original_context,
            }),
            None => Err(SessionError::Damaged),
        }
    }
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
/// types and shapes, and of samples of their weights. It is computed when first asked
/// for, because it reads from the drive.
#[derive(Debug)]
pub(crate) struct Identity {
    files: Arc<OpenFiles>,
    shape: XxHash64,
    samples: Vec<Extent>,
    known: Option<u64>,
}

impl Identity {
    pub(crate) fn new(catalog: &Catalog, files: Arc<OpenFiles>) -> Self {
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
        let step = tensors.len().div_ceil(SAMPLES).max(1);
        let samples = tensors.iter().step_by(step).map(|tensor| Extent {
            bytes: tensor.extent.bytes.min(SAMPLE_BYTES),
            ..tensor.extent
        });
        Self {
            files,
            shape,
            samples: samples.collect(),
            known: None,
        }
    }

    pub(crate) fn get(&mut self) -> Result<u64, ReadError> {
        if let Some(known) = self.known {
            return Ok(known);
        }
        let mut hasher = self.shape.clone();
        for sample in &self.samples {
            hasher.write(&self.files.read(sample)?);
        }
        self.known = Some(hasher.finish());
        Ok(hasher.finish())
    }
}

fn ggml_type(kv_type: KvType) -> u32 {
    match kv_type {
        KvType::F32 => 0,
        KvType::F16 => 1,
    }
}

/// A new file in the folder of `path`, which is gone again unless it is kept.
fn file_beside(path: &Path) -> Result<NamedTempFile, SessionError> {
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    NamedTempFile::new_in(folder).map_err(SessionError::Write)
}

fn is_session(path: &Path) -> Result<bool, SessionError> {
    let mut file = File::open(path).map_err(SessionError::Read)?;
    match read_array(&mut file).map_err(foreign_if_short) {
        Ok(magic) => Ok(magic == MAGIC),
        Err(SessionError::Foreign) => Ok(false),
        Err(error) => Err(error),
    }
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

/// Hashes what passes through.
struct Hashing<T> {
    inner: T,
    hasher: XxHash64,
}

impl<T> Hashing<T> {
    fn new(inner: T) -> Self {
        Self {
            inner,
            hasher: XxHash64::with_seed(0),
        }
    }
}

impl<T: Read> Read for Hashing<T> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(bytes)?;
        self.hasher.write(&bytes[..count]);
        Ok(count)
    }
}

impl<T: Write> Write for Hashing<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.hasher.write(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
