//! `emel-run -cnv`: a conversation in the terminal, or with lines from a pipe.

use std::io::{self, BufRead, IsTerminal, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use emel_model::chat::{ChatTemplate, ChatTemplates, Conversation, assistant_message};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use tokio::sync::mpsc;

use super::interrupt::{EndSignal, Event, Interrupts};
use super::progress::PromptBar;
use super::remedies::OptionError;
use super::template::TemplateOptions;
use super::{
    Interrupted, Kept, OutputError, message, note_full_context, notice, one_line, print, read_text,
    start, tell,
};
use crate::blueprint::Blueprint;
use crate::{Engine, Error, Prompt, Request, TextLimit, Usage};

/// What begins the line that the user writes.
const PROMPT: &str = "> ";

/// Options of a conversation, by llama.cpp's names.
#[derive(Debug, Clone, Args)]
pub struct ConversationOptions {
    /// Hold a conversation, in the form of the model's chat template; a text is its first
    /// message [short: -cnv]
    #[arg(long)]
    pub conversation: bool,

    /// Continue the text as it is, which is the default [short: -no-cnv]
    #[arg(long, conflicts_with = "conversation")]
    pub no_conversation: bool,

    /// System prompt, which a conversation begins with [short: -sys]
    #[arg(
        long,
        value_name = "TEXT",
        allow_hyphen_values = true,
        requires = "conversation"
    )]
    pub system_prompt: Option<String>,

    /// A file that holds what a conversation begins with [short: -sysf]
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "system_prompt",
        requires = "conversation"
    )]
    pub system_prompt_file: Option<PathBuf>,

    /// End after one answer [short: -st]
    #[arg(long, requires = "conversation")]
    pub single_turn: bool,

    #[command(flatten)]
    template: TemplateOptions,
}

impl ConversationOptions {
    /// Checks what clap cannot.
    ///
    /// # Errors
    /// When there is a template and no conversation.
    pub fn check(&self) -> Result<(), OptionError> {
        if self.conversation || !self.template.is_given() {
            return Ok(());
        }
        Err(OptionError {
            option: "--chat-template",
            found: "given for a text that is continued as it is".to_owned(),
            expected: "--conversation (-cnv) with it".to_owned(),
        })
    }

    /// The files that are read, by option.
    pub fn files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let system = self.system_prompt_file.as_deref();
        let system = system.map(|path| ("--system-prompt-file", path));
        system.into_iter().chain(self.template.file())
    }

    /// What the conversation begins with: its form, the system prompt, and the first message
    /// if it is known already.
    ///
    /// # Errors
    /// When a file cannot be read, or the template cannot be used.
    pub fn opening(
        &self,
        model: &Path,
        templates: &ChatTemplates,
        limit: &TextLimit,
        first: Option<String>,
    ) -> anyhow::Result<Opening> {
        Ok(Opening {
            template: self.template.compile(model, templates, false)?,
            system: self.system(limit)?,
            first,
        })
    }

    fn system(&self, limit: &TextLimit) -> anyhow::Result<Option<String>> {
        match (&self.system_prompt, &self.system_prompt_file) {
            (Some(text), _) => Ok(Some(text.clone())),
            (None, Some(path)) => Ok(Some(read_text(path, Some(limit))?)),
            (None, None) => Ok(None),
        }
    }
}

/// What a conversation begins with.
pub struct Opening {
    template: ChatTemplate,
    system: Option<String>,
    first: Option<String>,
}

impl Opening {
    /// The prompt that the first message becomes.
    ///
    /// # Errors
    /// When the template refuses it.
    pub fn prompt(&self) -> anyhow::Result<Prompt> {
        let mut conversation = Conversation::default();
        if let Some(system) = &self.system {
            conversation.push("system", system);
        }
        if let Some(first) = &self.first {
            conversation.push("user", first);
        }
        Ok(Prompt::Rendered(self.template.render(&conversation)?))
    }
}

