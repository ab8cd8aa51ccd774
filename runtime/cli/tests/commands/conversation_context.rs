//! The context of a conversation: when it is full, nearly full, or too short.

use std::fs;

use emel_tests::gguf_writer::Field;
use serde_json::Value;
use tempfile::TempDir;

use crate::conversation::{ROLES, SMALL, chatty_llama, notes, piped, talk};
use crate::model::Model;
use crate::{emel_run, llama, refusal, result, words};

#[test]
fn a_conversation_too_long_for_the_context_is_refused_and_the_next_one_answered() {
    let lines = format!("{}\nhi\n", "too long ".repeat(200));
    let arguments = [&SMALL[..], &["-c", "256", "-n", "4", "--ignore-eos"]].concat();
    let output = talk(&llama(), &arguments, &lines);
    let notes = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(notes.contains("error: the message has "), "{notes}");
    assert!(
        notes.contains("the context holds 256; shorten it; -c sets a longer one, up to 512"),
        "{notes}"
    );
    assert!(notes.ends_with("error: a line failed; the error above says why\n"));
    assert_eq!(output.status.code(), Some(1));
    assert!(!output.stdout.is_empty(), "{notes}");
    let arguments = [&arguments[..], &["-st", "-p", &lines]].concat();
    let refused = talk(&llama(), &arguments, "");
    refusal(refused, 1, &["the context holds 256"]);
}

#[test]
fn a_full_context_is_noted() {
    let output = emel_run(&llama(), words("-p hello -n -1 -c 64 --ignore-eos"));
    let notes = String::from_utf8_lossy(&output.stderr).into_owned();
    let expected =
        "note: stopped because the context of 64 tokens is full; -c sets a longer one, up to 512\n";
    assert_eq!(notes, expected);
    let output = emel_run(&llama(), words("-p hello -n 61 -c 64 --ignore-eos"));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn the_oldest_messages_make_room_when_the_context_is_full() {
    let folder = TempDir::new().unwrap();
    let model = chatty_llama(&folder, ROLES);
    let lines = "the first message\nthe second message\nthe third message\nthe fourth message\n";
    let whole = piped(&model, "-cnv -c 400 -sys system", lines);
    assert_eq!(notes(&whole), "");
    let found = piped(&model, "-cnv -c 64 -sys system", lines);
    let stderr = notes(&found);
    assert!(
        stderr.contains(
            "context of 64 tokens is full: the oldest message and its answer are dropped; -c sets"
        ),
        "{stderr}"
    );
    let stopped = piped(&model, "-cnv -c 64 -sys system --context-full stop", lines);
    let stderr = String::from_utf8_lossy(&stopped.stderr).into_owned();
    assert_eq!(stopped.status.code(), Some(1), "{stderr}");
    assert!(
        stderr.contains("tokens and the context holds 64; /clear starts over"),
        "{stderr}"
    );
}

#[test]
fn a_context_that_is_nearly_full_is_noted_once() {
    let folder = TempDir::new().unwrap();
    let model = chatty_llama(&folder, ROLES);
    let statistics = folder.path().join("statistics");
    let counted = format!("-cnv --stats-json {}", statistics.display());
    assert_eq!(notes(&piped(&model, &counted, "hello\n")), "");
    let usage: Value = serde_json::from_slice(&fs::read(&statistics).unwrap()).unwrap();
    let count = |name: &str| usage[name].as_u64().unwrap();
    let used = count("prompt_tokens") + count("generated_tokens");
    let stderr = notes(&piped(
        &model,
        &format!("-cnv -c {}", used + 2),
        "hello\n/regen\n",
    ));
    let expected = format!(
        "note: {used} of the context's {} tokens are used; the oldest messages are dropped when it is full; -c sets a longer one, up to 512\n",
        used + 2
    );
    let (warned, again) = stderr.split_at(expected.len());
    assert_eq!(warned, expected);
    assert!(again.starts_with("note: answering again, with seed "));
    assert_eq!(again.lines().count(), 1, "{again}");
    let single = piped(&model, &format!("-c {}", used + 2), "hello");
    assert_eq!(notes(&single), "");
}

#[test]
fn a_system_prompt_as_long_as_the_context_is_refused_before_any_message() {
    let folder = TempDir::new().unwrap();
    let model = chatty_llama(&folder, ROLES);
    let long = "be brief ".repeat(100);
    let start = |arguments: &[&str], text: &str| {
        let arguments = [&["--ram-budget", "64M", "-c", "64"][..], arguments].concat();
        talk(&model, &arguments, text)
    };
    let expected = [
        "the system prompt has ",
        "and the context holds 64; shorten it; -c sets a longer one, up to 512",
    ];
    refusal(start(&["-sys", &long], "hello\n"), 1, &expected);
    refusal(start(&["-sys", &long, "-p", "hello"], ""), 1, &expected);
    let output = start(&[], &format!("/system {long}\n"));
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        expected.iter().all(|part| stderr.contains(part)),
        "{stderr}"
    );
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_message_to_a_saved_conversation_leaves_room_for_what_was_said() {
    let folder = TempDir::new().unwrap();
    let model = Model::llama()
        .with("tokenizer.chat_template", Field::string(ROLES))
        .with("llama.context_length", Field::U32(10_000))
        .write(&folder);
    let [session, statistics] = ["session", "statistics"].map(|name| folder.path().join(name));
    let options = format!("--session {} -n 4", session.display());
    result(piped(&model, &options, &"a long story ".repeat(100)));
    let options = format!("{options} --stats-json {}", statistics.display());
    let again = piped(&model, &options, "and then?");
    assert!(!notes(&again).contains("dropped"), "{}", notes(&again));
    let found: Value = serde_json::from_slice(&fs::read(statistics).unwrap()).unwrap();
    assert!(found["resumed_tokens"].as_u64() > Some(600), "{found}");
}
