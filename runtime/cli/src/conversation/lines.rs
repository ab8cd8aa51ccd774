//! The user's messages: from a terminal or a pipe, read by one thread from the first to the
//! last, so that nothing that comes early is lost.

use std::io::{self, BufRead, IsTerminal, Read};
use std::sync::mpsc::{self as requests, Sender};

use anyhow::Context;
use tokio::sync::mpsc::{self, Receiver};

use super::super::interrupt::{EndSignal, Interrupts};
use super::super::remedies::limit_in_options;
use super::super::{edited_line, notice, tell};
use super::display::Colours;
use super::ended_by;
use super::history::History;
use super::several_lines::{closed, is_open};
use super::terminal::{LineEditor, PROMPT, QuietTerminal, Typed};
use emel::TextLimit;

/// What the user has entered.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// A message or a command.
    Text(String),
    /// What cannot be a message, and why.
    Refused(String),
}

/// Where entries come from.
pub(super) struct Input {
    entries: Receiver<anyhow::Result<Entry>>,
    terminal: Option<Terminal>,
}

/// The terminal's part of an input.
struct Terminal {
    /// Asks the thread for an entry.
    wanted: Sender<()>,
    /// Whether it has been asked for one that has not come yet.
    is_awaited: bool,
    quiet: QuietTerminal,
    colours: Colours,
}

impl Input {
    /// Reads standard input from now on. From a terminal, nothing that is typed is shown
    /// before it is asked for.
    ///
    /// # Errors
    /// When the terminal does not let lines be edited.
    pub(super) fn open(
        limit: TextLimit,
        colours: Colours,
        history: History,
    ) -> anyhow::Result<Self> {
        let (sender, entries) = mpsc::channel(1);
        if !io::stdin().is_terminal() {
            // A read cannot be interrupted; on a thread of its own it need not be.
            std::thread::spawn(move || {
                let mut source = io::stdin().lock();
                while let Some(entry) = read_entry(&mut source, &limit).transpose() {
                    let is_last = entry.is_err();
                    if sender.blocking_send(entry).is_err() || is_last {
                        break;
                    }
                }
            });
            return Ok(Self {
                entries,
                terminal: None,
            });
        }
        let quiet = QuietTerminal::begin();
        let mut editor = LineEditor::new(colours, history)?;
        let (wanted, requests) = requests::channel();
        std::thread::spawn(move || {
            while requests.recv().is_ok() {
                let entry = match editor.read() {
                    Ok(Typed::Text(text)) => Ok(Entry::Text(closed(&text))),
                    Ok(Typed::End) => break,
                    Err(error) => Err(error),
                };
                if sender.blocking_send(entry).is_err() {
                    break;
                }
            }
        });
        notice("/help lists the commands; Ctrl-C stops an answer, Ctrl-D leaves");
        Ok(Self {
            entries,
            terminal: Some(Terminal {
                wanted,
                is_awaited: false,
                quiet,
                colours,
            }),
        })
    }

    pub(super) fn is_terminal(&self) -> bool {
        self.terminal.is_some()
    }

    /// Shows a message that was given with the command as if it had been typed.
    pub(super) fn show(&self, text: &str) {
        if let Some(terminal) = &self.terminal {
            tell(&format!("{}{text}", terminal.colours.prompt(PROMPT)));
        }
    }

    /// The next entry; `None` at the end of the input, and after Ctrl-C where it is a pipe.
    ///
    /// # Errors
    /// When the input cannot be read, or a signal ends the run.
    pub(super) async fn next(
        &mut self,
        interrupts: &mut Interrupts,
    ) -> anyhow::Result<Option<Entry>> {
        if let Some(terminal) = &mut self.terminal {
            terminal.is_awaited = terminal.wanted.send(()).is_ok();
        }
        loop {
            let entries = &mut self.entries;
            let come = interrupts.or(|context| entries.poll_recv(context)).await;
            match come {
                Ok(entry) => {
                    if let Some(terminal) = &mut self.terminal {
                        terminal.is_awaited = false;
                    }
                    return entry.transpose();
                }
                // At the prompt Ctrl-C is a key. This one came before it, with an answer that
                // was over.
                Err(EndSignal::Interrupt) if self.is_terminal() => {}
                Err(EndSignal::Interrupt) => return Ok(None),
                Err(signal) => return Err(ended_by(signal)),
            }
        }
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        if let Some(terminal) = &mut self.terminal {
            // What is said from now on comes after the line.
            edited_line::end();
            terminal.quiet.end(terminal.is_awaited);
        }
    }
}