/// Talks until the input ends. `request` says how answers are made; its prompt is not
/// used. `on_usage` is told what each answer cost.
///
/// # Errors
/// When the model cannot be started, standard output is closed, or, where nobody is at
/// the keyboard, a message was not answered.
pub async fn run(
    options: &ConversationOptions,
    opening: Opening,
    blueprint: Blueprint,
    request: Request,
    mut on_usage: impl FnMut(&Usage),
) -> anyhow::Result<()> {
    let limit = blueprint.text_limit();
    let mut next = opening.first;
    let mut talk = Talk {
        template: opening.template,
        request,
        system: opening.system,
        conversation: Conversation::default(),
    };
    talk.clear();
    let engine = start(blueprint).await?;
    // At the keyboard's line nothing else is heard, and the other signals end the process.
    let interrupts = if io::stdin().is_terminal() {
        Interrupts::listen_to_keyboard()
    } else {
        Interrupts::listen()
    };
    let mut interrupts = interrupts.context("cannot be told of signals (Ctrl-C)")?;
    let mut input = Input::open(next.as_deref(), limit)?;
    let mut unanswered = 0;
    loop {
        let text = match next.take() {
            Some(text) => text,
            None => match input.message(&mut interrupts).await? {
                Some(Line::Message(text)) => text,
                Some(Line::Refused(reason)) if options.single_turn => bail!(reason),
                Some(Line::Refused(reason)) => {
                    unanswered += 1;
                    tell(&format!("error: {reason}"));
                    continue;
                }
                None => break,
            },
        };
        match text.trim() {
            "" => continue,
            "/exit" => break,
            "/clear" => {
                talk.clear();
                continue;
            }
            _ => {}
        }
        talk.conversation.push("user", &text);
        let answered = talk.answer(&engine, &mut interrupts, &mut on_usage).await;
        if let Err(error) = answered {
            let is_end = error.is::<OutputError>() || error.is::<Interrupted>();
            if options.single_turn || is_end {
                return Err(error);
            }
            talk.conversation.pop();
            unanswered += 1;
            tell(&format!("error: {}", one_line(&message(&error))));
        }
        if options.single_turn {
            break;
        }
    }
    if unanswered > 0 && !input.is_terminal() {
        let messages = match unanswered {
            1 => "a message was".to_owned(),
            many => format!("{many} messages were"),
        };
        bail!("{messages} not answered; the lines above say why");
    }
    Ok(())
}

/// A conversation and how it goes on.
struct Talk {
    template: ChatTemplate,
    request: Request,
    system: Option<String>,
    conversation: Conversation,
}

impl Talk {
    /// Starts over.
    fn clear(&mut self) {
        self.conversation.clear();
        if let Some(system) = &self.system {
            self.conversation.push("system", system);
        }
    }

    /// Prints the answer to the last message and takes it up into the conversation. An
    /// interrupt stops it; what was said by then stays.
    async fn answer(
        &mut self,
        engine: &Engine,
        interrupts: &mut Interrupts,
        on_usage: &mut impl FnMut(&Usage),
    ) -> anyhow::Result<()> {
        // What was pressed at the keyboard's own line is not meant for this answer.
        match interrupts.has_come().await {
            None | Some(EndSignal::Interrupt) => {}
            Some(signal) => return Err(ended_by(signal)),
        }
        let prompt = self.template.render(&self.conversation)?;
        let description = engine.description();
        let mut request = self.request.clone();
        request.prompt = Prompt::Rendered(prompt);
        let max_tokens = request.max_tokens;
        let mut waiting = PromptBar::start();
        let mut stream = engine.generate(request).await.map_err(longer_than)?;
        let mut answer = String::new();
        let mut ending = None;
        let stopped = loop {
            match interrupts.or_next(&mut stream).await {
                Event::Prompt(progress) => waiting.update(&progress),
                Event::Token(token) => {
                    waiting.finish();
                    print(&token.text)?;
                    answer.push_str(&token.text);
                }
                Event::Failed(error) => {
                    waiting.finish();
                    return Err(error.into());
                }
                Event::Over => break false,
                Event::Interrupted(EndSignal::Interrupt) => break true,
                Event::Interrupted(signal) if ending.is_none() => {
                    ending = Some(signal);
                    stream.stop();
                }
                Event::Interrupted(_) => break true,
            }
        };
        waiting.finish();
        print("\n")?;
        if let Some(usage) = stream.usage() {
            note_full_context(usage, max_tokens, description.context);
            on_usage(usage);
        }
        if let Some(signal) = ending {
            return Err(ended_by(signal));
        }
        if stopped && answer.is_empty() {
            // Most templates want an answer to every message.
            self.conversation.pop();
        } else {
            self.conversation.push_message(assistant_message(&answer));
        }
        Ok(())
    }
}

fn ended_by(signal: EndSignal) -> anyhow::Error {
    let kept = Kept::NoSession;
    Interrupted { signal, kept }.into()
}

