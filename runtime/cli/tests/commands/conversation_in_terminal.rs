//! A conversation in a terminal: keys, commands, and what is shown.

use std::path::Path;
use std::process::{Command, Output};

use emel_tests::fixtures::{SMOLLM2, real_model};
use emel_tests::signals;
use emel_tests::terminal::Terminal;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::conversation::{ROLES, base_llama, chatty_llama};
use crate::{command, result, words};

/// A conversation with every answer the most probable one, whose history is kept in `folder`.
fn run(model: &Path, folder: &TempDir, arguments: &str) -> Command {
    let mut command = command("emel");
    command.arg("run").arg(model).args(words("--temp 0"));
    command.args(words(arguments));
    command.env("XDG_STATE_HOME", folder.path());
    command.env_remove("NO_COLOR");
    command
}

fn talk(model: &Path, folder: &TempDir, arguments: &str) -> Terminal {
    signals::undo_ignored();
    let mut terminal = Terminal::start(&run(model, folder, arguments));
    terminal.wait_for("/help lists the commands");
    terminal
}

/// The one answer to a text, as it is shown.
fn answer(model: &Path, folder: &TempDir, arguments: &str, text: &str) -> String {
    let mut command = run(model, folder, arguments);
    let output: Output = command.args(["-st", "-p", text]).output().unwrap();
    result(output).replace('\n', "\r\n")
}

#[test]
fn a_whole_conversation_in_a_terminal() {
    let Some(model) = real_model(SMOLLM2) else {
        return;
    };
    let folder = TempDir::new().unwrap();
    let session = folder.path().join("session");
    let saved = format!("{}/saved", folder.path().display());
    let options = "--ram-budget 512M -c 1024 -n 10";
    let question = "What is the capital of France?";
    let paris = answer(&model, &folder, options, question);
    assert!(paris.contains("Paris"), "{paris}");
    let with_session = format!("{options} --session {}", session.display());
    let mut terminal = talk(&model, &folder, &with_session);

    // What is typed while the model is loaded waits for the prompt, in which it is shown.
    terminal.press(&format!("{question}\r"));
    terminal.wait_for("\x1b[1;32m> \x1b[0m");
    terminal.wait_for(question);
    terminal.wait_for(&paris);
    // What the answer took is dimmed, as are notes.
    let dimmed = terminal.wait_for(" tokens/s, first after ");
    assert!(dimmed.starts_with("\x1b[2m"), "{dimmed:?}");
    terminal.wait_for("\x1b[0m\r\n");
    terminal.press("/help\r");
    terminal.wait_for("/regen");
    terminal.wait_for("Alt-Enter");
    terminal.press("/halp\r");
    terminal.wait_for("error: there is no command /halp, expected one of /help");
    terminal.press("/regen\r");
    terminal.wait_for(&paris);
    terminal.press("/stats\r");
    terminal.wait_for("prompt:  ");
    terminal.wait_for("memory:  ");
    terminal.press("/system Answer in one word.\r/system\r");
    terminal.wait_for("\r\nAnswer in one word.\r\n");
    terminal.press("/set top-p 7\r");
    terminal.wait_for("error: /set top-p 7: expected a number from 0 to 1");
    terminal.press("/set top-k 7\r/set\r");
    // What a command has done is said, dimmed.
    terminal.wait_for("\x1b[2mnote: top-k is 7\x1b[0m\r\n");
    terminal.wait_for("temp 0, top-k 7, top-p 0.95");
    terminal.press(&format!("/save {saved}\r"));
    terminal.wait_for("note: saved 3 messages to ");
    terminal.press("/undo\r");
    terminal.wait_for(&format!("took back: {question}"));
    terminal.press("/undo\r");
    terminal.wait_for("error: there is no message to take back");
    terminal.press(&format!("/load {saved}\r"));
    terminal.wait_for("note: loaded 3 messages from ");
    terminal.press("/clear\r/system\r");
    terminal.wait_for("conversation cleared; the system prompt stays");
    terminal.wait_for("\r\nAnswer in one word.\r\n");
    terminal.press(&format!("/load {saved}\r"));
    terminal.wait_for("note: loaded 3 messages from ");

    typed_ahead_and_interrupted(&mut terminal);
    terminal.press("/bye\r");
    let (status, transcript) = terminal.end();
    assert_eq!(status, Some(0), "{transcript}");

    // The next run goes on with it.
    let mut terminal = talk(&model, &folder, &with_session);
    terminal.wait_for("note: resumed ");
    terminal.press("/undo\r");
    terminal.wait_for("took back: Count to a thousand.");
    terminal.press("/undo\r");
    terminal.wait_for(&format!("took back: {question}"));
    terminal.press("\x04");
    assert_eq!(terminal.end().0, Some(0));
}

