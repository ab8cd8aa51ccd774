//! The context that a run takes if the user chooses none.

use std::fs;
use std::path::{Path, PathBuf};

use emel::Notice;
use emel::internals::blueprint::{Blueprint, ExpectedRequest, PromptForm};
use emel::{Engine, Error, Prompt, RamBudget, Settings};
use emel_tests::gguf_writer::Field;
use emel_tests::run::{block_on, settings};
use serde_json::Value;
use tempfile::TempDir;

use crate::model::Model;
use crate::{command, emel, emel_run, fixture, llama, refusal, result, words};

/// The small phi3, whose rotary factors change beyond `original` tokens.
fn long_rope(folder: &TempDir, original: u32, trained: u32) -> PathBuf {
    let model = Model::read(&fixture("arch/phi3.gguf"));
    let key = "phi3.rope.scaling.original_context_length";
    model
        .with(key, Field::U32(original))
        .with("phi3.context_length", Field::U32(trained))
        .write(folder)
}

/// Planned for a prompt of so many tokens and so long an answer.
fn planned(
    model: &Path,
    settings: Settings,
    prompt: usize,
    answer: Option<usize>,
) -> Result<Blueprint, Error> {
    let planned = Blueprint::for_request(model, settings, |_: &PromptForm<'_>| {
        let expected = ExpectedRequest {
            prompt: Some(Prompt::Tokens(vec![1; prompt])),
            renders: false,
            answer_tokens: answer,
            session: None,
        };
        Ok::<_, Error>((expected, ()))
    });
    planned.map(|(blueprint, ..)| blueprint)
}

/// Settings of a budget that leaves the context open.
fn unasked(budget_bytes: u64) -> Settings {
    Settings {
        context: None,
        ..settings(budget_bytes, 1)
    }
}

/// The logits of some tokens, as bits.
fn bits(blueprint: Blueprint) -> Vec<u32> {
    let (found, logits) = std::sync::mpsc::channel();
    block_on(async {
        let engine = Engine::start(blueprint, |_, _| {}).await.unwrap();
        let take = move |_, row: &[f32]| found.send(row.to_vec()).unwrap();
        engine.evaluate(vec![7, 3, 9, 4, 1, 8], take).await.unwrap();
    });
    logits.iter().flatten().map(f32::to_bits).collect()
}

#[test]
fn prompt_and_answer_decide_within_what_the_model_was_trained_for() {
    let context = |prompt, answer| {
        let planned = planned(&llama(), unasked(64 << 20), prompt, answer);
        planned.unwrap().context
    };
    // The model was trained for 512 tokens.
    assert_eq!(context(4, Some(508)), 512);
    assert_eq!(context(4, Some(2000)), 512);
    assert_eq!(context(100, None), 512);
    let folder = TempDir::new().unwrap();
    let model = Model::llama().with("llama.context_length", Field::U32(100_000));
    let model = model.write(&folder);
    for (prompt, answer) in [(4, 1000), (3000, 5), (5000, 0)] {
        let blueprint = planned(&model, unasked(64 << 20), prompt, Some(answer)).unwrap();
        assert_eq!(blueprint.context, prompt + answer);
        assert_eq!(blueprint.notices, []);
    }
    // Memory decides where the length of the answer is not known.
    let open = |budget_bytes| {
        let planned = planned(&model, unasked(budget_bytes), 3000, None);
        planned.unwrap().context
    };
    let (little, much) = (open(32 << 20), open(256 << 20));
    assert!(3000 < little && little < much, "{little} and {much}");
    assert!(much > 4096, "{much}");
}

