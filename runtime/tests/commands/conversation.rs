//! `emel-run -cnv`, with lines from a pipe.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use emel_tests::fixtures::{SMOLLM2, real_model};
use emel_tests::gguf_writer::Field;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use crate::model::Model;
use crate::{command, emel, emel_run, gemma, llama, refusal, result, words};
use emel_tests::signals;

/// Starts a conversation with every answer the most probable one.
fn start(model: &Path, arguments: &[&str]) -> Child {
    signals::undo_ignored();
    command("emel-run")
        .arg(model)
        .args(["-cnv", "--temp", "0"])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn say(child: &mut Child, text: &str) {
    let input = child.stdin.as_mut().unwrap();
    input.write_all(text.as_bytes()).unwrap();
    input.flush().unwrap();
}

/// A conversation of these lines.
fn talk(model: &Path, arguments: &[&str], lines: &str) -> Output {
    let mut child = start(model, arguments);
    say(&mut child, lines);
    // Waiting closes standard input.
    child.wait_with_output().unwrap()
}

fn interrupt(child: &Child) {
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
}

const SMALL: [&str; 4] = ["--ram-budget", "256M", "--chat-template", "chatml"];

#[test]
fn a_real_model_answers_each_line_in_the_light_of_those_before() {
    let Some(model) = real_model(SMOLLM2) else {
        return;
    };
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("messages");
    let continued = |messages: Value| {
        fs::write(&path, messages.to_string()).unwrap();
        let prompt = result(emel("render", &model, ["-f", path.to_str().unwrap()]));
        let arguments = ["-p", &prompt, "--temp", "0", "-n", "12"];
        let budget = ["--ram-budget", "512M"];
        let mut run = command("emel-run");
        result(
            run.arg(&model)
                .args(arguments)
                .args(budget)
                .output()
                .unwrap(),
        )
    };
    let mut messages = vec![
        serde_json::json!({"role": "system", "content": "Answer in one word."}),
        serde_json::json!({"role": "user", "content": "What is the capital of France?"}),
    ];
    let first = continued(messages.clone().into());
    messages
        .push(serde_json::json!({"role": "assistant", "content": first.trim_end_matches('\n')}));
    messages.push(serde_json::json!({"role": "user", "content": "And of Italy?"}));
    let second = continued(messages.into());
    let arguments = [
        "-sys",
        "Answer in one word.",
        "-n",
        "12",
        "--ram-budget",
        "512M",
    ];
    let lines = "What is the capital of France?\n\nAnd of Italy?\n";
    let found = result(talk(&model, &arguments, lines));
    assert_eq!(found, first.clone() + &second);
    assert!(first.contains("Paris"), "{first}");
    // The end of a turn ends an answer long before the context is full.
    let found = result(talk(&model, &["-st", "-p", "Say hello."], ""));
    assert!(
        !found.contains("<|im_end|>") && found.len() < 2000,
        "{found}"
    );
}

#[test]
fn a_second_answer_computes_only_what_is_new() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("statistics");
    let statistics = ["-n", "20", "--stats-json", path.to_str().unwrap()];
    let arguments = [&SMALL[..], &statistics].concat();
    let usage = |lines: &str| -> Value {
        result(talk(&llama(), &arguments, lines));
        serde_json::from_slice(&fs::read(&path).unwrap()).unwrap()
    };
    let tokens = |usage: &Value, name: &str| usage[name].as_u64().unwrap();
    let once = usage("hello\n");
    assert_eq!(tokens(&once, "resumed_tokens"), 0);
    let twice = usage("hello\nand more\n");
    // The first prompt, at least, is there already; the tokens of an answer may be others
    // when its text is read again.
    let resumed = tokens(&twice, "resumed_tokens");
    assert!(resumed >= tokens(&once, "prompt_tokens"), "{twice}");
    assert!(resumed < tokens(&twice, "prompt_tokens"), "{twice}");
    if let Some(model) = real_model(SMOLLM2) {
        let budget = ["-n", "40", "--ram-budget", "512M"];
        let arguments = [&budget[..], &statistics[2..]].concat();
        let lines = "What is the capital of France?\nAnd of Italy?\n";
        result(talk(&model, &arguments, lines));
        let twice: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        // The end of the first turn, and the second.
        let computed = tokens(&twice, "prompt_tokens") - tokens(&twice, "resumed_tokens");
        assert!(computed <= 20, "{twice}");
    }
}

