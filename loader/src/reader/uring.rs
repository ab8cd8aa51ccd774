//! io_uring through tokio-uring, on a thread of its own.
//!
//! tokio-uring hands its submissions to the kernel only when its thread parks, so the
//! ring must not share a thread with anything that computes. Here it has one that does
//! nothing but submit and reap: a few tasks, each with at most one read under way.
//! Tasks and their buffers are made at the start; a read allocates nothing.

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio_uring::buf::BoundedBuf;
use tokio_uring::buf::fixed::FixedBufRegistry;
use tokio_uring::fs::File;

use super::queue::{Bell, Queue};
use super::ring_thread::RingThread;
use super::{Backend, Description, Progress, ReadError, ReadLimits, ReadRequest, io_uring_remedy};
use crate::arena::SlotBuffer;
use crate::files::OpenFiles;

pub(super) const DESCRIPTION: Description = Description {
    backend: Backend::Uring,
    name: "uring",
    summary: "io_uring with O_DIRECT through tokio-uring",
    uses_io_uring: true,
    needs_buffers: true,
    remedy: io_uring_remedy,
    start: |files, buffers, limits| Ok(Box::new(start(files, buffers, limits)?)),
};

/// One permit for each queued request.
impl Bell for Semaphore {
    fn ring(&self) {
        self.add_permits(1);
    }

    fn close(&self) {
        Self::close(self);
    }

    fn is_closed(&self) -> bool {
        Self::is_closed(self)
    }
}

pub(super) fn start(
    files: Arc<OpenFiles>,
    ring_buffers: Vec<SlotBuffer>,
    limits: ReadLimits,
) -> io::Result<RingThread<Semaphore>> {
    let queue = Queue::new(limits.depth, Semaphore::new(0));
    RingThread::start(Backend::Uring, queue, move |queue, started| {
        let opened =
            start_runtime(limits.in_flight).and_then(|runtime| Ok((runtime, open(&files)?)));
        let (runtime, handles) = match opened {
            Ok(opened) => opened,
            Err(error) => return drop(started.send(Err(error))),
        };
        runtime.block_on(async {
            let registry = register(ring_buffers);
            let _ = started.send(Ok(registry.is_some()));
            let lane = Lane {
                files,
                handles,
                registry,
                queue,
            };
            serve(lane, limits.in_flight).await;
        });
    })
}

fn start_runtime(in_flight: usize) -> io::Result<tokio_uring::Runtime> {
    let mut ring = tokio_uring::uring_builder();
    // Completions are reaped when the thread enters the kernel anyway, so it need
    // not be interrupted for them.
    ring.setup_coop_taskrun();
    let mut builder = tokio_uring::builder();
    builder
        .entries(in_flight.next_power_of_two() as u32)
        .uring_builder(&ring);
    tokio_uring::Runtime::new(&builder)
}

/// Registers the buffers with the kernel, or does without where the limit on locked
/// memory does not allow it.
fn register(ring_buffers: Vec<SlotBuffer>) -> Option<FixedBufRegistry<SlotBuffer>> {
    if ring_buffers.is_empty() {
        return None;
    }
    let registry = FixedBufRegistry::new(ring_buffers);
    registry.register().ok().map(|()| registry)
}

/// Handles of its own for each file, before anyone counts on the reader.
fn open(files: &OpenFiles) -> io::Result<Vec<File>> {
    files
        .iter()
        .map(|file| Ok(File::from_std(file.file().try_clone()?)))
        .collect()
}

async fn serve(lane: Lane, in_flight: usize) {
    let lane = Rc::new(lane);
    let tasks: Vec<_> = (0..in_flight)
        .map(|_| {
            let lane = Rc::clone(&lane);
            tokio_uring::spawn(async move { lane.run().await })
        })
        .collect();
    for task in tasks {
        let _ = task.await;
    }
}

/// What every task needs to serve one read after another.
struct Lane {
    files: Arc<OpenFiles>,
    handles: Vec<File>,
    registry: Option<FixedBufRegistry<SlotBuffer>>,
    queue: Arc<Queue<Semaphore>>,
}

impl Lane {
    async fn run(&self) {
        while let Ok(permit) = self.queue.bell.acquire().await {
            permit.forget();
            if let Some(request) = self.queue.next() {
                self.read(request).await;
            }
        }
    }

    async fn read(&self, mut request: ReadRequest) {
        let buffer = request
            .buffer
            .take()
            .expect("io_uring is given a buffer with every request");
        let fixed = match (&self.registry, buffer.registered()) {
            (Some(registry), Some(index)) => registry.check_out(index.into()),
            _ => None,
        };
        // The registry's handle names the same memory, so `buffer` waits meanwhile.
        let (outcome, buffer) = match fixed {
            Some(fixed) => (self.fill_fixed(&request, fixed).await, buffer),
            None => self.fill(&request, buffer).await,
        };
        match outcome {
            Ok(progress) => {
                let file = self.files.get(request.extent.file);
                request.succeed(file, buffer, &progress);
            }
            Err(error) => request.completion.fail(error),
        }
    }

    async fn fill(
        &self,
        request: &ReadRequest,
        mut buffer: SlotBuffer,
    ) -> (Result<Progress, ReadError>, SlotBuffer) {
        let file = self.files.get(request.extent.file);
        let mut progress = Progress::new(file, &request.extent);
        loop {
            let (range, offset) = progress.remaining();
            let (outcome, part) = self.handles[request.extent.file]
                .read_at(buffer.slice(range), offset)
                .await;
            buffer = part.into_inner();
            match progress.record(file, outcome) {
                Ok(false) => {}
                Ok(true) => return (Ok(progress), buffer),
                Err(error) => return (Err(error), buffer),
            }
        }
    }

    async fn fill_fixed(
        &self,
        request: &ReadRequest,
        mut buffer: tokio_uring::buf::fixed::FixedBuf,
    ) -> Result<Progress, ReadError> {
        let file = self.files.get(request.extent.file);
        let mut progress = Progress::new(file, &request.extent);
        loop {
            let (range, offset) = progress.remaining();
            let (outcome, part) = self.handles[request.extent.file]
                .read_fixed_at(buffer.slice(range), offset)
                .await;
            buffer = part.into_inner();
            if progress.record(file, outcome)? {
                return Ok(progress);
            }
        }
    }
}
