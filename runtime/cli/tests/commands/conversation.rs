//! A conversation through pipes.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
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

/// The small llama with a chat template.
pub(crate) fn chatty_llama(folder: &TempDir, template: &str) -> PathBuf {
    let model = Model::llama().with("tokenizer.chat_template", Field::string(template));
    model.write(folder)
}

/// A template in which every message begins with its role.
pub(crate) const ROLES: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";

/// The small llama as a base model.
pub(crate) fn base_llama(folder: &TempDir) -> PathBuf {
    Model::llama()
        .without("tokenizer.chat_template")
        .write(folder)
}

/// What `emel run MODEL ARGS…` makes of a text on standard input.
pub(crate) fn piped(model: &Path, arguments: &str, text: &str) -> Output {
    let mut command = command("emel");
    command.arg("run").arg(model).args(["--ram-budget", "64M"]);
    command.args(words("--temp 0 -n 12 --ignore-eos"));
    command.args(words(arguments)).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    say(&mut child, text);
    child.wait_with_output().unwrap()
}

/// What a command that went well has said on standard error.
pub(crate) fn notes(output: &Output) -> String {
    let notes = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(0), "{notes}");
    notes
}

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
pub(crate) fn talk(model: &Path, arguments: &[&str], lines: &str) -> Output {
    let mut child = start(model, arguments);
    say(&mut child, lines);
    // Waiting closes standard input.
    child.wait_with_output().unwrap()
}

fn interrupt(child: &Child) {
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
}

pub(crate) const SMALL: [&str; 4] = ["--ram-budget", "256M", "--chat-template", "chatml"];

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
        "at most fit the context of 256 tokens",
        "2 lines failed",
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
        ("-no-cnv -sys a -p b", "cannot be used with"),
        ("-no-cnv --chat-template chatml -p b", "cannot be used with"),
        ("-cnv -sys a -sysf b", "cannot be used with"),
        ("-cnv --reasoning-budget 5", "5 is not in -1..=0"),
        ("-cnv --chat-template-kwargs []", "expected a JSON object"),
        (
            "-no-cnv",
            "standard input is empty, expected a text; give one with -p TEXT or -f FILE",
        ),
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
    let output = piped(&broken.write(&folder), "-p a", "");
    refusal(output, 1, &["chat template, line 1: syntax error"]);
    result(emel_run(&broken.write(&folder), words("-no-cnv -p a -n 1")));
    let number = Model::llama().with("tokenizer.chat_template", Field::U32(3));
    let number = number.write(&folder);
    let expected = ["model.gguf", "holds the integer 3", "--chat-template"];
    refusal(emel_run(&number, words("-cnv")), 1, &expected);
    result(emel_run(&number, words("-no-cnv -p a -n 1")));
    let given = words("-cnv --chat-template chatml -st -n 1").chain(["-p", "a"]);
    result(emel_run(&number, given));
}

#[test]
fn a_model_with_a_template_answers_a_text_once_and_says_nothing_else() {
    let folder = TempDir::new().unwrap();
    let model = chatty_llama(&folder, ROLES);
    let text = folder.path().join("text");
    fs::write(&text, "hello\nmore\n").unwrap();
    let answer = piped(&model, "", "hello\nmore\n");
    assert_eq!(notes(&answer), "");
    let answer = result(answer);
    let file = format!("-f {}", text.display());
    for (arguments, input) in [
        (file.as_str(), ""),
        (file.as_str(), "more\n"),
        ("-f -", "hello\nmore"),
        ("-st", "hello\nmore"),
    ] {
        let found = piped(&model, arguments, input);
        assert_eq!(notes(&found), "", "{arguments}");
        assert_eq!(result(found), answer, "{arguments}");
    }
    let by_line = result(piped(&model, "-cnv", "hello\nmore\n"));
    assert_ne!(
        by_line, answer,
        "-cnv takes each line of a pipe as a message"
    );
    // The same text, as the template has it, and the line break that is left out of a file.
    let rendered = "user: hello\nmore\n\n";
    assert_eq!(result(piped(&model, "-no-cnv", rendered)), answer);
    let last = result(piped(&model, "-no-cnv -cnv", "hello\nmore\n"));
    assert_eq!(last, by_line, "of the two, the last counts");
    let commanded = result(piped(&model, "-p /help", ""));
    assert_ne!(commanded, "", "what is given as a message is no command");
}

#[test]
fn a_base_model_continues_text_and_says_that_it_is_one_where_it_is_talked_to() {
    let folder = TempDir::new().unwrap();
    let base = base_llama(&folder);
    let once = piped(&base, "-p hello", "");
    assert_eq!(notes(&once), "");
    let without_template = result(once);
    assert_eq!(
        result(piped(&llama(), "-no-cnv -p hello", "")),
        without_template
    );
    let note = "note: this is a base model (no chat template): ChatML is used";
    for arguments in ["-cnv -p hello", "-sys hello -p hello", "-st -p hello"] {
        let found = piped(&base, arguments, "");
        assert_eq!(notes(&found).matches(note).count(), 1, "{arguments}");
        assert_ne!(result(found), without_template, "{arguments}");
    }
    let expected = ["standard input is empty", "base model", "-cnv"];
    refusal(piped(&base, "", " \n"), 2, &expected);
}