#[test]
fn the_end_of_the_input_and_exit_end_a_conversation() {
    assert_eq!(result(talk(&llama(), &SMALL, "")), "");
    assert_eq!(result(talk(&llama(), &SMALL, "\n  \n")), "");
    assert_eq!(result(talk(&llama(), &SMALL, "/exit\nhello\n")), "");
}

#[test]
fn a_conversation_can_start_over() {
    let arguments = [&SMALL[..], &["-n", "20", "-sys", "be good"]].concat();
    let once = result(talk(&llama(), &arguments, "hello\n"));
    let twice = result(talk(&llama(), &arguments, "hello\n/clear\nhello"));
    assert_eq!(twice, once.repeat(2));
    let going_on = result(talk(&llama(), &arguments, "hello\nhello\n"));
    assert_ne!(going_on, twice, "the second answer knows the first");
}

#[test]
fn the_first_message_and_the_system_prompt_may_be_given() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("text");
    fs::write(&path, "hello").unwrap();
    let path = path.to_str().unwrap();
    let run = |arguments: &[&str], lines: &str| {
        let arguments = [&SMALL[..], &["-n", "20"], arguments].concat();
        result(talk(&llama(), &arguments, lines))
    };
    let expected = run(&["-sys", "hello"], "hello\n");
    assert_eq!(run(&["-sysf", path, "-p", "hello"], ""), expected);
    assert_eq!(run(&["-sysf", path, "-f", path], ""), expected);
    assert_eq!(run(&["-sys", "hello", "-st"], "hello\nmore\n"), expected);
    assert_ne!(run(&[], "hello\n"), expected);
}

#[test]
fn an_interrupt_stops_the_answer_and_the_conversation_goes_on() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("statistics");
    let options = "-n 4000 -c 20000 --ignore-eos --stats-json";
    let arguments: Vec<&str> = SMALL.into_iter().chain(words(options)).collect();
    let arguments = [&arguments[..], &[path.to_str().unwrap()]].concat();
    let mut child = start(&gemma(), &arguments);
    say(&mut child, "first\n");
    let mut output = child.stdout.take().unwrap();
    output.read_exact(&mut [0]).unwrap();
    interrupt(&child);
    say(&mut child, "second\n");
    drop(child.stdin.take());
    let mut text = Vec::new();
    output.read_to_end(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let usage: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(
        usage["generated_tokens"], 4000,
        "the second answer is whole"
    );
    let prompt_tokens = usage["prompt_tokens"].as_u64().unwrap();
    assert!(
        prompt_tokens < 4000,
        "the first answer was stopped: {prompt_tokens}"
    );
}

#[test]
fn an_interrupt_between_answers_ends_the_conversation() {
    let Some(model) = real_model(SMOLLM2) else {
        return;
    };
    let mut child = start(&model, &["-n", "4", "--ram-budget", "512M"]);
    say(&mut child, "hello\n");
    let mut output = child.stdout.take().unwrap();
    let mut byte = [0];
    while byte != *b"\n" {
        output.read_exact(&mut byte).unwrap();
    }
    // The answer is over; the engine has nothing to do.
    std::thread::sleep(Duration::from_millis(300));
    // Its end would end the conversation too, and waiting for the process closes it.
    let _input = child.stdin.take().unwrap();
    let interrupted = Instant::now();
    interrupt(&child);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(interrupted.elapsed() < Duration::from_secs(60), "it waits");
        std::thread::sleep(Duration::from_millis(10));
    };
    assert_eq!(status.code(), Some(0));
}

