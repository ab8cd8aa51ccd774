//! A conversation with a model, in the terminal or through pipes.

mod commands;
mod display;
mod history;
mod lines;
mod reasoning;
mod several_lines;
mod talk;
mod terminal;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use commands::{Meaning, Next, meaning};
pub use display::Colours;
use display::{ColourChoice, ReasoningFormat};
use emel_model::chat::{ChatTemplate, Conversation};
use history::History;
use lines::{Entry, Input};
use serde_json::{Map, Value};
pub use talk::ContextFull;
use talk::{Answered, SamplerRoom, Talk, check_system};

use super::answers::AnswerOptions;
use super::escapes::Escapes;
use super::interrupt::{EndSignal, Interrupts};
use super::template::TemplateOptions;
use super::{Interrupted, Kept, OutputError, message, one_line, read_text, start, tell};
use emel::internals::blueprint::{Blueprint, PromptForm};
use emel::{Engine, Error, Prompt, Request, TextLimit, Usage};

/// Tokens of an answer unless `-n` says otherwise: as many as the context holds.
pub const PREDICT_DEFAULT: i64 = -1;

/// Options of a conversation, by llama.cpp's names.
#[derive(Debug, Clone, Args)]
pub struct ConversationOptions {
    /// Hold a conversation: the default for a model with a chat template. With it, each line of
    /// a pipe is a message [short: -cnv]
    #[arg(long, overrides_with_all = ["conversation", "no_conversation"])]
    pub conversation: bool,

    /// Continue the text instead of answering it: the default for a base model. In a terminal
    /// without -p, each text that you type is continued [short: -no-cnv]
    #[arg(
        long,
        overrides_with_all = ["conversation", "no_conversation"],
        conflicts_with_all = [
            "system_prompt",
            "system_prompt_file",
            "chat_template",
            "chat_template_file",
            "chat_template_kwargs"
        ]
    )]
    pub no_conversation: bool,

    /// System prompt, which a conversation begins with [short: -sys]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub system_prompt: Option<String>,

    /// A file that holds the system prompt [short: -sysf]
    #[arg(long, value_name = "FILE", conflicts_with = "system_prompt")]
    pub system_prompt_file: Option<PathBuf>,

    /// End after one answer, as without a terminal [short: -st]
    #[arg(long)]
    pub single_turn: bool,

    #[command(flatten)]
    template: TemplateOptions,

    /// Variables of the chat template, as a JSON object
    #[arg(long, value_name = "JSON", value_parser = template_variables)]
    chat_template_kwargs: Option<Map<String, Value>>,

    /// How a model's reasoning is shown
    #[arg(long, value_enum, default_value_t = ReasoningFormat::Auto)]
    reasoning_format: ReasoningFormat,

    /// 0 asks for an answer without reasoning (`enable_thinking` in the chat template); -1
    /// leaves it to the model
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = -1, value_parser = clap::value_parser!(i64).range(-1..=0))]
    reasoning_budget: i64,

    /// What happens when the context is full [also: --no-context-shift for stop]
    #[arg(long, value_enum, default_value_t = ContextFull::Drop)]
    context_full: ContextFull,

    /// Colours
    #[arg(
        long,
        value_enum,
        value_name = "WHEN",
        num_args = 0..=1,
        require_equals = true,
        default_value_t = ColourChoice::Auto,
        default_missing_value = "on"
    )]
    color: ColourChoice,

    /// Neither read nor keep what was typed (~/.local/state/emel/history)
    #[arg(long)]
    no_history: bool,
}

/// What a conversation begins with, and how far it goes.
#[derive(Debug)]
pub struct Turns {
    /// How messages are written; without one, each is a text that is continued.
    template: Option<ChatTemplate>,
    /// What comes before the first message.
    beginning: Conversation,
    /// The first message, if it is known already.
    pub first: Option<String>,
    /// Whether there is only one.
    pub is_single: bool,
}

impl Turns {
    /// Texts that are continued, each on its own, or a single one.
    pub fn of_texts(is_single: bool) -> Self {
        Self {
            template: None,
            beginning: Conversation::default(),
            first: None,
            is_single,
        }
    }

    /// Whether they are texts that are continued.
    pub fn are_texts(&self) -> bool {
        self.template.is_none()
    }