#[test]
fn stop_texts_end_an_answer_and_are_not_shown() {
    let folder = TempDir::new().unwrap();
    let model = chatty_llama(&folder, ROLES);
    for how in ["", "-no-cnv"] {
        let whole = result(piped(&model, &format!("{how} -p hello"), ""));
        let characters: Vec<char> = whole.trim_end_matches('\n').chars().collect();
        let middle = characters.len() / 2;
        let stop = String::from_iter(&characters[middle..middle + 3]);
        let expected = whole.split(&stop).next().unwrap().to_owned() + "\n";
        for option in ["-r", "--reverse-prompt", "--stop"] {
            let mut run = command("emel");
            run.arg("run").arg(&model).args(words(how));
            run.args(words("--ram-budget 64M --temp 0 -n 12 --ignore-eos"));
            run.args(["-p", "hello", option, &stop]);
            assert_eq!(result(run.output().unwrap()), expected, "{stop:?}");
        }
    }
}

#[test]
fn thoughts_are_hidden_unless_they_are_asked_for_and_can_be_turned_off() {
    let folder = TempDir::new().unwrap();
    let thinking =
        "{% if enable_thinking is not defined or enable_thinking %}<think>{% else %}so{% endif %}";
    let model = chatty_llama(&folder, &format!("{ROLES}{thinking}"));
    let hidden = piped(&model, "", "hello");
    assert!(
        notes(&hidden).starts_with("note: the answer ended while the model was still thinking;")
    );
    assert_eq!(result(hidden), "\n");
    let raw = piped(&model, "--reasoning-format none", "hello");
    assert_eq!(notes(&raw), "");
    assert_ne!(result(raw.clone()), "\n");
    let shown = piped(&model, "--reasoning-format show --color on", "hello");
    let dimmed = result(shown);
    assert!(dimmed.starts_with("\x1b[2m") && dimmed.ends_with("\x1b[0m\n"));
    assert!(
        dimmed.contains(result(raw).trim()),
        "space after the mark is no thought"
    );
    let without = piped(&model, "--reasoning-budget 0", "hello");
    assert_eq!(notes(&without), "");
    let without = result(without);
    assert_ne!(without, "\n");
    for arguments in [
        "--chat-template-kwargs {\"enable_thinking\":false}",
        "--reasoning-budget -1 --chat-template-kwargs {\"enable_thinking\":false}",
    ] {
        assert_eq!(result(piped(&model, arguments, "hello")), without);
    }
}

#[test]
fn a_session_keeps_a_conversation_for_the_next_run() {
    let folder = TempDir::new().unwrap();
    let model = chatty_llama(&folder, ROLES);
    let path = folder.path().join("session");
    let statistics = folder.path().join("statistics");
    let session = format!(
        "--session {} --stats-json {}",
        path.display(),
        statistics.display()
    );
    let both = result(piped(&model, "-cnv -sys s", "hello\nand more\n"));
    let first = result(piped(&model, &format!("-sys s {session}"), "hello"));
    let second = piped(&model, &session, "and more");
    let resumed = format!("note: resumed 3 messages from {}\n", path.display());
    assert_eq!(notes(&second), resumed);
    assert_eq!(first.clone() + &result(second), both);
    let usage: Value = serde_json::from_slice(&fs::read(&statistics).unwrap()).unwrap();
    assert!(usage["resumed_tokens"].as_u64().unwrap() > 8, "{usage}");
    // Another system prompt is another beginning of the same conversation.
    let other = result(piped(&model, &format!("-sys other {session}"), "and more"));
    assert_ne!(first + &other, both);
    let text = piped(&model, &format!("-no-cnv {session}"), "hello");
    refusal(
        text,
        1,
        &["the session is of a conversation", "choose another name"],
    );

    let text = format!("--session {}", folder.path().join("text").display());
    result(piped(&model, &format!("-no-cnv {text}"), "hello"));
    let replaced = piped(&model, &text, "hello");
    refusal(replaced, 1, &["the session is of a text", "(-no-cnv)"]);

    // A conversation that has not begun is one, too.
    let empty = format!("-cnv --session {}", folder.path().join("empty").display());
    result(piped(&model, &empty, "/bye\n"));
    result(piped(&model, &empty, "hello\n"));

    let bytes = fs::read(&path).unwrap();
    let at = bytes
        .windows(5)
        .position(|bytes| bytes == b"hello")
        .unwrap();
    let mut damaged = bytes.clone();
    damaged[at] = b'j';
    fs::write(&path, damaged).unwrap();
    refusal(piped(&model, &session, "more"), 1, &["damaged or cut off"]);
}
