//! What a line that begins with `/` does.

use std::path::PathBuf;

use anyhow::{anyhow, bail};

use super::super::statistics::tell_statistics;
use super::super::{notice, one_line, tell};
use super::talk::Talk;

/// A command of a conversation.
pub(super) struct Command {
    name: &'static str,
    /// What follows the name, as the help shows it.
    arguments: &'static str,
    help: &'static str,
    run: fn(&mut Talk, &str) -> anyhow::Result<Next>,
}

/// What a conversation does after a command.
pub(super) enum Next {
    /// Waits for the next line.
    Line,
    /// Answers its last message.
    Answer,
    /// Saves itself.
    Save(PathBuf),
    /// Becomes the one in a file.
    Load(PathBuf),
    /// Ends.
    End,
}

/// What a line is.
pub(super) enum Meaning<'a> {
    /// A message to the model.
    Message(&'a str),
    /// A command, and what follows its name.
    Command(&'static Command, &'a str),
}

const COMMANDS: [Command; 11] = [
    Command {
        name: "help",
        arguments: "",
        help: "list the commands and keys",
        run: help,
    },
    Command {
        name: "bye",
        arguments: "",
        help: "leave",
        run: |_, _| Ok(Next::End),
    },
    Command {
        name: "exit",
        arguments: "",
        help: "leave",
        run: |_, _| Ok(Next::End),
    },
    Command {
        name: "clear",
        arguments: "",
        help: "start over, with the same system prompt",
        run: clear,
    },
    Command {
        name: "regen",
        arguments: "",
        help: "answer the last message again, with the next seed",
        run: regen,
    },
    Command {
        name: "undo",
        arguments: "",
        help: "take back the last message and its answer",
        run: undo,
    },
    Command {
        name: "save",
        arguments: "[FILE]",
        help: "save the conversation; without FILE, to that of --session",
        run: save,
    },
    Command {
        name: "load",
        arguments: "[FILE]",
        help: "load a conversation; without FILE, that of --session",
        run: load,
    },
    Command {
        name: "stats",
        arguments: "",
        help: "show what the last answer cost",
        run: stats,
    },
    Command {
        name: "set",
        arguments: "[NAME VALUE]",
        help: "change an option, such as temp 0.5; alone, show them",
        run: set,
    },
    Command {
        name: "system",
        arguments: "[TEXT]",
        help: "replace the system prompt; alone, show it",
        run: system,
    },
];

/// Keys and marks, and what they do.
const KEYS: [(&str, &str); 5] = [
    (
        "Ctrl-C",
        "stop an answer, clear a line, or (twice, if empty) leave",
    ),
    ("Ctrl-D", "leave"),
    (
        "Alt-Enter",
        "begin another line, as does a backslash at the end of one",
    ),
    (r#"""""#, "begin and end a message of several lines"),
    ("//", "begin a message with /"),
];

impl Command {
    /// Runs the command.
    ///
    /// # Errors
    /// When it does not take what follows its name, or has nothing to work on.
    pub(super) fn run(&self, talk: &mut Talk, arguments: &str) -> anyhow::Result<Next> {
        if self.arguments.is_empty() && !arguments.is_empty() {
            bail!("/{} takes nothing after it, found {arguments:?}", self.name);
        }
        (self.run)(talk, arguments)
    }
}

/// What a line means. A slash and a word are a command; a path, such as `/etc/passwd`, and
/// what follows `//` are text, as are several lines.
///
/// # Errors
/// When there is no such command.
pub(super) fn meaning(line: &str) -> anyhow::Result<Meaning<'_>> {
    let text = line.trim();
    let Some(rest) = text.strip_prefix('/') else {
        return Ok(Meaning::Message(line));
    };
    if rest.starts_with('/') {
        return Ok(Meaning::Message(rest));
    }
    let (word, arguments) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    if !word.starts_with(char::is_alphabetic) || word.contains('/') || text.contains('\n') {
        return Ok(Meaning::Message(line));
    }
    match COMMANDS.iter().find(|command| command.name == word) {
        Some(command) => Ok(Meaning::Command(command, arguments.trim())),
        None => {
            let names: Vec<String> = COMMANDS
                .iter()
                .map(|command| format!("/{}", command.name))
                .collect();
            Err(anyhow!(
                "there is no command /{word}, expected one of {}; a message that begins with / is written with //",
                names.join(" ")
            ))
        }
    }
}

