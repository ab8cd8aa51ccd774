//! Sessions: what is saved, restored or simply still there gives the bits of an
//! uninterrupted run.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::path::{Path, PathBuf};

use emel::{Engine, Error, KvType, RamBudget, Request, SessionError, Settings, Usage};
use emel_tests::fixtures::fixture;
use emel_tests::run::{block_on, open, settings, smallest_budget};

/// One of each kind of state: keys and values, windows, short convolutions, memories of
/// the delta rule, latent vectors; and keys rotated by the context.
const MODELS: [&str; 6] = ["llama", "gemma3", "lfm2", "qwen35moe", "deepseek2", "phi3"];

fn model(name: &str) -> PathBuf {
    fixture("arch").join(format!("{name}.gguf"))
}

fn prompt(length: u32) -> Vec<u32> {
    (0..length).map(|index| index * 37 % 251).collect()
}

async fn generate(engine: &Engine, ids: &[u32], count: usize) -> (Vec<u32>, Usage) {
    let mut request = Request::new(ids.to_vec()).max_tokens(count).greedy();
    request.ignore_eos = true;
    let mut stream = engine.generate(request).await.unwrap();
    let mut tokens = ids.to_vec();
    while let Some(token) = stream.next().await {
        tokens.push(token.unwrap().id);
    }
    (tokens, stream.usage().unwrap().clone())
}

fn with_context(context: usize) -> Settings {
    settings(1 << 30, context)
}

fn with_kv(kv_type: KvType, context: usize) -> Settings {
    Settings {
        kv_type,
        ..with_context(context)
    }
}

fn refused(outcome: Result<usize, Error>) -> SessionError {
    match outcome {
        Err(Error::Session { source, .. }) => source,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_restored_session_goes_on_with_the_bits_of_an_uninterrupted_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let kv_types = [KvType::F16, KvType::Q8_0];
    for (name, kv_type) in MODELS
        .iter()
        .flat_map(|name| kv_types.map(|kv_type| (name, kv_type)))
    {
        block_on(async {
            let whole = open(&model(name), with_kv(kv_type, 300)).await.unwrap();
            let (expected, _) = generate(&whole, &prompt(150), 60).await;
            assert_eq!(whole.save_session(path("whole")).await.unwrap(), 209);

            let first = open(&model(name), with_kv(kv_type, 300)).await.unwrap();
            let (tokens, _) = generate(&first, &prompt(150), 20).await;
            assert_eq!(first.save_session(path("part")).await.unwrap(), 169);
            drop(first);

            // Another context, chunk, budget and number of threads.
            let mut small = with_kv(kv_type, 250);
            small.threads = 1;
            small.ram_budget = RamBudget::Bytes(smallest_budget(&model(name), &small));
            let second = open(&model(name), small).await.unwrap();
            assert_eq!(second.restore_session(path("part")).await.unwrap(), 169);
            let (found, usage) = generate(&second, &tokens, 40).await;
            assert_eq!(usage.resumed_tokens, 169, "{name}");
            assert_eq!(found, expected, "{name}");
            // The files hold every key, value and memory, bit for bit.
            second.save_session(path("part")).await.unwrap();
            let [part, whole] = ["part", "whole"].map(|name| std::fs::read(path(name)).unwrap());
            assert!(part == whole, "{name}: the states differ");
        });
    }
}

#[test]
fn a_following_request_computes_only_what_is_new() {
    for name in MODELS {
        block_on(async {
            let engine = open(&model(name), with_context(300)).await.unwrap();
            let (mut tokens, usage) = generate(&engine, &prompt(40), 10).await;
            assert_eq!(usage.resumed_tokens, 0);
            tokens.extend([7, 8, 9]);
            let (found, usage) = generate(&engine, &tokens, 10).await;
            assert_eq!(usage.resumed_tokens, 49, "{name}");

            let fresh = open(&model(name), with_context(300)).await.unwrap();
            let (expected, _) = generate(&fresh, &tokens, 10).await;
            assert_eq!(found, expected, "{name}");

            // Half of it is shared: enough for keys and values, not for memories.
            let other: Vec<u32> = tokens[..30].iter().copied().chain([200, 201]).collect();
            let (found, usage) = generate(&engine, &other, 10).await;
            let is_recurrent = ["lfm2", "qwen35moe"].contains(&name);
            assert_eq!(usage.resumed_tokens, if is_recurrent { 0 } else { 30 });
            let fresh = open(&model(name), with_context(300)).await.unwrap();
            let (expected, _) = generate(&fresh, &other, 10).await;
            assert_eq!(found, expected, "{name}");
        });
    }
}

#[test]
fn a_cancelled_request_leaves_a_state_that_can_be_gone_on_from() {
    for name in MODELS {
        block_on(async {
            let engine = open(&model(name), with_context(300)).await.unwrap();
            let request = Request::new(prompt(120)).max_tokens(100).greedy();
            let mut stream = engine.generate(request).await.unwrap();
            stream.next().await.unwrap().unwrap();
            drop(stream);
            let (found, _) = generate(&engine, &prompt(130), 10).await;
            let fresh = open(&model(name), with_context(300)).await.unwrap();
            let (expected, _) = generate(&fresh, &prompt(130), 10).await;
            assert_eq!(found, expected, "{name}");
        });
    }
}

#[test]
fn a_session_stays_on_its_side_of_the_original_context() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session");
    // The fixture's original context has 128 tokens.
    for (saved, other, same, advice) in [
        (128, 129, 100, "a context of 128 or less"),
        (129, 128, 300, "a context of 129 or more"),
    ] {
        block_on(async {
            let engine = open(&model("phi3"), with_context(saved)).await.unwrap();
            let (tokens, _) = generate(&engine, &prompt(40), 10).await;
            engine.save_session(&path).await.unwrap();

            let engine = open(&model("phi3"), with_context(other)).await.unwrap();
            let refusal = refused(engine.restore_session(&path).await);
            assert!(refusal.to_string().contains(advice), "{refusal}");
            let (_, usage) = generate(&engine, &tokens, 10).await;
            assert_eq!(usage.resumed_tokens, 0);

            let engine = open(&model("phi3"), with_context(same)).await.unwrap();
            assert_eq!(engine.restore_session(&path).await.unwrap(), 49);
            let (found, usage) = generate(&engine, &tokens, 10).await;
            assert_eq!(usage.resumed_tokens, 49);
            let fresh = open(&model("phi3"), with_context(same)).await.unwrap();
            let (expected, _) = generate(&fresh, &tokens, 10).await;
            assert_eq!(found, expected, "{saved} and {same}");
        });
    }
}

