//! io_uring through the io-uring crate, on a thread of its own.
//!
//! The thread submits and reaps, nothing else: all that is queued goes to the kernel in
//! one call, which also waits for the next completion unless some are to be reported first. Files and slots are registered,
//! so that the kernel looks neither up for each read. An event descriptor, polled by the
//! ring itself, tells the thread of new requests. When reads have landed, others take their
//! places before anybody hears of it. Everything is made at the start; a read allocates
//! nothing.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use io_uring::{IoUring, Probe, opcode, squeue, types};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::queue::{Bell, Queue};
use super::ring_thread::RingThread;
use super::{Backend, Description, Progress, ReadError, ReadLimits, ReadRequest, io_uring_remedy};
use crate::arena::SlotBuffer;
use crate::files::OpenFiles;

pub(super) const DESCRIPTION: Description = Description {
    backend: Backend::Ring,
    name: "ring",
    summary: "io_uring with O_DIRECT, files and buffers registered",
    uses_io_uring: true,
    needs_buffers: true,
    remedy: io_uring_remedy,
    start: |files, buffers, limits| Ok(Box::new(start(files, buffers, limits)?)),
};

/// What the kernel takes as one registered buffer, and what we ask for in one read;
/// longer ones go on where it ended.
const PART_BYTES_MAX: usize = 1 << 30;

/// Marks the completion that says that there are requests.
const BELL: u64 = u64::MAX;

/// How long the kernel may say, without a completion in between, that it is short of
/// memory, and how often it is asked meanwhile.
const REFUSALS_MAX: u32 = 10_000;
const REFUSAL_PAUSE: Duration = Duration::from_millis(1);

/// An event descriptor that the ring polls.
pub(super) struct EventBell {
    is_closed: AtomicBool,
    event: EventFd,
}

impl EventBell {
    pub(super) fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(Self {
            is_closed: AtomicBool::new(false),
            event: EventFd::from_flags(flags)?,
        })
    }
}

impl Bell for EventBell {
    fn ring(&self) {
        // It fails only where it has been rung 2^64 times unheard.
        let _ = self.event.write(1);
    }

    fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.ring();
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }
}

pub(super) fn start(
    files: Arc<OpenFiles>,
    ring_buffers: Vec<SlotBuffer>,
    limits: ReadLimits,
) -> io::Result<RingThread<EventBell>> {
    let queue = Queue::new(limits.depth, EventBell::new()?);
    RingThread::start(Backend::Ring, queue, move |queue, started| {
        // The kernel wants a ring to be used by the thread that made it.
        match Lane::open(files, queue, ring_buffers, limits.in_flight) {
            Ok(mut lane) => {
                let _ = started.send(Ok(lane.has_registered_buffers));
                lane.serve();
            }
            Err(error) => drop(started.send(Err(error))),
        }
    })
}

/// A ring with the features that the kernel has. Completions are reaped when the thread
/// enters the kernel anyway, so it need not be interrupted for them (Linux 5.19), and
/// only one thread enters (6.0).
fn build_ring(entries: u32) -> io::Result<IoUring> {
    let refused = |error: &io::Error| error.raw_os_error() == Some(libc::EINVAL);
    let ring = IoUring::builder()
        .setup_coop_taskrun()
        .setup_single_issuer()
        .build(entries);
    match ring {
        Err(error) if refused(&error) => {}
        ring => return ring,
    }
    match IoUring::builder().setup_coop_taskrun().build(entries) {
        Err(error) if refused(&error) => IoUring::new(entries),
        ring => ring,
    }
}

/// Whether the kernel has the operations that reads are made of (Linux 5.6).
fn check_operations(ring: &IoUring) -> io::Result<()> {
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    let codes = [
        opcode::Read::CODE,
        opcode::ReadFixed::CODE,
        opcode::PollAdd::CODE,
    ];
    if codes.iter().all(|&code| probe.is_supported(code)) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "this kernel's io_uring cannot read",
    ))
}

