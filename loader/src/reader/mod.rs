//! Readers bring extents of the model's files into memory.
//!
//! A [`Reader`] takes requests and reports each through its [`Completion`], in any
//! order, from a thread of its own. It reads whole aligned windows, finishes short
//! reads, and never reports fewer bytes than were asked for. To add a backend, add a
//! file here, a variant to [`Backend`] and an arm to [`open`].

mod mmap;
mod pread;
mod ring;
mod uring;

use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use crate::arena::{Arena, PAGE_BYTES, SlotBuffer};
use crate::files::{FileChanged, OpenFile, OpenFiles, Window};
use crate::gguf::Extent;
use crate::slots::Completion;

/// Reads that a reader has the drive work on at a time; others wait their turn. More
/// bring no more bytes, but each of them later, and a read that waits here goes to the
/// drive as soon as another lands, while a slot that is computed on goes nowhere: 16
/// slots of 4 MiB gave 2.8 GiB/s with all of them under way, and 3.3 with 4, 8 or 12.
const IN_FLIGHT_MAX: usize = 8;

/// Why a read failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file ended before the wanted bytes.
    #[error(
        "{}: read {got} of {wanted} bytes at offset {offset}: the file has been truncated since it was opened; restore it and run again",
        path.display()
    )]
    Short {
        /// The file.
        path: PathBuf,
        /// File offset of the wanted bytes.
        offset: u64,
        /// Bytes wanted.
        wanted: usize,
        /// Bytes of them that the file still has.
        got: usize,
    },
    /// The kernel reported an error.
    #[error(
        "{}: reading {wanted} bytes at offset {offset}: {message}; check the drive and the file",
        path.display()
    )]
    Failed {
        /// The file.
        path: PathBuf,
        /// File offset of the wanted bytes.
        offset: u64,
        /// Bytes wanted.
        wanted: usize,
        /// What the kernel said.
        message: String,
    },
    /// The file is not the one that was opened any more.
    #[error(transparent)]
    Changed(#[from] FileChanged),
    /// The reader's thread ended before the read did.
    #[error("the reader has stopped; open the model again")]
    Stopped,
}

/// Which system interface brings the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// io_uring through the io-uring crate.
    Ring,
    /// io_uring through tokio-uring.
    Uring,
    /// A pool of threads that call `pread`.
    Pread,
    /// A mapping of the file, used in place.
    Mmap,
}

impl Backend {
    /// The readers that stream into buffers, fastest first.
    pub const FASTEST_FIRST: [Self; 3] = [Self::Ring, Self::Uring, Self::Pread];

    /// The name that `--io` takes.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Uring => "uring",
            Self::Pread => "pread",
            Self::Mmap => "mmap",
        }
    }

    /// What to do where the system refuses it.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::Ring | Self::Uring => {
                "containers, seccomp profiles and sysctl kernel.io_uring_disabled can forbid \
                 io_uring; allow it, or use --io pread"
            }
            Self::Pread => "raise the limit on threads (ulimit -u)",
            Self::Mmap => "raise the limit on address space (ulimit -v), or use --io pread",
        }
    }

    /// Whether reads land in buffers of ours, as opposed to views of a mapping.
    pub fn needs_buffers(self) -> bool {
        self != Self::Mmap
    }
}

/// One read.
#[derive(Debug)]
pub struct ReadRequest {
    /// The wanted bytes, at an offset of any alignment.
    pub extent: Extent,
    /// Where they go; `None` for a reader that needs no buffers.
    pub buffer: Option<SlotBuffer>,
    /// How the outcome is reported.
    pub completion: Completion,
}

impl ReadRequest {
    /// Reports a read into `buffer` that has come to its end.
    fn succeed(self, file: &OpenFile, buffer: SlotBuffer, progress: &Progress) {
        file.drop_cached(progress.window);
        let view = buffer.into_view(progress.window.skip, self.extent.bytes as usize);
        self.completion.succeed(view, progress.filled);
    }
}

/// Something that brings extents of files into memory.
pub trait Reader: Send {
    /// The interface in use.
    fn backend(&self) -> Backend;

    /// Starts a read. Does not block: the slots bound how many are under way.
    fn submit(&self, request: ReadRequest);

    /// Says that the bytes of a finished read are no longer needed. Reads that fail or
    /// that nobody waits for any more are released by the reader itself.
    fn release(&self, _extent: &Extent) {}

    /// Whether the kernel knows the slot buffers beforehand.
    fn has_registered_buffers(&self) -> bool {
        false
    }
}