/// A session's file of the small llama, with 53 tokens.
struct Saved {
    _folder: tempfile::TempDir,
    path: PathBuf,
    bytes: Vec<u8>,
}

impl Saved {
    fn new(settings: Settings) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("session");
        block_on(async {
            let engine = open(&model("llama"), settings).await.unwrap();
            generate(&engine, &prompt(50), 4).await;
            engine.save_session(&path).await.unwrap();
        });
        let bytes = std::fs::read(&path).unwrap();
        Self {
            _folder: folder,
            path,
            bytes,
        }
    }

    /// Why an engine does not take it. The engine serves all the same.
    fn refused_by(&self, name: &str, settings: Settings) -> SessionError {
        block_on(async {
            let engine = open(&model(name), settings).await.unwrap();
            let refusal = refused(engine.restore_session(&self.path).await);
            let (_, usage) = generate(&engine, &prompt(10), 2).await;
            assert_eq!(usage.resumed_tokens, 0);
            refusal
        })
    }

    /// As [`Saved::refused_by`] the engine that wrote it, with these bytes in its place.
    fn refused_with(&self, bytes: &[u8]) -> SessionError {
        std::fs::write(&self.path, bytes).unwrap();
        self.refused_by("llama", with_context(100))
    }

    fn refused_with_changed(&self, place: usize, bits: u8) -> String {
        let mut bytes = self.bytes.clone();
        bytes[place] ^= bits;
        self.refused_with(&bytes).to_string()
    }
}