fn typed_ahead_and_interrupted(terminal: &mut Terminal) {
    // The answer stays whole, and then the lines are taken in their order.
    terminal.press("/set n 40\r/set ignore-eos\rTell me a story.\r/undo\r/set n 5\r/set\r");
    terminal.wait_for("took back: Tell me a story.");
    terminal.wait_for("predict 5");
    // Ctrl-C stops an answer.
    terminal.press("/set n 900\r");
    terminal.press("Count to a thousand.\r");
    terminal.wait_for("Count to a thousand.");
    terminal.wait_for("\r\n");
    terminal.wait_for(" ");
    terminal.press("\x03");
    terminal.press("/set n 6\r/set\r");
    terminal.wait_for("predict 6");
}

#[test]
fn keys_edit_lines_and_end_a_conversation() {
    let folder = TempDir::new().unwrap();
    let model = chatty_llama(&folder, ROLES);
    let options = "--ram-budget 64M -n 2 --color off";
    let mut terminal = talk(&model, &folder, options);
    // Ctrl-C clears what is half typed; before the prompt it would be a signal.
    terminal.wait_for("> ");
    terminal.press("half of a mess");
    terminal.wait_for("half of a mess");
    terminal.press("\x03whole\r");
    // Lines: by Alt-Enter, a backslash, quotes, and pastes, with and without marks.
    let messages = [
        ("one\x1b\rtwo\r", "one\\ntwo"),
        ("three\\\rfour\r", "three\\nfour"),
        ("\"\"\"\rfive\rsix\r\"\"\"\r", "five\\nsix"),
        ("\x1b[200~seven\neight\x1b[201~\r", "seven\\neight"),
        ("nine\rten\r", "ten"),
    ];
    for (keys, _) in messages {
        terminal.press(keys);
    }
    // A terminal of another size shows the same.
    terminal.resize(30, 10);
    terminal.press("/undo\r".repeat(7).as_str());
    for (_, text) in messages.iter().rev() {
        terminal.wait_for(&format!("took back: {text}\r\n"));
        if *text == "ten" {
            terminal.wait_for("took back: nine\r\n");
        }
    }
    terminal.wait_for("took back: whole\r\n");
    // Ctrl-D cancels a message of several lines.
    terminal.press("\"\"\"\rnever\r\x04");
    terminal.wait_for("the message is cancelled");
    terminal.press("/undo\r");
    terminal.wait_for("there is no message to take back");
    // Ctrl-C twice at an empty line leaves.
    terminal.wait_for("> ");
    terminal.press("\x03");
    terminal.wait_for("Ctrl-C again leaves");
    terminal.wait_for("> ");
    terminal.press("\x03");
    assert_eq!(terminal.end().0, Some(0));

    // What was typed is in the history of the next run, unless it is to have none.
    let mut terminal = talk(&model, &folder, &format!("{options} --no-history"));
    terminal.press("\x1b[A/quit\r");
    let (status, transcript) = terminal.end();
    assert_eq!(status, Some(0));
    assert!(!transcript.contains("/undo"), "{transcript}");
    let mut terminal = talk(&model, &folder, options);
    terminal.press("\x1b[A");
    terminal.wait_for("/undo");
    terminal.press("\x03/exit\r");
    assert_eq!(terminal.end().0, Some(0));
}

