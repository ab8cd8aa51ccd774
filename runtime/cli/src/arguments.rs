//! The arguments of a command, read: what is wrong with them is said all at once, on one line.

use std::ffi::OsString;
use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Parser};

use super::{EXIT_USAGE, notice, one_line, spelling, tell};

/// What is wrong with arguments.
#[derive(Debug, Default)]
struct Faults {
    messages: Vec<String>,
    /// Whether the help would help.
    sees_help: bool,
}

/// The command's options. Wrong ones end the process with one line on standard error
/// and status 2; `--help` and `--version` end it with their text on standard output.
pub fn parse<O: Parser>() -> O {
    let mut faults = Faults::default();
    let options: Option<O> = read(&mut faults, std::env::args_os().collect());
    faults.checked(options)
}

/// As [`parse`], of a command that also takes options as llama.cpp spells them.
pub fn parse_with_llama_spellings<O: Parser>() -> O {
    parse_checked(|_| Vec::new())
}

/// As [`parse_with_llama_spellings`], without what `check` finds wrong before a model is opened,
/// by the names on the command line.
pub(super) fn parse_checked<O: Parser>(check: impl Fn(&O) -> Vec<String>) -> O {
    let mut command = O::command();
    command.build();
    let spelt = spelling::in_own_terms(&command, std::env::args_os().collect());
    let mut faults = Faults {
        messages: spelt.refusals,
        sees_help: false,
    };
    let options: Option<O> = read(&mut faults, spelt.arguments);
    faults.messages.extend(options.iter().flat_map(check));
    let options = faults.checked(options);
    spelt.notes.iter().for_each(|note| notice(note));
    let variables = llama_variables();
    if !variables.is_empty() {
        notice(&format!(
            "{}: variables of llama.cpp are not read; give the options on the command line",
            variables.join(", ")
        ));
    }
    options
}

/// The variables of the environment that llama.cpp's programs would take as options.
fn llama_variables() -> Vec<String> {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let mut names: Vec<String> = names.filter(|it| it.starts_with("LLAMA_ARG_")).collect();
    names.sort_unstable();
    names
}

impl Faults {
    /// The options, if nothing was wrong with them.
    fn checked<O>(self, options: Option<O>) -> O {
        match options {
            Some(options) if self.messages.is_empty() => options,
            _ => self.end(),
        }
    }

    fn end(self) -> ! {
        let help = if self.sees_help { "; see --help" } else { "" };
        tell(&one_line(&format!(
            "error: {}{help}",
            self.messages.join(" | ")
        )));
        std::process::exit(EXIT_USAGE.into());
    }

    fn add(&mut self, command: &Command, words: &[OsString], error: &clap::Error) {
        // Where something was left out, this may be for that alone.
        let follows = matches!(
            error.kind(),
            ErrorKind::MissingRequiredArgument | ErrorKind::UnknownArgument
        );
        if follows && !self.messages.is_empty() {
            return;
        }
        match advice(command, words, error) {
            Some(advice) => self.messages.push(advice),
            None => {
                self.messages.push(clap_message(error));
                self.sees_help = true;
            }
        }
    }
}

/// The options, read without the values that are wrong, which become faults.
fn read<O: Parser>(faults: &mut Faults, mut words: Vec<OsString>) -> Option<O> {
    let mut command = O::command();
    command.build();
    loop {
        let error = match O::try_parse_from(&words) {
            Ok(options) => return Some(options),
            Err(error) => error,
        };
        if !error.use_stderr()
            || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        {
            error.exit();
        }
        faults.add(&command, &words, &error);
        words = without_fault(&command, words, &error)?;
    }
}

/// The words without what the error is about, if that can be left out.
fn without_fault(
    command: &Command,
    mut words: Vec<OsString>,
    error: &clap::Error,
) -> Option<Vec<OsString>> {
    let argument = text_of(error, ContextKind::InvalidArg)?;
    match error.kind() {
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => {
            let value = text_of(error, ContextKind::InvalidValue)?;
            spelling::without_value(command, &words, argument, value)
        }
        ErrorKind::UnknownArgument => {
            words.remove(words.iter().rposition(|word| word == argument)?);
            Some(words)
        }
        _ => None,
    }
}