#[test]
fn sessions_of_another_model_type_or_length_are_refused() {
    // The same shape and other weights, another shape, another type, too little room.
    let saved = Saved::new(with_context(100));
    for other in ["llama-linear-rope", "llama-untied", "qwen35moe"] {
        let refusal = saved.refused_by(other, with_context(100));
        assert!(matches!(refusal, SessionError::OtherModel), "{refusal}");
    }
    for other in [KvType::F32, KvType::Q8_0] {
        let refusal = saved.refused_by("llama", with_kv(other, 100)).to_string();
        assert!(
            refusal.contains("open the model with f16 keys"),
            "{refusal}"
        );
    }
    let refusal = saved.refused_by("llama", with_context(52)).to_string();
    assert!(refusal.contains("53 tokens"), "{refusal}");
    let of_bytes = Saved::new(with_kv(KvType::Q8_0, 100));
    let refusal = of_bytes.refused_by("llama", with_context(100)).to_string();
    assert!(
        refusal.contains("open the model with q8_0 keys"),
        "{refusal}"
    );
}

#[test]
fn damaged_sessions_are_refused() {
    let saved = Saved::new(with_context(100));
    let length_whole = saved.bytes.len();
    for length in [0, 7, 8, 20, 30, length_whole / 2, length_whole - 1] {
        let refusal = saved.refused_with(&saved.bytes[..length]).to_string();
        let expected = if length < 8 {
            "not a session"
        } else {
            "damaged"
        };
        assert!(refusal.contains(expected), "{length}: {refusal}");
    }
    let refusal = saved.refused_with_changed(8, 2);
    assert!(refusal.contains("format 0, expected 2"), "{refusal}");
    // A header that no longer says what was written tells nothing of models and types.
    for place in [12, 13, 16, 20] {
        let refusal = saved.refused_with_changed(place, 8);
        assert!(refusal.contains("damaged"), "{place}: {refusal}");
    }
    for place in [24, 28 + 7, 44, length_whole / 2, length_whole - 1] {
        let refusal = saved.refused_with_changed(place, 1);
        assert!(refusal.contains("damaged"), "{place}: {refusal}");
    }
    let longer = [&saved.bytes[..], &[0]].concat();
    let refusal = saved.refused_with(&longer);
    assert!(matches!(refusal, SessionError::Damaged), "{refusal}");
}

#[test]
fn a_file_that_is_no_session_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session");
    let foreign = "not written by emel";
    std::fs::write(&path, foreign).unwrap();
    block_on(async {
        let engine = open(&model("llama"), with_context(100)).await.unwrap();
        generate(&engine, &prompt(50), 4).await;
        let refusal = refused(engine.save_session(&path).await);
        assert!(matches!(refusal, SessionError::Foreign), "{refusal}");
        let nowhere = folder.path().join("no").join("folder");
        let refusal = refused(engine.save_session(&nowhere).await);
        assert!(matches!(refusal, SessionError::Write(_)), "{refusal}");
    });
    assert_eq!(std::fs::read_to_string(&path).unwrap(), foreign);
    assert_eq!(names(folder.path()), ["session"], "nothing is left behind");
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
    entries
        .map(|entry| name(entry).into_string().unwrap())
        .collect()
}

#[test]
fn a_stopped_request_keeps_what_a_recurrent_model_has_computed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session");
    block_on(async {
        for name in ["lfm2", "qwen35moe"] {
            let engine = open(&model(name), with_context(2000)).await.unwrap();
            let mut request = Request::new(prompt(50)).max_tokens(1900).greedy();
            request.ignore_eos = true;
            let mut stream = engine.generate(request).await.unwrap();
            let mut tokens = 0;
            while let Some(token) = stream.next().await {
                token.unwrap();
                tokens += 1;
                stream.stop();
            }
            assert_eq!(stream.usage().unwrap().generated_tokens, tokens);
            assert!((1..1900).contains(&tokens), "{tokens}");
            assert_eq!(engine.save_session(&path).await.unwrap(), 50 + tokens);
            // An engine that has computed nothing does not replace it.
            let saved = std::fs::read(&path).unwrap();
            let idle = open(&model(name), with_context(2000)).await.unwrap();
            assert_eq!(idle.save_session(&path).await.unwrap(), 0);
            assert!(std::fs::read(&path).unwrap() == saved);
        }
    });
}
