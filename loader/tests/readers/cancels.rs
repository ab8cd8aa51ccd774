//! What is dropped, cancelled or panics half way.

use emel_loader::weights::{Pass, Weights};

use crate::model::{Model, random};
use crate::{
    check_full_pass, check_rows, check_unit, every_reader, open, open_files, poll_and_drop, run,
    units_of,
};

#[test]
fn cancels_at_any_place_lose_no_slot_and_no_byte() {
    every_reader(|backend| {
        let mut random = random(0xca9ce1);
        let model = Model::new();
        for (round, slots) in [1, 2, 5, 16].into_iter().enumerate() {
            let plan = model.plan(20_000, slots, |unit| round % 2 == 1 && unit % 3 == 0);
            let mut weights = open(&model, &plan, backend);
            for _ in 0..150 {
                let (pass, next) = (random.pass(), random.pass());
                weights.begin_pass(pass, next);
                let stop = random.below(units_of(&plan, pass));
                run(async {
                    if random.one_in(3) {
                        let row = random.below(97);
                        check_rows(&model, &mut weights, &[row]).await;
                    }
                    for unit in 0..stop {
                        check_unit(&model, &plan, &mut weights, unit).await;
                    }
                });
                if random.one_in(2) {
                    let polls = random.below(4);
                    let wanted = model.wanted(&plan.units[stop].extent);
                    let step = weights.with_unit(stop, |bytes| bytes == wanted);
                    if let Some(right) = poll_and_drop(step, polls) {
                        assert_eq!(right, Ok(true));
                    }
                }
                // Without it the next `begin_pass` must notice by itself.
                if random.one_in(2) {
                    weights.restart();
                }
            }
            for _ in 0..2 {
                run(check_full_pass(&model, &plan, &mut weights));
            }
        }
    });
}

#[test]
fn a_step_that_was_dropped_while_it_waited_can_be_asked_for_again() {
    every_reader(|backend| {
        let model = Model::new();
        let plan = model.streamed();
        let mut weights = open(&model, &plan, backend);
        for _ in 0..20 {
            weights.begin_pass(Pass::Full, Pass::Full);
            for unit in 0..plan.units.len() {
                let wanted = model.wanted(&plan.units[unit].extent);
                let step = weights.with_unit(unit, |bytes| bytes == wanted);
                match poll_and_drop(step, 1) {
                    Some(right) => assert_eq!(right, Ok(true)),
                    None => run(check_unit(&model, &plan, &mut weights, unit)),
                }
            }
        }
    });
}

#[test]
fn a_step_that_panics_leaves_weights_that_serve() {
    every_reader(|backend| {
        let model = Model::new();
        let plan = model.streamed();
        let mut weights = open(&model, &plan, backend);
        for unit in 0..4 {
            weights.begin_pass(Pass::Full, Pass::Full);
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                run(async {
                    for earlier in 0..unit {
                        check_unit(&model, &plan, &mut weights, earlier).await;
                    }
                    let _ = weights
                        .with_unit(unit, |_| panic!("as the test wants"))
                        .await;
                });
            }));
            assert!(panicked.is_err());
            run(check_full_pass(&model, &plan, &mut weights));
        }
    });
}

#[test]
fn weights_are_dropped_with_reads_under_way() {
    every_reader(|backend| {
        let mut random = random(0xd209);
        let model = Model::new();
        let plan = model.plan(20_000, 16, |_| false);
        let files = model.files(true);
        for _ in 0..200 {
            let mut weights = open_files(&files, &plan, backend);
            weights.begin_pass(Pass::Full, Pass::Full);
            match random.below(4) {
                0 => weights.restart(),
                1 => run(check_unit(&model, &plan, &mut weights, 0)),
                2 => {
                    let rows = (0..40).map(|row| model.row(row));
                    let _ = poll_and_drop(weights.with_rows(rows, |_, _| {}), 2);
                }
                _ => {}
            }
        }
        // Loading is dropped half way too.
        let pinned = model.plan(7_000, 2, |unit| unit % 7 != 0);
        for polls in 0..50 {
            let _ = poll_and_drop(
                Weights::open(&files, &pinned, backend, &mut |_| {}),
                polls % 5,
            );
        }
    });
}