fn help(_: &mut Talk, _: &str) -> anyhow::Result<Next> {
    for command in &COMMANDS {
        let usage = format!("/{} {}", command.name, command.arguments);
        tell(&format!("  {usage:<20} {}", command.help));
    }
    for (key, help) in KEYS {
        tell(&format!("  {key:<20} {help}"));
    }
    Ok(Next::Line)
}

fn clear(talk: &mut Talk, _: &str) -> anyhow::Result<Next> {
    talk.clear();
    Ok(Next::Line)
}

fn regen(talk: &mut Talk, _: &str) -> anyhow::Result<Next> {
    talk.take_back_answer()?;
    Ok(Next::Answer)
}

fn undo(talk: &mut Talk, _: &str) -> anyhow::Result<Next> {
    /// What is shown of a message.
    const CHARACTERS: usize = 60;
    let Some(text) = talk.conversation.pop_turn() else {
        bail!("there is no message to take back");
    };
    let shown: String = text.chars().take(CHARACTERS).collect();
    let rest = if shown.len() < text.len() { "…" } else { "" };
    notice(&format!("took back: {}{rest}", one_line(&shown)));
    Ok(Next::Line)
}

fn save(talk: &mut Talk, file: &str) -> anyhow::Result<Next> {
    talk.session_file("save", file).map(Next::Save)
}

fn load(talk: &mut Talk, file: &str) -> anyhow::Result<Next> {
    talk.session_file("load", file).map(Next::Load)
}

fn stats(talk: &mut Talk, _: &str) -> anyhow::Result<Next> {
    match &talk.last_usage {
        Some(usage) => tell_statistics(usage),
        None => bail!("there is no answer yet"),
    }
    Ok(Next::Line)
}

fn set(talk: &mut Talk, arguments: &str) -> anyhow::Result<Next> {
    if arguments.is_empty() {
        tell(&talk.settings());
        return Ok(Next::Line);
    }
    let (name, value) = arguments
        .split_once(char::is_whitespace)
        .unwrap_or((arguments, ""));
    talk.set(name, value.trim())?;
    Ok(Next::Line)
}

fn system(talk: &mut Talk, text: &str) -> anyhow::Result<Next> {
    if text.is_empty() {
        match talk.system() {
            Some(text) => tell(text),
            None => notice("there is no system prompt; /system TEXT sets one"),
        }
    } else {
        talk.set_system(Some(text.to_owned()));
    }
    Ok(Next::Line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slash_and_a_word_are_a_command_and_all_else_is_text() {
        for (line, expected) in [
            ("/help", "help()"),
            ("  /set temp  0.5 ", "set(temp  0.5)"),
            ("/system Be brief.", "system(Be brief.)"),
            ("/etc/passwd is a file", "/etc/passwd is a file"),
            ("//help is text", "/help is text"),
            ("/", "/"),
            ("/ 5", "/ 5"),
            ("/5 of it", "/5 of it"),
            ("/foo\nbar", "/foo\nbar"),
            ("either/or", "either/or"),
            (" hello ", " hello "),
        ] {
            let found = match meaning(line).unwrap() {
                Meaning::Message(text) => text.to_owned(),
                Meaning::Command(command, arguments) => format!("{}({arguments})", command.name),
            };
            assert_eq!(found, expected);
        }
        let refused = meaning("/halp me").err().unwrap().to_string();
        assert!(refused.contains("no command /halp, expected one of /help /bye"));
    }

    #[test]
    fn the_help_has_columns() {
        for command in &COMMANDS {
            let usage = format!("/{} {}", command.name, command.arguments);
            assert!(usage.len() <= 20, "{usage}");
            assert!(23 + command.help.len() <= 80, "{usage}");
        }
        assert!(KEYS.iter().all(|(_, help)| 23 + help.len() <= 80));
    }
}
