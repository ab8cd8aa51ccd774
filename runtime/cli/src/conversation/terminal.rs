//! The terminal of a conversation: how lines are edited in it, and how it is between them.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};

use anyhow::Context;
use nix::sys::termios::{
    InputFlags, LocalFlags, SetArg, SpecialCharacterIndices, Termios, tcgetattr, tcsetattr,
};
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{
    Behavior, Cmd, ColorMode, ConditionalEventHandler, Config, Editor, Event, EventContext,
    EventHandler, ExternalPrinter, Helper, KeyCode, KeyEvent, Modifiers, Movement, RepeatCount,
};

use super::super::{edited_line, notice};
use super::display::Colours;
use super::history::History;
use super::several_lines::is_open;

/// What begins the line that the user writes.
pub(super) const PROMPT: &str = "> ";

/// What the editor writes to have the terminal mark pastes no longer.
const BRACKETED_PASTE_OFF: &str = "\x1b[?2004l";

/// What comes of a prompt.
pub(super) enum Typed {
    Text(String),
    /// Ctrl-D, or Ctrl-C twice at an empty line.
    End,
}

/// Keeps what is typed out of what is printed: nothing is echoed, and all of it waits for
/// the next prompt. Ctrl-C is a signal.
pub(super) struct QuietTerminal(Option<Termios>);

impl QuietTerminal {
    /// Begins, if lines can be edited here. Without an editor, the terminal itself shows and
    /// takes lines, and is left as it is.
    pub(super) fn begin() -> Self {
        if !can_edit() {
            return Self(None);
        }
        let Ok(before) = tcgetattr(io::stdin()) else {
            return Self(None);
        };
        let mut quiet = before.clone();
        quiet.local_flags &= !(LocalFlags::ECHO | LocalFlags::ICANON);
        // What is typed while an answer is stopped is kept, too.
        quiet.local_flags |= LocalFlags::ISIG | LocalFlags::NOFLSH;
        quiet.input_flags &= !(InputFlags::ICRNL | InputFlags::IXON);
        quiet.control_chars[SpecialCharacterIndices::VMIN as usize] = 1;
        quiet.control_chars[SpecialCharacterIndices::VTIME as usize] = 0;
        let is_quiet = tcsetattr(io::stdin(), SetArg::TCSANOW, &quiet).is_ok();
        Self(is_quiet.then_some(before))
    }

    /// Makes the terminal what it was before, also in the middle of a line.
    pub(super) fn end(&mut self, is_in_line: bool) {
        let Some(before) = self.0.take() else { return };
        if is_in_line {
            let mut output = io::stdout().lock();
            let _ = writeln!(output, "{BRACKETED_PASTE_OFF}");
        }
        let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, &before);
    }
}

/// Whether the terminal moves its cursor where it is asked to.
fn can_edit() -> bool {
    let term = std::env::var("TERM").unwrap_or_default();
    !["dumb", "cons25", "emacs"].contains(&term.as_str())
}

/// Edits lines, with the keys and the history of a conversation.
pub(super) struct LineEditor {
    editor: Editor<LineHelper, FileHistory>,
    /// Whether Ctrl-D has cancelled a message.
    is_cancelled: Arc<AtomicBool>,
    history: History,
    /// Takes lines to write above the one that is edited, where both are on the terminal.
    above: Option<Sender<String>>,
}