/// Registers the files; without, the kernel looks them up for each read.
fn register_files(ring: &IoUring, files: &OpenFiles) -> bool {
    let descriptors: Vec<RawFd> = files.iter().map(|file| file.file().as_raw_fd()).collect();
    !descriptors.is_empty() && ring.submitter().register_files(&descriptors).is_ok()
}

/// Registers the buffers, or does without where the limit on locked memory does not
/// allow it.
fn register_buffers(ring: &IoUring, buffers: &mut [SlotBuffer]) -> bool {
    if buffers.is_empty() || buffers.iter().any(|it| it.bytes() > PART_BYTES_MAX) {
        return false;
    }
    let vectors: Vec<libc::iovec> = buffers
        .iter_mut()
        .map(|buffer| libc::iovec {
            iov_base: buffer.as_mut_slice().as_mut_ptr().cast(),
            iov_len: buffer.bytes(),
        })
        .collect();
    // SAFETY: the ranges are memory that the buffers keep mapped, and the lane keeps the
    // buffers for longer than its ring. The kernel writes to them in reads only.
    unsafe { ring.submitter().register_buffers(&vectors) }.is_ok()
}

/// A read that the kernel has been asked for, until it is reported.
struct InFlight {
    request: ReadRequest,
    buffer: SlotBuffer,
    progress: Progress,
}

/// Calls in a row that the kernel was too short of memory for.
#[derive(Default)]
struct Refusals(u32);

impl Refusals {
    /// Takes the answer to a call; whether to pause before the next.
    fn hear(&mut self, answer: io::Result<usize>) -> io::Result<bool> {
        let Err(error) = answer else {
            *self = Self::default();
            return Ok(false);
        };
        match error.raw_os_error() {
            Some(libc::EINTR) => Ok(false),
            // What has been read makes room.
            Some(libc::EAGAIN | libc::EBUSY) if self.0 < REFUSALS_MAX => {
                self.0 += 1;
                Ok(true)
            }
            _ => Err(error),
        }
    }
}

/// What the ring's thread works with.
struct Lane {
    ring: IoUring,
    in_flight: Box<[Option<InFlight>]>,
    // Reads that have come to their end and are not reported yet.
    landed: Vec<(InFlight, Result<(), ReadError>)>,
    files: Arc<OpenFiles>,
    has_registered_files: bool,
    has_registered_buffers: bool,
    queue: Arc<Queue<EventBell>>,
    refusals: Refusals,
    // Dropped after the ring that knows them.
    _registered: Vec<SlotBuffer>,
}

impl Lane {
    fn open(
        files: Arc<OpenFiles>,
        queue: Arc<Queue<EventBell>>,
        mut ring_buffers: Vec<SlotBuffer>,
        in_flight: usize,
    ) -> io::Result<Self> {
        // One for each read, and one for the bell.
        let entries = (in_flight + 1).next_power_of_two();
        let ring = build_ring(entries as u32)?;
        check_operations(&ring)?;
        Ok(Self {
            has_registered_files: register_files(&ring, &files),
            has_registered_buffers: register_buffers(&ring, &mut ring_buffers),
            ring,
            in_flight: (0..in_flight).map(|_| None).collect(),
            landed: Vec::with_capacity(in_flight),
            files,
            queue,
            refusals: Refusals::default(),
            _registered: ring_buffers,
        })
    }

