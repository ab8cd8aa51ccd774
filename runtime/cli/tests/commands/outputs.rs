//! Files that results go to: what they never replace, and what `-` is.

use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::lossy::{budget_with_slots, mixture};
use crate::{command, llama, refusal, result, words};

/// A folder with a model, a text, and a trace of it, to run commands in.
struct Place(TempDir);

/// Commands that end in the name of an output, and the option that names it.
const OUTPUTS: [(&str, &str); 5] = [
    (
        "emel-run model.gguf -f text --ram-budget 64M --stats-json",
        "--stats-json",
    ),
    (
        "emel-run model.gguf -f text --ram-budget 64M --profile",
        "--profile",
    ),
    (
        "emel eval model.gguf -f text --ram-budget 64M --logits",
        "--logits",
    ),
    (
        "emel trace model.gguf -f text --ram-budget 64M -o",
        "--output",
    ),
    (
        "emel replay trace --slots 50% --predict coact --save-heat",
        "--save-heat",
    ),
];

impl Place {
    fn new() -> Self {
        let place = Self(TempDir::new().unwrap());
        fs::copy(mixture(), place.path("model.gguf")).unwrap();
        fs::write(place.path("text"), "hello world").unwrap();
        result(place.run("emel trace model.gguf -f text --ram-budget 64M -o trace"));
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, line: &str) -> Command {
        let mut words = words(line);
        let mut command = command(words.next().unwrap());
        command.args(words).current_dir(self.0.path());
        command
    }

    fn run(&self, line: &str) -> Output {
        self.command(line).output().unwrap()
    }

    /// Asserts that no output may be named so, and that what is there is as it was.
    fn check_kept(&self, name: &str, expected: &str) {
        let before = fs::read(self.path(name)).ok();
        for (line, option) in OUTPUTS {
            let output = self.run(&format!("{line} {name}"));
            let status = output.status.code();
            assert!(matches!(status, Some(1 | 2)), "{line} {name}: {output:?}");
            let message = refusal(output, status.unwrap(), &[name]);
            let is_foreign =
                option == "--save-heat" && message.contains("not what emel has learnt");
            assert!(
                is_foreign || message.contains(expected),
                "{line}: {message}"
            );
        }
        assert!(fs::read(self.path(name)).ok() == before, "{name}");
    }
}

#[test]
fn no_output_replaces_a_model_its_own_or_another() {
    let place = Place::new();
    place.check_kept("model.gguf", "this is the model");
    fs::copy(llama(), place.path("other")).unwrap();
    place.check_kept("other", "this is a model");
    std::os::unix::fs::symlink("other", place.path("link")).unwrap();
    place.check_kept("link", "this is a model");
    assert!(place.path("link").is_symlink());
}

#[test]
fn no_output_replaces_a_session_or_the_text() {
    let place = Place::new();
    result(place.run("emel-run model.gguf -p a -n 1 --ram-budget 64M --session session"));
    place.check_kept("session", "this is a session");
    place.check_kept("text", "another file than -f");
}

#[test]
fn the_text_is_kept_also_where_it_is_standard_input() {
    let place = Place::new();
    for line in [
        "emel-run model.gguf -f - --ram-budget 64M --stats-json text",
        "emel eval model.gguf -f - --ram-budget 64M --logits text",
        "emel trace model.gguf -f - --ram-budget 64M -o text",
    ] {
        let text = fs::File::open(place.path("text")).unwrap();
        let output = place.command(line).stdin(text).output().unwrap();
        refusal(output, 2, &["text", "another file than -f"]);
    }
    assert_eq!(fs::read(place.path("text")).unwrap(), b"hello world");
}

#[test]
fn files_of_a_conversation_are_kept() {
    let place = Place::new();
    fs::write(place.path("template"), "{{ messages[0].content }}").unwrap();
    for (option, file) in [
        ("--system-prompt-file", "text"),
        ("--chat-template-file", "template"),
        ("--chat-template", "template"),
    ] {
        let output = place.run(&format!(
            "emel-run model.gguf -cnv {option} {file} --ram-budget 64M --stats-json ./{file}"
        ));
        refusal(output, 2, &[file, &format!("another file than {option}")]);
    }
}

#[test]
fn the_place_of_what_is_learnt_is_no_place_for_outputs() {
    let place = Place::new();
    let heat = "model.gguf.emel-heat";
    for line in &OUTPUTS[..4] {
        let output = place.run(&format!("{} {heat}", line.0));
        refusal(output, 1, &[heat, "keeps what it learns about the model"]);
    }
    let session = place.run(&format!(
        "emel-run model.gguf -p a --ram-budget 64M --session ./{heat}"
    ));
    refusal(session, 2, &["--session", heat, "what emel learns"]);
    assert!(!place.path(heat).exists());
    // Another model's is told by its beginning.
    result(place.run("emel replay trace --slots 50% --predict coact --save-heat heat"));
    for line in &OUTPUTS[..4] {
        let output = place.run(&format!("{} heat", line.0));
        refusal(output, 1, &["heat", "this is what emel has learnt"]);
    }
}

#[test]
fn a_trace_replaces_a_trace_and_nothing_else_does() {
    let place = Place::new();
    for line in &OUTPUTS[..3] {
        let output = place.run(&format!("{} trace", line.0));
        refusal(output, 1, &["trace", "this is a trace"]);
    }
    result(place.run("emel trace model.gguf -f text --ram-budget 64M -o trace"));
    result(place.run("emel replay trace --slots 50%"));
}

