//! How an answer is shown: in which colours, and what of its thoughts.

use std::io::{self, IsTerminal};
use std::time::Instant;

use clap::ValueEnum;
use indicatif::ProgressBar;

use super::super::{OutputError, one_line, print, spinner, tell};
use super::reasoning::{Part, Reasoning};

const DIM: &str = "\x1b[2m";
const PROMPT_COLOUR: &str = "\x1b[1;32m";
const RESET: &str = "\x1b[0m";

/// When there are colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ColourChoice {
    /// On a terminal, unless NO_COLOR is set
    Auto,
    /// Always
    On,
    /// Never
    Off,
}

/// What is shown of a model's thoughts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ReasoningFormat {
    /// Like show on a terminal, like hide elsewhere
    Auto,
    /// Print everything as the model writes it
    None,
    /// Print only how long it took
    Hide,
    /// Print it dimmed, or between its marks where there are no colours
    #[value(alias = "deepseek", alias = "deepseek-legacy")]
    Show,
}

/// Whether there are colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Colours(bool);

impl Colours {
    pub(super) fn new(choice: ColourChoice) -> Self {
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = || std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self(match choice {
            ColourChoice::On => true,
            ColourChoice::Off => false,
            ColourChoice::Auto => io::stdout().is_terminal() && !is_set("NO_COLOR") && !is_dumb(),
        })
    }

    /// A prompt, in its colour.
    pub(super) fn prompt(self, prompt: &str) -> String {
        match self.0 {
            true => format!("{PROMPT_COLOUR}{prompt}{RESET}"),
            false => prompt.to_owned(),
        }
    }

    /// Says what has been done, dimmed.
    pub(super) fn note(self, text: &str) {
        self.tell_dimmed(&format!("note: {}", one_line(text)));
    }

    /// Writes a line to standard error, dimmed if that is a terminal.
    pub fn tell_dimmed(self, line: &str) {
        match self.0 && io::stderr().is_terminal() {
            true => tell(&format!("{DIM}{line}{RESET}")),
            false => tell(line),
        }
    }
}

/// Shows one answer.
pub(super) struct Display {
    format: Shown,
    reasoning: Reasoning,
    thinking: Option<Thinking>,
    has_answer: bool,
}

/// What is shown of thoughts, here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shown {
    /// Everything, as it is.
    AsIs,
    Dimmed,
    Nothing,
}

/// Thoughts that are under way.
struct Thinking {
    since: Instant,
    spinner: Option<ProgressBar>,
}

impl Display {
    /// A display for the answer to a rendered prompt.
    pub(super) fn new(format: ReasoningFormat, colours: Colours, prompt: &str) -> Self {
        let is_terminal = io::stdout().is_terminal();
        Self {
            format: match format {
                ReasoningFormat::None => Shown::AsIs,
                ReasoningFormat::Auto if !is_terminal => Shown::Nothing,
                ReasoningFormat::Hide => Shown::Nothing,
                ReasoningFormat::Auto | ReasoningFormat::Show if colours.0 => Shown::Dimmed,
                ReasoningFormat::Auto | ReasoningFormat::Show => Shown::AsIs,
            },
            reasoning: Reasoning::after(prompt),
            thinking: None,
            has_answer: false,
        }
    }

    /// Shows a piece of the answer.
    ///
    /// # Errors
    /// When standard output does not take it.
    pub(super) fn push(&mut self, text: &str) -> Result<(), OutputError> {
        if self.format == Shown::AsIs {
            self.has_answer |= !text.is_empty();
            return print(text);
        }
        let parts = self.reasoning.push(text);
        self.show(parts)
    }

    /// Shows the end of the answer. Returns whether thoughts were all that came of it.
    ///
    /// # Errors
    /// When standard output does not take it.
    pub(super) fn finish(&mut self) -> Result<bool, OutputError> {
        let parts = self.reasoning.finish();
        self.show(parts)?;
        let is_thought = self.thinking.is_some();
        self.end_thoughts("")?;
        print("\n")?;
        Ok(is_thought && !self.has_answer)
    }

    fn show(&mut self, parts: Vec<(Part, String)>) -> Result<(), OutputError> {
        for (part, text) in parts {
            match part {
                Part::Thought => self.show_thought(&text)?,
                Part::Answer => {
                    self.end_thoughts("\n\n")?;
                    self.has_answer = true;
                    print(&text)?;
                }
            }
        }
        Ok(())
    }

    fn show_thought(&mut self, text: &str) -> Result<(), OutputError> {
        let is_new = self.thinking.is_none();
        if is_new {
            self.thinking = Some(Thinking {
                since: Instant::now(),
                spinner: (self.format == Shown::Nothing).then(|| spinner("thinking")),
            });
        }
        match self.format {
            Shown::Dimmed if is_new => print(&format!("{DIM}{text}")),
            Shown::Dimmed => print(text),
            Shown::AsIs | Shown::Nothing => Ok(()),
        }
    }

    /// Ends thoughts, if there are any; `gap` is what separates them from what follows.
    fn end_thoughts(&mut self, gap: &str) -> Result<(), OutputError> {
        let Some(thinking) = self.thinking.take() else {
            return Ok(());
        };
        if let Some(spinner) = thinking.spinner {
            spinner.finish_and_clear();
        }
        match self.format {
            Shown::Dimmed => print(&format!("{RESET}{gap}")),
            Shown::Nothing if io::stderr().is_terminal() => {
                let seconds = thinking.since.elapsed().as_secs();
                tell(&format!("(thought for {seconds} s)"));
                Ok(())
            }
            Shown::AsIs | Shown::Nothing => Ok(()),
        }
    }
}

impl Drop for Display {
    /// An answer that has failed in its thoughts leaves the terminal in its own colours.
    fn drop(&mut self) {
        let _ = self.end_thoughts("");
    }
}