    /// The prompt of the first message, if it is known already.
    ///
    /// # Errors
    /// When the template refuses the message.
    pub fn first_prompt(&self) -> anyhow::Result<Option<Prompt>> {
        let (Some(text), Some(template)) = (&self.first, &self.template) else {
            return Ok(None);
        };
        let mut conversation = self.beginning.clone();
        conversation.push("user", text);
        let prompt = template.render(&conversation)?;
        Ok(Some(Prompt::Rendered(prompt)))
    }
}

impl ConversationOptions {
    /// Whether a conversation is asked for, by any option.
    pub fn is_asked_for(&self) -> bool {
        self.conversation
            || self.system_prompt.is_some()
            || self.system_prompt_file.is_some()
            || self.template.is_given()
            || self.chat_template_kwargs.is_some()
            || (self.single_turn && !self.no_conversation)
    }

    /// The files that are read, by option.
    pub fn files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let system = self.system_prompt_file.as_deref();
        let system = system.map(|path| ("--system-prompt-file", path));
        system.into_iter().chain(self.template.file())
    }

    /// A conversation with the model at `path`.
    ///
    /// # Errors
    /// When the template or the system prompt cannot be used, or that is too long.
    pub fn turns(
        &self,
        path: &Path,
        form: &PromptForm<'_>,
        (first, is_single): (Option<String>, bool),
    ) -> anyhow::Result<Turns> {
        let template = self.template.compile(path, form.chat_templates, false)?;
        let beginning = self.beginning(&form.limit(true)?)?;
        let room = form.context_room(true)?;
        check_system(beginning.system(), form.tokenizer, (form.context, &room))?;
        Ok(Turns {
            template: Some(template),
            beginning,
            first,
            is_single,
        })
    }

    fn system(&self, limit: &TextLimit) -> anyhow::Result<Option<String>> {
        match (&self.system_prompt, &self.system_prompt_file) {
            (Some(text), _) => Ok(Some(text.clone())),
            (None, Some(path)) => Ok(Some(read_text(path, Some(limit))?)),
            (None, None) => Ok(None),
        }
    }

    fn history(&self) -> History {
        match self.no_history {
            true => History::none(),
            false => History::of_user(),
        }
    }

    /// A conversation that has not begun; `session` is the file that it is kept in.
    fn talk(
        &self,
        turns: Turns,
        blueprint: &Blueprint,
        answering: Answering,
        session: Option<PathBuf>,
    ) -> Talk {
        let reasoning = match turns.template {
            Some(_) => self.reasoning_format,
            None => ReasoningFormat::None,
        };
        Talk {
            template: turns.template,
            tokenizer: Arc::clone(&blueprint.tokenizer),
            answers: answering.options,
            predict_default: answering.predict_default,
            escapes: answering.escapes,
            request: answering.request,
            sampler_room: SamplerRoom::of(blueprint),
            context_room: blueprint.context_room,
            conversation: turns.beginning,
            context_full: self.context_full,
            reasoning,
            colours: self.colours(),
            session,
            kept_in: None,
            last_usage: None,
            is_warned: turns.is_single,
        }
    }

    /// Whether there are colours.
    pub fn colours(&self) -> Colours {
        Colours::new(self.color)
    }

    /// The conversation before its first message.
    fn beginning(&self, limit: &TextLimit) -> anyhow::Result<Conversation> {
        let mut conversation = Conversation::default();
        conversation.set_system(self.system(limit)?.as_deref());
        let variables = conversation.variables_mut();
        if self.reasoning_budget == 0 {
            variables.insert("enable_thinking".to_owned(), false.into());
        }
        variables.extend(self.chat_template_kwargs.clone().unwrap_or_default());
        Ok(conversation)
    }
}

fn template_variables(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|error| {
        format!("expected a JSON object such as {{\"enable_thinking\": false}}: {error}")
    })
}

/// How answers are made.
pub struct Answering {
    /// What `/set` changes.
    pub options: AnswerOptions,
    /// Tokens of an answer where the options do not say.
    pub predict_default: i64,
    /// How escapes in texts among the options are read.
    pub escapes: Escapes,
    /// The options as a request, whose prompt is not used.
    pub request: Request,
}

