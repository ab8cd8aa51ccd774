//! What a caller sees while a model is opened and a prompt is read, and on which thread.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::future::{Future, poll_fn};
use std::io;
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use emel::chat::{CHATML, ChatTemplate, Conversation, SpecialTexts};
use emel::internals::blueprint::Blueprint;
use emel::{Backend, Engine, Error, Io, Notice, Prompt, PromptProgress, RamBudget, Request};
use emel::{Setting, StreamEvent};
use emel_loader::gguf::Extent;
use emel_loader::reader::Faults;
use emel_model::tokenizer::EncodeOptions;
use emel_tests::fixtures::fixture;
use emel_tests::run::{block_on, settings, smallest_budget};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike};

/// A drive on which every read takes this long.
#[derive(Debug)]
struct SlowDrive(Duration);

impl Faults for SlowDrive {
    fn answer(&self, _path: &Path, _offset: u64, answer: io::Result<usize>) -> io::Result<usize> {
        answer
    }

    fn delay(&self, _extent: &Extent) -> Duration {
        self.0
    }
}

/// An engine with the least memory, so that a pass has few tokens of a prompt, and how many.
async fn engine(drive: Option<SlowDrive>) -> (Engine, usize) {
    let model = fixture("arch/llama-untied.gguf");
    let mut small = settings(0, 100);
    small.ram_budget = RamBudget::Bytes(smallest_budget(&model, &small));
    let mut blueprint = Blueprint::new(&model, small).unwrap();
    blueprint.faults = drive.map(|drive| Arc::new(drive) as _);
    let chunk = blueprint.chunk;
    (Engine::start(blueprint, |_, _| {}).await.unwrap(), chunk)
}

/// The progress of a prompt of the ids below `total`, and the tokens of its answer.
async fn answer(engine: &Engine, total: u32) -> (Vec<PromptProgress>, Vec<u32>) {
    let request = Request::new((0..total).collect::<Vec<_>>()).max_tokens(5);
    let request = request.greedy().ignore_eos();
    let mut stream = engine.generate(request).await.unwrap();
    let (mut progress, mut ids) = (Vec::new(), Vec::new());
    while let Some(event) = stream.next_event().await {
        match event.unwrap() {
            StreamEvent::Prompt(prompt) => {
                assert!(ids.is_empty(), "the prompt comes before the answer");
                progress.push(prompt);
            }
            StreamEvent::Token(token) => ids.push(token.id),
        }
    }
    let resumed = progress.last().map(|progress| progress.resumed);
    assert_eq!(resumed, stream.resumed_tokens());
    (progress, ids)
}

#[test]
fn a_prompt_is_followed_from_its_first_token_to_its_last_within_passes_too() {
    block_on(async {
        let (fast, chunk) = engine(None).await;
        let (_, expected) = answer(&fast, 20).await;
        let (slow, _) = engine(Some(SlowDrive(Duration::from_millis(40)))).await;
        let (progress, ids) = answer(&slow, 20).await;
        assert_eq!(ids, expected);
        assert!(chunk < 20, "more than a pass");
        assert!(progress.iter().all(|it| (it.resumed, it.total) == (0, 20)));
        let computed: Vec<usize> = progress.iter().map(|it| it.computed).collect();
        assert!(computed.is_sorted(), "{computed:?}");
        assert_eq!((computed[0], computed.last()), (0, Some(&20)));
        assert!(computed.contains(&chunk), "after a pass: {computed:?}");
        let within = computed.iter().filter(|&&it| it % chunk > 0 && it < 20);
        assert!(within.count() > 0, "within a pass: {computed:?}");
    });
}

#[test]
fn what_is_resumed_counts_as_computed_from_the_first_event_on() {
    block_on(async {
        let (engine, _) = engine(None).await;
        answer(&engine, 20).await;
        let (progress, _) = answer(&engine, 40).await;
        assert!(
            progress
                .iter()
                .all(|it| it.resumed == 20 && it.computed >= 20)
        );
        assert_eq!(progress.last().unwrap().computed, 40);
    });
}

#[test]
fn a_reader_that_is_late_gets_the_latest_progress_and_every_token() {
    block_on(async {
        let (engine, _) = engine(None).await;
        let (_, expected) = answer(&engine, 40).await;
        let request = Request::new((0..40).collect::<Vec<_>>()).max_tokens(5);
        let mut late = engine
            .generate(request.greedy().ignore_eos())
            .await
            .unwrap();
        // The next request waits for this one to be over.
        let request = Request::new(vec![1]).max_tokens(1);
        let mut next = engine.generate(request).await.unwrap();
        next.next().await.unwrap().unwrap();
        let Some(Ok(StreamEvent::Prompt(progress))) = late.next_event().await else {
            panic!("progress is an event");
        };
        assert_eq!((progress.computed, progress.total), (40, 40));
        let mut ids = Vec::new();
        while let Some(token) = late.next().await {
            ids.push(token.unwrap().id);
        }
        assert_eq!(ids, expected);
    });
}

