//! Lossy routing: off, and where it asks for nothing, the bits are the model's; on, less is
//! read, always with the same answer, and what it leaves behind is told from what is exact.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::path::{Path, PathBuf};

use emel::internals::blueprint::Blueprint;
use emel::{Backend, CacheRouting, Engine, Error, Io, LossyRouting, LossyUsage, Prefetch};
use emel::{Notice, RamBudget, Request, Setting, Settings, Usage};
use emel_loader::plan::Plan;
use emel_tests::fixtures::{MIXTURES, fixture};
use emel_tests::run::{READERS, block_on, open, settings, smallest_budget};

const PROMPT: [u32; 3] = [5, 80, 300];
const ANSWER: usize = 30;

fn model(name: &str) -> PathBuf {
    fixture("arch").join(format!("{name}.gguf"))
}

fn keeping(kept: usize, among: usize) -> LossyRouting {
    LossyRouting {
        cache_routing: Some(CacheRouting { kept, among }),
        expert_budget: None,
    }
}

fn reading(experts: usize) -> LossyRouting {
    LossyRouting {
        cache_routing: None,
        expert_budget: Some(experts),
    }
}

/// Settings with slots for half of the experts, or as many as there are before shorter chunks
/// make room for all, and these experts.
fn with_half_the_slots(model: &Path) -> (Settings, Experts) {
    // Exact answers are compared read by read, and guesses have reads of their own.
    let base = Settings {
        prefetch: Prefetch::Off,
        ..settings(1 << 30, 200)
    };
    let blueprint = Blueprint::new(model, base.clone()).unwrap();
    let router = &blueprint.program.routers[0];
    let of = Experts {
        used: router.used,
        count: router.experts,
        layers: blueprint.program.routers.len(),
    };
    let slots = |plan: &Plan| {
        plan.expert_slots
            .as_ref()
            .map_or(usize::MAX, |planned| planned.slots)
    };
    let all = of.layers * of.count;
    let mut budget = smallest_budget(model, &base);
    let mut found = with_budget(&base, budget);
    loop {
        let settings = with_budget(&base, budget);
        let plan = Blueprint::new(model, settings.clone()).unwrap().plan;
        if slots(&plan) >= all {
            return (found, of);
        }
        found = settings;
        if slots(&plan) * 2 >= all {
            return (found, of);
        }
        budget += 4096;
    }
}

struct Experts {
    used: usize,
    count: usize,
    layers: usize,
}

fn with_budget(settings: &Settings, bytes: u64) -> Settings {
    Settings {
        ram_budget: RamBudget::Bytes(bytes),
        ..settings.clone()
    }
}

fn with(settings: &Settings, lossy: LossyRouting) -> Settings {
    Settings {
        lossy,
        ..settings.clone()
    }
}

/// The tokens of an answer, every bit of the state that it has left behind, and its costs.
struct Answer {
    tokens: Vec<u32>,
    state: Vec<u8>,
    usage: Usage,
}

impl Answer {
    fn lossy(&self) -> LossyUsage {
        self.usage.lossy.unwrap()
    }

    fn misses(&self) -> u64 {
        self.usage.experts.as_ref().unwrap().misses
    }
}

async fn generate(engine: &Engine, prompt: &[u32], count: usize) -> (Vec<u32>, Usage) {
    let mut request = Request::new(prompt.to_vec()).max_tokens(count).greedy();
    request.ignore_eos = true;
    let mut stream = engine.generate(request).await.unwrap();
    let mut tokens = Vec::new();
    while let Some(token) = stream.next().await {
        tokens.push(token.unwrap().id);
    }
    (tokens, stream.usage().unwrap().clone())
}

fn answer(model: &Path, settings: Settings, prompt: &[u32], count: usize) -> Answer {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session");
    block_on(async {
        let engine = open(model, settings).await.unwrap();
        let (tokens, usage) = generate(&engine, prompt, count).await;
        engine.save_session(&path).await.unwrap();
        let state = std::fs::read(&path).unwrap();
        Answer {
            tokens,
            state,
            usage,
        }
    })
}

