//! The streamed bytes are the bytes used: with the plan of one file and the contents
//! of another, the answer is the other's.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::path::Path;
use std::sync::Arc;

use emel::internals::blueprint::Blueprint;
use emel::internals::pass_runner::PassRunner;
use emel::{Backend, RamBudget, Settings};
use emel_loader::files::OpenFiles;
use emel_loader::gguf::Catalog;
use emel_loader::weights::Pass;
use emel_model::forward::Batch;
use emel_tests::fixtures::fixture;
use emel_tests::run::{READERS, block_on, settings, smallest_budget};

const IDS: [u32; 8] = [5, 80, 300, 12, 77, 200, 3, 150];

/// Writes a model of the same layout, with other matrices but the same norms.
fn scrambled(model: &Path, out: &Path) {
    let catalog = Catalog::open(model).unwrap();
    let mut bytes = std::fs::read(model).unwrap();
    for tensor in catalog.tensors().iter().filter(|tensor| tensor.rows() > 1) {
        let start = tensor.extent.offset as usize;
        // Reversed rows: still plausible numbers, and surely another model.
        bytes[start..start + tensor.extent.bytes as usize]
            .chunks_exact_mut(tensor.row_bytes() as usize)
            .for_each(|row| {
                let (values, _) = row.as_chunks_mut::<4>();
                values.reverse();
            });
    }
    std::fs::write(out, bytes).unwrap();
}

fn logits(plan_of: &Path, contents_of: &Path, backend: Backend) -> Vec<f32> {
    let mut small: Settings = settings(0, 64);
    small.ram_budget = RamBudget::Bytes(smallest_budget(plan_of, &small));
    let blueprint = Blueprint::new(plan_of, small).unwrap();
    assert!(blueprint.plan.streams());
    assert_eq!(blueprint.plan.pinned_bytes(), 0);
    block_on(async {
        let files = OpenFiles::open([contents_of], backend.needs_buffers()).unwrap();
        let mut runner = PassRunner::build(&blueprint, &Arc::new(files), backend, &mut |_| {})
            .await
            .unwrap();
        let batch = Batch {
            tokens: &IDS,
            position: 0,
            logit_tokens: 1,
        };
        let outcome = runner.pass(batch, Pass::Full, &|| false).await;
        assert!(outcome.is_ok());
        runner.logits(0).to_vec()
    })
}

#[test]
fn the_plan_of_one_file_with_the_contents_of_another_answers_as_the_other() {
    let folder = tempfile::tempdir().unwrap();
    for name in [
        "llama.gguf",
        "llama-untied.gguf",
        "gemma3.gguf",
        "mixtral.gguf",
        "lfm2.gguf",
        "qwen35moe.gguf",
        "deepseek2.gguf",
        "gpt-oss.gguf",
    ] {
        let model = fixture("arch").join(name);
        let other = folder.path().join(name);
        scrambled(&model, &other);
        for &backend in READERS.iter() {
            let own = logits(&other, &other, backend);
            assert_ne!(logits(&model, &model, backend), own, "{name}");
            assert_eq!(logits(&model, &other, backend), own, "{name}, {backend:?}");
        }
    }
}
