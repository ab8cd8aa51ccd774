//! Weights over a reader whose reads end when the test says.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use rand_core::Rng;
use rand_pcg::Pcg64;

use super::*;
use crate::page::PageSize;
use crate::plan::Residency;
use crate::unit::Section;

const UNITS: usize = 23;
const BODY: usize = 17;
const SLOTS: usize = 5;

/// Reads end when the test says, in the order it says; the number is of those that
/// have brought wanted bytes and were not released since.
struct Scripted(Arc<Mutex<Vec<ReadRequest>>>, Arc<AtomicUsize>);

impl Reader for Scripted {
    fn backend(&self) -> Backend {
        Backend::Pread
    }

    fn submit(&self, request: ReadRequest) {
        self.0.lock().unwrap().push(request);
    }

    fn release(&self, _extent: &Extent) {
        self.1.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn page() -> PageSize {
    PageSize::of_system()
}

/// Every unit starts elsewhere in a page; what a read of it brings says which it is.
fn unit(index: usize) -> Unit {
    Unit {
        extent: Extent {
            file: 0,
            offset: (index * 3 * page().bytes() + index * 32) as u64,
            bytes: 100 + index as u64,
        },
        section: if index < BODY {
            Section::Body
        } else {
            Section::Head
        },
        parts: Vec::new(),
    }
}

fn is_right(bytes: &[u8], extent: &Extent) -> bool {
    bytes.len() as u64 == extent.bytes && bytes.iter().all(|&byte| byte == mark(extent))
}

fn mark(extent: &Extent) -> u8 {
    (extent.offset / 32 % 251) as u8
}

struct Script {
    requests: Arc<Mutex<Vec<ReadRequest>>>,
    in_use: Arc<AtomicUsize>,
    random: Pcg64,
    fails_one_in: usize,
}

impl Script {
    fn below(&mut self, limit: usize) -> usize {
        (self.random.next_u64() % limit as u64) as usize
    }

    /// Ends one of the reads under way; `false` when there is none.
    fn end_one(&mut self) -> bool {
        let count = self.requests.lock().unwrap().len();
        if count == 0 {
            return false;
        }
        let chosen = self.below(count);
        let mut request = self.requests.lock().unwrap().swap_remove(chosen);
        if self.fails_one_in > 0 && self.below(self.fails_one_in) == 0 {
            match self.below(2) {
                0 => drop(request),
                _ => request.completion.fail(error()),
            }
            return true;
        }
        let mut buffer = request.buffer.take().unwrap();
        buffer.as_mut_slice().fill(mark(&request.extent));
        let bytes = request.extent.bytes as usize;
        let view = buffer.into_view(0, bytes);
        // Before the slot says so.
        self.in_use.fetch_add(1, Ordering::Relaxed);
        if !request.completion.succeed(view, bytes) {
            self.in_use.fetch_sub(1, Ordering::Relaxed);
        }
        true
    }

    /// Polls until the future is ready, ending reads in between, or drops it after
    /// `polls_max`. A future that waits must be woken by the read it waits for.
    fn drive<T>(&mut self, future: impl Future<Output = T>, polls_max: usize) -> Option<T> {
        let mut future = pin!(future);
        let wakes = Arc::new(Wakes(AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&wakes));
        for _ in 0..polls_max {
            let before = wakes.0.load(Ordering::Relaxed);
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return Some(output);
            }
            for _ in 0..=self.below(3) {
                self.end_one();
            }
            assert!(
                wakes.0.load(Ordering::Relaxed) > before,
                "waits for a read that was never begun, or is not woken by its end"
            );
        }
        None
    }
}

fn error() -> ReadError {
    ReadError::Failed {
        path: PathBuf::from("model.gguf"),
        offset: 0,
        wanted: 1,
        got: 0,
        message: "as the test wants".to_owned(),
    }
}

fn scripted(seed: u64, fails_one_in: usize) -> (Weights, Script) {
    println!("seed {seed}");
    let plan = Plan {
        budget_bytes: 0,
        file_bytes: 0,
        items: Vec::new(),
        units: (0..UNITS).map(unit).collect(),
        residency: vec![Residency::Streamed; UNITS],
        expert_runs: Vec::new(),
        expert_slots: None,
        spare_expert_slots: None,
        slots: SLOTS,
        slot_bytes: 2 * page().bytes(),
        row_slot_bytes: page().bytes(),
        is_mapped: false,
        page: page(),
    };
    let requests = Arc::new(Mutex::new(Vec::new()));
    let in_use = Arc::new(AtomicUsize::new(0));
    let mut weights = Weights {
        reader: Box::new(Scripted(Arc::clone(&requests), Arc::clone(&in_use))),
        files: Arc::new(OpenFiles::default()),
        table: SlotTable::new(SLOTS + ROW_SLOTS),
        units: plan.units.clone(),
        page: plan.page,
        pinned: Pinned::new(&plan, Arena::new(0, page()).unwrap(), true),
        ring: Ring::new(UNITS, SLOTS),
        experts: Experts::new(&plan, &|_| Ok(Arena::new(0, page()).unwrap())).unwrap(),
        expert_slots_min: 0,
        expert_bytes_planned: 0,
        streams: true,
        extents: extents_of(SLOTS + ROW_SLOTS),
        buffers: SlotBuffers {
            arena: Arena::new(plan.ring_bytes() as usize, page()).unwrap(),
            rows: Arena::new(ROW_SLOTS * plan.row_slot_bytes, page()).unwrap(),
            ring: (plan.slots, plan.slot_bytes),
            row_bytes: plan.row_slot_bytes,
            with_buffers: true,
        },
        has_spare_ring: false,
        wait: Duration::ZERO,
        trace: None,
    };
    weights.stream_the_others();
    let script = Script {
        requests,
        in_use,
        random: Pcg64::new(seed.into(), 1),
        fails_one_in,
    };
    (weights, script)
}

fn pass(script: &mut Script) -> Pass {
    match script.below(2) {
        0 => Pass::Body,
        _ => Pass::Full,
    }
}

/// Runs a pass to its end, an error or a cancel; `true` for the end.
fn run_pass(weights: &mut Weights, script: &mut Script, cancel_one_in: usize) -> bool {
    let (pass, next) = (pass(script), pass(script));
    weights.begin_pass(pass, next);
    let units = if pass == Pass::Body { BODY } else { UNITS };
    for index in 0..units {
        let extent = unit(index).extent;
        let cancels = cancel_one_in > 0 && script.below(cancel_one_in) == 0;
        let polls_max = if cancels { script.below(3) } else { 10_000 };
        let step = weights.with_unit(index, |bytes| is_right(bytes, &extent));
        match script.drive(step, polls_max) {
            Some(Ok(right)) => assert!(right, "unit {index} has other bytes"),
            Some(Err(_)) | None => return false,
        }
    }
    true
}

fn rows(count: usize) -> impl ExactSizeIterator<Item = Extent> {
    (0..count).map(|index| Extent {
        file: 0,
        offset: (index * 64) as u64,
        bytes: 50,
    })
}

#[test]
fn reads_that_end_in_any_order_give_every_unit_its_bytes() {
    for seed in 0..20 {
        let (mut weights, mut script) = scripted(seed, 0);
        for _ in 0..20 {
            assert!(run_pass(&mut weights, &mut script, 0));
        }
    }
}

#[test]
fn after_failures_and_cancels_the_ring_serves_again() {
    for seed in 0..40 {
        let (mut weights, mut script) = scripted(seed, 40);
        for _ in 0..60 {
            let ended = run_pass(&mut weights, &mut script, 25);
            // A cancelled pass may be followed by another without more ado.
            if !ended && script.below(2) == 0 {
                weights.restart();
            }
            for _ in 0..script.below(4) {
                script.end_one();
            }
        }
        script.fails_one_in = 0;
        weights.restart();
        assert!(run_pass(&mut weights, &mut script, 0));
        weights.restart();
        while script.end_one() {}
        let table = &weights.table;
        assert!((0..table.len()).all(|slot| table.is_free(slot)));
        assert_eq!(script.in_use.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn no_two_reads_under_way_share_memory() {
    let (mut weights, mut script) = scripted(5, 30);
    for _ in 0..200 {
        run_pass(&mut weights, &mut script, 10);
        let step = weights.with_rows(rows(3), |_, _| {});
        let polls = script.below(3);
        script.drive(step, polls);
        let mut requests = script.requests.lock().unwrap();
        let starts: BTreeSet<usize> = requests
            .iter_mut()
            .map(|request| {
                let buffer = request.buffer.as_mut().unwrap();
                buffer.as_mut_slice().as_ptr() as usize
            })
            .collect();
        assert_eq!(starts.len(), requests.len());
    }
}

#[test]
fn rows_survive_failures_and_lookups_that_are_dropped() {
    for seed in 0..40 {
        let (mut weights, mut script) = scripted(seed, 30);
        for _ in 0..100 {
            let count = script.below(40);
            let polls_max = match script.below(2) {
                0 => script.below(6),
                _ => 10_000,
            };
            let mut seen = 0;
            let step = weights.with_rows(rows(count), |index, bytes| {
                let extent = rows(40).nth(index).unwrap();
                assert!(is_right(bytes, &extent), "row {index} has other bytes");
                seen += 1;
            });
            if let Some(Ok(())) = script.drive(step, polls_max) {
                assert_eq!(seen, count);
            }
        }
        weights.restart();
        while script.end_one() {}
        assert_eq!(script.in_use.load(Ordering::Relaxed), 0);
    }
}

#[test]
#[should_panic = "unit 3 is asked for"]
fn a_unit_that_no_pass_reads_is_not_waited_for() {
    let (mut weights, _script) = scripted(1, 0);
    let step = pin!(weights.with_unit(3, |_| {}));
    let _ = step.poll(&mut Context::from_waker(Waker::noop()));
}

#[test]
fn a_unit_whose_slots_all_wait_for_abandoned_reads_is_waited_for() {
    let (mut weights, mut script) = scripted(1, 0);
    weights.begin_pass(Pass::Full, Pass::Full);
    weights.restart();
    assert_eq!(weights.busy_slots(), SLOTS);
    assert!(run_pass(&mut weights, &mut script, 0));
}
