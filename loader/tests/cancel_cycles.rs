//! After ten thousand cancels and restarts no slot is lost and memory is where it was.
//! One test, because the counters are the process's.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

mod support;

use std::time::{Duration, Instant};

use emel_loader::counting_allocator::CountingAllocator;
use emel_loader::page::PageSize;
use emel_loader::plan::Plan;
use emel_loader::reader::Backend;
use emel_loader::weights::{Pass, Weights};
use emel_tests::faults::{Rates, SeededFaults};
use emel_tests::run::READERS;
use rand_core::Rng;
use rand_pcg::Pcg64;
use support::{Model, open, poll_and_drop, run, wait_until};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

const CYCLES: usize = 10_000;
/// Cycles after which buffers have grown to their size.
const WARM_UP_CYCLES: usize = 2_000;
/// A queue may hold a block of messages more or less.
const HELD_BYTES_MORE: usize = 16 << 10;
const RESIDENT_BYTES_MORE: usize = 2 << 20;

#[test]
fn ten_thousand_cancels_and_restarts_lose_no_slot_and_no_memory() {
    for &backend in READERS.iter() {
        cycle(backend, 0x5107, None);
        let rates = Rates {
            delay_max: Duration::from_micros(50),
            ..Rates::ALL
        };
        cycle(backend, 0xfa017, Some(rates));
    }
}

fn cycle(backend: Backend, seed: u64, rates: Option<Rates>) {
    println!("{}, seed {seed:#x}", backend.name());
    let started = Instant::now();
    let mut random = Pcg64::new(seed.into(), 1);
    let mut below = |limit: u64| (random.next_u64() % limit) as usize;
    let model = Model::new();
    let plan = model.plan(100_000);
    let faults = rates.map(|rates| SeededFaults::new(seed, rates));
    let files = model.files(faults.clone().map(|faults| faults as _));
    let mut weights = open(&files, &plan, backend);
    let mut before = (0, 0);
    for cycle in 0..CYCLES {
        if cycle == WARM_UP_CYCLES {
            before = settled(&mut weights, &plan, &model);
        }
        // One cycle in ten fails, if the reader can.
        let is_broken = below(10) == 0;
        if let Some(faults) = faults.as_ref().filter(|_| is_broken) {
            faults.break_from(below(model.bytes.len() as u64) as u64, 5);
        }
        let pass = [Pass::Body, Pass::Full][below(2)];
        weights.begin_pass(pass, [Pass::Body, Pass::Full][below(2)]);
        if below(4) == 0 {
            let rows = weights.with_rows(model.rows(below(30)), |_, _| ());
            poll_and_drop(rows, below(4));
        }
        // Left in the middle of a pass, and mostly in the middle of a wait.
        for unit in 0..below(6).min(plan.head_start()) {
            let wanted = model.wanted(&plan.units[unit].extent);
            let step = weights.with_unit(unit, |bytes| bytes == wanted);
            let polls = [1, 2, 1000][below(3)];
            match poll_and_drop(step, polls) {
                Some(Ok(is_right)) => assert!(is_right, "unit {unit} in cycle {cycle}"),
                Some(Err(_)) | None => break,
            }
        }
        if let Some(faults) = &faults {
            faults.mend();
        }
        if below(2) == 0 {
            weights.restart();
        }
    }
    let after = settled(&mut weights, &plan, &model);
    println!(
        "{before:?} before, {after:?} after, {:?}",
        started.elapsed()
    );
    let (held_bytes, resident_bytes) = after;
    assert!(held_bytes <= before.0 + HELD_BYTES_MORE, "allocated");
    assert!(resident_bytes <= before.1 + RESIDENT_BYTES_MORE, "resident");
}

/// Shows that every slot takes part, and returns allocated and resident bytes when
/// nothing is under way.
fn settled(weights: &mut Weights, plan: &Plan, model: &Model) -> (usize, usize) {
    weights.restart();
    run(model.check_pass(plan, weights));
    weights.restart();
    // What was abandoned is landing.
    wait_until(|| weights.busy_slots() == 0);
    let before = weights.statistics().reads;
    weights.begin_pass(Pass::Full, Pass::Full);
    assert_eq!(weights.busy_slots(), plan.slots, "slots that read");
    wait_until(|| weights.statistics().reads - before == plan.slots as u64);
    weights.restart();
    (ALLOCATOR.held_bytes(), resident_bytes())
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * PageSize::of_system().bytes()
}
