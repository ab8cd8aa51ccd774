//! What goes wrong while reading: what passes is retried, what stays is an error, and
//! either way the bytes are right and the next pass is served.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{Model, open, poll_and_drop, run, streamed_units};
use emel_loader::gguf::Extent;
use emel_loader::reader::{Backend, Faults, ReadError};
use emel_loader::unit::Unit;
use emel_loader::weights::{Pass, Weights};
use emel_tests::faults::{Rates, SeededFaults};
use emel_tests::run::READERS;

const EIO: i32 = 5;
const ENXIO: i32 = 6;

#[test]
fn what_passes_is_retried_and_counted_and_the_bytes_are_right() {
    for &backend in READERS.iter() {
        let model = Model::new();
        for (seed, more_bytes) in [(0xfa, 0), (0x17, 300_000), (0x5eed, 1 << 30)] {
            let faults = SeededFaults::new(seed, Rates::ALL);
            let files = model.files(Some(faults.clone()));
            let plan = model.plan(more_bytes);
            let mut weights = open(&files, &plan, backend);
            for _ in 0..10 {
                run(model.check_pass(&plan, &mut weights));
            }
            let counts = faults.counts();
            println!("{}: {counts:?}", backend.name());
            assert!(counts.delays > 0, "{counts:?}");
            let retries = weights.statistics().retries;
            if backend.needs_buffers() {
                assert!(counts.short > 0 && counts.passing > 0, "{counts:?}");
                assert!(retries >= counts.passing, "{retries} retries, {counts:?}");
            } else {
                assert_eq!(retries, 0, "a mapping makes no calls");
            }
        }
    }
}

#[test]
fn what_stays_is_an_error_that_says_all_and_the_next_pass_is_served() {
    for &backend in READERS.iter().filter(|it| it.needs_buffers()) {
        let model = Model::new();
        let plan = model.plan(0);
        let faults = SeededFaults::new(7, Rates::default());
        let mut weights = open(&model.files(Some(faults.clone())), &plan, backend);
        for (&unit, code) in streamed_units(&plan)
            .iter()
            .zip([EIO, ENXIO].iter().cycle())
        {
            let extent = plan.units[unit].extent;
            // Reads are widened to whole blocks, the largest of which is a page.
            let broken_from = extent.offset / 4096 * 4096;
            // What has been read ahead is right.
            weights.restart();
            faults.break_from(broken_from, *code);
            let failure = run(async {
                weights.begin_pass(Pass::Full, Pass::Full);
                for index in 0..=unit {
                    weights.with_unit(index, |_| ()).await?;
                }
                Ok(())
            })
            .unwrap_err();
            let ReadError::Failed {
                path,
                offset,
                wanted,
                got,
                message,
            } = &failure
            else {
                panic!("{failure}");
            };
            // One before it in the pass may lie behind it in the file.
            let is_its =
                |unit: &Unit| (unit.extent.offset, unit.extent.bytes) == (*offset, *wanted as u64);
            assert!(plan.units[..=unit].iter().any(is_its), "{failure}");
            assert!(offset + *wanted as u64 > broken_from, "{failure}");
            assert!(*got < *wanted, "{failure}");
            assert_eq!(*path, model.path);
            assert!(message.contains(&format!("os error {code}")), "{message}");
            // Only an error that may pass is worth asking again.
            assert_eq!(message.contains("4 times"), *code == EIO, "{message}");
            faults.mend();
            weights.restart();
            run(model.check_pass(&plan, &mut weights));
        }
    }
}

#[test]
fn a_row_that_cannot_be_read_is_an_error_and_the_next_lookup_is_served() {
    for &backend in READERS.iter().filter(|it| it.needs_buffers()) {
        let model = Model::new();
        let plan = model.plan(0);
        let faults = SeededFaults::new(9, Rates::default());
        let mut weights = open(&model.files(Some(faults.clone())), &plan, backend);
        faults.break_from(0, EIO);
        let failure = run(weights.with_rows(model.rows(20), |_, _| ())).unwrap_err();
        assert!(matches!(failure, ReadError::Failed { .. }), "{failure}");
        faults.mend();
        run(model.check_pass(&plan, &mut weights));
    }
}

#[test]
fn weights_whose_pinned_units_cannot_be_read_are_not_opened() {
    for &backend in READERS.iter().filter(|it| it.needs_buffers()) {
        let model = Model::new();
        let plan = model.plan(1 << 30);
        let faults = SeededFaults::new(11, Rates::default());
        faults.break_from(model.bytes.len() as u64 / 2, EIO);
        let files = model.files(Some(faults.clone()));
        let outcome = run(Weights::open(&files, &plan, backend, &mut |_| {}));
        let message = outcome.err().unwrap().to_string();
        assert!(message.contains("os error 5), 4 times"), "{message}");
    }
}

/// A file that looks as if it ended early.
#[derive(Debug)]
struct Nothing;

impl Faults for Nothing {
    fn answer(&self, _: &Path, _: u64, answer: io::Result<usize>) -> io::Result<usize> {
        answer.map(|_| 0)
    }

    fn delay(&self, _: &Extent) -> Duration {
        Duration::ZERO
    }
}

#[test]
fn reads_that_bring_nothing_before_the_end_of_the_file_are_given_up() {
    let model = Model::new();
    let plan = model.plan(0);
    let files = model.files(Some(Arc::new(Nothing)));
    let mut weights = open(&files, &plan, Backend::Pread);
    weights.begin_pass(Pass::Full, Pass::Full);
    let failure = run(weights.with_unit(0, |_| ())).unwrap_err();
    let message = failure.to_string();
    let told = "no bytes, before the file's end, 101 times";
    assert!(message.contains(told), "{message}");
}

#[test]
fn weights_are_dropped_with_requests_that_wait() {
    for &backend in READERS.iter() {
        let model = Model::new();
        let plan = model.plan(0);
        let slow = Rates {
            delay: 1,
            delay_max: Duration::from_secs(3600),
            ..Rates::default()
        };
        for seed in 0..20 {
            let files = model.files(Some(SeededFaults::new(seed, slow)));
            let mut weights = open(&files, &plan, backend);
            weights.begin_pass(Pass::Full, Pass::Full);
            let rows = weights.with_rows(model.rows(20), |_, _| ());
            assert!(poll_and_drop(rows, 1).is_none());
        }
    }
}
