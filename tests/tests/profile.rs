//! A trace of passes says what the statistics say, event by event.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use emel::internals::blueprint::Blueprint;
use emel::internals::pass_runner::PassRunner;
use emel::{Backend, Io, RamBudget};
use emel_loader::files::OpenFiles;
use emel_loader::trace::{Activity, Event, Trace};
use emel_loader::weights::Pass;
use emel_model::forward::Batch;
use emel_tests::fixtures::fixture;
use emel_tests::run::{READERS, block_on, settings, smallest_budget};

const PASSES: usize = 5;

/// Runs passes; what was recorded, and the bytes, waits and computing of the statistics.
fn record(backend: Backend) -> (Vec<Event>, u64, Duration, Duration) {
    let model = fixture("arch/llama-untied.gguf");
    let mut small = settings(0, 64);
    small.io = Io::Only(backend);
    small.profile = true;
    let file_bytes = std::fs::metadata(&model).unwrap().len();
    small.ram_budget = RamBudget::Bytes(smallest_budget(&model, &small) + file_bytes / 4);
    let blueprint = Blueprint::new(&model, small).unwrap();
    assert!(blueprint.plan.streams() && blueprint.plan.pinned_bytes() > 0);
    let trace = Arc::clone(blueprint.trace.as_ref().unwrap());
    block_on(async {
        let files = OpenFiles::open([model.as_path()], backend.needs_buffers()).unwrap();
        let mut runner = PassRunner::build(&blueprint, &Arc::new(files), backend, &mut |_| {})
            .await
            .unwrap();
        let loaded = runner.read_statistics();
        for position in 0..PASSES {
            let batch = Batch {
                tokens: &[7],
                position,
                logit_tokens: 1,
            };
            let outcome = runner.pass(batch, Pass::Full, &|| false).await;
            assert!(outcome.is_ok());
        }
        let (events, bytes_read) = settled(&runner, &trace, loaded.bytes_read);
        let wait = runner.read_statistics().wait - loaded.wait;
        (events, bytes_read, wait, runner.compute())
    })
}

/// The events and the bytes read, of a moment at which no read was counted and not yet recorded
/// or the reverse: reads ahead go on after a pass.
fn settled(runner: &PassRunner, trace: &Trace, bytes_before: u64) -> (Vec<Event>, u64) {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let counted = runner.read_statistics().bytes_read - bytes_before;
        let events = trace.events();
        if counted == read_bytes(&events) {
            return (events, counted);
        }
        assert!(Instant::now() < deadline, "{counted} bytes read");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn read_bytes(events: &[Event]) -> u64 {
    let bytes = |event: &Event| match event.activity {
        Activity::Read { bytes, .. } => Some(bytes),
        _ => None,
    };
    events.iter().filter_map(bytes).sum()
}

#[test]
fn reads_carry_the_bytes_of_the_statistics_and_waits_and_computing_their_time() {
    for &backend in READERS.iter() {
        let (events, bytes_read, wait, compute) = record(backend);
        assert!(bytes_read > 0);
        assert_eq!(read_bytes(&events), bytes_read, "{backend:?}");
        let time_of = |activity| -> Duration {
            let of_it = events.iter().filter(|event| event.activity == activity);
            of_it.map(|event| event.length).sum()
        };
        assert_eq!(time_of(Activity::Wait), wait, "{backend:?}");
        assert_eq!(time_of(Activity::Compute), compute, "{backend:?}");
    }
}

#[test]
fn waits_and_computing_of_a_pass_do_not_overlap() {
    for &backend in READERS.iter() {
        let (events, ..) = record(backend);
        let end = |event: &Event| event.start + event.length;
        let passes: Vec<&Event> = events
            .iter()
            .filter(|event| matches!(event.activity, Activity::Pass { tokens: 1 }))
            .collect();
        assert_eq!(passes.len(), PASSES);
        for pass in &passes {
            let mut inside: Vec<&Event> = events
                .iter()
                .filter(|event| matches!(event.activity, Activity::Wait | Activity::Compute))
                .filter(|event| event.start >= pass.start && end(event) <= end(pass))
                .collect();
            inside.sort_by_key(|event| (event.start, event.length));
            let computed = |event: &&&Event| event.activity == Activity::Compute;
            assert!(inside.iter().filter(computed).count() > 2);
            for pair in inside.windows(2) {
                assert!(end(pair[0]) <= pair[1].start, "{pair:?}");
            }
        }
    }
}
