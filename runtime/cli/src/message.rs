//! Errors and notes as one line each.

use super::model_name;
use super::remedies::in_options;

/// A message is cut to this many characters: names in a broken file can be of any length.
const MESSAGE_LENGTH_MAX: usize = 1200;

/// An error with its causes, and what helps. Many of ours quote their cause already.
pub(super) fn message(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(in_options) {
        if !text.contains(&cause) {
            let separator = if text.is_empty() { "" } else { ": " };
            text = text + separator + &cause;
        }
    }
    let remedy = remedy(&text).map(str::to_owned);
    match remedy.or_else(|| model_name::advice_against(error)) {
        Some(remedy) => text + "; " + &remedy,
        None => text,
    }
}

/// What helps against a limit of the process, unless the message says it.
fn remedy(message: &str) -> Option<&'static str> {
    let limits = [
        (libc::EMFILE, "raise the limit of open files (ulimit -n)"),
        (libc::EFBIG, "raise the limit of a file's size (ulimit -f)"),
    ];
    let (_, remedy) = limits
        .into_iter()
        .find(|(code, _)| message.contains(&format!("(os error {code})")))?;
    (!message.contains("ulimit")).then_some(remedy)
}

/// A message as one line of bounded length. What comes from files and file names may
/// hold line breaks and escape sequences, which a terminal should not see.
pub(super) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() || is_invisible(character) {
            line.extend(character.escape_default());
        } else {
            line.push(character);
        }
    }
    let length = line.chars().count();
    if length <= MESSAGE_LENGTH_MAX {
        return line;
    }
    // What was expected and what to do are at the end.
    let half = MESSAGE_LENGTH_MAX / 2;
    let (start, end) = (line.chars().take(half), line.chars().skip(length - half));
    start.chain(['…']).chain(end).collect()
}

/// Separators of lines that are no control characters, and what reorders text.
fn is_invisible(character: char) -> bool {
    matches!(character, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_message_is_one_line_whatever_a_file_name_holds() {
        assert_eq!(
            one_line("a\nb\x1b[31m\u{202e}c é"),
            "a\\nb\\u{1b}[31m\\u{202e}c é"
        );
    }

    #[test]
    fn a_long_message_keeps_both_ends() {
        let line = one_line(&format!("start{}end", "é".repeat(10_000)));
        assert_eq!(line.chars().count(), MESSAGE_LENGTH_MAX + 1);
        assert!(line.starts_with("start") && line.ends_with("end"));
    }

    #[test]
    fn a_cause_is_named_once() {
        let cause = io::Error::other("no disk");
        let quoting = anyhow::Error::new(cause).context("a.gguf: cannot open: no disk; check it");
        assert_eq!(message(&quoting), "a.gguf: cannot open: no disk; check it");
        let bare = anyhow::Error::new(io::Error::other("no disk")).context("a.gguf");
        assert_eq!(message(&bare), "a.gguf: no disk");
        let full = io::Error::from_raw_os_error(libc::EMFILE);
        let line = message(&anyhow::Error::new(full).context("a.gguf"));
        assert!(line.ends_with("; raise the limit of open files (ulimit -n)"));
    }
}
