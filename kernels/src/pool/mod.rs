//! The worker pool: the same few threads for every kernel of a pass.
//!
//! A forward pass forks and joins some hundreds of times per token, and the work between is often
//! only tens of microseconds. So the thread that calls is worker 0, a call hands every worker the
//! same closure, nothing is queued or allocated, and workers spin for a bounded time before they
//! park. Work is split into contiguous stretches of tasks, which keeps each worker on its own part of
//! the weights; who has come to the end of its stretch takes what is left of the others'. Memory and
//! processors are never equally fast for all, and without that the join waits for the slowest.
//!
//! The fork and the join are in [`gate`], and how tasks are taken in [`cursors`]; their correctness
//! arguments are there.

mod cursors;
mod gate;
mod rows;

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use cursors::Cursors;
use gate::Gate;
pub(crate) use rows::TASK_VALUES;

/// Threads that run kernels, the calling thread being one of them.
pub struct Pool {
    gate: Arc<Gate>,
    /// Held during a run, so that two threads that share a pool take turns.
    turn: Mutex<()>,
    threads: usize,
    workers: Vec<JoinHandle<()>>,
    /// The tasks of the run; set by whoever has the turn.
    cursors: Cursors,
}

/// Why a pool could not be made.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// Zero threads cannot run anything.
    #[error("a pool needs at least one thread")]
    NoThreads,
    /// The system refused a thread.
    #[error(
        "cannot start worker {worker} of {threads}: {source}; lower the number of threads or raise the limit (ulimit -u, ulimit -v, TasksMax)"
    )]
    Spawn {
        /// Which worker.
        worker: usize,
        /// Threads asked for.
        threads: usize,
        /// The system's reason.
        source: std::io::Error,
    },
}

thread_local! {
    /// Whether this thread is running a task of some pool.
    static INSIDE_TASK: Cell<bool> = const { Cell::new(false) };
}

impl Pool {
    /// A pool of `threads` workers, the calling thread included: `threads - 1` are started.
    ///
    /// With `pin`, and if there are enough cores, each worker is bound to a core of its own. That
    /// includes the calling thread, which should therefore be the one that will run kernels, and
    /// should have started its I/O threads before, for they would inherit its core.
    pub fn new(threads: usize, pin: bool) -> Result<Self, PoolError> {
        if threads == 0 {
            return Err(PoolError::NoThreads);
        }
        // Asked before pinning, because a pinned thread sees only its own core.
        let cores = if pin {
            core_affinity::get_core_ids().unwrap_or_default()
        } else {
            Vec::new()
        };
        let core_of = |worker: usize| (cores.len() >= threads).then(|| cores[worker]);

        let gate = Arc::new(Gate::new(threads - 1));
        let mut pool = Self {
            gate,
            turn: Mutex::new(()),
            threads,
            workers: Vec::new(),
            cursors: Cursors::new(threads),
        };
        for worker in 1..threads {
            let gate = Arc::clone(&pool.gate);
            let core = core_of(worker);
            let body = move || {
                core.map(core_affinity::set_for_current);
                INSIDE_TASK.set(true);
                gate.serve(worker);
            };
            // An error drops the pool, which stops the workers already started.
            let handle = std::thread::Builder::new()
                .name(format!("emel-worker-{worker}"))
                .spawn(body)
                .map_err(|source| PoolError::Spawn {
                    worker,
                    threads,
                    source,
                })?;
            pool.workers.push(handle);
        }
        core_of(0).map(core_affinity::set_for_current);
        Ok(pool)
    }

    /// Number of workers, the calling thread included.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Calls `task(worker)` once for every worker, in parallel, and returns when all are done.
    ///
    /// Called from inside a task (of any pool), it calls `task` for all workers in turn on the
    /// same thread.
    ///
    /// # Panics
    ///
    /// If a task panics, with the payload of the first that did, after all have ended.
    pub fn run<F: Fn(usize) + Sync + ?Sized>(&self, task: &F) {
        if self.is_inline() {
            return (0..self.threads).for_each(task);
        }
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let payload = self.fork(&|worker| task(worker));
        drop(turn);
        if let Some(payload) = payload {
            resume_unwind(payload);
        }
    }

    /// Calls `task(worker, index)` once for every index below `tasks`. Of `n` workers, `w` begins
    /// with the `w`-th of `n` contiguous stretches of nearly equal length, in ascending order, and then
    /// takes tasks that the others have not come to.
    ///
    /// # Panics
    ///
    /// As [`Pool::run`]. Of the other tasks some are then not begun, if every worker has panicked.
    pub fn run_tasks<F: Fn(usize, usize) + Sync>(&self, tasks: usize, task: F) {
        if tasks <= 1 {
            return (0..tasks).for_each(|index| task(0, index));
        }
        if self.is_inline() {
            let stretch = |worker| self.cursors.stretch(worker, tasks);
            return (0..self.threads)
                .for_each(|worker| stretch(worker).for_each(|index| task(worker, index)));
        }
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.cursors.rewind(tasks);
        let payload = self.fork(&|worker| {
            self.cursors
                .work(worker, tasks, |index| task(worker, index));
        });
        drop(turn);
        if let Some(payload) = payload {
            resume_unwind(payload);
        }
    }

    /// Whether there is nobody to fork to, or this is a task of a run already.
    fn is_inline(&self) -> bool {
        self.workers.is_empty() || INSIDE_TASK.get()
    }

    /// One run; the caller has the turn. Returns the first panic.
    fn fork(&self, task: &(dyn Fn(usize) + Sync)) -> Option<Payload> {
        self.gate.run(task, || {
            INSIDE_TASK.set(true);
            let outcome = catch(|| task(0));
            INSIDE_TASK.set(false);
            outcome
        })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.gate.close();
        for worker in self.workers.drain(..) {
            // Workers catch the panics of tasks, and have none of their own.
            let _ = worker.join();
        }
    }
}

/// What a panicking task left.
type Payload = Box<dyn Any + Send>;

/// Runs `task` and returns its panic, if any.
fn catch(task: impl FnOnce()) -> Option<Payload> {
    catch_unwind(AssertUnwindSafe(task)).err()
}
