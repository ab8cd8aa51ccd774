//! A [`FaultyReader`] holds requests back on their way to a real reader, so that reads end
//! late and in another order.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use super::{Backend, Faults, ReadRequest, Reader};
use crate::gguf::Extent;

/// A reader whose requests arrive late and in another order.
pub(super) struct FaultyReader {
    inner: Arc<Mutex<Box<dyn Reader>>>,
    faults: Arc<dyn Faults>,
    waiting: Option<Sender<(Instant, ReadRequest)>>,
    thread: Option<JoinHandle<()>>,
}

impl FaultyReader {
    pub(super) fn start(inner: Box<dyn Reader>, faults: Arc<dyn Faults>) -> io::Result<Self> {
        let inner = Arc::new(Mutex::new(inner));
        let (sender, receiver) = channel();
        let thread_inner = Arc::clone(&inner);
        let thread = std::thread::Builder::new()
            .name("emel-faults".to_owned())
            .spawn(move || hold_back(&thread_inner, &receiver))?;
        Ok(Self {
            inner,
            faults,
            waiting: Some(sender),
            thread: Some(thread),
        })
    }
}

impl Reader for FaultyReader {
    fn backend(&self) -> Backend {
        lock(&self.inner).backend()
    }

    fn submit(&self, request: ReadRequest) {
        let due = Instant::now() + self.faults.delay(&request.extent);
        if let Some(waiting) = &self.waiting {
            // With the thread gone the request comes back and its drop reports it.
            let _ = waiting.send((due, request));
        }
    }

    fn release(&self, extent: &Extent) {
        lock(&self.inner).release(extent);
    }

    fn has_registered_buffers(&self) -> bool {
        lock(&self.inner).has_registered_buffers()
    }
}

impl Drop for FaultyReader {
    fn drop(&mut self) {
        self.waiting = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Hands each request on when it is due. What still waits at the end is dropped, which
/// reports that the reader stopped.
fn hold_back(inner: &Mutex<Box<dyn Reader>>, requests: &Receiver<(Instant, ReadRequest)>) {
    let mut waiting: Vec<(Instant, ReadRequest)> = Vec::new();
    loop {
        let now = Instant::now();
        while let Some(index) = waiting.iter().position(|(due, _)| *due <= now) {
            let (_, request) = waiting.swap_remove(index);
            lock(inner).submit(request);
        }
        let next = waiting.iter().map(|(due, _)| *due).min();
        let received = match next {
            Some(due) => requests.recv_timeout(due.saturating_duration_since(now)),
            None => requests.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match received {
            Ok(request) => waiting.push(request),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn lock(inner: &Mutex<Box<dyn Reader>>) -> MutexGuard<'_, Box<dyn Reader>> {
    inner.lock().unwrap_or_else(PoisonError::into_inner)
}
