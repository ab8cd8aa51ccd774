//! The engine over a drive that fails: what passes changes no token, what stays ends
//! the request, and the next one is served.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::sync::Arc;

use emel::internals::blueprint::Blueprint;
use emel::{Engine, Error, Io, RamBudget, Request, Settings, Usage};
use emel_tests::faults::{Rates, SeededFaults};
use emel_tests::fixtures::fixture;
use emel_tests::run::{READERS, block_on, settings, smallest_budget};

const MODEL: &str = "arch/llama-untied.gguf";

fn small_settings(io: Io) -> Settings {
    let mut small = settings(0, 100);
    small.io = io;
    small.ram_budget = RamBudget::Bytes(smallest_budget(&fixture(MODEL), &small) + 50_000);
    small
}

async fn start(settings: Settings, faults: Option<Arc<SeededFaults>>) -> Engine {
    let mut blueprint = Blueprint::new(&fixture(MODEL), settings).unwrap();
    blueprint.faults = faults.map(|faults| faults as _);
    Engine::start(blueprint, |_, _| {}).await.unwrap()
}

async fn answer(engine: &Engine) -> Result<(Vec<u32>, Usage), Error> {
    let request = Request::new(vec![1, 2, 3]).max_tokens(30).greedy();
    let mut stream = engine.generate(request.ignore_eos()).await?;
    let mut ids = Vec::new();
    while let Some(token) = stream.next().await {
        ids.push(token?.id);
    }
    Ok((ids, stream.usage().unwrap().clone()))
}

#[test]
fn faults_that_pass_change_no_token_and_are_counted() {
    for &backend in READERS.iter() {
        let small = small_settings(Io::Only(backend));
        block_on(async {
            let healthy = start(small.clone(), None).await;
            let (expected, usage) = answer(&healthy).await.unwrap();
            assert_eq!(usage.retries, 0);
            let faults = SeededFaults::new(0xfa17, Rates::ALL);
            let engine = start(small, Some(Arc::clone(&faults))).await;
            let (ids, usage) = answer(&engine).await.unwrap();
            assert_eq!(ids, expected, "{}", backend.name());
            assert!(faults.counts().delays > 0);
            assert_eq!(usage.retries > 0, backend.needs_buffers());
        });
    }
}

#[test]
fn a_fault_that_stays_ends_the_request_and_the_next_is_served() {
    for &backend in READERS.iter().filter(|it| it.needs_buffers()) {
        block_on(async {
            let faults = SeededFaults::new(1, Rates::default());
            let engine = start(small_settings(Io::Only(backend)), Some(faults.clone())).await;
            let (expected, _) = answer(&engine).await.unwrap();
            for round in 0..3 {
                faults.break_from(round * 20_000, 5);
                let message = answer(&engine).await.unwrap_err().to_string();
                for part in ["llama-untied.gguf: read 0 of ", "at offset ", "os error 5"] {
                    assert!(message.contains(part), "no `{part}` in: {message}");
                }
                faults.mend();
                let (ids, _) = answer(&engine).await.unwrap();
                assert_eq!(ids, expected, "{}", backend.name());
            }
        });
    }
}
