//! The tasks of a run, handed out one at a time.
//!
//! Every worker has a stretch of the tasks and a cursor in it. Who takes a task, the stretch's owner
//! or another, adds one to that cursor. All of this is `Relaxed`: that a task is taken once follows
//! from the additions, which are atomic and each of which returns another number. Nothing is passed on
//! from one task to another. That the cursors are at their beginnings is seen with the job, and what
//! tasks have done with the join, as [`gate`](super::gate) has it; nobody sets a cursor before all
//! workers have left the run before. `gate/interleavings.rs` has loom try all orders of this.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use crate::sync::AtomicUsize;

/// Where each worker's stretch of the tasks has been taken up to.
pub(super) struct Cursors(Box<[Cursor]>);

/// The next task of a stretch, on a pair of cache lines of its own.
#[repr(align(128))]
struct Cursor(AtomicUsize);

impl Cursors {
    pub(super) fn new(workers: usize) -> Self {
        Self((0..workers).map(|_| Cursor(AtomicUsize::new(0))).collect())
    }

    /// The tasks that `worker` begins with: stretches are nearly equally long.
    pub(super) fn stretch(&self, worker: usize, tasks: usize) -> Range<usize> {
        let (each, extra) = (tasks / self.0.len(), tasks % self.0.len());
        let start = worker * each + worker.min(extra);
        start..start + each + usize::from(worker < extra)
    }

    /// Sets out on so many tasks. No run may be on.
    pub(super) fn rewind(&self, tasks: usize) {
        for (worker, cursor) in self.0.iter().enumerate() {
            cursor.0.store(self.stretch(worker, tasks).start, Relaxed);
        }
    }

    /// Does the tasks of the worker's stretch, and then what is left of the others'.
    pub(super) fn work(&self, worker: usize, tasks: usize, task: impl Fn(usize)) {
        for owner in (worker..self.0.len()).chain(0..worker) {
            let end = self.stretch(owner, tasks).end;
            while let Some(index) = self.0[owner].advance(end) {
                task(index);
            }
        }
    }
}

impl Cursor {
    /// The next task, if the stretch has one left.
    fn advance(&self, end: usize) -> Option<usize> {
        // Looks first, so that a stretch that is done costs no more than a read.
        if self.0.load(Relaxed) >= end {
            return None;
        }
        let task = self.0.fetch_add(1, Relaxed);
        (task < end).then_some(task)
    }
}