/// Talks until the input ends, or for one answer. `session` is the file that the conversation
/// is kept in. `on_usage` takes what each answer cost.
///
/// # Errors
/// When the model cannot be started, standard output is closed, the session cannot be saved,
/// or a line of a pipe failed.
pub async fn run(
    options: &ConversationOptions,
    turns: Turns,
    blueprint: Blueprint,
    answering: Answering,
    session: Option<PathBuf>,
    mut on_usage: impl FnMut(&Usage),
) -> anyhow::Result<()> {
    let limit = blueprint.text_limit();
    let (first, is_single) = (turns.first.clone(), turns.is_single);
    let mut talk = options.talk(turns, &blueprint, answering, session);
    let saved = talk.session.clone().filter(|path| path.exists());
    if let Some(path) = &saved
        && talk.template.is_some()
        && !talk.read_messages(path, talk.system().is_some())?
    {
        bail!(
            "{}: the session is of a text, which a conversation would replace; choose another name, or go on with it (-no-cnv)",
            path.display()
        );
    }
    talk.check_system(talk.system())?;
    if let (Some(text), Some(_)) = (&first, &saved) {
        check_first(&talk, text, &blueprint)?;
    }
    let has_one_text = is_single && first.is_some();
    let mut input = match has_one_text {
        true => None,
        false => Some(Input::open(limit, talk.colours, options.history())?),
    };
    let mut interrupts = Interrupts::listen().context("cannot listen for signals (Ctrl-C)")?;
    let mut starting = pin!(start(blueprint));
    let started = interrupts
        .or(|context| starting.as_mut().poll(context))
        .await;
    let engine = started.map_err(ended_by)??;
    if let Some(path) = &saved {
        let tokens = engine.restore_session(path).await?;
        talk.note(&talk.taken_from("resumed", path, tokens));
    }
    let outcome = converse(
        &mut talk,
        (first, is_single),
        &engine,
        input.as_mut(),
        &mut interrupts,
        &mut on_usage,
    )
    .await;
    // The terminal is what it was before anything else is done or said.
    drop(input);
    match talk.session.clone() {
        Some(path) => {
            let saving = talk.save(&engine, &path);
            let tokens = Interrupts::or_exit(Some(&mut interrupts), saving).await?;
            outcome.map_err(|error| with_session(error, tokens))
        }
        None => outcome,
    }
}

/// Whatever can be refused of a message that goes on with a saved conversation is refused
/// before the model is loaded, which may take minutes.
fn check_first(talk: &Talk, text: &str, blueprint: &Blueprint) -> anyhow::Result<()> {
    let mut conversation = talk.conversation.clone();
    conversation.push("user", text);
    let prompt = talk.written(&conversation)?;
    let is_alone = talk.conversation.messages().len() <= usize::from(talk.system().is_some());
    match blueprint.prompt_ids(Prompt::Rendered(prompt)) {
        // What is too long because of earlier messages can be shortened.
        Err(Error::PromptTooLong { .. } | Error::PromptTooManyBytes { .. }) if !is_alone => Ok(()),
        checked => Ok(checked.map(drop)?),
    }
}

/// Answers messages and runs commands until one of them, or the input, is the last.
async fn converse(
    talk: &mut Talk,
    (mut first, is_single): (Option<String>, bool),
    engine: &Engine,
    mut input: Option<&mut Input>,
    interrupts: &mut Interrupts,
    on_usage: &mut impl FnMut(&Usage),
) -> anyhow::Result<()> {
    let is_terminal = input.as_ref().is_some_and(|input| input.is_terminal());
    if let (Some(input), Some(text)) = (&input, &first) {
        input.show(text);
    }
    let mut refused = 0;
    loop {
        let before = talk.conversation.clone();
        let next = match (first.take(), &mut input) {
            (Some(text), _) => {
                talk.push(&text);
                Ok(Next::Answer)
            }
            (None, Some(input)) => match input.next(interrupts).await? {
                Some(Entry::Text(text)) => step(talk, &text),
                Some(Entry::Refused(reason)) => Err(anyhow::anyhow!(reason)),
                None => break,
            },
            (None, None) => break,
        };
        let is_answer = matches!(next, Ok(Next::Answer));
        let done = match next {
            Ok(Next::End) => break,
            Ok(next) => follow(next, talk, engine, interrupts, on_usage).await,
            Err(error) => Err(error),
        };
        match done {
            Ok(Some(Answered::Stopped)) if is_single => {
                return Err(ended_by(EndSignal::Interrupt));
            }
            // Most templates want an answer to every message.
            Ok(Some(Answered::Stopped)) if !talk.conversation.ends_with("assistant") => {
                talk.conversation = before;
            }
            Ok(_) => {}
            // What was said before a signal stays.
            Err(error) if error.is::<Interrupted>() => {
                if is_answer && !talk.conversation.ends_with("assistant") {
                    talk.conversation = before;
                }
                return Err(error);
            }
            Err(error) => {
                talk.conversation = before;
                if is_single || error.is::<OutputError>() {
                    return Err(error);
                }
                refused += 1;
                tell(&format!("error: {}", one_line(&message(&error))));
            }
        }
        if is_single && is_answer {
            break;
        }
    }
    match is_terminal {
        true => Ok(()),
        false => check_refused(refused),
    }
}

