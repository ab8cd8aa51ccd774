//! Experts read before they are needed, and what is learnt about them: none of it shows in a
//! result, and nothing that goes wrong with it is an error.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};

use emel::internals::blueprint::Blueprint;
use emel::internals::pass_runner::PassRunner;
use emel::{Engine, Io, Learning, NoticeListener, Prefetch, RamBudget, Request, Settings, Usage};
use emel_loader::files::OpenFiles;
use emel_loader::reader::Backend;
use emel_loader::weights::Pass;
use emel_model::forward::Batch;
use emel_tests::fixtures::{MIXTURES, fixture};
use emel_tests::run::{READERS, block_on, greedy, settings, smallest_budget};

const PROMPT: [u32; 3] = [5, 80, 300];
/// Enough to learn something worth keeping.
const TOKENS: usize = 48;

const ALL: [Prefetch; 5] = [
    Prefetch::Both,
    Prefetch::Router,
    Prefetch::Coactivation,
    Prefetch::Auto,
    Prefetch::Off,
];

fn model(name: &str) -> PathBuf {
    fixture("arch").join(format!("{name}.gguf"))
}

/// Settings in which a share of the experts, in quarters, does not fit.
fn streamed(model: &Path, prefetch: Prefetch, quarters: u64) -> Settings {
    let mut settings = settings(0, 64);
    settings.prefetch = prefetch;
    let smallest = smallest_budget(model, &settings);
    let file_bytes = fs::metadata(model).unwrap().len();
    settings.ram_budget = RamBudget::Bytes(smallest + file_bytes * quarters / 8);
    settings
}

/// Experts that the layers ask for while an answer is decoded.
fn demands_after_the_first_token(model: &Path) -> u64 {
    let blueprint = Blueprint::new(model, settings(1 << 30, 64)).unwrap();
    let used = blueprint.program.routers.iter().map(|router| router.used);
    (used.sum::<usize>() * (TOKENS - 1)) as u64
}

#[test]
fn the_tokens_are_those_of_the_resident_model_for_every_setting_budget_and_reader() {
    let mut issued = 0;
    for name in MIXTURES {
        let model = model(name);
        let (expected, _) = greedy(&model, settings(1 << 30, 64), &PROMPT, TOKENS).unwrap();
        let demands = demands_after_the_first_token(&model);
        for (index, prefetch) in ALL.into_iter().enumerate() {
            for quarters in [0, 1 + index % 3] {
                let mut settings = streamed(&model, prefetch, quarters as u64);
                let backend = READERS[(index + quarters) % READERS.len()];
                settings.io = Io::Only(backend);
                let (found, usage) = greedy(&model, settings, &PROMPT, TOKENS).unwrap();
                assert_eq!(found, expected, "{name}, {prefetch:?}, {backend:?}");
                let Some(experts) = usage.experts else {
                    continue;
                };
                let guesses = experts.prefetch.counts;
                assert!(
                    guesses.useful + guesses.late + guesses.wasted <= guesses.issued,
                    "{guesses:?}"
                );
                assert!(experts.late >= guesses.late);
                assert_eq!(experts.hits + experts.late + experts.misses, demands);
                match prefetch {
                    Prefetch::Off => assert_eq!((guesses.issued, guesses.tokens), (0, 0)),
                    Prefetch::Auto => assert!(guesses.tokens < TOKENS as u64),
                    _ => assert_eq!(guesses.tokens, TOKENS as u64 - 1),
                }
                issued += guesses.issued;
            }
        }
    }
    assert!(issued > 100, "{issued}");
}

#[test]
fn a_pass_that_ended_in_the_middle_of_a_guess_does_not_show_in_the_next_and_loses_no_slot() {
    let model = model("qwen3moe");
    for quarters in [0, 1, 2] {
        let mut settings = streamed(&model, Prefetch::Both, quarters);
        for &backend in READERS.iter() {
            settings.io = Io::Only(backend);
            let blueprint = Blueprint::new(&model, settings.clone()).unwrap();
            assert!(blueprint.plan.expert_slots.is_some());
            block_on(single_tokens_after_others_ended_early(
                &model, &blueprint, backend,
            ));
        }
    }
}

fn batch(tokens: &[u32]) -> Batch<'_> {
    Batch {
        tokens,
        position: 0,
        logit_tokens: 1,
    }
}

/// Computes a token after passes over others that were cancelled or dropped at any of their
/// steps, and asserts that its logits are always the same.
async fn single_tokens_after_others_ended_early(
    model: &Path,
    blueprint: &Blueprint,
    backend: Backend,
) {
    let files = OpenFiles::open([model], backend.needs_buffers()).unwrap();
    let mut runner = PassRunner::build(blueprint, &Arc::new(files), backend, &mut |_| {})
        .await
        .unwrap();
    let mut expected = None;
    for round in 0..90 {
        let asked = Cell::new(0);
        let is_cancelled = || {
            asked.set(asked.get() + 1);
            round % 2 == 0 && asked.get() > round
        };
        let other = [round * 7 % 384];
        {
            let mut pass = pin!(runner.pass(batch(&other), Pass::Full, &is_cancelled));
            for _ in 0..=round {
                let mut context = Context::from_waker(Waker::noop());
                if pass.as_mut().poll(&mut context).is_ready() {
                    break;
                }
            }
        }
        runner.state_mut().clear();
        let outcome = runner.pass(batch(&[9]), Pass::Full, &|| false).await;
        assert!(outcome.is_ok());
        let found = runner.logits(0).to_vec();
        assert!(*expected.get_or_insert_with(|| found.clone()) == found);
        runner.state_mut().clear();
    }
}

type Change = fn(&mut Vec<u8>);

