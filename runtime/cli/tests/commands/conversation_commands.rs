//! The commands of a conversation, through pipes.

use std::fs;

use tempfile::TempDir;

use crate::conversation::{ROLES, chatty_llama, notes, piped};
use crate::result;

#[test]
fn commands_in_a_pipe_do_what_they_do_in_a_terminal() {
    let folder = TempDir::new().unwrap();
    let model = chatty_llama(&folder, ROLES);
    let path = folder.path().join("saved");
    let path = path.display();
    let answers = |lines: &str| piped(&model, "-cnv --seed 1", lines);
    let hello = result(answers("hello\n"));
    let more = result(answers("hello\nmore\n"))[hello.len()..].to_owned();
    let other = result(answers("other\n"));
    assert_ne!(hello, other);
    for (lines, expected) in [
        ("hello\n/undo\nother\n", vec![&hello, &other]),
        ("hello\n/regen\nmore\n", vec![&hello, &hello, &more]),
        ("hello\n/clear\nother\n/bye\nhello\n", vec![&hello, &other]),
        (
            &format!("hello\n/save {path}\n/clear\nother\n/load {path}\nmore\n"),
            vec![&hello, &other, &more],
        ),
        (
            "/system s\n/system\n/clear\n/set temp 3\n/set temp 0\n/set\n/help\n/exit\n",
            vec![],
        ),
    ] {
        let found = answers(lines);
        notes(&found);
        let expected: String = expected.into_iter().map(String::as_str).collect();
        assert_eq!(result(found), expected, "{lines}");
    }
    let stderr = notes(&answers(
        "hello\n/stats\n/undo\n/system be brief\n/system\n/set\n/help\n",
    ));
    for expected in [
        "prompt: ",
        "took back: hello",
        "\nbe brief\n",
        "note: the system prompt is set",
        "\npredict 12, temp 0, top-k 40",
        "/save [FILE]",
    ] {
        assert!(stderr.contains(expected), "no {expected:?} in {stderr}");
    }
    // With the next seed another answer is drawn.
    let drawn = result(answers("/set temp 3\nhello\n/regen\n"));
    let half = drawn.len() / 2;
    assert_ne!(drawn[..half], drawn[half..]);
}

#[test]
fn commands_say_what_they_did_in_a_line() {
    let folder = TempDir::new().unwrap();
    let model = chatty_llama(&folder, ROLES);
    let path = folder.path().join("saved");
    let path = path.display();
    for (lines, expected) in [
        ("/set temp 0.2\n", "temp is 0.2"),
        ("/set --temperature 0.2\n", "temp is 0.2"),
        ("/set stop User:\n", "stop is \"User:\""),
        ("/set stop\n", "stop is not set"),
        ("/set temp=0.2\n", "temp is 0.2"),
        ("/set parameter top_k 7\n", "top-k is 7"),
        (
            "/set system be brief\n",
            "the system prompt is set; it counts from the next message on",
        ),
        ("/set ignore-eos off\n", "ignore-eos is off"),
        ("/clear\n", "conversation cleared"),
        (
            "/system be brief\n",
            "the system prompt is set; it counts from the next message on",
        ),
        (
            "/system\n",
            "there is no system prompt; /system TEXT sets one",
        ),
        (
            &format!("hello\n/save {path}\n"),
            &format!("saved 2 messages to {path}"),
        ),
        (
            &format!("/load {path}\n"),
            &format!("loaded 2 messages from {path}"),
        ),
        ("hello\n/undo\n", "took back: hello"),
    ] {
        let stderr = notes(&piped(&model, "-cnv", lines));
        assert_eq!(stderr, format!("note: {expected}\n"), "{lines}");
    }
    let listed = notes(&piped(&model, "-cnv", "/\n"));
    assert!(listed.contains("/bye, /exit, /quit   leave\n"), "{listed}");
    assert_eq!(notes(&piped(&model, "-cnv", "/?\n")), listed);
}

#[test]
fn a_conversation_replaces_no_file_but_its_own() {
    let folder = TempDir::new().unwrap();
    let model = chatty_llama(&folder, ROLES);
    let [one, two] = ["one", "two"].map(|name| folder.path().join(name).display().to_string());
    // What it was saved to or loaded from, and the file of --session.
    for lines in [
        format!("hello\n/save {one}\nmore\n/save {one}\n"),
        format!("/load {one}\nmore\n/save {one}\n"),
        format!("hello\n/save {two}\n"),
    ] {
        notes(&piped(&model, "-cnv", &lines));
    }
    let session = format!("-cnv --session {two}");
    notes(&piped(&model, &session, &format!("/save {two}\n/save\n")));
    let before = [&one, &two].map(|path| fs::read(path).unwrap());
    for lines in [
        format!("hello\n/save {one}\n"),
        format!("/load {two}\n/save {one}\n"),
        format!("/load {one}\n/clear\nhello\n/save {one}\n"),
    ] {
        let output = piped(&model, "-cnv", &lines);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let expected = format!(
            "error: {one}: this file exists already and does not belong to this conversation;"
        );
        assert!(stderr.contains(&expected), "{stderr}");
        assert_eq!(output.status.code(), Some(1));
    }
    assert_eq!([&one, &two].map(|path| fs::read(path).unwrap()), before);
}

#[test]
fn commands_that_cannot_be_done_are_refused_and_sent_to_nobody() {
    let folder = TempDir::new().unwrap();
    let model = chatty_llama(&folder, ROLES);
    for (line, expected) in [
        (
            "/halp",
            "there is no command /halp, expected one of /help, /?, /bye, /exit, /quit, /clear",
        ),
        ("/clear all", "/clear takes nothing after it, found \"all\""),
        (
            "/set tempo 1",
            "/set tempo 1: there is no setting \"tempo\"",
        ),
        ("/set temp hot", "/set temp hot: expected a finite number\n"),
        (
            "/set top-p 2",
            "/set top-p 2: expected a number from 0 to 1\n",
        ),
        (
            "/set ignore-eos maybe",
            "/set ignore-eos maybe: expected on or off\n",
        ),
        (
            "/set logit-bias 999999+1",
            "expected an id below the vocabulary's",
        ),
        (
            "/set dry-multiplier 0.8",
            "are planned for them; start with --dry-multiplier 0.8",
        ),
        ("/undo", "there is no message to take back"),
        ("/regen", "there is no answer to regenerate"),
        ("/stats", "there is no answer yet"),
        ("/save", "/save needs a FILE"),
        ("/save /", "/save: / is a folder, expected a file"),
        ("/load /", "/load: / is a folder, expected a file"),
        (
            "/load /nonexistent",
            "/nonexistent: cannot read the session",
        ),
    ] {
        let output = piped(&model, "-cnv", &format!("{line}\n"));
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(
            stderr.starts_with("error: ") && stderr.contains(expected),
            "{stderr}"
        );
        assert!(output.stdout.is_empty());
    }
    let literal = result(piped(&model, "-cnv", "//halp\n"));
    assert_eq!(literal, result(piped(&model, "-p /halp", "")));
    let path = result(piped(&model, "-cnv", "/etc/passwd is a file\n"));
    assert_eq!(path, result(piped(&model, "", "/etc/passwd is a file")));
    let lines = "\"\"\"\none\n\ntwo\n\"\"\"\n";
    assert_eq!(
        result(piped(&model, "-cnv", lines)),
        result(piped(&model, "", "one\n\ntwo"))
    );
    assert_eq!(
        result(piped(&model, "-cnv", "one\\\ntwo\n")),
        result(piped(&model, "", "one\ntwo"))
    );
}