#[test]
fn a_dash_is_standard_output_after_what_else_goes_there() {
    let place = Place::new();
    let answer = result(place.run("emel-run model.gguf -f text -n 4 --temp 0 --ram-budget 64M"));
    for option in ["--stats-json", "--profile"] {
        let line = format!("emel-run model.gguf -f text -n 4 --temp 0 --ram-budget 64M {option} -");
        let out = result(place.run(&line));
        let json = out.strip_prefix(&answer).expect("the answer comes first");
        assert!(serde_json::from_str::<Value>(json).unwrap().is_object());
    }
    let both = place.run("emel-run model.gguf -p a --ram-budget 64M --stats-json - --profile -");
    refusal(both, 2, &["--profile", "another file than --stats-json"]);
    assert!(!place.path("-").exists());
}

#[test]
fn a_folder_that_is_not_there_is_told_without_names_that_nobody_gave() {
    let place = Place::new();
    let session = "emel-run model.gguf -p a --ram-budget 64M --session";
    for line in OUTPUTS.map(|(line, _)| line).into_iter().chain([session]) {
        let output = place.run(&format!("{line} no/such"));
        let message = refusal(output, 1, &["no/such: cannot write", "No such file"]);
        assert!(!message.contains(".tmp"), "{message}");
    }
}

#[test]
fn a_trace_on_standard_output_is_nothing_but_the_trace() {
    let place = Place::new();
    for name in ["-", "/dev/stdout"] {
        let line = format!("emel trace model.gguf -f text --ram-budget 64M -o {name}");
        let output = place.run(&line);
        assert!(output.status.success(), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(" positions, "));
        assert!(output.stdout == fs::read(place.path("trace")).unwrap());
    }
}

#[test]
fn what_a_dash_cannot_be_says_so_and_makes_no_file() {
    let place = Place::new();
    for (line, option) in [
        (
            "emel-run model.gguf -p a --ram-budget 64M --session -",
            "--session",
        ),
        (
            "emel eval model.gguf -f text --ram-budget 64M --logits -",
            "--logits",
        ),
        (
            "emel eval model.gguf -f text --ram-budget 64M --logits /dev/stdout",
            "--logits",
        ),
        (
            "emel replay trace --slots 50% --predict coact --save-heat -",
            "--save-heat",
        ),
    ] {
        refusal(place.run(line), 2, &[option]);
    }
    assert!(!place.path("-").exists());
    let line = "emel-run model.gguf -p a -n 1 --ram-budget 64M --session ./-";
    result(place.run(line));
    assert!(place.path("-").exists());
}

#[test]
fn a_reader_that_leaves_before_all_of_an_output_is_no_error() {
    let place = Place::new();
    let line = "emel-run model.gguf -p a -n 200 -c 300 --temp 0 --ignore-eos --ram-budget 64M";
    let answer = result(place.run(line));
    let mut run = place.command(&format!("{line} --profile -"));
    let run = run.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = run.spawn().unwrap();
    let mut output = child.stdout.take().unwrap();
    output.read_exact(&mut vec![0; answer.len()]).unwrap();
    // The profile is far longer than what a pipe holds.
    drop(output);
    let ended = child.wait_with_output().unwrap();
    let notes = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(0), "{notes}");
    assert!(!notes.contains("error"), "{notes}");
    let mut trace = place.command("emel trace model.gguf -f text --ram-budget 64M -o -");
    let trace = trace.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = trace.spawn().unwrap();
    drop(child.stdout.take());
    let ended = child.wait_with_output().unwrap();
    let notes = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(0), "{notes}");
    assert!(!notes.contains("error"), "{notes}");
}

#[test]
fn a_file_in_the_place_of_what_is_learnt_is_said_to_be_in_the_way() {
    let place = Place::new();
    fs::write(place.path("model.gguf.emel-heat"), "a diary").unwrap();
    let line = format!(
        "emel-run model.gguf -p hello -n 40 -c 64 --io pread --ignore-eos --ram-budget {}",
        budget_with_slots()
    );
    let output = place.run(&line);
    let notes = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{notes}");
    for part in [
        "emel-heat is ignored",
        "not what emel has learnt",
        "move it away",
    ] {
        assert!(notes.contains(part), "no `{part}` in: {notes}");
    }
    assert_eq!(
        fs::read(place.path("model.gguf.emel-heat")).unwrap(),
        b"a diary"
    );
}

#[test]
fn outputs_in_one_place_are_refused_however_the_place_is_named() {
    let place = Place::new();
    fs::create_dir(place.path("folder")).unwrap();
    std::os::unix::fs::symlink("folder/../new", place.path("link")).unwrap();
    for (first, second) in [("new", "./new"), ("new", "folder/../new"), ("link", "new")] {
        let line = format!(
            "emel-run model.gguf -p a --ram-budget 64M --stats-json {first} --profile {second}"
        );
        refusal(place.run(&line), 2, &["another file than --stats-json"]);
        assert!(!place.path("new").exists());
    }
}

#[test]
fn several_outputs_may_go_to_a_device_that_takes_everything() {
    let place = Place::new();
    let line = "emel-run model.gguf -p a -n 1 --ram-budget 64M";
    let line = format!("{line} --stats-json /dev/null --profile /dev/null");
    result(place.run(&line));
    // Also where the answer goes there.
    let mut unread = place.command(&line);
    result(unread.stdout(Stdio::null()).output().unwrap());
}
