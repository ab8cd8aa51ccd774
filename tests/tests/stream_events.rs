//! What a caller sees of a request before its first token.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use emel::blueprint::Blueprint;
use emel::{Engine, PromptProgress, RamBudget, Request, StreamEvent};
use emel_loader::gguf::Extent;
use emel_loader::reader::Faults;
use emel_tests::fixtures::fixture;
use emel_tests::run::{block_on, settings, smallest_budget};

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