impl LineEditor {
    /// An editor with what was typed before.
    ///
    /// # Errors
    /// When the terminal does not let lines be edited.
    pub(super) fn new(colours: Colours, mut history: History) -> anyhow::Result<Self> {
        let behavior = match io::stdout().is_terminal() {
            true => Behavior::Stdio,
            // Only answers go to a file.
            false => Behavior::PreferTerm,
        };
        let config = Config::builder()
            .behavior(behavior)
            .color_mode(ColorMode::Forced)
            .build();
        let mut editor =
            Editor::with_config(config).context("cannot edit lines in this terminal")?;
        editor.set_helper(Some(LineHelper { colours }));
        let clear = EventHandler::Conditional(Box::new(ClearLine));
        editor.bind_sequence(KeyEvent::ctrl('C'), clear);
        let is_cancelled = Arc::new(AtomicBool::new(false));
        let cancel = CancelLines(Arc::clone(&is_cancelled));
        let cancel = EventHandler::Conditional(Box::new(cancel));
        editor.bind_sequence(KeyEvent::ctrl('D'), cancel);
        let alt_enter = KeyEvent(KeyCode::Enter, Modifiers::ALT);
        editor.bind_sequence(alt_enter, EventHandler::Simple(Cmd::Newline));
        history.load(&mut editor);
        let printer = editor.create_external_printer().ok();
        let printer = printer.filter(|_| io::stderr().is_terminal());
        Ok(Self {
            editor,
            is_cancelled,
            history,
            above: printer.map(relayed),
        })
    }

    /// What the user types next.
    ///
    /// # Errors
    /// When the terminal cannot be read.
    pub(super) fn read(&mut self) -> anyhow::Result<Typed> {
        let mut is_leaving = false;
        loop {
            edited_line::begin(self.above.clone());
            let line = self.editor.readline(PROMPT);
            edited_line::end();
            match line {
                Ok(text) => {
                    // A history that refuses a line is no reason to stop.
                    let _ = self.editor.add_history_entry(&text);
                    self.history.append(&mut self.editor);
                    return Ok(Typed::Text(text));
                }
                Err(ReadlineError::Interrupted)
                    if self.is_cancelled.swap(false, Ordering::Relaxed) =>
                {
                    notice("the message is cancelled; Ctrl-D again leaves");
                }
                Err(ReadlineError::Interrupted) if !is_leaving => {
                    notice("Ctrl-C again leaves, as do Ctrl-D and /bye");
                    is_leaving = true;
                }
                Err(ReadlineError::Eof | ReadlineError::Interrupted) => return Ok(Typed::End),
                Err(ReadlineError::Io(error)) if error.kind() == io::ErrorKind::InvalidData => {
                    notice("what was typed is not UTF-8, expected UTF-8 text; type it again");
                }
                Err(error) => {
                    return Err(error).context("standard input: cannot read a message");
                }
            }
        }
    }
}

/// Hands lines on to the editor from a thread of its own: it may not take one before a key is
/// pressed, and who says something does not wait for that.
fn relayed(mut printer: impl ExternalPrinter + Send + 'static) -> Sender<String> {
    let (above, lines) = channel();
    std::thread::spawn(move || {
        for line in lines {
            // There is no other place to say it.
            let _ = printer.print(line);
        }
    });
    above
}

/// Ctrl-C: clears a line; in an empty one it does what it else does.
struct ClearLine;

impl ConditionalEventHandler for ClearLine {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, context: &EventContext) -> Option<Cmd> {
        (!context.line().is_empty()).then_some(Cmd::Kill(Movement::WholeBuffer))
    }
}

/// Ctrl-D: cancels a message of several lines at its end; else it does what it else does.
struct CancelLines(Arc<AtomicBool>);

impl ConditionalEventHandler for CancelLines {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, context: &EventContext) -> Option<Cmd> {
        let line = context.line();
        let is_cancelled = line.contains('\n') && context.pos() == line.len();
        self.0.store(is_cancelled, Ordering::Relaxed);
        is_cancelled.then_some(Cmd::Interrupt)
    }
}

/// What the editor asks about lines.
struct LineHelper {
    colours: Colours,
}

impl Helper for LineHelper {}

impl Completer for LineHelper {
    type Candidate = String;
}

impl Hinter for LineHelper {
    type Hint = String;
}

impl Highlighter for LineHelper {
    fn highlight_prompt<'b, 's: 'b, 'p: 'b>(&'s self, prompt: &'p str, _: bool) -> Cow<'b, str> {
        Cow::Owned(self.colours.prompt(prompt))
    }
}

impl Validator for LineHelper {
    fn validate(&self, context: &mut ValidationContext) -> rustyline::Result<ValidationResult> {
        Ok(match is_open(context.input()) {
            true => ValidationResult::Incomplete,
            false => ValidationResult::Valid(None),
        })
    }
}
