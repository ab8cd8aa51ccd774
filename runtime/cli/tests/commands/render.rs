//! `emel render`: conversations as prompts.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use emel_tests::fixtures::{fixture, json};
use emel_tests::gguf_writer::Field;
use serde_json::Value;
use tempfile::TempDir;

use crate::model::Model;
use crate::{command, emel, llama, refusal, result};

const HELLO: &str = r#"[{"role": "user", "content": "hello"}]"#;
const HELLO_AS_CHATML: &str = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n";

/// A folder with files of these contents; their paths.
fn files<const N: usize>(contents: [&str; N]) -> (TempDir, [PathBuf; N]) {
    let folder = TempDir::new().unwrap();
    let mut index = 0;
    let paths = contents.map(|text| {
        index += 1;
        let path = folder.path().join(format!("file-{index}"));
        fs::write(&path, text).unwrap();
        path
    });
    (folder, paths)
}

fn template(name: &str) -> String {
    fs::read_to_string(fixture(&format!("chat/{name}.jinja"))).unwrap()
}

fn with_template(folder: &TempDir, key: &str, source: &str) -> PathBuf {
    let model = Model::llama().with(key, Field::string(source));
    model.write(folder)
}

/// Runs `emel render MODEL -f MESSAGES ARGS…`.
fn render(model: &std::path::Path, messages: &std::path::Path, arguments: &[&str]) -> Output {
    let messages = ["-f", messages.to_str().unwrap()];
    emel("render", model, messages.iter().chain(arguments))
}

#[test]
fn a_prompt_is_what_the_models_template_makes_of_the_messages() {
    let golden: Value = json("chat/golden.json");
    let conversations: Value = json("chat/conversations.json");
    for name in ["several turns", "an answer at the end", "a tool called"] {
        let (folder, [messages]) = files([&conversations[name].to_string()]);
        let source = template("qwen3");
        let model = with_template(&folder, "tokenizer.chat_template", &source);
        let expected = &golden["qwen3"]["rendered"][name]["text"];
        let prompt = result(render(&model, &messages, &[]));
        assert_eq!(prompt, expected.as_str().unwrap(), "{name}");
        let report = result(render(&model, &messages, &["--json"]));
        let report: Value = serde_json::from_str(&report).unwrap();
        assert_eq!(&report["prompt"], expected, "{name}");
    }
}

#[test]
fn conversations_with_tools_take_the_template_for_them() {
    let tools = r#"{"messages": [{"role": "user", "content": "hello"}], "tools": [{}]}"#;
    let (folder, [plain, tools]) = files([HELLO, tools]);
    let model = Model::llama()
        .with("tokenizer.chat_template", Field::string("plain"))
        .with("tokenizer.chat_template.tool_use", Field::string("tools"))
        .write(&folder);
    assert_eq!(result(render(&model, &plain, &[])), "plain");
    assert_eq!(result(render(&model, &tools, &[])), "tools");
}

#[test]
fn another_template_may_come_from_a_file_or_be_named_or_given() {
    let (folder, [messages, file]) = files([HELLO, "from a file"]);
    let model = with_template(&folder, "tokenizer.chat_template", "the model's");
    let file = file.to_str().unwrap();
    for (arguments, expected) in [
        (["--chat-template", file], "from a file"),
        (["--chat-template-file", file], "from a file"),
        (["--chat-template", "{{ messages[0].content }}!"], "hello!"),
        (["--chat-template", "chatml"], HELLO_AS_CHATML),
    ] {
        assert_eq!(result(render(&model, &messages, &arguments)), expected);
    }
}

#[test]
fn a_model_without_a_template_gets_chatml_and_a_note() {
    let (folder, [messages]) = files([HELLO]);
    let model = Model::llama().without("tokenizer.chat_template");
    let output = render(&model.write(&folder), &messages, &[]);
    let notes = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        notes.starts_with("note: this is a base model (no chat template): ChatML is used"),
        "{notes}"
    );
    assert_eq!(result(output), HELLO_AS_CHATML);
}

#[test]
fn messages_may_come_from_standard_input() {
    let mut child = command("emel")
        .arg("render")
        .arg(llama())
        .args(["-f", "-", "--chat-template", "chatml"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(HELLO.as_bytes()).unwrap();
    drop(input);
    assert_eq!(result(child.wait_with_output().unwrap()), HELLO_AS_CHATML);
}

#[test]
fn messages_and_templates_that_make_no_prompt_are_refused() {
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}";
    let doubled = "{% set n = namespace(s=[1]) %}{% for i in range(60) %}\
                   {% set n.s = n.s + n.s %}{% endfor %}";
    for (messages, source, expected) in [
        (HELLO, doubled, "may go on for ever"),
        ("[{", "x", "not JSON"),
        ("[]", "x", "`messages` is []"),
        (r#"[{"role": "me"}]"#, "x", "messages[0].role is \"me\""),
        (HELLO, "\n{% if %}", "chat template, line 2: syntax error"),
        (HELLO, "{{ messages[0].a.b }}", "chat template, line 1: "),
        (HELLO, "{{ raise_exception('no tools') }}", "no tools"),
        (HELLO, endless, "may go on for ever"),
    ] {
        let (folder, [messages]) = files([messages]);
        let model = with_template(&folder, "tokenizer.chat_template", source);
        let started = Instant::now();
        refusal(render(&model, &messages, &[]), 1, &[expected]);
        assert!(started.elapsed() < Duration::from_secs(20), "{expected}");
    }
    let (folder, [messages]) = files([HELLO]);
    let missing = folder.path().join("missing");
    refusal(render(&llama(), &missing, &[]), 1, &["cannot read text"]);
    let arguments = ["--chat-template", missing.to_str().unwrap()];
    refusal(
        render(&llama(), &messages, &arguments),
        2,
        &["--chat-template", "/missing, which is no file here"],
    );
    refusal(emel("render", &llama(), [""; 0]), 2, &["--file"]);
    let number = Model::llama().with("tokenizer.chat_template", Field::U32(3));
    let number = number.write(&folder);
    let expected = ["`tokenizer.chat_template` holds the integer 3"];
    refusal(render(&number, &messages, &[]), 1, &expected);
}
