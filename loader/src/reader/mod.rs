//! Readers bring extents of the model's files into memory.
//!
//! A [`Reader`] takes requests and reports each through its [`Completion`], in any
//! order, from a thread of its own. It reads whole aligned windows, finishes short
//! reads, and never reports fewer bytes than were asked for. To add a reader, add a
//! file here with its description, a variant of [`Backend`] and a row in `READERS`.

mod blocking;
mod faults;
mod mmap;
mod pread;
mod progress;
mod queue;
mod ring;
mod ring_thread;
mod time_slice;
mod uring;

use std::io;
use std::sync::Arc;

use crate::arena::{Arena, SlotBuffer};
use crate::files::{OpenFile, OpenFiles};
use crate::gguf::Extent;
use crate::page::PageSize;
use crate::slots::Completion;

pub use crate::faults::Faults;
pub use crate::read_error::ReadError;
pub use blocking::read_blocking;
use faults::FaultyReader;
use progress::Progress;

/// Reads that the drive works on at a time, at most. More bring no more bytes, but each of
/// them later: 16 slots of 4 MiB gave 2.8 GiB/s with all of them under way, and 3.3 with 4,
/// 8 or 12.
const IN_FLIGHT_MAX: usize = 8;

/// Reads of a ring of `slots` that the drive works on at a time: half of them, for slots are
/// computed on one after another. A drive may report reads together when the last has ended, as
/// virtual ones do; with all slots in flight it would have nothing to do until the first has been
/// computed on. Four slots of 4 MiB landed within 20 microseconds of each other; for 4 % of the
/// time none was in flight, and for another 15 % fewer than four.
pub(crate) fn in_flight_of_ring(slots: usize) -> usize {
    slots.div_ceil(2).clamp(1, IN_FLIGHT_MAX)
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

/// What each reader's file says of it.
const READERS: [Description; 4] = [
    ring::DESCRIPTION,
    uring::DESCRIPTION,
    pread::DESCRIPTION,
    mmap::DESCRIPTION,
];

/// Starts a reader of files, with the buffers that most reads will go to.
type Start = fn(Arc<OpenFiles>, Vec<SlotBuffer>, ReadLimits) -> io::Result<Box<dyn Reader>>;

/// A reader as it is known before it runs.
struct Description {
    backend: Backend,
    /// Its name, as users write it.
    name: &'static str,
    /// What it does, in a few words.
    summary: &'static str,
    uses_io_uring: bool,
    /// See [`Backend::needs_buffers`].
    needs_buffers: bool,
    /// What makes the system allow it, by the error that it refused it with.
    remedy: fn(&io::Error) -> String,
    start: Start,
}

impl Backend {
    /// The readers that stream into buffers and are tried in turn, fastest first.
    pub const FASTEST_FIRST: [Self; 2] = [Self::Ring, Self::Pread];

    /// All readers.
    pub fn all() -> impl Iterator<Item = Self> {
        READERS.iter().map(|reader| reader.backend)
    }

    fn description(self) -> &'static Description {
        let mut readers = READERS.iter();
        readers
            .find(|reader| reader.backend == self)
            .expect("each reader has a description")
    }

    /// Its name, as users write it.
    pub fn name(self) -> &'static str {
        self.description().name
    }

    /// What it does, in a few words.
    pub fn summary(self) -> &'static str {
        self.description().summary
    }

    /// Whether it reads through io_uring.
    pub fn uses_io_uring(self) -> bool {
        self.description().uses_io_uring
    }

    /// What makes the system allow it, by the `error` that it refused it with.
    pub fn remedy(self, error: &io::Error) -> String {
        (self.description().remedy)(error)
    }

    /// Whether reads land in buffers of ours, as opposed to views of a mapping.
    pub fn needs_buffers(self) -> bool {
        self.description().needs_buffers
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
        self.completion.succeed(view, progress.filled());
    }
}

/// What a reader is asked for at a time.
#[derive(Debug, Clone, Copy)]
pub struct ReadLimits {
    depth: usize,
    /// Reads that the drive works on at a time; the others wait their turn, and each goes to
    /// the drive as soon as another has landed. A mapping asks for all of them in advance.
    in_flight: usize,
    in_use_max: Option<usize>,
}