/// How long this thread has computed.
fn own_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_THREAD).unwrap();
    let micros = |time: TimeVal| time.num_microseconds() as u64;
    Duration::from_micros(micros(usage.user_time()) + micros(usage.system_time()))
}

/// Asserts that this thread computes far less in `work` than in doing the same itself, `here`.
async fn assert_elsewhere(mut here: impl FnMut(), mut work: impl AsyncFnMut()) {
    // Many ticks of a clock by which the kernel may count.
    const LONG: Duration = Duration::from_millis(200);
    let (begun, mut rounds) = (own_time(), 0);
    while own_time() - begun < LONG {
        here();
        rounds += 1;
    }
    let begun = own_time();
    for _ in 0..rounds {
        work().await;
    }
    let spent = own_time() - begun;
    assert!(spent < LONG / 4, "{spent:?} in {rounds} rounds");
}

#[test]
fn a_builder_reports_what_is_loaded_and_what_the_user_should_know() {
    let model = fixture("arch/llama-untied.gguf");
    let trained = Blueprint::new(&model, settings(1 << 30, 64)).unwrap();
    let context = trained.program.hyperparameters.context_length + 1;
    let notices: Arc<Mutex<Vec<Notice>>> = Arc::default();
    let loaded: Arc<Mutex<Vec<(u64, u64)>>> = Arc::default();
    let (noticed, seen) = (Arc::clone(&notices), Arc::clone(&loaded));
    let engine = block_on(
        Engine::builder()
            .ram_budget(RamBudget::Bytes(1 << 30))
            .context(context)
            .io(Io::Only(Backend::Pread))
            .on_notice(move |notice| noticed.lock().unwrap().push(notice.clone()))
            .on_progress(move |bytes, total| seen.lock().unwrap().push((bytes, total)))
            .open(&model),
    );
    let engine = engine.unwrap();
    let notices = std::mem::take(&mut *notices.lock().unwrap());
    assert_eq!(notices, engine.description().notices);
    let long = |notice: &Notice| matches!(notice, Notice::ContextUntrained { .. });
    assert!(notices.iter().any(long), "{notices:?}");
    let loaded = std::mem::take(&mut *loaded.lock().unwrap());
    let total = trained.plan.pinned_bytes();
    assert!(loaded.is_sorted() && loaded.iter().all(|it| it.1 == total));
    assert_eq!(loaded.last(), Some(&(total, total)));
}

#[test]
fn a_builder_refuses_a_setting_that_no_model_works_with() {
    let builder = Engine::builder().threads(0);
    let refused = block_on(builder.open(fixture("arch/llama.gguf")));
    let refused = refused.err().unwrap();
    let Error::Setting { setting, .. } = refused else {
        panic!("{refused}");
    };
    assert_eq!(setting, Setting::Threads);
    assert_eq!(
        refused.to_string(),
        "threads is 0, expected 1 to 1024 threads"
    );
}

#[test]
fn the_callers_thread_neither_plans_nor_tokenises_nor_renders() {
    let model = fixture("arch/llama.gguf");
    let builder = || Engine::builder().ram_budget(RamBudget::Bytes(1 << 30));
    block_on(async {
        let plan = || drop(Blueprint::new(&model, settings(1 << 30, 512)).unwrap());
        assert_elsewhere(plan, async || {
            builder().threads(1).open(&model).await.unwrap();
        })
        .await;

        let engine = builder().context(100_000).open(&model).await.unwrap();
        let text = "hello ".repeat(50_000);
        let tokenizer = Arc::clone(&engine.description().tokenizer);
        let tokenise = || drop(tokenizer.encode(&text, EncodeOptions::PROMPT));
        assert_elsewhere(tokenise, async || {
            let refused = engine.generate(Request::new(text.as_str())).await;
            assert!(matches!(refused.err(), Some(Error::PromptTooLong { .. })));
        })
        .await;

        // A rendering has a thread of its own. Who waits for that has it ready in each first poll;
        // who does not may have it ready by chance.
        let template = Arc::new(ChatTemplate::new(CHATML, SpecialTexts::default()).unwrap());
        let mut conversation = Conversation::default();
        conversation.push("user", "Hello");
        let expected = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n";
        let mut is_ever_pending = false;
        for _ in 0..100 {
            let rendering = engine.render(Arc::clone(&template), conversation.clone());
            let mut rendering = pin!(rendering);
            let polled = poll_fn(|context| Poll::Ready(rendering.as_mut().poll(context))).await;
            is_ever_pending |= polled.is_pending();
            let rendered = match polled {
                Poll::Ready(rendered) => rendered,
                Poll::Pending => rendering.await,
            };
            assert_eq!(rendered.unwrap(), Prompt::Rendered(expected.to_owned()));
        }
        assert!(is_ever_pending, "the caller's thread waits");
    });
}
