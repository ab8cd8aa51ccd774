//! Requests that are dropped, refused or late leave an engine that serves.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use emel::internals::blueprint::Blueprint;
use emel::internals::pass_runner::{PassEnd, PassRunner};
use emel::{Backend, Engine, Error, Request, SamplerOptions, Setting};
use emel_loader::files::OpenFiles;
use emel_loader::weights::Pass;
use emel_model::forward::Batch;
use emel_tests::fixtures::fixture;
use emel_tests::run::{block_on, open, settings, smallest_budget};

fn small_settings(model: &std::path::Path) -> emel::Settings {
    let mut small = settings(0, 200);
    small.ram_budget = emel::RamBudget::Bytes(smallest_budget(model, &small));
    small
}

async fn answer(engine: &emel::Engine, tokens: usize) -> Result<Vec<u32>, Error> {
    let mut request = Request::new(vec![1, 2, 3]).max_tokens(tokens).greedy();
    request.ignore_eos = true;
    let mut stream = engine.generate(request).await?;
    let mut ids = Vec::new();
    while let Some(token) = stream.next().await {
        ids.push(token?.id);
    }
    Ok(ids)
}

#[test]
fn dropped_streams_leave_the_engine_as_it_was() {
    let model = fixture("arch/llama-untied.gguf");
    block_on(async {
        let engine = open(&model, small_settings(&model)).await.unwrap();
        let expected = answer(&engine, 20).await.unwrap();
        for round in 0..300 {
            let prompt: Vec<u32> = (0..1 + round % 90).collect();
            let mut request = Request::new(prompt).max_tokens(1000);
            request.ignore_eos = true;
            let mut stream = engine.generate(request).await.unwrap();
            for _ in 0..round % 4 {
                stream.next().await.unwrap().unwrap();
            }
            drop(stream);
            if round % 10 == 0 {
                assert_eq!(answer(&engine, 20).await.unwrap(), expected);
            }
        }
    });
}

#[test]
fn an_engine_opened_for_answers_evaluates_too_and_looks_back_any_length() {
    let model = fixture("arch/llama.gguf");
    let mut roomy = small_settings(&model);
    roomy.ram_budget = emel::RamBudget::Bytes(1 << 30);
    let expected = emel_tests::run::logits(&model, roomy, &[1, 2, 3, 4]).unwrap();
    block_on(async {
        let engine = open(&model, small_settings(&model)).await.unwrap();
        let rows = emel_tests::run::logits_of(&engine, &[1, 2, 3, 4])
            .await
            .unwrap();
        assert_eq!(rows, expected);
        let mut request = Request::new(vec![1, 2, 3]).max_tokens(5);
        request.ignore_eos = true;
        request.sampler.repeat_penalty = 1.1;
        request.sampler.repeat_last_n = usize::MAX;
        let mut stream = engine.generate(request).await.unwrap();
        while let Some(token) = stream.next().await {
            token.unwrap();
        }
        assert_eq!(stream.usage().unwrap().generated_tokens, 5);
    });
}

#[test]
fn a_stream_outlives_the_handles_to_its_engine() {
    let model = fixture("arch/llama.gguf");
    block_on(async {
        let engine = open(&model, small_settings(&model)).await.unwrap();
        let request = Request::new(vec![1, 2, 3]).max_tokens(50).greedy();
        let mut stream = engine.generate(request).await.unwrap();
        drop(engine);
        while let Some(token) = stream.next().await {
            token.unwrap();
        }
        assert!(stream.usage().is_some());
    });
}

#[test]
fn bad_requests_are_refused_and_the_next_one_is_served() {
    let model = fixture("arch/llama.gguf");
    block_on(async {
        let engine = open(&model, small_settings(&model)).await.unwrap();
        let refuse = async |ids: Vec<u32>| engine.generate(Request::new(ids)).await.err().unwrap();
        assert!(matches!(refuse(vec![]).await, Error::PromptEmpty));
        assert!(matches!(
            refuse(vec![1; 201]).await,
            Error::PromptTooLong { .. }
        ));
        assert!(matches!(
            refuse(vec![384]).await,
            Error::TokenId { id: 384, .. }
        ));
        let mut hot = Request::new(vec![1]);
        hot.sampler.temperature = f32::NAN;
        assert!(engine.generate(hot).await.is_err());
        let mut biased = Request::new(vec![1]);
        biased.sampler.logit_bias = vec![(1, 1.0), (384, 1.0)];
        assert!(matches!(
            engine.generate(biased).await.err(),
            Some(Error::Setting { setting: Setting::LogitBias, found, .. }) if found == "384+1"
        ));
        let mut banned = Request::new(vec![1]);
        banned.sampler.logit_bias = (0..384).map(|id| (id, f32::NEG_INFINITY)).collect();
        let refused = engine.generate(banned.clone()).await.err().unwrap();
        assert!(
            refused.to_string().contains("all of the 384 tokens"),
            "{refused}"
        );
        banned.sampler.logit_bias.pop();
        let mut stream = engine
            .generate(banned.max_tokens(3).ignore_eos())
            .await
            .unwrap();
        while let Some(token) = stream.next().await {
            assert_eq!(token.unwrap().id, 383);
        }
        assert_eq!(answer(&engine, 5).await.unwrap().len(), 5);
    });
}

