//! A model's file that is replaced or written to is an error and never garbage.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use emel::internals::blueprint::Blueprint;
use emel::{Engine, Error, Io, RamBudget, Request, Settings};
use emel_tests::fixtures::fixture;
use emel_tests::run::{READERS, block_on, open, settings, smallest_budget};
use tempfile::TempDir;

fn copy_of_a_model(folder: &TempDir) -> PathBuf {
    let path = folder.path().join("model.gguf");
    std::fs::copy(fixture("arch/llama-untied.gguf"), &path).unwrap();
    path
}

/// Streaming and all in memory, with every reader.
fn all_settings(model: &Path) -> Vec<Settings> {
    let mut all = Vec::new();
    for &backend in READERS.iter() {
        let mut small = settings(0, 100);
        small.io = Io::Only(backend);
        let mut large = small.clone();
        small.ram_budget = RamBudget::Bytes(smallest_budget(model, &small));
        large.ram_budget = RamBudget::Bytes(1 << 30);
        all.extend([small, large]);
    }
    all
}

async fn answer(engine: &Engine) -> Result<usize, Error> {
    let mut request = Request::new(vec![1, 2, 3]).max_tokens(5).greedy();
    request.ignore_eos = true;
    let mut stream = engine.generate(request).await?;
    let mut tokens = 0;
    while let Some(token) = stream.next().await {
        token?;
        tokens += 1;
    }
    Ok(tokens)
}

fn assert_says(error: &Error, change: &str) {
    let message = error.to_string();
    for part in ["model.gguf: ", change, "open the model again"] {
        assert!(message.contains(part), "no `{part}` in: {message}");
    }
}

#[test]
fn a_file_that_is_replaced_between_plan_and_start_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let model = copy_of_a_model(&folder);
    for settings in all_settings(&model) {
        let blueprint = Blueprint::new(&model, settings).unwrap();
        let other = folder.path().join("other");
        std::fs::copy(&model, &other).unwrap();
        std::fs::rename(&other, &model).unwrap();
        let started = block_on(Engine::start(blueprint, |_, _| {}));
        assert_says(
            &started.err().unwrap(),
            "another file has been put in its place",
        );
    }
}

#[test]
fn a_file_that_is_written_to_while_it_is_used_ends_the_request() {
    let folder = tempfile::tempdir().unwrap();
    let model = copy_of_a_model(&folder);
    for (index, settings) in all_settings(&model).into_iter().enumerate() {
        block_on(async {
            let engine = open(&model, settings).await.unwrap();
            assert_eq!(answer(&engine).await.unwrap(), 5);
            let file = File::options().append(true).open(&model).unwrap();
            let later = SystemTime::now() + Duration::from_secs(60 + index as u64);
            file.set_modified(later).unwrap();
            for _ in 0..2 {
                assert_says(
                    &answer(&engine).await.unwrap_err(),
                    "it has been written to",
                );
            }
        });
    }
}

#[test]
fn a_file_that_becomes_shorter_while_it_is_used_ends_the_request() {
    for settings in all_settings(&fixture("arch/llama-untied.gguf")) {
        let folder = tempfile::tempdir().unwrap();
        let model = copy_of_a_model(&folder);
        let bytes = std::fs::metadata(&model).unwrap().len();
        block_on(async {
            let engine = open(&model, settings).await.unwrap();
            let file = File::options().write(true).open(&model).unwrap();
            file.set_len(bytes - 1).unwrap();
            let change = format!("its size has changed from {bytes} to {} bytes", bytes - 1);
            assert_says(&answer(&engine).await.unwrap_err(), &change);
        });
    }
}

#[test]
fn a_file_that_is_replaced_while_it_is_used_is_read_on_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let model = copy_of_a_model(&folder);
    for settings in all_settings(&model) {
        block_on(async {
            let engine = open(&model, settings).await.unwrap();
            let other = folder.path().join("other");
            std::fs::copy(&model, &other).unwrap();
            std::fs::rename(&other, &model).unwrap();
            assert_eq!(answer(&engine).await.unwrap(), 5);
        });
    }
}
