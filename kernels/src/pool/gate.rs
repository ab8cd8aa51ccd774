//! Fork and join between one caller and the workers.
//!
//! *Fork.* The caller writes the job, then advances `generation`. A worker that sees a new
//! generation reads the job. *Join.* Each worker decrements `remaining` when it is done; the caller
//! goes on at zero, and only then may the job's closure, which lives on its stack, disappear.
//!
//! Both sides spin for [`SPIN`] and then park on a condition variable, which is where such code
//! goes wrong. A sleeper first says that it sleeps, then looks once more for what it waits for; a
//! waker first makes the thing happen, then looks whether anyone sleeps. Each side is a store
//! followed by a load of another location, and with release and acquire alone both loads may miss
//! both stores. So between the two each side has a `SeqCst` fence: the side whose fence is the
//! later one sees the other's store. If it is the waker, it takes the mutex before it notifies;
//! the sleeper holds that mutex from its last look until it waits, so the notification cannot fall
//! in between. `interleavings.rs` has loom try all orders of this.
//!
//! A worker touches the gate after its last decrement (to look for a sleeper), when the caller may
//! already have left. That is safe because the gate is not part of a run: it lives in an `Arc`
//! which every worker holds until its thread ends.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::time::Duration;

use super::{Payload, catch};
use crate::sync::{
    AtomicBool, AtomicU64, AtomicUsize, Condvar, Mutex, UnsafeCell, fence, spin_until,
};

/// How long to spin before parking: longer than the serial stretches between two kernels (norms,
/// a slot hand-over), shorter than a read from disk.
const SPIN: Duration = Duration::from_micros(40);

/// The closure of a run. The lifetime is erased; the join restores it.
type Job = *const (dyn Fn(usize) + Sync);

/// The meeting point of a pool's threads.
pub(super) struct Gate {
    /// Number of runs begun, and one more when the gate is closed.
    generation: AtomicU64,
    closed: AtomicBool,
    /// Written by the caller before it advances `generation`, read by workers after.
    job: UnsafeCell<Option<Job>>,
    /// Workers that have not finished the current run.
    remaining: AtomicUsize,
    /// Workers, without the caller.
    workers: usize,
    sleeping_workers: Sleepers,
    sleeping_caller: Sleepers,
    /// The first panic of the current run.
    panic: Mutex<Option<Payload>>,
}

// SAFETY: `job` is the only field that is not `Sync`. The caller writes it while no run is on
// (`remaining` is zero), so no worker reads it then; the closure it points to is `Sync`.
unsafe impl Sync for Gate {}
// SAFETY: as above; the pointer is only followed during a run, whose caller keeps it valid.
unsafe impl Send for Gate {}

impl Gate {
    /// A gate for `workers` threads besides the caller.
    pub(super) fn new(workers: usize) -> Self {
        Self {
            generation: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            job: UnsafeCell::new(None),
            remaining: AtomicUsize::new(0),
            workers,
            sleeping_workers: Sleepers::new(),
            sleeping_caller: Sleepers::new(),
            panic: Mutex::new(None),
        }
    }

    /// Has every worker call `job`, calls `own` meanwhile, and waits for all. Returns the first
    /// panic. Only one thread may be in this function at a time.
    pub(super) fn run<'job>(
        &self,
        job: &'job (dyn Fn(usize) + Sync + 'job),
        own: impl FnOnce() -> Option<Payload>,
    ) -> Option<Payload> {
        let erased: *const (dyn Fn(usize) + Sync + 'job) = job;
        // SAFETY: only the lifetime changes. Workers follow the pointer between the advance of
        // `generation` and their decrement of `remaining`, and this function does not return or
        // unwind before all have decremented: `own` catches its panics.
        let erased =
            unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync + 'job), Job>(erased) };
        self.job.with_mut(|job| {
            // SAFETY: no run is on, so no worker reads the job (see the `Sync` implementation).
            unsafe { *job = Some(erased) }
        });
        // Workers see both with the generation.
        self.remaining.store(self.workers, Relaxed);
        self.generation.fetch_add(1, Release);
        self.sleeping_workers.wake();

        let own_panic = own();

        self.sleeping_caller
            .wait_until(|| self.remaining.load(Acquire) == 0);
        let worker_panic = self
            .panic
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        own_panic.or(worker_panic)
    }

    /// The life of a worker: takes part in every run until the gate closes.
    pub(super) fn serve(&self, worker: usize) {
        let mut seen = 0;
        loop {
            self.sleeping_workers
                .wait_until(|| self.generation.load(Acquire) != seen);
            if self.closed.load(Relaxed) {
                return;
            }
            // The next run cannot begin before this worker has finished the current one, so runs
            // are never skipped.
            seen += 1;
            let job = self.job.with(|job| {
                // SAFETY: the caller wrote the job before the generation that was just seen, and
                // writes it again only after this worker's decrement below.
                unsafe { *job }.expect("a run has a job")
            });
            // SAFETY: `run` keeps the closure alive until the decrement below.
            let job = unsafe { &*job };
            if let Some(payload) = catch(|| job(worker)) {
                let mut panic = self.panic.lock().unwrap_or_else(PoisonError::into_inner);
                panic.get_or_insert(payload);
            }
            // Releases what the job did, and passes on what other workers have released.
            if self.remaining.fetch_sub(1, AcqRel) == 1 {
                self.sleeping_caller.wake();
            }
        }
    }

    /// Ends the workers. No run may be on.
    pub(super) fn close(&self) {
        self.closed.store(true, Relaxed);
        self.generation.fetch_add(1, Release);
        self.sleeping_workers.wake();
    }
}

/// Threads that wait for one kind of event.
struct Sleepers {
    count: AtomicUsize,
    mutex: Mutex<()>,
    condition: Condvar,
}

impl Sleepers {
    fn new() -> Self {
        Self {
            count: AtomicUsize::new(0),
            mutex: Mutex::new(()),
            condition: Condvar::new(),
        }
    }

    /// Returns once `happened` does: first spinning, then parked.
    fn wait_until(&self, happened: impl Fn() -> bool) {
        if spin_until(&happened, SPIN) {
            return;
        }
        let mut guard = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
        self.count.fetch_add(1, Relaxed);
        fence(SeqCst);
        while !happened() {
            guard = self
                .condition
                .wait(guard)
                .unwrap_or_else(PoisonError::into_inner);
        }
        self.count.fetch_sub(1, Relaxed);
    }

    /// Wakes whoever sleeps, after the event that `happened` looks for.
    fn wake(&self) {
        fence(SeqCst);
        if self.count.load(Relaxed) > 0 {
            let _guard = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
            self.condition.notify_all();
        }
    }
}

#[cfg(all(emel_loom, test))]
mod interleavings;