#[test]
fn a_sampler_beyond_the_plan_is_refused_and_any_is_planned_for_by_default() {
    let model = fixture("arch/llama.gguf");
    let mut request = Request::new(vec![1]).max_tokens(5).ignore_eos();
    request.sampler = SamplerOptions::most_demanding();
    block_on(async {
        let any = open(&model, small_settings(&model)).await.unwrap();
        let mut stream = any.generate(request.clone()).await.unwrap();
        assert!(stream.next().await.unwrap().is_ok());
        let mut planned = small_settings(&model);
        planned.sampler = Some(SamplerOptions::default());
        let frugal = open(&model, planned).await.unwrap();
        let mut stream = frugal.generate(request).await.unwrap();
        let error = stream.next().await.unwrap().unwrap_err();
        assert!(matches!(error, Error::SamplerTooLarge { .. }), "{error}");
        assert_eq!(answer(&frugal, 5).await.unwrap().len(), 5);
    });
}

#[test]
fn an_answer_stops_at_the_end_of_the_context() {
    let model = fixture("arch/llama.gguf");
    block_on(async {
        let engine = open(&model, small_settings(&model)).await.unwrap();
        let ids = answer(&engine, 10_000).await.unwrap();
        // The last token needs no place of its own: nothing is computed from it.
        assert_eq!(ids.len(), 200 - 3 + 1);
    });
}

#[test]
fn a_request_that_is_cancelled_while_it_waits_reads_nothing() {
    let model = fixture("arch/llama-untied.gguf");
    let blueprint = Blueprint::new(&model, small_settings(&model)).unwrap();
    block_on(async {
        let files = Arc::new(OpenFiles::open_model(blueprint.catalog.files(), true).unwrap());
        let mut runner = PassRunner::build(&blueprint, &files, Backend::Pread, &mut |_| {})
            .await
            .unwrap();
        let batch = || Batch {
            tokens: &[1, 2, 3],
            position: 0,
            logit_tokens: 1,
        };
        let before = runner.read_statistics();
        let outcome = runner.pass(batch(), Pass::Full, &|| true).await;
        assert!(matches!(outcome, Err(PassEnd::Cancelled)));
        assert_eq!(runner.read_statistics(), before);
        assert!(runner.pass(batch(), Pass::Full, &|| false).await.is_ok());
        assert!(runner.read_statistics().reads > before.reads);
    });
}

/// Dropped by the progress that it reports itself, when only a little is loaded.
#[test]
fn an_open_that_is_dropped_stops_loading() {
    let model = fixture("arch/llama-untied.gguf");
    let mut roomy = settings(1 << 30, 200);
    roomy.io = emel::Io::Only(Backend::Pread);
    let blueprint = Blueprint::new(&model, roomy).unwrap();
    let total = blueprint.plan.pinned_bytes() as usize;
    let loaded = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&loaded);
    let (dropped, wait) = std::sync::mpsc::channel::<()>();
    let (first, progress) = tokio::sync::oneshot::channel();
    let mut first = Some(first);
    block_on(async {
        let starting = Engine::start(blueprint, move |bytes, _| {
            seen.store(bytes as usize, Ordering::Relaxed);
            if let Some(first) = first.take() {
                first.send(()).unwrap();
                // Until the future is gone.
                wait.recv().unwrap_err();
            }
        });
        let mut starting = Box::pin(starting);
        let mut progress = Box::pin(progress);
        std::future::poll_fn(|context| {
            assert!(starting.as_mut().poll(context).is_pending());
            progress.as_mut().poll(context)
        })
        .await
        .unwrap();
        drop(starting);
        drop(dropped);
    });
    // The closure is dropped with what was being built.
    while Arc::strong_count(&loaded) > 1 {
        std::thread::yield_now();
    }
    let loaded = loaded.load(Ordering::Relaxed);
    assert!((1..total).contains(&loaded), "{loaded} of {total} bytes");
}