#[test]
fn an_answer_that_the_budget_does_not_hold_is_shortened_and_said_to_be() {
    let folder = TempDir::new().unwrap();
    let model = Model::llama().with("llama.context_length", Field::U32(1_000_000));
    let model = model.write(&folder);
    let blueprint = planned(&model, unasked(24 << 20), 100, Some(900_000)).unwrap();
    assert!(blueprint.context > 512, "{}", blueprint.context);
    assert!(blueprint.plan.total_bytes() <= 24 << 20);
    let [
        Notice::ContextShortened {
            context,
            wished: 900_100,
            held,
            needed_bytes,
        },
    ] = blueprint.notices[..]
    else {
        panic!("{:?}", blueprint.notices);
    };
    // It is all that the budget holds: one token more does not fit.
    assert_eq!((context, held), (blueprint.context, blueprint.context));
    let chosen = Settings {
        context: Some(held + 1),
        ..unasked(24 << 20)
    };
    let refused = Blueprint::new(&model, chosen).unwrap_err();
    assert!(matches!(refused, Error::BudgetTooSmall { .. }), "{refused}");
    // In the budget that it says would do, nothing is shortened.
    let roomy = planned(&model, unasked(needed_bytes), 100, Some(900_000)).unwrap();
    assert_eq!((roomy.context, &roomy.notices[..]), (900_100, &[][..]));
}

#[test]
fn a_short_answer_that_the_budget_holds_is_not_said_to_be_shortened() {
    let folder = TempDir::new().unwrap();
    let model = Model::llama().with("llama.context_length", Field::U32(1_000_000));
    let model = model.write(&folder);
    for budget_bytes in [13 << 20, 24 << 20, 1 << 30] {
        let blueprint = planned(&model, unasked(budget_bytes), 30, Some(10)).unwrap();
        assert_eq!(blueprint.context, 40, "{budget_bytes} bytes");
        assert_eq!(blueprint.notices, [], "{budget_bytes} bytes");
    }
}

#[test]
fn what_a_budget_holds_is_one_number_whoever_says_it() {
    let folder = TempDir::new().unwrap();
    let model = Model::llama().with("llama.context_length", Field::U32(1_000_000));
    let model = model.write(&folder);
    let asked = Settings {
        context: Some(1000),
        ..unasked(1 << 20)
    };
    let Err(Error::BudgetTooSmall { needed_bytes, .. }) = Blueprint::new(&model, asked) else {
        panic!("a MiB is enough");
    };
    let open = Blueprint::new(&model, unasked(needed_bytes)).unwrap();
    let [Notice::ContextShortened { held, wished, .. }] = open.notices[..] else {
        panic!("{:?}", open.notices);
    };
    assert!((1000..wished).contains(&held), "{held}");
    assert!(open.context <= held, "{}", open.context);
    let long = planned(&model, unasked(needed_bytes), 30, Some(900_000)).unwrap();
    assert_eq!(long.context, held);
    let too_long = planned(&model, unasked(needed_bytes), 900_000, Some(1)).unwrap_err();
    assert!(
        matches!(too_long, Error::BudgetTooSmall { context_held, .. } if context_held == held),
        "{too_long}"
    );
    assert_eq!(
        (open.context_room.held, long.context_room.held),
        (held, held)
    );
    let beyond = planned(&model, unasked(needed_bytes), 1_000_001, Some(1)).unwrap_err();
    let message = beyond.to_string();
    let parts = [
        "the prompt has 1000001 tokens and the context holds 1000000, of which a RAM budget of ",
        &format!("M holds {held}; shorten it, or raise the budget and the context"),
    ];
    assert!(parts.iter().all(|part| message.contains(part)), "{message}");
}

#[test]
fn a_prompt_that_the_budget_does_not_hold_is_refused_with_what_it_holds() {
    let folder = TempDir::new().unwrap();
    let model = Model::llama().with("llama.context_length", Field::U32(1_000_000));
    let model = model.write(&folder);
    let refused = planned(&model, unasked(16 << 20), 200_000, Some(100)).unwrap_err();
    let message = refused.to_string();
    let Error::BudgetTooSmall {
        context,
        context_held,
        needed_bytes,
        ..
    } = refused
    else {
        panic!("{message}");
    };
    assert_eq!(context, 200_000);
    assert!(message.contains("shorten the prompt"), "{message}");
    assert!(
        message.contains(&format!("16M hold {context_held} tokens")),
        "{message}"
    );
    // Both are as said.
    planned(&model, unasked(16 << 20), context_held, Some(0)).unwrap();
    planned(&model, unasked(16 << 20), context_held + 1, Some(0)).unwrap_err();
    planned(&model, unasked(needed_bytes), context, Some(100)).unwrap();
    planned(&model, unasked(needed_bytes - 1), context, Some(100)).unwrap_err();
}

