//! The gate in every order that its threads' steps can come in: `make loom`.

use std::sync::Arc;

use loom::cell::UnsafeCell;

use super::Gate;
use crate::pool::cursors::Cursors;

/// A count without any synchronisation of its own: loom fails a model in which
/// two threads come to it unordered.
struct Count(UnsafeCell<usize>);

// SAFETY: whether one thread at a time comes to the cell is what loom checks here.
unsafe impl Sync for Count {}

impl Count {
    fn add(&self) {
        self.0.with_mut(|count| {
            // SAFETY: loom has just checked that nobody else is here.
            unsafe { *count += 1 }
        });
    }

    fn get(&self) -> usize {
        self.0.with(|count| {
            // SAFETY: loom has just checked that nobody writes.
            unsafe { *count }
        })
    }
}

/// A gate with its workers, in every order of their steps. `preemptions` are switches from a
/// thread that could go on: bugs of this kind need two, and each more makes the model many
/// times longer.
fn with_workers(workers: usize, preemptions: usize, runs: impl Fn(&Gate) + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        let gate = Arc::new(Gate::new(workers));
        let threads: Vec<_> = (1..=workers)
            .map(|worker| {
                let gate = Arc::clone(&gate);
                loom::thread::spawn(move || gate.serve(worker))
            })
            .collect();
        runs(&gate);
        gate.close();
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

fn counts(count: usize) -> Vec<Count> {
    (0..count).map(|_| Count(UnsafeCell::new(0))).collect()
}

fn model(workers: usize, runs: usize, preemptions: usize) {
    with_workers(workers, preemptions, move |gate| {
        for _ in 0..runs {
            // Gone after each run, as the closure is.
            let counts = counts(workers + 1);
            let panic = gate.run(&|worker: usize| counts[worker].add(), || {
                counts[0].add();
                None
            });
            assert!(panic.is_none());
            assert!(counts.iter().all(|count| count.get() == 1));
        }
    });
}

/// Runs of so many tasks each, which the workers take from each other.
fn model_of_tasks(workers: usize, runs: &'static [usize], preemptions: usize) {
    with_workers(workers, preemptions, move |gate| {
        let cursors = Cursors::new(workers + 1);
        for &tasks in runs {
            let counts = counts(tasks);
            let work = |worker| cursors.work(worker, tasks, |task| counts[task].add());
            cursors.rewind(tasks);
            let panic = gate.run(&work, || {
                work(0);
                None
            });
            assert!(panic.is_none());
            assert!(counts.iter().all(|count| count.get() == 1));
        }
    });
}

#[test]
fn a_task_is_done_once_whoever_takes_it() {
    model_of_tasks(1, &[3], 3);
}

#[test]
fn tasks_of_the_next_run_are_not_taken_for_those_of_the_last() {
    model_of_tasks(1, &[2, 3], 2);
}

#[test]
fn three_may_take_the_same_worker_s_tasks() {
    model_of_tasks(2, &[2], 2);
}

#[test]
fn a_worker_takes_part_in_every_run() {
    model(1, 3, 3);
}

#[test]
fn the_join_waits_for_every_worker() {
    model(2, 1, 3);
}

#[test]
fn workers_that_are_slow_to_leave_a_run_do_not_miss_the_next() {
    model(2, 2, 2);
}

#[test]
fn a_gate_may_close_before_its_workers_have_come() {
    model(2, 0, 3);
}
