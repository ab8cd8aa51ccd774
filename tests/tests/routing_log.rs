//! The routing of a pass, logged, and what the next router was guessed to choose.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use emel::{Error, Settings};
use emel_tests::fixtures::{MIXTURES, fixture};
use emel_tests::gguf_writer::GgufWriter;
use emel_tests::run::{block_on, logits, open, settings, smallest_budget};

/// For each position and layer: the experts chosen, and those guessed one layer before.
type Log = Vec<Vec<[Vec<usize>; 2]>>;

const GUESSES: usize = 3;

fn ids() -> Vec<u32> {
    (0..29).map(|index| index * 53 % 384).collect()
}

fn logging(budget_bytes: u64) -> Settings {
    Settings {
        logged_guesses: Some(GUESSES),
        ..settings(budget_bytes, 64)
    }
}

fn log(model: &Path, settings: Settings) -> Log {
    let taken = Arc::new(Mutex::new(Log::new()));
    let rows = Arc::clone(&taken);
    block_on(async {
        let engine = open(model, settings).await?;
        let on_routing =
            move |position: usize, tokens: usize, log: &emel_model::routing_log::RoutingLog| {
                let mut rows = rows.lock().unwrap();
                assert_eq!(rows.len(), position);
                for token in 0..tokens {
                    let experts = |layer| {
                        [log.choices(layer, token), log.guesses(layer, token)]
                            .map(|choices| choices.iter().map(|choice| choice.expert).collect())
                    };
                    rows.push((0..log.layers()).map(experts).collect());
                }
            };
        engine.trace(ids(), on_routing).await
    })
    .unwrap();
    let log = taken.lock().unwrap().clone();
    assert_eq!(log.len(), ids().len());
    log
}

fn mixtures() -> [PathBuf; MIXTURES.len()] {
    MIXTURES.map(|name| fixture(&format!("arch/{name}.gguf")))
}

fn bits(rows: &[Vec<f32>]) -> Vec<u32> {
    rows.iter().flatten().map(|logit| logit.to_bits()).collect()
}

#[test]
fn logging_changes_no_logit_of_any_mixture() {
    for model in mixtures() {
        let plain = logits(&model, settings(1 << 30, 64), &ids()).unwrap();
        let logged = logits(&model, logging(1 << 30), &ids()).unwrap();
        assert!(bits(&plain) == bits(&logged), "{}", model.display());
    }
}

#[test]
fn every_mixture_logs_its_choices_and_guesses() {
    for model in mixtures() {
        let name = model.display();
        for position in log(&model, logging(1 << 30)) {
            for (layer, [choices, guesses]) in position.iter().enumerate() {
                assert!(!choices.is_empty(), "{name}");
                let expected = if layer == 0 { 0 } else { GUESSES };
                assert_eq!(guesses.len(), expected, "{name}, layer {layer}");
                for ids in [choices, guesses] {
                    let is_twice = |(at, id)| ids[..at].contains(id);
                    assert!(!ids.iter().enumerate().any(is_twice), "{name}: {ids:?}");
                }
            }
        }
    }
}

#[test]
fn a_streamed_model_logs_what_a_resident_one_does() {
    for model in mixtures() {
        let budget_bytes = smallest_budget(&model, &logging(1));
        assert!(
            log(&model, logging(budget_bytes)) == log(&model, logging(1 << 30)),
            "{}",
            model.display()
        );
    }
}

/// The model with every weight of these tensors 0.
fn without(model: &Path, out: &Path, names: &[&str]) {
    let mut writer = GgufWriter::copy_of(model);
    for name in names {
        let tensors = writer.take_f32(name);
        assert!(!tensors.is_empty(), "{name}");
        let catalog = emel_loader::gguf::Catalog::open(model).unwrap();
        for (name, values) in tensors {
            let dims = &catalog.tensor(&name).unwrap().dims;
            writer = writer.f32_tensor(&name, dims, &vec![0.0; values.len()]);
        }
    }
    writer.write(out).unwrap();
}

#[test]
fn where_blocks_add_nothing_the_guess_is_the_choice() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("still.gguf");
    let names = ["ffn_down_exps.weight", "attn_output.weight"];
    without(&fixture("arch/qwen3moe.gguf"), &model, &names);
    let mut compared = 0;
    for position in log(&model, logging(1 << 30)) {
        for [choices, guesses] in &position[1..] {
            let count = choices.len().min(GUESSES);
            assert_eq!(choices[..count], guesses[..count]);
            compared += 1;
        }
    }
    assert!(compared >= ids().len());
}

#[test]
fn a_model_without_experts_is_refused() {
    let error = block_on(open(&fixture("arch/llama.gguf"), logging(1 << 30)));
    assert!(matches!(error, Err(Error::NoExperts { .. })));
}