#[test]
fn a_text_that_is_refused_by_its_bytes_is_told_what_the_budget_holds() {
    let asked = |bytes: usize| {
        let settings = Settings {
            context: Some(12_000),
            ..unasked(13 << 20)
        };
        let request = |_: &PromptForm<'_>| {
            let expected = ExpectedRequest {
                prompt: Some(Prompt::Text("a".repeat(bytes))),
                renders: false,
                answer_tokens: None,
                session: None,
            };
            Ok::<_, Error>((expected, ()))
        };
        Blueprint::for_request(&llama(), settings, request).unwrap_err()
    };
    let Error::BudgetTooSmall { context_held, .. } = asked(5) else {
        panic!("13 MiB are enough");
    };
    let message = asked(200_000).to_string();
    let expected = format!(
        "at most fit the context of 12000 tokens, of which a RAM budget of 13M holds {context_held}; shorten it, or raise the budget and the context"
    );
    assert!(message.ends_with(&expected), "{message}");
}

#[test]
fn a_full_context_is_said_to_be_longer_with_c_or_with_a_larger_budget() {
    let folder = TempDir::new().unwrap();
    let model = Model::llama().with("llama.context_length", Field::U32(100_000));
    let model = model.write(&folder);
    let notes = |context: &str, budget: &str| {
        let mut run = command("emel-run");
        run.arg(&model)
            .args(["-c", context, "--ram-budget", budget]);
        let output = run.args(words("-p hello -n -1 --ignore-eos --temp 0"));
        String::from_utf8(output.output().unwrap().stderr).unwrap()
    };
    let number = |text: &str, before: &str| -> usize {
        let (_, rest) = text.split_once(before).unwrap_or_else(|| panic!("{text}"));
        let digits = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap();
        digits.parse().unwrap()
    };
    let refused = notes("64", "1M");
    let budget = format!("{}M", number(&refused, "smallest that works is "));
    let longer = notes("64", &budget);
    let held = number(
        &longer,
        "context of 64 tokens is full; -c sets a longer one, up to ",
    );
    let no_longer = notes(&held.to_string(), &budget);
    let expected = format!(
        "context of {held} tokens is full; a RAM budget of {budget} holds {held}, and -c {} needs --ram-budget ",
        2 * held
    );
    let needed = number(&no_longer, &expected);
    let twice = (2 * held).to_string();
    let notes = |budget: usize| notes(&twice, &format!("{budget}M"));
    assert!(notes(needed).contains(&format!("context of {twice} tokens is full")));
    assert!(notes(needed - 1).contains(&format!("smallest that works is {needed}M")));
}

#[test]
fn another_number_of_tokens_does_not_change_those_before() {
    let folder = TempDir::new().unwrap();
    for model in [llama(), long_rope(&folder, 128, 512)] {
        let text = |tokens: &str| {
            let arguments = words("-p hello --temp 0 --ignore-eos -n").chain([tokens]);
            let text = result(emel_run(&model, arguments));
            text.trim_end_matches('\n').to_owned()
        };
        let (few, many) = (text("16"), text("400"));
        assert!(
            !few.is_empty() && many.starts_with(&few),
            "{few} and {many}"
        );
    }
}