/// A model in a folder of its own, in which experts are streamed and learnt about.
struct Kept {
    folder: tempfile::TempDir,
    model: PathBuf,
    settings: Settings,
}

/// What came of a run.
struct Run {
    tokens: Vec<u32>,
    usage: Usage,
    /// What came at the start and later.
    notices: Vec<String>,
}

impl Kept {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        fs::copy(model("qwen2moe"), &path).unwrap();
        // Only while no units stream is the drive idle enough to fill slots.
        let settings = (0..=8)
            .rev()
            .map(|quarters| streamed(&path, Prefetch::Both, quarters))
            .find(|settings| {
                let plan = Blueprint::new(&path, settings.clone()).unwrap().plan;
                plan.expert_slots.is_some() && plan.slots == 0
            })
            .expect("a budget in which experts alone do not fit");
        Self {
            folder,
            model: path,
            settings,
        }
    }

    fn place(&self) -> PathBuf {
        self.folder.path().join("model.gguf.emel-heat")
    }

    fn run(&self, learning: Learning) -> Run {
        let mut blueprint = Blueprint::new(
            &self.model,
            Settings {
                learning,
                ..self.settings.clone()
            },
        )
        .unwrap();
        let notices = Arc::new(Mutex::new(Vec::new()));
        let listener = Arc::clone(&notices);
        blueprint.listener =
            NoticeListener::new(move |notice| listener.lock().unwrap().push(notice.to_string()));
        let (tokens, usage) = block_on(async {
            let engine = Engine::start(blueprint, |_, _| {}).await.unwrap();
            let mut request = Request::new(PROMPT.to_vec()).max_tokens(TOKENS).greedy();
            request.ignore_eos = true;
            let mut stream = engine.generate(request).await.unwrap();
            let mut tokens = Vec::new();
            while let Some(token) = stream.next().await {
                tokens.push(token.unwrap().id);
            }
            (tokens, stream.usage().unwrap().clone())
        });
        let mut notices = std::mem::take(&mut *notices.lock().unwrap());
        notices.retain(|line| line.contains("emel-heat"));
        Run {
            tokens,
            usage,
            notices,
        }
    }
}

#[test]
fn what_was_learnt_is_kept_beside_the_model_and_fills_the_slots_of_another_run() {
    let kept = Kept::new();
    let first = kept.run(Learning::Off);
    assert!(!kept.place().exists());
    kept.run(Learning::Read);
    assert!(!kept.place().exists());
    kept.run(Learning::Keep);
    let file = fs::read(kept.place()).unwrap();
    for learning in [Learning::Read, Learning::Keep] {
        assert_eq!(fs::read(kept.place()).unwrap(), file);
        let again = kept.run(learning);
        assert_eq!(again.tokens, first.tokens);
        assert!(again.notices.is_empty(), "{:?}", again.notices);
        let experts = again.usage.experts.unwrap();
        assert!(experts.prefetch.counts.filled > 0, "{experts:?}");
        let demands = demands_after_the_first_token(&kept.model);
        assert_eq!(experts.hits + experts.late + experts.misses, demands);
    }
    assert_ne!(fs::read(kept.place()).unwrap(), file, "more was learnt");
    assert_eq!(fs::read_dir(kept.folder.path()).unwrap().count(), 2);
}

#[test]
fn nothing_is_kept_of_a_model_that_fits_or_of_a_few_tokens() {
    let mut kept = Kept::new();
    let streamed = kept.settings.ram_budget;
    kept.settings.ram_budget = RamBudget::Bytes(1 << 30);
    kept.run(Learning::Keep);
    assert!(!kept.place().exists());
    kept.settings.ram_budget = streamed;
    let settings = Settings {
        learning: Learning::Keep,
        ..kept.settings.clone()
    };
    greedy(&kept.model, settings, &PROMPT, 8).unwrap();
    assert!(!kept.place().exists());
}

#[test]
fn a_file_that_cannot_be_used_is_ignored_with_one_line_and_left_as_it_is() {
    let kept = Kept::new();
    let expected = kept.run(Learning::Keep).tokens;
    let good = fs::read(kept.place()).unwrap();
    let changes: [(&str, Change); 6] = [
        ("not what emel has learnt", |bytes| bytes.clear()),
        ("not what emel has learnt", |bytes| bytes[0] = b'X'),
        ("format 9, expected 2", |bytes| bytes[8] = 9),
        ("of another model", |bytes| bytes[20] ^= 1),
        ("damaged or cut off", |bytes| bytes.truncate(100)),
        ("damaged or cut off", |bytes| bytes[60] ^= 1),
    ];
    for (why, change) in changes {
        let mut bytes = good.clone();
        change(&mut bytes);
        fs::write(kept.place(), &bytes).unwrap();
        let run = kept.run(Learning::Keep);
        assert_eq!(run.tokens, expected, "{why}");
        assert_eq!(run.notices.len(), 1, "{:?}", run.notices);
        assert!(run.notices[0].contains(why), "{:?}", run.notices);
        assert_eq!(fs::read(kept.place()).unwrap(), bytes, "{why}");
    }
    fs::remove_file(kept.place()).unwrap();
    fs::create_dir(kept.place()).unwrap();
    let run = kept.run(Learning::Keep);
    assert_eq!((run.tokens, run.notices.len()), (expected, 1));
}

#[test]
fn a_place_that_cannot_be_written_is_one_line_and_no_error() {
    let kept = Kept::new();
    symlink("no-such-folder/heat", kept.place()).unwrap();
    let run = kept.run(Learning::Keep);
    assert_eq!(run.tokens.len(), TOKENS);
    assert_eq!(run.notices.len(), 1, "{:?}", run.notices);
    assert!(run.notices[0].contains("cannot write what was learnt"));
}
