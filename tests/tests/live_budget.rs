//! Pinned weights that are given back and taken again between tokens change no bit.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::sync::Arc;

use emel::blueprint::Blueprint;
use emel::generator::Generator;
use emel::{Backend, Io, RamBudget};
use emel_loader::files::OpenFiles;
use emel_loader::weights::Pass;
use emel_model::forward::Batch;
use emel_tests::fixtures::fixture;
use emel_tests::run::{READERS, block_on, settings, smallest_budget};

const TOKENS: usize = 24;

/// The bits of the logits of every token, with `share` of so many parts of the pinned
/// bytes allowed before each.
fn logits(name: &str, backend: Backend, roomy: bool, share: impl Fn(u64) -> u64) -> Vec<Vec<u32>> {
    let model = fixture("arch").join(name);
    let mut settings = settings(0, 64);
    settings.io = Io::Only(backend);
    let smallest = smallest_budget(&model, &settings);
    let more = if roomy { 1 << 30 } else { 60_000 };
    settings.ram_budget = RamBudget::Bytes(smallest + more);
    let blueprint = Blueprint::new(&model, settings).unwrap();
    let planned = blueprint.plan.pinned_bytes();
    assert!(planned > 0);
    block_on(async {
        let files = OpenFiles::open_model(blueprint.catalog.files(), backend.needs_buffers());
        let files = Arc::new(files.unwrap());
        let mut generator = Generator::build(&blueprint, &files, backend, &mut |_| {})
            .await
            .unwrap();
        let mut all = Vec::new();
        for position in 0..TOKENS {
            generator.set_pinned_bytes(planned / PARTS * share(position as u64));
            let batch = Batch {
                tokens: &[1 + position as u32],
                position,
                logit_tokens: 1,
            };
            let passed = generator.pass(batch, Pass::Full, &|| false).await;
            passed.unwrap();
            all.push(generator.logits(0).iter().map(|it| it.to_bits()).collect());
        }
        all
    })
}

/// All of the pinned bytes, in the parts that `logits` counts in.
const PARTS: u64 = 8;

#[test]
fn shrinking_and_growing_between_tokens_changes_no_bit() {
    for name in ["llama-untied.gguf", "qwen3moe.gguf"] {
        let expected = logits(name, READERS[0], true, |_| PARTS);
        for &backend in READERS.iter() {
            for roomy in [false, true] {
                let steady = logits(name, backend, roomy, |_| PARTS);
                assert!(steady == expected, "{name}, {}", backend.name());
                let shrinking = logits(name, backend, roomy, |token| PARTS - token.min(PARTS));
                assert!(shrinking == expected, "{name}, {}", backend.name());
                let jumping = logits(name, backend, roomy, |token| token * 5 % (PARTS + 1));
                assert!(jumping == expected, "{name}, {}", backend.name());
            }
        }
    }
}
