//! What a line that begins with `/` does.

use std::path::PathBuf;

use anyhow::{anyhow, bail};

use super::super::statistics::tell_statistics;
use super::super::{one_line, tell};
use super::talk::Talk;

/// A command of a conversation.
pub(super) struct Command {
    name: &'static str,
    /// Other names.
    aliases: &'static [&'static str],
    /// What follows the name, as the help shows it.
    arguments: &'static str,
    help: &'static str,
    /// Whether it has something to do where texts are continued.
    is_for_texts: bool,
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

const COMMANDS: [Command; 10] = [
    Command {
        name: "help",
        aliases: &["?"],
        arguments: "",
        help: "list the commands and keys",
        is_for_texts: true,
        run: help,
    },
    Command {
        name: "bye",
        aliases: &["exit", "quit"],
        arguments: "",
        help: "leave",
        is_for_texts: true,
        run: |_, _| Ok(Next::End),
    },
    Command {
        name: "clear",
        aliases: &[],
        arguments: "",
        help: "start over, with the same system prompt",
        is_for_texts: false,
        run: clear,
    },
    Command {
        name: "regen",
        aliases: &[],
        arguments: "",
        help: "answer the last message again, with the next seed",
        is_for_texts: true,
        run: regen,
    },
    Command {
        name: "undo",
        aliases: &[],
        arguments: "",
        help: "take back the last message and its answer",
        is_for_texts: false,
        run: undo,
    },
    Command {
        name: "save",
        aliases: &[],
        arguments: "[FILE]",
        help: "save the conversation; without FILE, to that of --session",
        is_for_texts: false,
        run: save,
    },
    Command {
        name: "load",
        aliases: &[],
        arguments: "[FILE]",
        help: "load a conversation; without FILE, that of --session",
        is_for_texts: false,
        run: load,
    },
    Command {
        name: "stats",
        aliases: &[],
        arguments: "",
        help: "show what the last answer cost",
        is_for_texts: true,
        run: stats,
    },
    Command {
        name: "set",
        aliases: &[],
        arguments: "[NAME VALUE]",
        help: "change an option, such as temp 0.5; alone, show them",
        is_for_texts: true,
        run: set,
    },
    Command {
        name: "system",
        aliases: &[],
        arguments: "[TEXT]",
        help: "replace the system prompt; alone, show it",
        is_for_texts: false,
        run: system,
    },
];

/// Keys and marks, and what they do.
const KEYS: [(&str, &str); 5] = [
    (
        "Ctrl-C",
        "stop an answer, clear a line, or (twice, if empty) leave",
    ),
    ("Ctrl-D", "leave; after some lines of a message, cancel it"),
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
        if talk.template.is_none() && !self.is_for_texts {
            bail!(
                "/{} is for conversations, and each text is continued on its own here; -cnv begins a conversation",
                self.name
            );
        }
        if self.arguments.is_empty() && !arguments.is_empty() {
            bail!("/{} takes nothing after it, found {arguments:?}", self.name);
        }
        (self.run)(talk, arguments)
    }

    /// Its names, as they are typed.
    fn names(&self) -> String {
        let names: Vec<String> = std::iter::once(&self.name)
            .chain(self.aliases)
            .map(|name| format!("/{name}"))
            .collect();
        names.join(", ")
    }
}

/// What a line means. A slash and a word are a command, and a slash alone asks for them; a
/// path, such as `/etc/passwd`, and what follows `//` are text, as are several lines.
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
    let word = if text == "/" { "help" } else { word };
    let is_named = |command: &&Command| command.name == word || command.aliases.contains(&word);
    if let Some(command) = COMMANDS.iter().find(is_named) {
        return Ok(Meaning::Command(command, arguments.trim()));
    }
    if !word.starts_with(char::is_alphabetic) || word.contains('/') || text.contains('\n') {
        return Ok(Meaning::Message(line));
    }
    let names: Vec<String> = COMMANDS.iter().map(Command::names).collect();
    Err(anyhow!(
        "there is no command /{word}, expected one of {}; a message that begins with / is written with //",
        names.join(", ")
    ))
}

fn help(talk: &mut Talk, _: &str) -> anyhow::Result<Next> {
    let is_text = talk.template.is_none();
    let commands = COMMANDS.iter();
    for command in commands.filter(|command| !is_text || command.is_for_texts) {
        let usage = format!("{} {}", command.names(), command.arguments);
        tell(&format!("  {usage:<20} {}", command.help));
    }
    for (key, help) in KEYS {
        tell(&format!("  {key:<20} {help}"));
    }
    Ok(Next::Line)
}

fn clear(talk: &mut Talk, _: &str) -> anyhow::Result<Next> {
    talk.clear();
    talk.note(match talk.system() {
        Some(_) => "conversation cleared; the system prompt stays",
        None => "conversation cleared",
    });
    Ok(Next::Line)
}

fn regen(talk: &mut Talk, _: &str) -> anyhow::Result<Next> {
    talk.take_back_answer()?;
    let seed = talk.request.sampler.seed;
    talk.note(&format!("answering again, with seed {seed}"));
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
    talk.note(&format!("took back: {}{rest}", one_line(&shown)));
    Ok(Next::Line)
}

fn save(talk: &mut Talk, file: &str) -> anyhow::Result<Next> {
    let path = talk.session_file("save", file)?;
    talk.check_place(&path)?;
    Ok(Next::Save(path))
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
    // As ollama has it.
    let arguments = arguments.strip_prefix("parameter ").unwrap_or(arguments);
    let arguments = arguments.trim_start();
    if let Some(text) = arguments.strip_prefix("system ") {
        return system(talk, text.trim());
    }
    if arguments.is_empty() {
        show_settings(talk);
        return Ok(Next::Line);
    }
    let separator = |character: char| character.is_whitespace() || character == '=';
    let (name, value) = arguments.split_once(separator).unwrap_or((arguments, ""));
    talk.set(name, value.trim())?;
    Ok(Next::Line)
}

/// Lists the settings, as many in a line as fit.
fn show_settings(talk: &Talk) {
    const WIDTH: usize = 80;
    let mut line = String::new();
    for (name, value) in talk.values() {
        let value = one_line(&value);
        if line.len() + name.len() + value.len() + 4 > WIDTH && !line.is_empty() {
            tell(&format!("{line},"));
            line.clear();
        }
        let gap = if line.is_empty() { "" } else { ", " };
        line += &format!("{gap}{name} {value}");
    }
    tell(&line);
}

fn system(talk: &mut Talk, text: &str) -> anyhow::Result<Next> {
    if text.is_empty() {
        match talk.system() {
            Some(text) => tell(text),
            None => talk.note("there is no system prompt; /system TEXT sets one"),
        }
    } else {
        talk.check_system(Some(text))?;
        talk.set_system(Some(text.to_owned()));
        talk.note("the system prompt is set; it counts from the next message on");
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
            ("/", "help()"),
            ("/?", "help()"),
            ("/quit", "bye()"),
            ("/exit", "bye()"),
            ("/?!", "/?!"),
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
        assert!(
            refused.contains("no command /halp, expected one of /help, /?, /bye, /exit, /quit")
        );
    }

    #[test]
    fn the_help_has_columns() {
        for command in &COMMANDS {
            let usage = format!("{} {}", command.names(), command.arguments);
            assert!(usage.len() <= 20, "{usage}");
            assert!(23 + command.help.len() <= 80, "{usage}");
        }
        assert!(KEYS.iter().all(|(_, help)| 23 + help.len() <= 80));
    }
}
