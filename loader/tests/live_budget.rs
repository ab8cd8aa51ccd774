//! Pinned units that are given back and taken again while passes go on: the bytes stay
//! those of the file, and the memory is really the kernel's.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use crate::support::{Model, open, run, wait_until};
use emel_loader::page::PageSize;
use emel_loader::plan::Plan;
use emel_loader::weights::Weights;
use emel_tests::run::READERS;
use rand_core::Rng;
use rand_pcg::Pcg64;

/// Of a pass for which nothing has been read ahead, nor lands while it is counted.
fn read_in_a_pass(model: &Model, plan: &Plan, weights: &mut Weights) -> u64 {
    weights.restart();
    wait_until(|| weights.busy_slots() == 0);
    let before = weights.statistics().bytes_read;
    run(model.check_pass(plan, weights));
    weights.statistics().bytes_read - before
}

#[test]
fn units_come_and_go_and_every_pass_has_the_bytes_of_the_file() {
    for &backend in READERS.iter() {
        println!("{}, seed 0x11fe", backend.name());
        let mut random = Pcg64::new(0x11fe, 1);
        let model = Model::new();
        let page = |kib: usize| PageSize::new(kib << 10);
        for (more_bytes, page) in [
            (0, PageSize::of_system()),
            (60_000, PageSize::of_system()),
            (150_000, PageSize::of_system()),
            (150_000, page(16)),
            (600_000, page(64)),
            (1 << 30, PageSize::of_system()),
            (1 << 30, page(64)),
        ] {
            let plan = model.plan_in_pages(more_bytes, page);
            let planned = plan.pinned_bytes();
            let mut weights = open(&model.files(None), &plan, backend);
            assert_eq!(weights.pinned_bytes(), planned);
            let is_releasable = plan.streams() || backend.needs_buffers();
            let most = planned - weights.spare_ring_bytes().min(planned);
            let releasable = if is_releasable { most } else { 0 };
            assert_eq!(weights.releasable_bytes(), releasable);
            for _ in 0..60 {
                let wanted = random.next_u64() % (releasable + 1);
                weights.set_kept_bytes(wanted);
                if wanted < releasable {
                    assert!(weights.pinned_bytes() <= wanted);
                }
                for _ in 0..random.next_u64() % 3 {
                    run(model.check_pass(&plan, &mut weights));
                }
            }
            weights.set_kept_bytes(u64::MAX);
            run(model.check_pass(&plan, &mut weights));
            assert_eq!(weights.pinned_bytes(), planned, "all are back after a pass");
            // What the ring has read ahead is dropped once.
            run(model.check_pass(&plan, &mut weights));
            let read = read_in_a_pass(&model, &plan, &mut weights);
            if !plan.streams() && !plan.is_mapped {
                let rows = 20 * plan.row_slot_bytes as u64;
                assert!(read <= rows, "{read} bytes though all is pinned");
            }
        }
    }
}

#[test]
fn what_fits_stays_and_what_does_not_is_read_in_every_pass() {
    for &backend in READERS.iter().filter(|it| it.needs_buffers()) {
        let model = Model::new();
        let plan = model.plan(1 << 30);
        let planned = plan.pinned_bytes();
        let mut weights = open(&model.files(None), &plan, backend);
        let spare = weights.spare_ring_bytes();
        assert!(spare > 0);
        weights.set_kept_bytes(weights.releasable_bytes() - 1);
        let kept = weights.pinned_bytes();
        assert!(kept + spare < planned);
        run(model.check_pass(&plan, &mut weights));
        assert_eq!(weights.pinned_bytes(), kept);
        assert!(
            read_in_a_pass(&model, &plan, &mut weights)
                >= planned - kept - plan.units.len() as u64 * plan.page.bytes() as u64
        );
        weights.set_kept_bytes(0);
        assert_eq!(weights.pinned_bytes(), 0);
        run(model.check_pass(&plan, &mut weights));
    }
}