/// A prompt that is too long is the whole conversation here.
fn longer_than(error: Error) -> anyhow::Error {
    match error {
        Error::PromptTooLong { prompt, context } => anyhow::anyhow!(
            "the conversation has {prompt} tokens and the context holds {context}; /clear starts over, -c sets a longer context"
        ),
        Error::PromptTooManyBytes { bytes, limit } => {
            anyhow::anyhow!("the conversation has {bytes} bytes and {limit}; /clear starts over")
        }
        error => error.into(),
    }
}

/// Where the user's messages come from.
enum Input {
    Terminal(Box<DefaultEditor>),
    Pipe(mpsc::Receiver<anyhow::Result<Line>>),
}

impl Input {
    /// Standard input. In a terminal, says how to talk; `first` is shown as if typed.
    fn open(first: Option<&str>, limit: TextLimit) -> anyhow::Result<Self> {
        if io::stdin().is_terminal() {
            notice("Ctrl-C stops an answer, Ctrl-D ends the conversation, /clear starts over");
            if let Some(text) = first {
                tell(&format!("{PROMPT}{text}"));
            }
            let editor = DefaultEditor::new().context("cannot edit lines in this terminal")?;
            return Ok(Self::Terminal(Box::new(editor)));
        }
        let (lines, input) = mpsc::channel(1);
        // A read cannot be interrupted; on a thread of its own it need not be.
        std::thread::spawn(move || {
            let mut source = io::stdin().lock();
            while let Some(line) = read_line(&mut source, &limit).transpose() {
                let is_last = line.is_err();
                if lines.blocking_send(line).is_err() || is_last {
                    break;
                }
            }
        });
        Ok(Self::Pipe(input))
    }

    fn is_terminal(&self) -> bool {
        matches!(self, Self::Terminal(_))
    }

    /// The next line; `None` at the end of the input and after an interrupt.
    async fn message(&mut self, interrupts: &mut Interrupts) -> anyhow::Result<Option<Line>> {
        match self {
            Self::Terminal(_) if interrupts.has_come().await.is_some() => Ok(None),
            Self::Terminal(editor) => match editor.readline(PROMPT) {
                Ok(line) => {
                    // A history that refuses a line is no reason to stop.
                    let _ = editor.add_history_entry(&line);
                    Ok(Some(Line::Message(line)))
                }
                Err(ReadlineError::Eof | ReadlineError::Interrupted) => Ok(None),
                Err(error) => Err(error).context("standard input: cannot read a message"),
            },
            Self::Pipe(lines) => match interrupts.or(|context| lines.poll_recv(context)).await {
                Ok(line) => line.transpose(),
                Err(EndSignal::Interrupt) => Ok(None),
                Err(signal) => Err(ended_by(signal)),
            },
        }
    }
}

/// A line of the input.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    Message(String),
    /// It is no message, and this is why.
    Refused(String),
}

/// The next line, without its end; `None` at the end of the input. No more of a line is kept
/// than the limit allows.
fn read_line(source: &mut impl BufRead, limit: &TextLimit) -> anyhow::Result<Option<Line>> {
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
        return Ok(Some(Line::Refused(format!(
            "a message of over {} bytes, and {limit}",
            limit.bytes()
        ))));
    }
    Ok(Some(match String::from_utf8(bytes) {
        Ok(text) => Line::Message(text),
        Err(error) => Line::Refused(format!(
            "byte {} of a message is not UTF-8, expected UTF-8 text; convert it (iconv)",
            error.utf8_error().valid_up_to()
        )),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_no_message_are_refused_and_those_after_them_read() {
        let limit = TextLimit::of_budget(64 * 5);
        let mut input: &[u8] = b"hello\nhello!\r\nfive5\r\n\nno \xff\nlast";
        let mut next = || read_line(&mut input, &limit).unwrap();
        let message = |text: &str| Some(Line::Message(text.to_owned()));
        assert_eq!(next(), message("hello"));
        let found = next();
        assert!(matches!(&found, Some(Line::Refused(reason)) if reason.contains("over 5 bytes")));
        assert_eq!(next(), message("five5"));
        assert_eq!(next(), message(""));
        let found = next();
        assert!(matches!(&found, Some(Line::Refused(reason)) if reason.contains("byte 3")));
        assert_eq!(next(), message("last"));
        assert_eq!(next(), None);
    }
}
