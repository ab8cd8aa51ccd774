//! A reader that has an io_uring on a thread of its own: starting it, reaching it through
//! its queue, ending it.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use super::queue::{Bell, End, Queue};
use super::time_slice::run_at_once;
use super::{Backend, ReadRequest, Reader};

/// The thread ends, with all its reads, when this is dropped.
pub(super) struct RingThread<B: Bell> {
    backend: Backend,
    queue: Arc<Queue<B>>,
    has_registered_buffers: bool,
    thread: Option<JoinHandle<()>>,
}

impl<B: Bell + Send + Sync + 'static> RingThread<B> {
    /// Runs `serve` on a new thread, with the queue it is to serve until that is closed.
    /// It first says whether the kernel has taken its buffers, or why it cannot begin.
    pub(super) fn start(
        backend: Backend,
        queue: Arc<Queue<B>>,
        serve: impl FnOnce(Arc<Queue<B>>, SyncSender<io::Result<bool>>) + Send + 'static,
    ) -> io::Result<Self> {
        let (started, start) = sync_channel(1);
        let end = End(Arc::clone(&queue));
        let thread = std::thread::Builder::new()
            .name(format!("emel-{}", backend.name()))
            .spawn(move || {
                run_at_once();
                serve(Arc::clone(&end.0), started);
            })?;
        match start.recv() {
            Ok(Ok(has_registered_buffers)) => Ok(Self {
                backend,
                queue,
                has_registered_buffers,
                thread: Some(thread),
            }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(io::Error::other("the io_uring thread ended at its start")),
        }
    }
}

impl<B: Bell + Send + Sync> Reader for RingThread<B> {
    fn backend(&self) -> Backend {
        self.backend
    }

    fn submit(&self, request: ReadRequest) {
        self.queue.submit(request);
    }

    fn has_registered_buffers(&self) -> bool {
        self.has_registered_buffers
    }
}

impl<B: Bell> Drop for RingThread<B> {
    fn drop(&mut self) {
        self.queue.bell.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