#[test]
fn a_base_model_goes_on_with_each_text_that_is_typed() {
    let folder = TempDir::new().unwrap();
    let model = base_llama(&folder);
    let session = folder.path().join("session");
    let options = format!(
        "--ram-budget 64M -n 8 --ignore-eos --color off --session {}",
        session.display()
    );
    let mut alone = run(&model, &folder, "--ram-budget 64M -n 8 --ignore-eos");
    let expected = result(alone.args(["-p", "hello"]).output().unwrap()).replace('\n', "\r\n");
    let mut terminal = Terminal::start(&run(&model, &folder, &options));
    terminal.wait_for("note: this is a base model (no chat template): it continues each text");
    terminal.wait_for("/help lists the commands");
    // A text does not know the one before it.
    terminal.press("hello\rhello\r");
    for _ in 0..2 {
        terminal.wait_for("hello");
        terminal.wait_for(&format!("\r\n{expected}8 tokens"));
    }
    terminal.press("/regen\r");
    terminal.wait_for(&expected);
    terminal.press("/system be brief\r");
    terminal.wait_for("error: /system is for conversations");
    terminal.press("/set\r");
    terminal.wait_for("predict 8, temp 0");
    terminal.press("\x04");
    assert_eq!(terminal.end().0, Some(0));
    // A session keeps the text, for -p too.
    let mut terminal = Terminal::start(&run(&model, &folder, &options));
    terminal.wait_for("note: resumed a text of ");
    terminal.press("/exit\r");
    assert_eq!(terminal.end().0, Some(0));
    let again = run(&model, &folder, &options)
        .args(["-p", "hello"])
        .output();
    assert_eq!(result(again.unwrap()).replace('\n', "\r\n"), expected);
}

#[test]
fn a_signal_at_the_prompt_saves_the_conversation_and_leaves_the_terminal_as_it_was() {
    let folder = TempDir::new().unwrap();
    let model = chatty_llama(&folder, ROLES);
    let session = folder.path().join("session");
    let options = format!("--ram-budget 64M -n 2 --session {}", session.display());
    let mut terminal = talk(&model, &folder, &format!("{options} -p hello"));
    // A message that was given is shown, and the conversation goes on after its answer.
    terminal.wait_for("> \x1b[0mhello\r\n");
    terminal.wait_for("\x1b[?2004h");
    terminal.press("half");
    terminal.wait_for("half");
    let process = Pid::from_raw(terminal.child_id() as i32);
    kill(process, Signal::SIGTERM).unwrap();
    terminal.wait_for("error: ended by SIGTERM; the session of ");
    assert_eq!(terminal.end().0, Some(143));
    let mut terminal = talk(&model, &folder, &options);
    terminal.press("/undo\r\x04");
    terminal.wait_for("took back: hello");
    assert_eq!(terminal.end().0, Some(0));
}

#[test]
fn an_answer_that_goes_to_a_file_is_one_answer_and_nothing_else() {
    let folder = TempDir::new().unwrap();
    let model = chatty_llama(&folder, ROLES);
    let file = folder.path().join("answer");
    let options = "--ram-budget 64M -n 8 --ignore-eos";
    let expected = answer(&model, &folder, options, "hello");
    let run = run(&model, &folder, options);
    let mut shell = Command::new("sh");
    shell.args(["-c", "\"$@\" -p hello > \"$ANSWER\"", "sh"]);
    shell.arg(run.get_program()).args(run.get_args());
    shell
        .env("ANSWER", &file)
        .env("XDG_CACHE_HOME", "/dev/null");
    let (status, transcript) = Terminal::start(&shell).end();
    assert_eq!((status, transcript.as_str()), (Some(0), ""));
    let found = std::fs::read_to_string(&file).unwrap();
    assert_eq!(found.replace('\n', "\r\n"), expected);
}