/// # Errors
/// When lines of a pipe were refused, so that the exit status says it.
fn check_refused(lines: usize) -> anyhow::Result<()> {
    match lines {
        0 => Ok(()),
        1 => bail!("a line failed; the error above says why"),
        many => bail!("{many} lines failed; the errors above say why"),
    }
}

/// Does what a line asks for; says how an answer has ended, if it was one.
async fn follow(
    next: Next,
    talk: &mut Talk,
    engine: &Engine,
    interrupts: &mut Interrupts,
    on_usage: &mut impl FnMut(&Usage),
) -> anyhow::Result<Option<Answered>> {
    match next {
        Next::Line | Next::End => {}
        Next::Answer => {
            let answered = answer(talk, engine, interrupts, on_usage).await?;
            return Ok(Some(answered));
        }
        Next::Save(path) => save(talk, engine, &path).await?,
        Next::Load(path) => load(talk, engine, &path).await?,
    }
    Ok(None)
}

/// Answers the last message, and hands on what that cost if it is known.
async fn answer(
    talk: &mut Talk,
    engine: &Engine,
    interrupts: &mut Interrupts,
    on_usage: &mut impl FnMut(&Usage),
) -> anyhow::Result<Answered> {
    let earlier = talk.last_usage.take();
    let answered = talk.answer(engine, interrupts).await;
    match &talk.last_usage {
        Some(usage) => on_usage(usage),
        None => talk.last_usage = earlier,
    }
    answered
}

/// What a line asks for; a message joins the conversation.
fn step(talk: &mut Talk, text: &str) -> anyhow::Result<Next> {
    match meaning(text)? {
        Meaning::Message(text) if text.trim().is_empty() => Ok(Next::Line),
        Meaning::Message(text) => {
            talk.push(text);
            Ok(Next::Answer)
        }
        Meaning::Command(command, arguments) => command.run(talk, arguments),
    }
}

/// Saves the conversation to a file, and says so.
async fn save(talk: &mut Talk, engine: &Engine, path: &Path) -> anyhow::Result<()> {
    talk.save(engine, path).await?;
    let messages = talk.messages();
    talk.note(&format!("saved {messages} to {}", path.display()));
    Ok(())
}

/// Goes on with the conversation in a file.
async fn load(talk: &mut Talk, engine: &Engine, path: &Path) -> anyhow::Result<()> {
    if !talk.read_messages(path, false)? {
        bail!("{}: the session has no messages", path.display());
    }
    let tokens = engine.restore_session(path).await?;
    talk.note(&talk.taken_from("loaded", path, tokens));
    Ok(())
}

fn ended_by(signal: EndSignal) -> anyhow::Error {
    let kept = Kept::NoSession;
    Interrupted { signal, kept }.into()
}

/// The error of a run whose session has been saved.
fn with_session(error: anyhow::Error, tokens: usize) -> anyhow::Error {
    let kept = match tokens {
        0 => Kept::Nothing,
        tokens => Kept::Session(tokens),
    };
    match error.downcast_ref::<Interrupted>() {
        Some(&Interrupted { signal, .. }) => Interrupted { signal, kept }.into(),
        None => error,
    }
}
