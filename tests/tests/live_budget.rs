//! Weights that are given back and taken again between tokens change no bit.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::sync::Arc;

use emel::internals::blueprint::Blueprint;
use emel::internals::pass_runner::PassRunner;
use emel::{Backend, Io, Prefetch, RamBudget};
use emel_loader::files::OpenFiles;
use emel_loader::weights::Pass;
use emel_model::forward::Batch;
use emel_tests::fixtures::fixture;
use emel_tests::run::{READERS, block_on, settings, smallest_budget};
use rand_core::Rng;
use rand_pcg::Pcg64;

const TOKENS: usize = 24;

/// A plan for the smallest budget and so much more.
fn planned(name: &str, backend: Backend, more_bytes: u64) -> Blueprint {
    let model = fixture("arch").join(name);
    let mut settings = settings(0, 64);
    settings.io = Io::Only(backend);
    // Slots are closed while guesses are read into them.
    settings.prefetch = Prefetch::Both;
    let smallest = smallest_budget(&model, &settings);
    settings.ram_budget = RamBudget::Bytes(smallest + more_bytes);
    Blueprint::new(&model, settings).unwrap()
}

/// The bits of the logits of every token. Before each, `share` of so many parts of what can
/// be given back may be kept; nothing changes where it says nothing.
fn logits(
    blueprint: &Blueprint,
    backend: Backend,
    mut share: impl FnMut(u64) -> Option<u64>,
) -> Vec<Vec<u32>> {
    block_on(async {
        let files = OpenFiles::open_model(blueprint.catalog.files(), backend.needs_buffers());
        let files = Arc::new(files.unwrap());
        let mut runner = PassRunner::build(blueprint, &files, backend, &mut |_| {})
            .await
            .unwrap();
        let releasable = runner.weights().releasable_bytes();
        let mut all = Vec::new();
        for position in 0..TOKENS {
            if let Some(parts) = share(position as u64) {
                runner.set_kept_bytes(releasable * parts / PARTS);
                let given_back = runner.weights().given_back_bytes();
                let is_kept = parts == PARTS || releasable == 0;
                assert!(given_back > 0 || is_kept, "{parts} of {releasable}");
            }
            let batch = Batch {
                tokens: &[1 + position as u32],
                position,
                logit_tokens: 1,
            };
            let passed = runner.pass(batch, Pass::Full, &|| false).await;
            passed.unwrap();
            all.push(runner.logits(0).iter().map(|it| it.to_bits()).collect());
        }
        all
    })
}

/// All that can be given back, in the parts that `logits` counts in.
const PARTS: u64 = 8;

#[test]
fn shrinking_and_growing_between_tokens_changes_no_bit() {
    for name in ["llama-untied.gguf", "qwen3moe.gguf"] {
        let resident = planned(name, READERS[0], 1 << 30);
        let expected = logits(&resident, READERS[0], |_| None);
        for &backend in READERS.iter() {
            for more_bytes in [60_000, 1 << 30] {
                let plan = planned(name, backend, more_bytes);
                let steady = logits(&plan, backend, |_| Some(PARTS));
                assert!(steady == expected, "{name}, {}", backend.name());
                let shrinking = |token: u64| Some(PARTS - token.min(PARTS));
                let shrinking = logits(&plan, backend, shrinking);
                assert!(shrinking == expected, "{name}, {}", backend.name());
                let jumping = |token| Some(token * 5 % (PARTS + 1));
                let jumping = logits(&plan, backend, jumping);
                assert!(jumping == expected, "{name}, {}", backend.name());
            }
        }
    }
}

/// How a mixture is planned: which of these are found in a range of budgets.
fn kind(blueprint: &Blueprint) -> usize {
    let plan = &blueprint.plan;
    match (&plan.expert_slots, plan.slots) {
        (None, _) => 0,
        (Some(_), 0) => 1,
        (Some(_), _) => 2,
    }
}

#[test]
fn experts_given_back_and_taken_again_at_random_tokens_change_no_bit() {
    const SEED: u128 = 0x5107;
    const STEPS: u64 = 12;
    println!("seed {SEED:#x}");
    let mut random = Pcg64::new(SEED, 1);
    for name in ["qwen3moe.gguf", "mixtral.gguf", "deepseek2.gguf"] {
        let resident = planned(name, READERS[0], 1 << 30);
        let expected = logits(&resident, READERS[0], |_| None);
        for &backend in READERS.iter() {
            let mut found = [false; 3];
            let smallest = planned(name, backend, 0).plan.budget_bytes;
            let range = resident.plan.total_bytes() + 100_000 - smallest;
            for step in 0..=STEPS {
                let more_bytes = range * step / STEPS;
                let plan = planned(name, backend, more_bytes);
                found[kind(&plan)] = true;
                let mut at_random = |_| {
                    random
                        .next_u64()
                        .is_multiple_of(3)
                        .then(|| random.next_u64() % (PARTS + 1))
                };
                let bits = logits(&plan, backend, &mut at_random);
                assert!(bits == expected, "{name}, {}, {more_bytes}", backend.name());
            }
            assert_eq!(found, [true; 3], "{name}: resident, in slots, all streamed");
        }
    }
}