#[test]
fn rotary_factors_depend_on_the_context_that_was_asked_for_alone() {
    let folder = TempDir::new().unwrap();
    let model = long_rope(&folder, 4096, 10_000);
    let context = |answer| planned(&model, unasked(64 << 20), 6, Some(answer)).unwrap();
    // What is taken unasked stays where the factors of short contexts are right.
    assert_eq!(context(100).context, 106);
    assert_eq!(context(9000).context, 4096);
    let short = bits(context(100));
    assert_eq!(short, bits(context(9000)));
    let asked = |context| Settings {
        context: Some(context),
        ..unasked(64 << 20)
    };
    assert_eq!(short, bits(Blueprint::new(&model, asked(4096)).unwrap()));
    assert_ne!(short, bits(Blueprint::new(&model, asked(4097)).unwrap()));
    let refused = planned(&model, unasked(64 << 20), 5000, Some(1)).unwrap_err();
    let message = refused.to_string();
    let expected =
        "the prompt has 5000 tokens and the context holds 4096; shorten it or raise the context";
    assert_eq!(message, expected);
    planned(&model, asked(6000), 5000, Some(1)).unwrap();

    // Those of long contexts where a usual context is one.
    let model = long_rope(&folder, 128, 512);
    let blueprint = planned(&model, unasked(64 << 20), 6, Some(20)).unwrap();
    assert_eq!(
        bits(blueprint),
        bits(Blueprint::new(&model, asked(512)).unwrap())
    );
}

#[test]
fn which_rotary_factors_are_used_and_why_is_told() {
    let folder = TempDir::new().unwrap();
    let model = long_rope(&folder, 4096, 10_000);
    let told = |model: &Path, context| {
        let settings = Settings {
            context,
            ..unasked(64 << 20)
        };
        let notices = Blueprint::new(model, settings).unwrap().notices;
        let notices = notices
            .iter()
            .filter(|it| matches!(it, Notice::LongRope { .. }));
        notices.map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(
        told(&model, None),
        [
            "the short factors of LongRoPE are used: no context was asked for, and one of 4096 tokens \
             is within the model's first 4096"
        ]
    );
    assert_eq!(
        told(&model, Some(4097)),
        [
            "the long factors of LongRoPE are used: the context of 4097 tokens is longer than the \
             model's first 4096"
        ]
    );
    assert!(told(&llama(), None).is_empty());
    let told = emel(
        "eval",
        &model,
        words("--ram-budget 64M --tokens 3,4,5 -c 5000"),
    );
    let told = String::from_utf8(told.stderr).unwrap();
    assert!(
        told.contains("the long factors of LongRoPE are used"),
        "{told}"
    );
    assert!(told.contains("(-c)"), "{told}");
}

#[test]
fn a_session_fits_the_context_of_a_shorter_request() {
    let folder = TempDir::new().unwrap();
    let [session, statistics] = ["session", "statistics"].map(|name| folder.path().join(name));
    let model = Model::llama().with("llama.context_length", Field::U32(10_000));
    let model = model.write(&folder);
    let run = |options: &str| {
        let files = ["--session", session.to_str().unwrap()];
        let statistics = ["--stats-json", statistics.to_str().unwrap()];
        let arguments = words("-p hello --temp 0 --ignore-eos").chain(words(options));
        result(emel_run(&model, arguments.chain(files).chain(statistics)))
    };
    run("-n 1500");
    run("-n 4");
    let found: Value = serde_json::from_slice(&fs::read(&statistics).unwrap()).unwrap();
    assert_eq!(found["resumed_tokens"], 3, "{found}");
}

#[test]
fn a_first_message_of_a_conversation_gets_the_context_that_it_needs() {
    let folder = TempDir::new().unwrap();
    let model = Model::llama().with("llama.context_length", Field::U32(100_000));
    let model = model.write(&folder);
    let message = "a long story ".repeat(600);
    let arguments = ["-cnv", "-st", "-n", "2", "-p", &message];
    result(emel_run(&model, arguments));
    let refused = emel_run(&model, ["-cnv", "-st", "-c", "600", "-p", &message]);
    refusal(
        refused,
        1,
        &["the context holds 600", "raise the context (-c)"],
    );
}

#[test]
fn a_budget_that_holds_a_shorter_context_says_so_of_one_that_was_asked_for() {
    let small = Settings {
        ram_budget: RamBudget::Bytes(16 << 20),
        context: Some(200_000),
        ..unasked(0)
    };
    let message = Blueprint::new(&llama(), small).unwrap_err().to_string();
    assert!(
        message.contains(", and 16M hold ")
            && message.ends_with("raise the budget or lower the context"),
        "{message}"
    );
}
