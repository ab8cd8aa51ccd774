//! Fork and join.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use emel_kernels::{Pool, PoolError};

#[test]
fn a_hundred_thousand_runs_call_every_worker_once_each() {
    let pool = Pool::new(3, false).unwrap();
    let calls: [AtomicUsize; 3] = Default::default();
    for run in 1..=100_000 {
        pool.run(&|worker: usize| {
            calls[worker].fetch_add(1, Relaxed);
        });
        assert!(calls.iter().all(|count| count.load(Relaxed) == run));
    }
}

#[test]
fn workers_that_have_parked_wake_and_so_does_a_parked_caller() {
    let pool = Pool::new(3, false).unwrap();
    for run in 0..200_usize {
        // Around the spinning time, so that both sides are caught between looking and parking.
        std::thread::sleep(Duration::from_micros(20 + (run % 50) as u64));
        let done = AtomicUsize::new(0);
        pool.run(&|worker: usize| {
            if worker != 0 {
                std::thread::sleep(Duration::from_micros((run % 100) as u64));
            }
            done.fetch_add(1, Relaxed);
        });
        assert_eq!(done.load(Relaxed), 3);
    }
}

#[test]
fn tasks_run_once_each_for_any_number() {
    let pool = Pool::new(3, false).unwrap();
    for tasks in 0..20 {
        let owner: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(usize::MAX)).collect();
        pool.run_tasks(tasks, |worker, task| {
            assert_eq!(
                owner[task].swap(worker, Relaxed),
                usize::MAX,
                "task {task} ran twice"
            );
        });
        let owners: Vec<usize> = owner.iter().map(|owner| owner.load(Relaxed)).collect();
        assert!(owners.iter().all(|&owner| owner < 3), "{owners:?}");
    }
}

#[test]
fn tasks_of_a_worker_that_is_held_up_are_taken_by_the_others() {
    let pool = Pool::new(2, false).unwrap();
    let done = AtomicUsize::new(0);
    pool.run_tasks(10, |_, task| {
        // The first task of the caller ends after all others.
        while task == 0 && done.load(Relaxed) < 9 {
            std::thread::yield_now();
        }
        done.fetch_add(1, Relaxed);
    });
    assert_eq!(done.load(Relaxed), 10);
}

#[test]
fn rows_are_split_completely_and_only_between_rows() {
    let pool = Pool::new(3, false).unwrap();
    for (rows, width) in [(0, 7), (1, 100_000), (5, 9000), (3000, 7), (100_001, 1)] {
        let mut values = vec![0.0_f32; rows * width];
        pool.run_rows(&mut values, width, |run, values| {
            assert_eq!(values.len(), run.len() * width);
            for (row, values) in run.zip(values.chunks_exact_mut(width)) {
                values.iter_mut().for_each(|value| *value += row as f32);
            }
        });
        let expected = (0..rows).flat_map(|row| std::iter::repeat_n(row as f32, width));
        assert!(values.into_iter().eq(expected), "{rows} rows of {width}");
    }
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
    let pool = Pool::new(3, false).unwrap();
    for culprit in 0..3 {
        let ended = AtomicUsize::new(0);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            pool.run(&|worker: usize| {
                assert_ne!(worker, culprit, "worker {culprit} fails");
                ended.fetch_add(1, Relaxed);
            });
        }));
        let payload = outcome.unwrap_err();
        let message = payload.downcast_ref::<String>().unwrap();
        assert!(
            message.contains(&format!("worker {culprit} fails")),
            "{message}"
        );
        assert_eq!(
            ended.load(Relaxed),
            2,
            "the others ended before the panic went on"
        );
    }
    let calls = AtomicUsize::new(0);
    pool.run(&|_: usize| {
        calls.fetch_add(1, Relaxed);
    });
    assert_eq!(calls.load(Relaxed), 3);
}

#[test]
fn a_task_that_panics_leaves_the_others_to_be_done_and_the_next_run_whole() {
    let pool = Pool::new(3, false).unwrap();
    for culprit in [0, 4, 9] {
        let done: Vec<AtomicUsize> = (0..10).map(|_| AtomicUsize::new(0)).collect();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            pool.run_tasks(10, |_, task| {
                assert_ne!(task, culprit, "task {culprit} fails");
                done[task].fetch_add(1, Relaxed);
            });
        }));
        let payload = outcome.unwrap_err();
        let message = payload.downcast_ref::<String>().unwrap();
        assert!(message.contains("fails"), "{message}");
        for (task, done) in done.iter().enumerate() {
            assert_eq!(done.load(Relaxed), usize::from(task != culprit), "{task}");
        }
    }
    let calls = AtomicUsize::new(0);
    pool.run_tasks(10, |_, _| {
        calls.fetch_add(1, Relaxed);
    });
    assert_eq!(calls.load(Relaxed), 10);
}

#[test]
fn tasks_of_many_more_threads_than_tasks_and_inside_a_task_run_once_each() {
    let (pool, inner) = (Pool::new(16, false).unwrap(), Pool::new(3, false).unwrap());
    for _ in 0..200 {
        let calls: Vec<AtomicUsize> = (0..15).map(|_| AtomicUsize::new(0)).collect();
        pool.run_tasks(3, |_, outer| {
            inner.run_tasks(5, |worker, task| {
                assert!(worker < 3);
                calls[5 * outer + task].fetch_add(1, Relaxed);
            });
        });
        assert!(calls.iter().all(|calls| calls.load(Relaxed) == 1));
    }
}

#[test]
fn one_thread_runs_inline_and_a_run_inside_a_task_runs_in_turn() {
    let here = std::thread::current().id();
    let pool = Pool::new(1, true).unwrap();
    pool.run(&|_: usize| assert_eq!(std::thread::current().id(), here));
    let pool = Pool::new(2, false).unwrap();
    let calls = AtomicUsize::new(0);
    pool.run(&|_: usize| {
        pool.run(&|_: usize| {
            calls.fetch_add(1, Relaxed);
        });
    });
    assert_eq!(calls.load(Relaxed), 4);
}

#[test]
fn two_threads_may_share_a_pool() {
    let pool = Pool::new(2, false).unwrap();
    let calls = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..1000 {
                    pool.run(&|_: usize| {
                        calls.fetch_add(1, Relaxed);
                    });
                    pool.run_tasks(5, |_, _| {
                        calls.fetch_add(1, Relaxed);
                    });
                }
            });
        }
    });
    assert_eq!(calls.load(Relaxed), 14_000);
}

#[test]
fn no_threads_is_an_error() {
    assert!(matches!(Pool::new(0, false), Err(PoolError::NoThreads)));
}
