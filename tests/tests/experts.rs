//! Experts that do not all fit: the same bits as if they did, each read at most once for a
//! chunk, and budgets that hold a layer's.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::cell::Cell;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use emel::internals::blueprint::Blueprint;
use emel::internals::pass_runner::PassRunner;
use emel::{Backend, Error, Io, RamBudget, Settings};
use emel_loader::files::OpenFiles;
use emel_loader::plan::Plan;
use emel_loader::weights::Pass;
use emel_model::forward::Batch;
use emel_tests::fixtures::{MIXTURES, fixture};
use emel_tests::run::{READERS, block_on, greedy, logits, settings, smallest_budget};

fn model(name: &str) -> std::path::PathBuf {
    fixture("arch").join(format!("{name}.gguf"))
}

fn plan(model: &Path, settings: &Settings) -> Plan {
    Blueprint::new(model, settings.clone()).unwrap().plan
}

fn with_budget(settings: &Settings, bytes: u64) -> Settings {
    Settings {
        ram_budget: RamBudget::Bytes(bytes),
        ..settings.clone()
    }
}

/// The smallest budget whose plan is as wanted, if plans of all larger ones are.
fn budget_where(model: &Path, settings: &Settings, is_as_wanted: impl Fn(&Plan) -> bool) -> u64 {
    let mut low = smallest_budget(model, settings);
    let mut high = low + 2 * std::fs::metadata(model).unwrap().len();
    while low < high {
        let middle = low.midpoint(high);
        if is_as_wanted(&plan(model, &with_budget(settings, middle))) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

/// Whether there are more slots than a layer needs for a token, or all experts fit.
fn has_slots_to_spare(plan: &Plan) -> bool {
    plan.expert_slots
        .as_ref()
        .is_none_or(|experts| experts.slots > experts.used)
}

#[test]
fn the_bits_are_those_of_the_resident_model_for_any_number_of_slots_and_any_reader() {
    let tokens: Vec<u32> = (0..50).map(|index| index * 47 % 384).collect();
    for name in MIXTURES {
        let model = model(name);
        let mut base = settings(1 << 30, tokens.len());
        base.all_logits = true;
        let expected = logits(&model, base.clone(), &tokens).unwrap();
        let smallest = smallest_budget(&model, &base);
        let resident = budget_where(&model, &base, |plan| !plan.streams());
        let mut slots = Vec::new();
        for (part, backend, threads) in [
            (0, READERS[0], 2),
            (0, Backend::Pread, 1),
            (1, Backend::Mmap, 2),
            (2, READERS[0], 3),
            (3, Backend::Mmap, 1),
            (4, Backend::Pread, 2),
        ] {
            let some = Settings {
                io: Io::Only(backend),
                threads,
                ..with_budget(&base, smallest + (resident - 1 - smallest) * part / 4)
            };
            // Shorter chunks may make room for all experts in less.
            slots.extend(
                plan(&model, &some)
                    .expert_slots
                    .map(|planned| planned.slots),
            );
            let found = logits(&model, some, &tokens).unwrap();
            assert!(found == expected, "{name}: {slots:?} slots, {backend:?}");
        }
        assert!(
            slots.iter().max() > slots.iter().min(),
            "{name}: {slots:?} slots"
        );
    }
}

#[test]
fn decoding_goes_on_like_the_resident_model() {
    for name in MIXTURES {
        let model = model(name);
        let base = settings(1 << 30, 64);
        let (expected, usage) = greedy(&model, base.clone(), &[5, 80, 300], 40).unwrap();
        assert_eq!(usage.experts, None);
        let small = with_budget(&base, smallest_budget(&model, &base));
        let (found, usage) = greedy(&model, small, &[5, 80, 300], 40).unwrap();
        assert_eq!(found, expected, "{name}");
        let experts = usage.experts.unwrap();
        assert!(experts.misses > 0, "{name}: {experts:?}");
        assert!(experts.missed_bytes_per_token <= usage.streamed_bytes_per_token);
    }
}

#[test]
fn an_expert_is_read_at_most_once_for_a_chunk_however_few_slots_there_are() {
    for name in MIXTURES {
        let model = model(name);
        let mut small = settings(1 << 30, 96);
        small.ram_budget = RamBudget::Bytes(budget_where(&model, &small, has_slots_to_spare));
        let blueprint = Blueprint::new(&model, small).unwrap();
        let planned = blueprint.plan.expert_slots.clone().unwrap();
        let groups = &blueprint.program.expert_uses;
        let chunk = blueprint.chunk;
        let tokens: Vec<u32> = (0..chunk as u32).map(|index| index * 59 % 384).collect();
        for &backend in READERS.iter() {
            block_on(async {
                let files = OpenFiles::open([model.as_path()], backend.needs_buffers()).unwrap();
                let files = Arc::new(files);
                let mut runner = PassRunner::build(&blueprint, &files, backend, &mut |_| {})
                    .await
                    .unwrap();
                for round in 0..2 {
                    runner.state_mut().clear();
                    let before = (runner.read_statistics().reads, runner.expert_statistics());
                    let batch = Batch {
                        tokens: &tokens,
                        position: 0,
                        logit_tokens: 0,
                    };
                    let outcome = runner.pass(batch, Pass::Body, &|| false).await;
                    assert!(outcome.is_ok());
                    let experts = runner.expert_statistics().since(&before.1);
                    let all = groups.iter().map(|mixture| mixture.experts as u64).sum();
                    assert!(
                        planned.slots < all as usize && experts.misses > planned.slots as u64 / 2,
                        "{name}: {experts:?} with {} slots",
                        planned.slots
                    );
                    assert!(
                        experts.hits + experts.misses <= all,
                        "{name}, round {round}: {experts:?} of {all}"
                    );
                    assert_eq!(blueprint.plan.slots, 0);
                    let reads = runner.read_statistics().reads - before.0;
                    // The tokens' embeddings are reads too, where these are not the head.
                    let most = 3 * experts.misses + tokens.len() as u64;
                    assert!(
                        (3 * experts.misses..=most).contains(&reads),
                        "{name}: {reads}"
                    );
                }
            });
        }
    }
}

#[test]
fn a_budget_holds_the_experts_of_a_layer_or_is_refused_with_one_that_does() {
    for name in MIXTURES {
        let model = model(name);
        let base = settings(0, 64);
        let smallest = smallest_budget(&model, &base);
        let least = plan(&model, &with_budget(&base, smallest));
        let used = least.expert_slots.as_ref().unwrap().used;
        assert_eq!(least.expert_slots.unwrap().slots, used, "{name}");
        match Blueprint::new(&model, with_budget(&base, smallest - 1)) {
            Err(Error::BudgetTooSmall { needed_bytes, .. }) => assert_eq!(needed_bytes, smallest),
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn what_every_token_needs_is_pinned_before_experts_get_more_slots() {
    for name in MIXTURES {
        let model = model(name);
        let base = settings(0, 64);
        let smallest = smallest_budget(&model, &base);
        let file_bytes = std::fs::metadata(&model).unwrap().len();
        let mut has_more = false;
        for part in 0..20 {
            let budget = smallest + file_bytes * part / 20;
            let plan = plan(&model, &with_budget(&base, budget));
            let Some(experts) = &plan.expert_slots else {
                continue;
            };
            if experts.slots > experts.used {
                has_more = true;
                assert_eq!(plan.streamed_bytes(), 0, "{name}");
            }
        }
        assert!(has_more, "{name}");
    }
}

#[test]
fn a_pass_that_was_cancelled_or_dropped_does_not_show_in_the_next() {
    let tokens: Vec<u32> = (0..8).map(|index| index * 61 % 384).collect();
    let batch = Batch {
        tokens: &tokens,
        position: 0,
        logit_tokens: 1,
    };
    let model = model("qwen2moe");
    let base = settings(1 << 30, 96);
    // With a ring beside the slots, and with slots alone.
    let with_ring = smallest_budget(&model, &base);
    let without_ring = budget_where(&model, &base, has_slots_to_spare);
    for (budget, has_ring) in [(with_ring, true), (without_ring, false)] {
        let blueprint = Blueprint::new(&model, with_budget(&base, budget)).unwrap();
        assert!(blueprint.plan.expert_slots.is_some());
        assert_eq!(blueprint.plan.slots > 0, has_ring);
        for &backend in READERS.iter() {
            block_on(passes_after_others_ended_early(
                &model, &blueprint, backend, batch,
            ));
        }
    }
}

/// Computes `batch` after passes that were cancelled or dropped at any of its steps, and
/// asserts that the logits are always the same.
async fn passes_after_others_ended_early(
    model: &Path,
    blueprint: &Blueprint,
    backend: Backend,
    batch: Batch<'_>,
) {
    let files = OpenFiles::open([model], backend.needs_buffers()).unwrap();
    let files = Arc::new(files);
    let mut runner = PassRunner::build(blueprint, &files, backend, &mut |_| {})
        .await
        .unwrap();
    let mut expected = None;
    for round in 0..60 {
        let asked = Cell::new(0);
        let is_cancelled = || {
            asked.set(asked.get() + 1);
            round % 2 == 0 && asked.get() > round
        };
        {
            let mut pass = pin!(runner.pass(batch, Pass::Full, &is_cancelled));
            for _ in 0..=round {
                let mut context = Context::from_waker(Waker::noop());
                if pass.as_mut().poll(&mut context).is_ready() {
                    break;
                }
            }
        }
        runner.state_mut().clear();
        let outcome = runner.pass(batch, Pass::Full, &|| false).await;
        assert!(outcome.is_ok());
        let found = runner.logits(0).to_vec();
        assert!(*expected.get_or_insert_with(|| found.clone()) == found);
        runner.state_mut().clear();
    }
}
