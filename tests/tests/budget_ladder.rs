//! A larger budget never makes a worse plan: what is resident stays so, and no more bytes are
//! read for a token, but for those of a slot.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::path::Path;

use emel::internals::blueprint::Blueprint;
use emel::{Io, RamBudget, Settings};
use emel_loader::plan::Plan;
use emel_tests::fixtures::{GEMMA3, SMOLLM2, fixture, real_model};
use emel_tests::run::smallest_budget;

/// Bytes that a token reads, if all experts are as likely.
fn read_bytes(plan: &Plan) -> u64 {
    let experts = plan.expert_slots.as_ref();
    plan.streamed_bytes() + experts.map_or(0, |it| it.expected_bytes_per_token())
}

/// What one slot less for a ring or for experts lets a token read more.
fn read_bytes_of_slot(plan: &Plan) -> u64 {
    let of_experts = plan.expert_slots.as_ref().map_or(0, |experts| {
        experts
            .bytes_per_token()
            .div_ceil(experts.layout.experts() as u64)
    });
    of_experts.max(plan.slot_bytes as u64)
}

fn check(model: &Path, settings: &Settings, rungs: u64) {
    let least = smallest_budget(model, settings);
    let most = least + 2 * std::fs::metadata(model).unwrap().len() + (16 << 20);
    let mut before: Option<Plan> = None;
    for rung in 0..=rungs {
        let mut settings = settings.clone();
        let budget_bytes = least + (most - least) * rung / rungs;
        settings.ram_budget = RamBudget::Bytes(budget_bytes);
        let plan = Blueprint::new(model, settings).unwrap().plan;
        assert!(plan.total_bytes() <= budget_bytes);
        if let Some(before) = &before {
            let name = model.display();
            assert!(
                before.streams() || !plan.streams(),
                "{name}: resident in {}, not in {budget_bytes}",
                before.budget_bytes
            );
            let (read, read_before) = (read_bytes(&plan), read_bytes(before));
            assert!(
                read <= read_before + read_bytes_of_slot(&plan),
                "{name}: {read_before} are read in {}, {read} in {budget_bytes}",
                before.budget_bytes
            );
        }
        before = Some(plan);
    }
    assert!(!before.unwrap().streams());
}

fn check_all(model: &Path, rungs: u64) {
    for (context, io) in [(None, Io::Auto), (Some(64), Io::Unmapped)] {
        let settings = Settings {
            context,
            io,
            threads: 2,
            ..Settings::default()
        };
        check(model, &settings, rungs);
    }
}

#[test]
fn a_larger_budget_makes_no_worse_a_plan_for_any_architecture() {
    for entry in std::fs::read_dir(fixture("arch")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|it| it == "gguf") {
            check_all(&path, 60);
        }
    }
}

#[test]
fn a_larger_budget_makes_no_worse_a_plan_for_real_models() {
    for name in [SMOLLM2, GEMMA3] {
        if let Some(path) = real_model(name) {
            check_all(&path, 40);
        }
    }
}
