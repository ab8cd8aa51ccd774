//! Files that results go to.

use std::fmt;
use std::fs::{File, Metadata, OpenOptions, metadata};
use std::io::{self, BufWriter, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::OutputError;
use emel::internals::whole_file::{WholeFile, end_of_links, file_beside};

/// What an output is, as it completes "cannot write".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputKind {
    /// `--stats-json`.
    Statistics,
    /// `--profile`.
    Profile,
    /// `--logits`.
    Logits,
    /// Of `emel trace`.
    Trace,
    /// `--svg`.
    Chart,
    /// A GGUF file.
    Model,
}

impl fmt::Display for OutputKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Statistics => "statistics",
            Self::Profile => "the profile",
            Self::Logits => "logits",
            Self::Trace => "the trace",
            Self::Chart => "the chart",
            Self::Model => "the model",
        })
    }
}

/// The permissions of a new file, less what the process leaves out.
const MODE: u32 = 0o666;

/// Where a result goes, seen to before the work begins, so that a path that cannot be written
/// is noticed at once. A file appears whole or not at all, and what was there stays until then.
#[derive(Debug)]
pub struct OutputFile {
    path: PathBuf,
    kind: OutputKind,
    /// A FIFO or a device, which cannot be replaced, or this process's standard output or
    /// error, which must not be.
    stream: Option<File>,
}

/// A result on its way.
#[derive(Debug)]
pub struct OutputWriter(Sink);

#[derive(Debug)]
enum Sink {
    Whole(BufWriter<WholeFile>),
    Stream(BufWriter<File>),
}

impl OutputFile {
    /// A place for a result at `path`, which may be replaced. Nothing is written yet.
    ///
    /// # Errors
    /// When nothing can be written there, or what is there is a FIFO that nobody reads.
    pub(super) fn new(path: &Path, kind: OutputKind) -> anyhow::Result<Self> {
        let found = metadata(path).ok();
        let outcome = match found {
            Some(found) if is_same(&found, "/dev/stdout") => own(io::stdout()),
            Some(found) if is_same(&found, "/dev/stderr") => own(io::stderr()),
            Some(found) if !found.is_file() => open_to_write(path, false).map(Some),
            found => {
                let checked = found.map_or(Ok(()), |_| open_to_write(path, false).map(drop));
                checked
                    .and_then(|()| end_of_links(path))
                    .and_then(|path| file_beside(&path))
                    .map(|_| None)
            }
        };
        Ok(Self {
            stream: outcome.map_err(|error| cannot_write(path, kind, &error))?,
            path: path.to_owned(),
            kind,
        })
    }

    /// Whether it is this process's standard output.
    pub fn is_standard_output(&self) -> bool {
        self.stream.is_some() && is_standard_output(&self.path)
    }

    /// Begins to write.
    ///
    /// # Errors
    /// When the folder takes no file any more.
    pub fn begin(self) -> io::Result<OutputWriter> {
        Ok(OutputWriter(match self.stream {
            Some(stream) => Sink::Stream(BufWriter::new(stream)),
            None => Sink::Whole(BufWriter::new(WholeFile::begin(&self.path, MODE)?)),
        }))
    }

    /// Writes all of it.
    ///
    /// # Errors
    /// When `write` fails or the drive does not take it.
    pub fn write(
        self,
        write: impl FnOnce(&mut OutputWriter) -> io::Result<()>,
    ) -> anyhow::Result<()> {
        let failed = self.failure();
        let whole = || {
            let mut out = self.begin()?;
            write(&mut out)?;
            out.finish()
        };
        whole().map_err(failed)
    }

    /// What is said of a failure to write it.
    pub(super) fn failure(&self) -> impl Fn(io::Error) -> anyhow::Error + use<> {
        let failed = format!("{}: cannot write {}", self.path.display(), self.kind);
        let is_standard_output = self.is_standard_output();
        move |source| match is_standard_output {
            // Whose reader may have left early.
            true => OutputError { source }.into(),
            false => anyhow::Error::new(source).context(failed.clone()),
        }
    }
}

impl OutputWriter {
    /// All has been written: the file takes its place.
    ///
    /// # Errors
    /// When the drive does not take it.
    pub fn finish(self) -> io::Result<()> {
        match self.0 {
            Sink::Whole(out) => out.into_inner()?.finish(),
            Sink::Stream(mut out) => out.flush(),
        }
    }
}

impl Write for OutputWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.0 {
            Sink::Whole(out) => out.write(bytes),
            Sink::Stream(out) => out.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.0 {
            Sink::Whole(out) => out.flush(),
            Sink::Stream(out) => out.flush(),
        }
    }
}

/// Creates a file that is written from the beginning of the work on.
///
/// # Errors
/// As [`OutputFile::new`].
pub(super) fn create_output(path: &Path, kind: OutputKind) -> anyhow::Result<File> {
    open_to_write(path, true).map_err(|error| cannot_write(path, kind, &error))
}

/// Whether this process's standard output goes to the file at `path`.
pub(super) fn is_standard_output(path: &Path) -> bool {
    metadata(path).is_ok_and(|found| is_same(&found, "/dev/stdout"))
}

fn is_same(found: &Metadata, path: &str) -> bool {
    let other = metadata(path);
    other.is_ok_and(|other| (other.dev(), other.ino()) == (found.dev(), found.ino()))
}

/// An output of this process, which goes on where it is.
fn own(output: impl AsFd) -> io::Result<Option<File>> {
    let descriptor = output.as_fd().try_clone_to_owned()?;
    Ok(Some(File::from(descriptor)))
}

/// Opens what is there, or creates it and empties what was there before.
fn open_to_write(path: &Path, creates: bool) -> io::Result<File> {
    // Without O_NONBLOCK, opening a FIFO waits for a reader that may never come.
    let file = OpenOptions::new()
        .write(true)
        .create(creates)
        .truncate(creates)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)?;
    // Writes to it may wait, for its reader.
    let flags = OFlag::from_bits_retain(fcntl(&file, FcntlArg::F_GETFL)?);
    fcntl(&file, FcntlArg::F_SETFL(flags - OFlag::O_NONBLOCK))?;
    Ok(file)
}

fn cannot_write(path: &Path, kind: OutputKind, error: &io::Error) -> anyhow::Error {
    let is_fifo = metadata(path).is_ok_and(|found| found.file_type().is_fifo());
    let remedy = match error.raw_os_error() {
        Some(libc::ENXIO) if is_fifo => "nobody reads this FIFO; start its reader first",
        _ => "check the folder and its permissions",
    };
    anyhow::anyhow!("{}: cannot write {kind}: {error}; {remedy}", path.display())
}