#[test]
fn rules_that_ask_for_nothing_leave_every_bit() {
    for name in MIXTURES {
        let model = model(name);
        let (small, of) = with_half_the_slots(&model);
        let exact = answer(&model, small.clone(), &PROMPT, ANSWER);
        assert_eq!(exact.usage.lossy, None);
        assert!(exact.misses() > 0, "{name}");
        for rule in [
            keeping(of.used, of.count),
            keeping(1, of.used),
            reading(of.used),
        ] {
            let found = answer(&model, with(&small, rule), &PROMPT, ANSWER);
            assert!(found.tokens == exact.tokens, "{name}: {rule:?}");
            assert!(found.state == exact.state, "{name}: {rule:?}");
            let lossy = found.lossy();
            assert_eq!((lossy.substituted, lossy.dropped), (0, 0), "{name}");
            assert_eq!(found.misses(), exact.misses(), "{name}: {rule:?}");
        }
    }
}

#[test]
fn where_all_experts_stay_in_memory_nothing_changes_and_the_user_is_told() {
    for name in MIXTURES {
        let model = model(name);
        let roomy = settings(1 << 30, 200);
        let exact = answer(&model, roomy.clone(), &PROMPT, ANSWER);
        let both = LossyRouting {
            expert_budget: Some(1),
            ..keeping(1, 4)
        };
        let found = answer(&model, with(&roomy, both), &PROMPT, ANSWER);
        assert!(found.state == exact.state, "{name}");
        assert_eq!((found.lossy().substituted, found.lossy().dropped), (0, 0));
        let mut lossy = with(&roomy, both);
        // Experts in buffers can be given back, and are read into slots from then on.
        for (backend, part) in [
            (Backend::Pread, "changes nothing here as long as"),
            (Backend::Mmap, "changes nothing here, because"),
        ] {
            lossy.io = Io::Only(backend);
            let notices = Blueprint::new(&model, lossy.clone()).unwrap().notices;
            let lossy = |notice: &&Notice| matches!(notice, Notice::Lossy { .. });
            let message = notices.iter().find(lossy).unwrap().to_string();
            assert!(
                message.starts_with("LOSSY: ") && message.contains(part),
                "{message}"
            );
        }
    }
}

#[test]
fn experts_in_memory_take_the_place_of_those_that_are_not() {
    let (mut substituted, mut misses, mut exact_misses) = (0, 0, 0);
    for name in MIXTURES {
        let model = model(name);
        let (small, of) = with_half_the_slots(&model);
        let exact = answer(&model, small.clone(), &PROMPT, ANSWER);
        let rule = with(&small, keeping(1, of.count));
        let found = answer(&model, rule, &PROMPT, ANSWER);
        let lossy = found.lossy();
        assert_eq!(lossy.cache_routing, Some([1, of.count]));
        assert_eq!(
            lossy.of_choices,
            ((ANSWER - 1) * of.layers * of.used) as u64
        );
        assert_eq!(lossy.dropped, 0, "{name}");
        if lossy.substituted > 0 {
            assert!(found.state != exact.state, "{name}");
        }
        substituted += lossy.substituted;
        misses += found.misses();
        exact_misses += exact.misses();
    }
    assert!(substituted > 0, "no mixture had anything to substitute");
    assert!(misses < exact_misses, "{misses} of {exact_misses}");
}

#[test]
fn no_more_experts_of_a_layer_are_read_than_the_budget_says() {
    let (mut dropped, mut misses, mut exact_misses) = (0, 0, 0);
    for name in MIXTURES {
        let model = model(name);
        let (small, of) = with_half_the_slots(&model);
        let exact = answer(&model, small.clone(), &PROMPT, ANSWER);
        let found = answer(&model, with(&small, reading(1)), &PROMPT, ANSWER);
        let lossy = found.lossy();
        assert_eq!((lossy.expert_budget, lossy.substituted), (Some(1), 0));
        assert!(
            found.misses() <= ((ANSWER - 1) * of.layers) as u64,
            "{name}"
        );
        dropped += lossy.dropped;
        misses += found.misses();
        exact_misses += exact.misses();
    }
    assert!(dropped > 0, "no mixture had anything to drop");
    assert!(misses < exact_misses, "{misses} of {exact_misses}");
}

