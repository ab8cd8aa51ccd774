//! Requests on their way to a ring's thread.

use std::sync::Arc;

use crossbeam::queue::ArrayQueue;

use super::ReadRequest;

/// How the thread learns that there are requests, or that there will be no more.
pub(super) trait Bell {
    /// One more request is queued.
    fn ring(&self);

    /// No more requests are served; the thread hears of it.
    fn close(&self);

    fn is_closed(&self) -> bool;
}

/// A bounded queue that fails what nobody will serve.
pub(super) struct Queue<B> {
    requests: ArrayQueue<ReadRequest>,
    pub(super) bell: B,
}

impl<B: Bell> Queue<B> {
    pub(super) fn new(depth: usize, bell: B) -> Arc<Self> {
        Arc::new(Self {
            requests: ArrayQueue::new(depth),
            bell,
        })
    }

    /// # Panics
    /// When more than `depth` requests wait.
    pub(super) fn submit(&self, request: ReadRequest) {
        let refused = self.requests.push(request).err();
        assert!(
            refused.is_none(),
            "more reads under way than there are slots"
        );
        self.bell.ring();
        if self.bell.is_closed() {
            self.clear();
        }
    }

    pub(super) fn next(&self) -> Option<ReadRequest> {
        self.requests.pop()
    }

    /// Drops what is queued, which reports that the reader stopped. Whoever closes
    /// clears after it, and whoever submits looks after it, so that no request stays.
    pub(super) fn clear(&self) {
        while self.requests.pop().is_some() {}
    }
}

/// Closes the queue when the thread ends, even by a panic.
pub(super) struct End<B: Bell>(pub(super) Arc<Queue<B>>);

impl<B: Bell> Drop for End<B> {
    fn drop(&mut self) {
        self.0.bell.close();
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::task::Poll;

    use tokio::sync::Semaphore;

    use super::super::ReadError;
    use super::super::ring::EventBell;
    use super::*;
    use crate::gguf::Extent;
    use crate::slots::SlotTable;

    fn request(table: &Arc<SlotTable>, slot: usize) -> ReadRequest {
        ReadRequest {
            extent: Extent {
                file: 0,
                offset: 0,
                bytes: 1,
            },
            buffer: None,
            completion: table.begin(slot),
        }
    }

    fn fails_what_nobody_serves(bell: impl Bell) {
        let queue = Queue::new(2, bell);
        let table = SlotTable::new(2);
        queue.submit(request(&table, 0));
        assert!(table.poll_take(0).is_pending());
        drop(End(Arc::clone(&queue)));
        assert_eq!(table.poll_take(0), Poll::Ready(Err(ReadError::Stopped)));
        queue.submit(request(&table, 1));
        assert_eq!(table.poll_take(1), Poll::Ready(Err(ReadError::Stopped)));
    }

    fn fails_what_comes_while_it_closes(bell: impl Bell + Send + Sync) {
        let queue = Queue::new(1, bell);
        let table = SlotTable::new(1);
        let both = Barrier::new(2);
        std::thread::scope(|scope| {
            let end = End(Arc::clone(&queue));
            scope.spawn(|| {
                let end = end;
                both.wait();
                drop(end);
            });
            let request = request(&table, 0);
            both.wait();
            queue.submit(request);
        });
        assert_eq!(table.poll_take(0), Poll::Ready(Err(ReadError::Stopped)));
    }

    #[test]
    fn reads_asked_of_a_thread_that_has_ended_fail_and_are_not_waited_for() {
        fails_what_nobody_serves(EventBell::new().unwrap());
        fails_what_nobody_serves(Semaphore::new(0));
    }

    #[test]
    fn a_read_asked_for_while_the_thread_ends_fails() {
        for _ in 0..200 {
            fails_what_comes_while_it_closes(EventBell::new().unwrap());
            fails_what_comes_while_it_closes(Semaphore::new(0));
        }
    }
}