impl ReadLimits {
    /// At most `depth` reads that are asked for and not reported yet, all wanted at once;
    /// at most `in_use_max` extents that are asked for and not released yet, or `None` for
    /// weights that all stay.
    pub fn at_once(depth: usize, in_use_max: Option<usize>) -> Self {
        let depth = depth.max(1);
        Self {
            depth,
            in_flight: depth.min(IN_FLIGHT_MAX),
            in_use_max,
        }
    }

    /// The same for a ring of `slots`, of which half are in flight, and eight at most.
    pub fn with_ring(self, slots: usize) -> Self {
        Self {
            in_flight: self.in_flight.min(in_flight_of_ring(slots)),
            ..self
        }
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

/// Starts the reader for `backend`. `ring_buffers` are those that most reads will go to.
///
/// # Errors
/// When the kernel refuses the interface, with its reason.
pub fn open(
    backend: Backend,
    files: &Arc<OpenFiles>,
    ring_buffers: Vec<SlotBuffer>,
    limits: ReadLimits,
) -> io::Result<Box<dyn Reader>> {
    let faults = files.faults().cloned();
    let files = Arc::clone(files);
    let reader = (backend.description().start)(files, ring_buffers, limits)?;
    Ok(match faults {
        Some(faults) => Box::new(FaultyReader::start(reader, faults)?),
        None => reader,
    })
}

/// The fastest reader that the system lets stream, and what it says to those that are
/// faster.
pub fn fastest() -> (Backend, Vec<(Backend, io::Error)>) {
    let no_files = Arc::new(OpenFiles::default());
    let limits = ReadLimits::at_once(1, Some(1));
    let mut refused = Vec::new();
    for backend in Backend::FASTEST_FIRST {
        match open(backend, &no_files, Vec::new(), limits) {
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
    let page = PageSize::of_system();
    let slot_bytes = slot_bytes.next_multiple_of(page.bytes());
    let arena = Arena::new(slots * slot_bytes, page)?;
    let buffers = (0..slots)
        // SAFETY: no buffer of the arena is read into.
        .map(|slot| unsafe { arena.buffer(slot * slot_bytes, slot_bytes, Some(slot as u16)) })
        .collect();
    let no_files = Arc::new(OpenFiles::default());
    let limits = ReadLimits::at_once(slots, Some(slots));
    Ok(open(backend, &no_files, buffers, limits)?.has_registered_buffers())
}

const MORE_THREADS: &str = "raise the limit on threads (ulimit -u, ulimit -v, TasksMax)";

fn io_uring_remedy(error: &io::Error) -> String {
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
        // Of its own thread: the reader starts one.
        Some(libc::EAGAIN) => MORE_THREADS.to_owned(),
        Some(libc::EMFILE | libc::ENFILE) => "raise the limit on open files (ulimit -n)".to_owned(),
        _ => "use Linux 5.11 or later".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_helps_against_a_limit_names_that_limit() {
        for (code, limit) in [
            (libc::EAGAIN, "ulimit -u"),
            (libc::ENOMEM, "ulimit -l"),
            (libc::EMFILE, "ulimit -n"),
        ] {
            let error = io::Error::from_raw_os_error(code);
            for backend in [Backend::Ring, Backend::Uring] {
                let remedy = backend.remedy(&error);
                assert!(remedy.contains(limit), "{remedy}");
            }
        }
    }

    #[test]
    fn half_of_a_ring_is_in_flight_but_one_at_least_and_eight_at_most() {
        let at_once = ReadLimits::at_once(64, None);
        assert_eq!(at_once.in_flight, 8);
        for (slots, in_flight) in [(0, 1), (1, 1), (2, 1), (3, 2), (8, 4), (16, 8), (64, 8)] {
            assert_eq!(at_once.with_ring(slots).in_flight, in_flight);
        }
        assert_eq!(ReadLimits::at_once(0, None).in_flight, 1);
        assert_eq!(ReadLimits::at_once(2, None).with_ring(16).in_flight, 2);
    }
}