#[test]
fn the_answer_is_the_same_every_time_with_the_same_slots() {
    // A prompt that needs more experts than there are slots.
    let prompt: Vec<u32> = (0..120).map(|index| index * 59 % 384).collect();
    for name in ["qwen2moe", "deepseek2", "minimax-m2"] {
        let model = model(name);
        let (small, of) = with_half_the_slots(&model);
        let both = LossyRouting {
            expert_budget: Some(1),
            ..keeping(1, of.count)
        };
        let lossy = with(&small, both);
        let expected = answer(&model, lossy.clone(), &prompt, ANSWER);
        assert!(expected.lossy().substituted + expected.lossy().dropped > 0);
        for round in 0..6 {
            let backend = [READERS[0], Backend::Pread][round % 2];
            let again = Settings {
                io: Io::Only(backend),
                ..lossy.clone()
            };
            let found = answer(&model, again, &prompt, ANSWER);
            assert!(found.tokens == expected.tokens, "{name}, round {round}");
            assert!(found.state == expected.state, "{name}, round {round}");
        }
    }
}

#[test]
fn a_prompt_is_computed_exactly_even_token_by_token() {
    let model = model("qwen3moe");
    let (small, of) = with_half_the_slots(&model);
    let lossy = with(&small, keeping(1, of.count));
    for prompt in [&PROMPT[..1], &PROMPT] {
        let exact = answer(&model, small.clone(), prompt, 1);
        let found = answer(&model, lossy.clone(), prompt, 1);
        assert!(found.state == exact.state);
        assert!(found.tokens == exact.tokens);
    }
}

#[test]
fn an_engine_that_is_not_lossy_computes_anew_what_a_lossy_session_has_changed() {
    for name in ["qwen3moe", "lfm2moe"] {
        let model = model(name);
        let (small, of) = with_half_the_slots(&model);
        let lossy = with(&small, keeping(1, of.count));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("session");
        let saved = PROMPT.len() + ANSWER - 1;
        let tokens = block_on(async {
            let engine = open(&model, lossy.clone()).await.unwrap();
            let (tokens, usage) = generate(&engine, &PROMPT, ANSWER).await;
            assert!(usage.lossy.unwrap().substituted > 0, "{name}");
            assert_eq!(engine.save_session(&path).await.unwrap(), saved);
            tokens
        });
        let longer = [&PROMPT[..], &tokens].concat();
        let expected = answer(&model, small.clone(), &longer, ANSWER);
        block_on(async {
            let again = open(&model, lossy).await.unwrap();
            assert_eq!(again.restore_session(&path).await.unwrap(), saved);
            drop(again);

            let exact = open(&model, small.clone()).await.unwrap();
            let restored = exact.restore_session(&path).await.unwrap();
            // A convolution cannot go back to before the first token that was changed.
            let is_recurrent = name == "lfm2moe";
            assert!(restored < saved, "{name}");
            assert_eq!(restored >= PROMPT.len(), !is_recurrent, "{name}");
            let (found, usage) = generate(&exact, &longer, ANSWER).await;
            assert_eq!(usage.resumed_tokens, restored);
            assert_eq!(found, expected.tokens, "{name}");
            exact.save_session(&path).await.unwrap();
            assert!(std::fs::read(&path).unwrap() == expected.state, "{name}");
        });
    }
}

#[test]
fn rules_that_a_model_cannot_follow_are_refused() {
    let refused = |name: &str, rule: LossyRouting, expected: Setting, part: &str| {
        let settings = with(&settings(1 << 30, 64), rule);
        match Blueprint::new(&model(name), settings) {
            Err(error @ Error::Setting { setting, .. }) => {
                assert_eq!(setting, expected);
                assert!(error.to_string().contains(part), "{error}");
            }
            other => panic!("{name}, {rule:?}: {other:?}"),
        }
    };
    let (cache, budget) = (Setting::CacheRouting, Setting::ExpertBudget);
    refused("llama", keeping(1, 4), cache, "a mixture of experts");
    refused("llama", reading(1), budget, "a mixture of experts");
    let blueprint = Blueprint::new(&model("qwen3moe"), settings(1 << 30, 64)).unwrap();
    let router = &blueprint.program.routers[0];
    let (experts, used) = (router.experts, router.used);
    let used_text = format!("a token goes to {used} experts");
    refused("qwen3moe", keeping(0, experts), cache, &used_text);
    refused("qwen3moe", keeping(used + 1, experts), cache, &used_text);
    refused("qwen3moe", keeping(1, used - 1), cache, &used_text);
    refused("qwen3moe", keeping(1, experts + 1), cache, &used_text);
    refused("qwen3moe", reading(0), budget, "expected 1 to");
    refused("qwen3moe", reading(used + 1), budget, "expected 1 to");
    let contradictory = LossyRouting {
        expert_budget: Some(1),
        ..keeping(2, experts)
    };
    refused("qwen3moe", contradictory, budget, "at least the 2 experts");
}