    /// Serves requests until the queue is closed and every read has landed.
    fn serve(&mut self) {
        self.listen();
        loop {
            let is_closed = self.queue.bell.is_closed();
            if is_closed {
                self.queue.clear();
            } else {
                self.accept();
            }
            // What is in flight when the kernel refuses is seen to when the lane is dropped.
            if self.submit_and_report().is_err() || is_closed && self.is_idle() {
                return;
            }
            if self.enter().is_err() {
                return;
            }
            while let Some((place, result)) = self.completion() {
                if place == BELL {
                    // Before the queue is looked at: what comes later rings again.
                    let _ = self.queue.bell.event.read();
                    self.listen();
                } else {
                    self.land(place as usize, result);
                }
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.in_flight.iter().all(Option::is_none)
    }

    fn listen(&mut self) {
        let bell = types::Fd(self.queue.bell.event.as_raw_fd());
        let entry = opcode::PollAdd::new(bell, libc::POLLIN as u32).build();
        self.push(&entry.user_data(BELL));
    }

    /// Takes what is queued, as far as there is room.
    fn accept(&mut self) {
        while let Some(place) = self.in_flight.iter().position(Option::is_none) {
            let Some(mut request) = self.queue.next() else {
                return;
            };
            let buffer = request
                .buffer
                .take()
                .expect("io_uring is given a buffer with every request");
            let file = self.files.get(request.extent.file);
            self.in_flight[place] = Some(InFlight {
                progress: Progress::new(file, &request.extent),
                request,
                buffer,
            });
            self.read(place);
        }
    }

    /// Asks for what is missing of the read at `place`.
    fn read(&mut self, place: usize) {
        let Some(read) = &mut self.in_flight[place] else {
            return;
        };
        let file = read.request.extent.file;
        let (range, offset) = read.progress.remaining();
        let bytes = range.len().min(PART_BYTES_MAX) as u32;
        let start = read.buffer.as_mut_slice()[range].as_mut_ptr();
        let registered = read.buffer.registered();
        let registered = registered.filter(|_| self.has_registered_buffers);
        macro_rules! entry {
            ($descriptor:expr) => {
                match registered {
                    Some(index) => opcode::ReadFixed::new($descriptor, start, bytes, index)
                        .offset(offset)
                        .build(),
                    None => opcode::Read::new($descriptor, start, bytes)
                        .offset(offset)
                        .build(),
                }
            };
        }
        let entry = if self.has_registered_files {
            entry!(types::Fixed(file as u32))
        } else {
            entry!(types::Fd(self.files.get(file).file().as_raw_fd()))
        };
        self.push(&entry.user_data(place as u64));
    }

    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: a read's buffer stays in `in_flight`, untouched, until its completion
        // has been reaped, and keeps its memory mapped; descriptors are of `files` and
        // `queue`, which outlive the ring's last operation (see `drop`).
        let pushed = unsafe { self.ring.submission().push(entry) };
        pushed.expect("as many entries as reads, and one for the bell");
    }

    /// Hands everything to the kernel and waits for a completion.
    fn enter(&mut self) -> io::Result<()> {
        if self.refusals.hear(self.ring.submit_and_wait(1))? {
            std::thread::sleep(REFUSAL_PAUSE);
        }
        Ok(())
    }

    /// Tells those who wait what has landed, once what took its place is with the kernel and
    /// the drive. Through the page cache a read may be copied on the spot, so there it waits.
    fn submit_and_report(&mut self) -> io::Result<()> {
        let mut outcome = Ok(());
        let has_successors = !self.landed.is_empty() && !self.ring.submission().is_empty();
        if has_successors && self.files.all_direct() {
            // What the kernel has no memory for now, `enter` hands over again.
            outcome = self.refusals.hear(self.ring.submit()).map(drop);
        }
        self.report();
        outcome
    }

    /// The next completion that is there: whose, and its result.
    fn completion(&mut self) -> Option<(u64, i32)> {
        let entry = self.ring.completion().next()?;
        self.refusals = Refusals::default();
        Some((entry.user_data(), entry.result()))
    }

    /// Takes the outcome of the read at `place`, and goes on with it or lets it be reported.
    fn land(&mut self, place: usize, result: i32) {
        let Some(mut read) = self.in_flight.get_mut(place).and_then(Option::take) else {
            return;
        };
        let file = self.files.get(read.request.extent.file);
        let outcome = match usize::try_from(result) {
            Ok(count) => Ok(count),
            Err(_) => Err(io::Error::from_raw_os_error(-result)),
        };
        let recorded = read.progress.record(file, outcome);
        if let Ok(false) = recorded {
            self.in_flight[place] = Some(read);
            return self.read(place);
        }
        self.landed.push((read, recorded.map(drop)));
    }

    fn report(&mut self) {
        for (read, outcome) in self.landed.drain(..) {
            match outcome {
                Ok(()) => {
                    let file = self.files.get(read.request.extent.file);
                    read.request.succeed(file, read.buffer, &read.progress);
                }
                Err(error) => read.request.completion.fail(error),
            }
        }
    }
}

impl Drop for Lane {
    /// Waits until the kernel writes to no buffer any more.
    fn drop(&mut self) {
        while !self.is_idle() {
            if self.enter().is_err() {
                // Nobody can tell when the kernel is done: the memory is kept for ever.
                for read in self.in_flight.iter_mut().filter_map(Option::take) {
                    read.request.completion.fail(ReadError::Stopped);
                    std::mem::forget(read.buffer);
                }
                return;
            }
            while let Some((place, _)) = self.completion() {
                if let Some(landed) = self.in_flight.get_mut(place as usize) {
                    *landed = None;
                }
            }
        }
    }
}

#[cfg(all(test, not(emel_loom)))]
mod tests {
    use super::*;
    use crate::arena::Arena;
    use crate::gguf::Extent;
    use crate::page::PageSize;
    use crate::slots::SlotTable;