#[test]
fn a_conversation_too_long_for_the_context_is_told_and_the_next_one_answered() {
    let lines = format!("{}\nhi\n", "too long ".repeat(200));
    let arguments = [&SMALL[..], &["-c", "256", "-n", "4", "--ignore-eos"]].concat();
    let output = talk(&llama(), &arguments, &lines);
    let notes = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(notes.contains("error: the conversation has "), "{notes}");
    assert!(
        notes.contains("the context holds 256; /clear starts over"),
        "{notes}"
    );
    assert!(notes.ends_with("error: a message was not answered; the lines above say why\n"));
    assert_eq!(output.status.code(), Some(1));
    assert!(!output.stdout.is_empty(), "{notes}");
    let arguments = [&arguments[..], &["-st", "-p", &lines]].concat();
    let refused = talk(&llama(), &arguments, "");
    refusal(refused, 1, &["the context holds 256"]);
}

#[test]
fn a_full_context_is_told() {
    let output = emel_run(&llama(), words("-p hello -n -1 -c 64 --ignore-eos"));
    let notes = String::from_utf8_lossy(&output.stderr).into_owned();
    let expected = "note: stopped because the context of 64 tokens is full; -c sets a longer one\n";
    assert_eq!(notes, expected);
    let output = emel_run(&llama(), words("-p hello -n 61 -c 64 --ignore-eos"));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn lines_that_are_no_message_are_refused_and_the_next_one_answered() {
    let arguments = [&SMALL[..], &["-c", "256", "-n", "4", "--ignore-eos"]].concat();
    let mut child = start(&llama(), &arguments);
    let mut lines = b"\xff\xfe\n".to_vec();
    lines.resize(60 << 20, b'a');
    lines.extend(b"\nhi\n");
    child.stdin.as_mut().unwrap().write_all(&lines).unwrap();
    let output = child.wait_with_output().unwrap();
    let notes = String::from_utf8_lossy(&output.stderr).into_owned();
    let refused = [
        "error: byte 0 of a message is not UTF-8",
        "error: a message of over ",
        "256 tokens of the context hold ",
        "2 messages were not answered",
    ];
    for expected in refused {
        assert!(notes.contains(expected), "{notes}");
    }
    assert_eq!(output.status.code(), Some(1));
    assert!(!output.stdout.is_empty(), "{notes}");
    let alone = [&arguments[..], &["-st"]].concat();
    let mut child = start(&llama(), &alone);
    child.stdin.as_mut().unwrap().write_all(b"\xff\n").unwrap();
    refusal(child.wait_with_output().unwrap(), 1, &["is not UTF-8"]);
}

#[test]
fn an_empty_template_is_refused() {
    let arguments = ["--ram-budget", "256M", "--chat-template", ""];
    let output = talk(&llama(), &arguments, "hi\n");
    let expected = ["--chat-template is empty", "a file, a template or chatml"];
    refusal(output, 2, &expected);
}

#[test]
fn options_of_a_conversation_belong_to_one() {
    for (arguments, expected) in [
        ("-sys a -p b", "--conversation"),
        ("-st -p b", "--conversation"),
        ("-cnv -no-cnv", "cannot be used with"),
        ("-cnv --session a", "cannot be used with"),
        ("-no-cnv", "--prompt <TEXT>"),
        ("-p a --chat-template chatml", "expected --conversation"),
        ("-cnv -sys a -sysf b", "cannot be used with"),
        (
            "-cnv --chat-template a --chat-template-file b",
            "cannot be used with",
        ),
    ] {
        refusal(emel_run(&llama(), words(arguments)), 2, &[expected]);
    }
    let broken = Model::llama().with("tokenizer.chat_template", Field::string("{% if %}"));
    let folder = TempDir::new().unwrap();
    let output = emel_run(&broken.write(&folder), words("-cnv"));
    refusal(output, 1, &["chat template, line 1: syntax error"]);
    result(emel_run(&broken.write(&folder), words("-p a -n 1")));
    let number = Model::llama().with("tokenizer.chat_template", Field::U32(3));
    let number = number.write(&folder);
    let told = ["model.gguf", "holds the integer 3", "--chat-template"];
    refusal(emel_run(&number, words("-cnv")), 1, &told);
    result(emel_run(&number, words("-p a -n 1")));
    let given = words("-cnv --chat-template chatml -st -n 1").chain(["-p", "a"]);
    result(emel_run(&number, given));
}