/// The next entry of a pipe; `None` at its end.
fn read_entry(source: &mut impl BufRead, limit: &TextLimit) -> anyhow::Result<Option<Entry>> {
    let mut text = match read_line(source, limit)? {
        Some(Entry::Text(line)) => line,
        other => return Ok(other),
    };
    while is_open(&text) {
        match read_line(source, limit)? {
            Some(Entry::Text(line)) if text.len() + line.len() < limit.bytes() => {
                text.push('\n');
                text += &line;
            }
            Some(Entry::Text(_)) => return Ok(Some(too_long(limit))),
            Some(refused) => return Ok(Some(refused)),
            None => break,
        }
    }
    Ok(Some(Entry::Text(closed(&text))))
}

/// The next line, without its end; `None` at the end of the input. No more of a line is kept
/// than the limit allows.
fn read_line(source: &mut impl BufRead, limit: &TextLimit) -> anyhow::Result<Option<Entry>> {
    const FAILED: &str = "standard input: cannot read a message";
    let mut bytes = Vec::new();
    // And the two bytes of its end.
    let mut limited = source.take(limit.bytes() as u64 + 2);
    limited.read_until(b'\n', &mut bytes).context(FAILED)?;
    if bytes.is_empty() {
        return Ok(None);
    }
    let is_whole = bytes.pop_if(|byte| *byte == b'\n').is_some();
    if is_whole {
        bytes.pop_if(|byte| *byte == b'\r');
    }
    if bytes.len() > limit.bytes() {
        if !is_whole {
            drop(bytes);
            source.skip_until(b'\n').context(FAILED)?;
        }
        return Ok(Some(too_long(limit)));
    }
    Ok(Some(match String::from_utf8(bytes) {
        Ok(text) => Entry::Text(text),
        Err(error) => Entry::Refused(format!(
            "byte {} of a message is not UTF-8, expected UTF-8 text; convert it (iconv)",
            error.utf8_error().valid_up_to()
        )),
    }))
}

fn too_long(limit: &TextLimit) -> Entry {
    let (bytes, limit) = (limit.bytes(), limit_in_options(limit));
    Entry::Refused(format!("a message of over {bytes} bytes, and {limit}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Option<Entry> {
        Some(Entry::Text(text.to_owned()))
    }

    #[test]
    fn lines_that_are_no_message_are_refused_and_those_after_them_read() {
        let limit = TextLimit::of_budget(64 * 5);
        let mut input: &[u8] = b"hello\nhello!\r\nfive5\r\n\nno \xff\nlast";
        let mut next = || read_entry(&mut input, &limit).unwrap();
        assert_eq!(next(), text("hello"));
        let found = next();
        assert!(matches!(&found, Some(Entry::Refused(reason)) if reason.contains("over 5 bytes")));
        assert_eq!(next(), text("five5"));
        assert_eq!(next(), text(""));
        let found = next();
        assert!(matches!(&found, Some(Entry::Refused(reason)) if reason.contains("byte 3")));
        assert_eq!(next(), text("last"));
        assert_eq!(next(), None);
    }

    #[test]
    fn quotes_and_backslashes_make_messages_of_several_lines() {
        let limit = TextLimit::of_budget(1 << 20);
        let mut input: &[u8] = br#"one\
two\\
"""
three

 four
"""
"""five""" six"""
"""seven"""
C:\path\
"""#;
        let mut next = || read_entry(&mut input, &limit).unwrap();
        assert_eq!(next(), text("one\ntwo\\\\"));
        assert_eq!(next(), text("three\n\n four"));
        assert_eq!(next(), text("five\"\"\" six"));
        assert_eq!(next(), text("seven"));
        assert_eq!(next(), text("C:\\path\n\"\""));
        assert_eq!(next(), None);
    }

    #[test]
    fn a_message_of_many_lines_is_as_short_as_one_of_a_line() {
        let limit = TextLimit::of_budget(64 * 8);
        let mut input: &[u8] = b"abc\\\ndef\\\nghi\nshort";
        let found = read_entry(&mut input, &limit).unwrap();
        assert!(matches!(&found, Some(Entry::Refused(reason)) if reason.contains("over 8 bytes")));
    }
}