/// Starts the reader for `backend`. `ring_buffers` are those that most reads will
/// go to; `depth` is the largest number of reads under way at a time; `streams` says
/// that bytes are released again, as opposed to weights that all stay.
///
/// # Errors
/// When the kernel refuses the interface, with its reason.
pub fn open(
    backend: Backend,
    files: &Arc<OpenFiles>,
    ring_buffers: Vec<SlotBuffer>,
    depth: usize,
    streams: bool,
) -> io::Result<Box<dyn Reader>> {
    let files = Arc::clone(files);
    Ok(match backend {
        Backend::Ring => Box::new(ring::RingReader::start(files, ring_buffers, depth)?),
        Backend::Uring => Box::new(uring::UringReader::start(files, ring_buffers, depth)?),
        Backend::Pread => Box::new(pread::PreadReader::start(files, depth)?),
        Backend::Mmap => Box::new(mmap::MmapReader::start(files, depth, streams)?),
    })
}

/// The fastest reader that the system lets stream, and what it says to those that are
/// faster.
pub fn fastest() -> (Backend, Vec<(Backend, io::Error)>) {
    let no_files = Arc::new(OpenFiles::none());
    let mut refused = Vec::new();
    for backend in Backend::FASTEST_FIRST {
        match open(backend, &no_files, Vec::new(), 1, true) {
            Ok(_) => return (backend, refused),
            Err(error) => refused.push((backend, error)),
        }
    }
    (Backend::Pread, refused)
}

/// Whether the kernel takes a ring of `slots` buffers of `slot_bytes` beforehand.
///
/// # Errors
/// When memory or the reader is refused.
pub fn registers_buffers(backend: Backend, slots: usize, slot_bytes: usize) -> io::Result<bool> {
    let slot_bytes = slot_bytes.next_multiple_of(PAGE_BYTES);
    let arena = Arena::new(slots * slot_bytes)?;
    let buffers = (0..slots)
        .map(|slot| arena.buffer(slot * slot_bytes, slot_bytes, Some(slot as u16)))
        .collect();
    let no_files = Arc::new(OpenFiles::none());
    Ok(open(backend, &no_files, buffers, slots, true)?.has_registered_buffers())
}

/// What makes the system allow io_uring, going by what it said.
pub fn io_uring_remedy(error: &io::Error) -> String {
    let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
    let disabled = disabled.as_deref().map_or("0", str::trim);
    match error.raw_os_error() {
        Some(libc::EPERM) if disabled != "0" => {
            format!("sysctl kernel.io_uring_disabled is {disabled}; set it to 0")
        }
        Some(libc::EPERM | libc::EACCES) => {
            "a seccomp profile forbids it, as containers' do; allow io_uring_setup, \
             io_uring_enter and io_uring_register"
                .to_owned()
        }
        Some(libc::ENOSYS) => {
            "the kernel has none, or a seccomp profile hides it; use Linux 5.11 or later, or \
             another profile"
                .to_owned()
        }
        Some(libc::ENOMEM) => "raise the limit on locked memory (ulimit -l)".to_owned(),
        Some(libc::EMFILE | libc::ENFILE) => "raise the limit on open files (ulimit -n)".to_owned(),
        _ => "use Linux 5.11 or later".to_owned(),
    }
}

/// How far a read into a buffer has come.
#[derive(Debug)]
pub(crate) struct Progress {
    window: Window,
    alignment: usize,
    wanted: usize,
    filled: usize,
    retries: u32,
}

/// Attempts allowed after EAGAIN before it counts as an error.
const RETRIES_MAX: u32 = 100;

impl Progress {
    pub(crate) fn new(file: &OpenFile, extent: &Extent) -> Self {
        Self {
            window: file.window(extent.offset, extent.bytes as usize),
            alignment: file.alignment(),
            wanted: extent.bytes as usize,
            filled: 0,
            retries: 0,
        }
    }

    /// The part of the buffer still to be read into, and its place in the file.
    pub(crate) fn remaining(&self) -> (Range<usize>, u64) {
        // A direct read must go on from an aligned place; the bytes after it come again.
        let start = self.filled - self.filled % self.alignment;
        (start..self.window.bytes, self.window.offset + start as u64)
    }

    /// Takes the outcome of reading [`Progress::remaining`]; `true` when the wanted
    /// bytes are there.
    pub(crate) fn record(
        &mut self,
        file: &OpenFile,
        outcome: io::Result<usize>,
    ) -> Result<bool, ReadError> {
        let offset = self.window.offset + self.window.skip as u64;
        match outcome {
            Ok(count) => {
                let before = self.filled;
                self.filled = self.remaining().0.start + count;
                let needed = self.window.skip + self.wanted;
                if self.filled >= needed {
                    Ok(true)
                } else if self.filled <= before {
                    Err(ReadError::Short {
                        path: file.path().to_owned(),
                        offset,
                        wanted: self.wanted,
                        got: before.saturating_sub(self.window.skip),
                    })
                } else {
                    Ok(false)
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            Err(error)
                if error.kind() == io::ErrorKind::WouldBlock && self.retries < RETRIES_MAX =>
            {
                self.retries += 1;
                Ok(false)
            }
            Err(error) => Err(ReadError::Failed {
                path: file.path().to_owned(),
                offset,
                wanted: self.wanted,
                message: error.to_string(),
            }),
        }
    }
}