    fn error(code: i32) -> io::Result<usize> {
        Err(io::Error::from_raw_os_error(code))
    }

    #[test]
    fn what_waits_is_with_the_kernel_when_what_landed_is_reported() {
        let page = PageSize::of_system();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bytes");
        std::fs::write(&path, vec![7; 2 * page.bytes()]).unwrap();
        let files = Arc::new(OpenFiles::open([path.as_path()], true).unwrap());
        let queue = Queue::new(2, EventBell::new().unwrap());
        let lane = Lane::open(Arc::clone(&files), Arc::clone(&queue), Vec::new(), 1);
        let (true, Ok(mut lane)) = (files.all_direct(), lane) else {
            return eprintln!("skipped: no io_uring here, or no direct reads");
        };
        let table = SlotTable::new(2);
        let arena = Arena::new(2 * page.bytes(), page).unwrap();
        for slot in 0..2 {
            queue.submit(ReadRequest {
                extent: Extent {
                    file: 0,
                    offset: (slot * page.bytes()) as u64,
                    bytes: page.bytes() as u64,
                },
                // SAFETY: one buffer for each slot, and one slot for each page.
                buffer: Some(unsafe { arena.buffer(slot * page.bytes(), page.bytes(), None) }),
                completion: table.begin(slot),
            });
        }
        lane.accept();
        lane.enter().unwrap();
        let (place, result) = lane.completion().unwrap();
        lane.land(place as usize, result);
        lane.accept();
        assert!(table.poll_take(0).is_pending() && !lane.ring.submission().is_empty());
        lane.submit_and_report().unwrap();
        assert!(table.poll_take(0).is_ready() && lane.ring.submission().is_empty());
    }

    #[test]
    fn a_kernel_that_stays_short_of_memory_is_asked_so_often_and_no_more() {
        for code in [libc::EAGAIN, libc::EBUSY] {
            let mut refusals = Refusals::default();
            for _ in 0..REFUSALS_MAX {
                assert!(refusals.hear(error(code)).unwrap());
            }
            let given_up = refusals.hear(error(code)).unwrap_err();
            assert_eq!(given_up.raw_os_error(), Some(code));
        }
    }

    #[test]
    fn a_call_that_succeeds_makes_up_for_refusals_and_an_interrupted_one_is_none() {
        let mut refusals = Refusals(REFUSALS_MAX);
        assert!(!refusals.hear(error(libc::EINTR)).unwrap());
        assert!(!refusals.hear(Ok(1)).unwrap());
        assert!(refusals.hear(error(libc::EAGAIN)).unwrap());
    }

    #[test]
    fn another_error_is_reported_at_once() {
        assert!(Refusals::default().hear(error(libc::EBADF)).is_err());
    }
}