fn text_of(error: &clap::Error, kind: ContextKind) -> Option<&str> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(text),
        ContextValue::Strings(texts) => match texts.as_slice() {
            [text] => Some(text),
            _ => None,
        },
        _ => None,
    }
}

/// What to type instead, where that can be known.
fn advice(command: &Command, words: &[OsString], error: &clap::Error) -> Option<String> {
    let Some(called) = spelling::called(command, words) else {
        return match error.kind() {
            ErrorKind::InvalidSubcommand => {
                of_no_command(text_of(error, ContextKind::InvalidSubcommand)?)
            }
            ErrorKind::UnknownArgument => {
                let option = text_of(error, ContextKind::InvalidArg)?;
                Some(format!(
                    "{option}: options come after a command, as `emel run {option} …`"
                ))
            }
            _ => None,
        };
    };
    let name = called.get_bin_name().unwrap_or(called.get_name());
    match (error.kind(), text_of(error, ContextKind::InvalidArg)) {
        (ErrorKind::MissingRequiredArgument, Some("<MODEL>")) => Some(format!(
            "no model is given; give the path of a GGUF file, as `{name} MODEL.gguf`"
        )),
        (ErrorKind::MissingRequiredArgument, _) => {
            let rendered = error.render().to_string();
            let form = rendered
                .split("\n\nUsage: ")
                .nth(1)?
                .lines()
                .next()?
                .to_owned();
            let ContextValue::Strings(missing) = error.get(ContextKind::InvalidArg)? else {
                return None;
            };
            // A choice is `<--a|--b>`.
            let shown = missing.iter().map(|it| match it.strip_prefix("<--") {
                Some(choice) => format!(
                    "--{}",
                    choice
                        .strip_suffix('>')
                        .unwrap_or(choice)
                        .replace('|', " or ")
                ),
                None => it.clone(),
            });
            let missing = shown.collect::<Vec<_>>().join(", ");
            Some(format!("missing: {missing}; the form is `{form}`"))
        }
        (ErrorKind::UnknownArgument, Some(argument)) if !argument.starts_with('-') => {
            Some(of_second_argument(called, argument))
        }
        _ => None,
    }
}

/// What helps where `word` stands in a command's place.
fn of_no_command(word: &str) -> Option<String> {
    let is_model =
        word.ends_with(".gguf") || word.contains(['/', ':']) || Path::new(word).is_file();
    let meant = match word {
        _ if is_model => format!("`emel run {word}` runs a model"),
        "chat" | "cli" => "`emel run MODEL.gguf` holds a conversation".to_owned(),
        "serve" | "server" => {
            "emel has no server yet; `emel run MODEL.gguf` answers in the terminal".to_owned()
        }
        "pull" | "download" => {
            "emel downloads nothing; download a GGUF file and run it with `emel run MODEL.gguf`"
                .to_owned()
        }
        _ => return None,
    };
    Some(format!("{word} is no command; {meant}"))
}

fn of_second_argument(called: &Command, word: &str) -> String {
    let has_prompt = called
        .get_arguments()
        .any(|it| it.get_long() == Some("prompt"));
    let advice = match has_prompt {
        _ if word.ends_with(".gguf") => {
            "emel takes one model; of a model in shards, give the first"
        }
        true => "emel takes one model; give a text as -p TEXT",
        false => "leave it out",
    };
    format!("'{word}' is one argument too many; {advice}")
}

/// clap's message without its usage text, its paragraphs joined.
pub(super) fn clap_message(error: &clap::Error) -> String {
    let rendered = error.render().to_string();
    let shown = rendered.split("\n\nUsage:").next().unwrap_or(&rendered);
    let paragraphs = shown.split("\n\n").map(|paragraph| {
        let lines: Vec<&str> = paragraph.lines().map(str::trim).collect();
        lines.join(" ")
    });
    let message: Vec<String> = paragraphs
        // An unknown option is not meant as a value.
        .filter(|text| !text.starts_with("tip: to pass "))
        .filter(|text| !text.is_empty() && !text.starts_with("For more information"))
        .collect();
    let mut message = message.join("; ");
    for (theirs, ours) in [
        ("error: ", ""),
        ("invalid float literal", "expected a number"),
        ("invalid digit found in string", "expected a whole number"),
        ("..9223372036854775807", ".."),
    ] {
        message = message.replacen(theirs, ours, 1);
    }
    message
}
