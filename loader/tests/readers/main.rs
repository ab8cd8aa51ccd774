//! One suite that every reader passes: the bytes that units and rows are given are
//! the file's, in any order of passes, after errors, cancels and restarts.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod cancels;
mod descriptors;
mod files;
mod memory;
mod model;
mod passes;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use emel_loader::files::OpenFiles;
use emel_loader::plan::Plan;
use emel_loader::reader::Backend;
use emel_loader::weights::{Pass, Weights};
use emel_tests::run::READERS;

use crate::model::Model;

/// A test that takes longer waits for something that never comes.
const HANG: Duration = Duration::from_secs(120);

pub(crate) fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(future)
}

/// Runs `test` for every reader that this machine allows, each on a thread that must end in time.
pub(crate) fn every_reader(test: impl Fn(Backend) + Send + Sync + 'static) {
    let test = Arc::new(test);
    for &backend in READERS.iter() {
        let test = Arc::clone(&test);
        in_time(backend.name(), move || test(backend));
    }
}

pub(crate) fn in_time(name: &str, test: impl FnOnce() + Send + 'static) {
    let (done, wait) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    if wait.recv_timeout(HANG) == Err(mpsc::RecvTimeoutError::Timeout) {
        panic!("{name} hangs");
    }
    assert!(thread.join().is_ok(), "{name} has failed");
}

pub(crate) fn open(model: &Model, plan: &Plan, backend: Backend) -> Weights {
    open_files(&model.files(true), plan, backend)
}

pub(crate) fn open_files(files: &Arc<OpenFiles>, plan: &Plan, backend: Backend) -> Weights {
    run(Weights::open(files, plan, backend, &mut |_| {})).unwrap()
}

pub(crate) fn units_of(plan: &Plan, pass: Pass) -> usize {
    match pass {
        Pass::Body => plan.head_start(),
        Pass::Full => plan.units.len(),
    }
}

pub(crate) async fn check_unit(model: &Model, plan: &Plan, weights: &mut Weights, unit: usize) {
    let extent = &plan.units[unit].extent;
    let right = weights
        .with_unit(unit, |bytes| bytes == model.wanted(extent))
        .await;
    assert_eq!(right, Ok(true), "bytes of unit {unit} at {extent:?}");
}

pub(crate) async fn check_pass(
    model: &Model,
    plan: &Plan,
    weights: &mut Weights,
    pass: Pass,
    next: Pass,
) {
    weights.begin_pass(pass, next);
    for unit in 0..units_of(plan, pass) {
        check_unit(model, plan, weights, unit).await;
    }
}

/// A pass with the head, before another such.
pub(crate) async fn check_full_pass(model: &Model, plan: &Plan, weights: &mut Weights) {
    check_pass(model, plan, weights, Pass::Full, Pass::Full).await;
}

pub(crate) async fn check_rows(model: &Model, weights: &mut Weights, rows: &[usize]) {
    let mut seen = vec![0; rows.len()];
    let extents = rows.iter().map(|&row| model.row(row));
    weights
        .with_rows(extents, |index, bytes| {
            assert!(
                bytes == model.wanted(&model.row(rows[index])),
                "bytes of row {}",
                rows[index]
            );
            seen[index] += 1;
        })
        .await
        .unwrap();
    assert!(seen.iter().all(|&times| times == 1), "{seen:?}");
}

/// Polls `future` up to `polls` times with nobody to wake, and drops it.
pub(crate) fn poll_and_drop<T>(future: impl Future<Output = T>, polls: usize) -> Option<T> {
    let mut future = pin!(future);
    for _ in 0..polls {
        if let Poll::Ready(output) = future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            return Some(output);
        }
    }
    None
}
