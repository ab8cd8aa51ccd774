//! The conversation itself: its messages, and how they are answered.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use clap::ValueEnum;
use emel_model::chat::{ChatTemplate, Conversation, assistant_message, prompt_ids};
use emel_model::sampler::{Breakers, Sampler, SamplerOptions};
use emel_model::tokenizer::Tokenizer;

use super::super::answers::AnswerOptions;
use super::super::escapes::Escapes;
use super::super::interrupt::{EndSignal, Event, Interrupts};
use super::super::progress::PromptBar;
use super::super::remedies::{limit_in_options, longer_context};
use super::super::{note_full_context, notice};
use super::display::{Colours, Display, ReasoningFormat};
use super::ended_by;
use emel::internals::blueprint::Blueprint;
use emel::internals::budget::in_binary_units;
use emel::internals::request::check_biases;
use emel::{
    ContextRoom, Description, Engine, Error, Prompt, Request, TokenStream, Usage,
    session_attachment,
};

/// The messages of a conversation that has not begun, in a session.
const NO_MESSAGES: &str = "[]";

/// What happens when the context is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ContextFull {
    /// The oldest messages and their answers are forgotten; never the system prompt
    Drop,
    /// The next message is refused
    Stop,
}

/// How an answer has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answered {
    Whole,
    /// By Ctrl-C.
    Stopped,
}

/// A conversation and how it goes on.
pub(super) struct Talk {
    /// How messages are written; without one, each is a text that is continued.
    pub(super) template: Option<ChatTemplate>,
    pub(super) tokenizer: Arc<Tokenizer>,
    pub(super) answers: AnswerOptions,
    /// Tokens of an answer unless `-n` or `/set` says otherwise.
    pub(super) predict_default: i64,
    pub(super) escapes: Escapes,
    /// Of no prompt yet.
    pub(super) request: Request,
    pub(super) sampler_room: SamplerRoom,
    pub(super) context_room: ContextRoom,
    pub(super) conversation: Conversation,
    pub(super) context_full: ContextFull,
    pub(super) reasoning: ReasoningFormat,
    pub(super) colours: Colours,
    /// The file of `--session`.
    pub(super) session: Option<PathBuf>,
    /// The file that it was loaded from or saved to last.
    pub(super) kept_in: Option<PathBuf>,
    pub(super) last_usage: Option<Usage>,
    /// Whether it has been said, or need not be, that the context is nearly full.
    pub(super) is_warned: bool,
}

/// The memory that is planned for a sampler.
pub(super) struct SamplerRoom {
    planned_bytes: usize,
    vocabulary: usize,
    context: usize,
}

impl SamplerRoom {
    pub(super) fn of(blueprint: &Blueprint) -> Self {
        Self {
            planned_bytes: blueprint.sampler_bytes,
            vocabulary: blueprint.program.vocabulary(),
            context: blueprint.context,
        }
    }

    /// # Errors
    /// When a sampler needs more, as the engine would find.
    fn check(&self, sampler: &SamplerOptions, tokenizer: &Tokenizer) -> anyhow::Result<()> {
        let breakers = Breakers::new(sampler, tokenizer);
        let tokens_max = self.context.saturating_add(1);
        let needed = Sampler::required_bytes(sampler, self.vocabulary, tokens_max, &breakers);
        if needed > self.planned_bytes {
            bail!(
                "the samplers would need {}, and {} are planned for them",
                in_binary_units(needed as u64),
                in_binary_units(self.planned_bytes as u64)
            );
        }
        Ok(())
    }
}

impl Talk {
    /// Says what a command has done.
    pub(super) fn note(&self, text: &str) {
        self.colours.note(text);
    }

    /// Takes up what the user says next. A text has nothing to do with the one before.
    pub(super) fn push(&mut self, text: &str) {
        if self.template.is_none() {
            self.conversation.clear();
        }
        self.conversation.push("user", text);
    }

    /// Starts over.
    pub(super) fn clear(&mut self) {
        let system = self.system().map(str::to_owned);
        self.conversation.clear();
        self.set_system(system);
        self.is_warned = false;
        self.kept_in = None;
    }

    /// How many messages it has, in words.
    pub(super) fn messages(&self) -> String {
        match self.conversation.messages().len() {
            1 => "1 message".to_owned(),
            many => format!("{many} messages"),
        }
    }

    /// What has come from a file, with the state of as many tokens.
    pub(super) fn taken_from(&self, done: &str, path: &Path, tokens: usize) -> String {
        let path = path.display();
        match self.template {
            Some(_) => format!("{done} {} from {path}", self.messages()),
            None => format!("{done} a text of {tokens} tokens from {path}"),
        }
    }

    /// The system prompt.
    pub(super) fn system(&self) -> Option<&str> {
        self.conversation.system()
    }

    pub(super) fn set_system(&mut self, text: Option<String>) {
        self.conversation.set_system(text.as_deref());
    }

    /// Refuses a system prompt that leaves no room for a message.
    ///
    /// # Errors
    /// When it is as long as the context.
    pub(super) fn check_system(&self, system: Option<&str>) -> anyhow::Result<()> {
        let context = (self.sampler_room.context, &self.context_room);
        check_system(system, &self.tokenizer, context)
    }

    /// Changes an option of the answers, from the next one on, and says so.
    ///
    /// # Errors
    /// When there is no such option, or it does not take the value, or more memory would be
    /// needed than was planned.
    pub(super) fn set(&mut self, name: &str, value: &str) -> anyhow::Result<()> {
        let name = name.trim_start_matches('-');
        let given = format!("/set {name} {value}");
        let given = given.trim_end();
        let changed = self.answers.with(name, value, &self.escapes);
        let (answers, name) = changed.map_err(|error| anyhow!("{given}: {error}"))?;
        let mut sampler = answers.sampling.sampler(&self.escapes)?;
        if answers.sampling.seed == self.answers.sampling.seed {
            sampler.seed = self.request.sampler.seed;
        }
        let request = answers.request(sampler, &self.tokenizer, self.predict_default);
        let (tokens, vocabulary) = (
            self.tokenizer.vocabulary_size(),
            self.sampler_room.vocabulary,
        );
        if let Err(Error::Setting { expected, .. }) =
            check_biases(&request.sampler, tokens, vocabulary)
        {
            bail!("{given}: expected {expected}");
        }
        let checked = self.sampler_room.check(&request.sampler, &self.tokenizer);
        checked.map_err(|error| anyhow!("{given}: {error}; start with --{name} {value}"))?;
        self.request = request;
        self.answers = answers;
        let mut values = self.values().into_iter();
        match values.find(|(found, _)| *found == name) {
            Some((name, value)) => self.note(&format!("{name} is {value}")),
            None => self.note(&format!("{name} is not set")),
        }
        Ok(())
    }

    /// The names and values of the options of the answers.
    pub(super) fn values(&self) -> Vec<(String, String)> {
        let seed = self.request.sampler.seed;
        self.answers.values(self.predict_default, seed)
    }

    /// Takes the last answer back, so that its message is answered again.
    ///
    /// # Errors
    /// When there is no answer.
    pub(super) fn take_back_answer(&mut self) -> anyhow::Result<()> {
        if !self.conversation.ends_with("assistant") {
            bail!("there is no answer to regenerate");
        }
        self.conversation.pop();
        // The same seed would make the same answer.
        let seed = &mut self.request.sampler.seed;
        *seed = seed.wrapping_add(1);
        Ok(())
    }

    /// The file that a command names, or that of `--session`.
    ///
    /// # Errors
    /// When there is neither.
    pub(super) fn session_file(&self, command: &str, file: &str) -> anyhow::Result<PathBuf> {
        let path = match (file, &self.session) {
            ("", Some(session)) => session.clone(),
            ("", None) => bail!("/{command} needs a FILE, because --session is not given"),
            // There is no shell that would do it.
            (file, _) => match (file.strip_prefix("~/"), std::env::var_os("HOME")) {
                (Some(rest), Some(home)) => Path::new(&home).join(rest),
                _ => file.into(),
            },
        };
        if path.is_dir() {
            bail!(
                "/{command}: {} is a folder, expected a file; give the name of one in it",
                path.display()
            );
        }
        Ok(path)
    }

    /// Refuses to save where something else is.
    ///
    /// # Errors
    /// When there is a file that this conversation was neither loaded from nor saved to.
    pub(super) fn check_place(&self, path: &Path) -> anyhow::Result<()> {
        let own = [&self.session, &self.kept_in];
        let is_own = |own: &PathBuf| is_same_file(own, path);
        if path.exists() && !own.into_iter().flatten().any(is_own) {
            bail!(
                "{}: this file exists already and does not belong to this conversation; choose another name, or delete it first",
                path.display()
            );
        }
        Ok(())
    }

    /// Saves messages and state. Returns how many tokens the state is of.
    ///
    /// # Errors
    /// When the file cannot be written, or is something else.
    pub(super) async fn save(&mut self, engine: &Engine, path: &Path) -> anyhow::Result<usize> {
        if self.template.is_none() {
            return Ok(engine.save_session(path).await?);
        }
        let text = serde_json::to_string(self.conversation.messages())?;
        let tokens = engine.save_session_with(path, &text).await?;
        self.kept_in = Some(path.to_owned());
        Ok(tokens)
    }

    /// Takes the messages of a file in place of its own, and returns whether it has any. With
    /// `keeps_system`, the system prompt stays.
    ///
    /// # Errors
    /// When the file cannot be read, or is damaged.
    pub(super) fn read_messages(
        &mut self,
        path: &Path,
        keeps_system: bool,
    ) -> anyhow::Result<bool> {
        let Some(text) = session_attachment(path)? else {
            return Ok(false);
        };
        let read = match text.as_str() {
            NO_MESSAGES => Conversation::default(),
            text => Conversation::from_json(text)
                .with_context(|| format!("{}: cannot read messages", path.display()))?,
        };
        let system = self.system().map(str::to_owned);
        self.conversation.clear();
        for message in read.messages() {
            self.conversation.push_message(message.clone());
        }
        if keeps_system {
            self.set_system(system);
        }
        self.is_warned = false;
        self.kept_in = Some(path.to_owned());
        Ok(true)
    }

    /// Answers the last message, and takes the answer up into the conversation. Ctrl-C stops
    /// it; what was said by then stays, and the conversation has no answer if that is nothing.
    ///
    /// # Errors
    /// When it cannot be answered, or a signal ends the run.
    pub(super) async fn answer(
        &mut self,
        engine: &Engine,
        interrupts: &mut Interrupts,
    ) -> anyhow::Result<Answered> {
        // What was pressed before is not meant for this answer.
        match interrupts.has_come().await {
            None | Some(EndSignal::Interrupt) => {}
            Some(signal) => return Err(ended_by(signal)),
        }
        let waiting = PromptBar::start();
        let (mut stream, mut display) = self.submit(engine).await?;
        let (answer, ending) = self
            .show(&mut stream, &mut display, interrupts, waiting)
            .await?;
        let is_thought = display.finish()?;
        if !answer.is_empty() || ending.is_none() {
            self.conversation.push_message(assistant_message(&answer));
        }
        if let Some(usage) = stream.usage() {
            self.take_note(usage, engine.description());
        }
        match ending {
            Some(EndSignal::Interrupt) => Ok(Answered::Stopped),
            Some(signal) => Err(ended_by(signal)),
            None if is_thought => {
                notice(
                    "the answer ended while the model was still thinking; -n allows more tokens, --reasoning-format show shows its thoughts",
                );
                Ok(Answered::Whole)
            }
            None => Ok(Answered::Whole),
        }
    }

    /// Shows an answer as it comes. Returns its text, and the signal that has ended it.
    async fn show(
        &self,
        stream: &mut TokenStream,
        display: &mut Display,
        interrupts: &mut Interrupts,
        mut waiting: PromptBar,
    ) -> anyhow::Result<(String, Option<EndSignal>)> {
        let mut stops = self.answers.stop_texts(&self.escapes)?;
        let mut answer = String::new();
        let mut ending = None;
        let mut has_token = false;
        let mut is_over = false;
        loop {
            match interrupts.or_next(stream).await {
                Event::Prompt(progress) => waiting.update(&progress),
                // The engine may be some tokens ahead.
                Event::Token(_) if is_over => {}
                Event::Token(token) => {
                    has_token = true;
                    waiting.finish();
                    let checked = stops.push(&token.text);
                    answer += &checked.text;
                    display.push(&checked.text)?;
                    if checked.is_stopped {
                        is_over = true;
                        stream.stop();
                    }
                }
                Event::Failed(error) => return Err(error.into()),
                Event::Over => break,
                Event::Interrupted(signal) => {
                    let is_first = ending.replace(signal).is_none();
                    let is_stop = signal == EndSignal::Interrupt;
                    is_over |= is_stop;
                    stream.stop();
                    // After the pass that runs, models with recurrent layers can go on. That of
                    // a prompt may take minutes.
                    if !is_first || (is_stop && !has_token) {
                        break;
                    }
                }
            }
        }
        waiting.finish();
        let held = stops.finish();
        if !is_over {
            answer += &held;
            display.push(&held)?;
        }
        Ok((answer, ending))
    }

    /// Submits the conversation. What does not fit the context is dropped from its
    /// beginning, if that is wanted, with room for more than the next answer: all that
    /// follows has to be computed again.
    async fn submit(&mut self, engine: &Engine) -> anyhow::Result<(TokenStream, Display)> {
        let description = engine.description();
        let context = description.context;
        let answer_tokens = self.request.max_tokens.min(context / 8);
        let mut prompt_tokens = context - answer_tokens;
        let mut shortened = self.conversation.clone();
        let mut dropped = 0;
        let prompt = loop {
            let prompt = self.written(&shortened)?;
            let fits = prompt.len() <= description.text_limit.bytes()
                && prompt_ids(&self.tokenizer, &prompt).len() <= prompt_tokens;
            let may_drop = self.context_full == ContextFull::Drop;
            if fits || !may_drop || !shortened.drop_oldest_turn() {
                break prompt;
            }
            dropped += 1;
            prompt_tokens = context / 2;
        };
        let display = Display::new(self.reasoning, self.colours, &prompt);
        let mut request = self.request.clone();
        request.prompt = match self.template {
            Some(_) => Prompt::Rendered(prompt),
            None => Prompt::Text(prompt),
        };
        let stream = engine.generate(request).await;
        let stream = stream.map_err(|error| self.longer_than(error))?;
        if dropped > 0 {
            self.conversation = shortened;
            self.is_warned = false;
            let messages = match dropped {
                1 => "the oldest message and its answer are".to_owned(),
                many => format!("the oldest {many} messages and their answers are"),
            };
            notice(&format!(
                "the context of {context} tokens is full: {messages} dropped; {}",
                longer_context(context, &self.context_room)
            ));
        }
        Ok((stream, display))
    }

    /// The prompt that a conversation is.
    pub(super) fn written(&self, conversation: &Conversation) -> anyhow::Result<String> {
        match &self.template {
            Some(template) => Ok(template.render(conversation)?),
            None => {
                let last = conversation.messages().last();
                let text = last.and_then(|message| message.get("content")?.as_str());
                Ok(text.unwrap_or_default().to_owned())
            }
        }
    }

    /// What is said of a prompt that is too long, which is the whole conversation here.
    fn longer_than(&self, error: Error) -> anyhow::Error {
        let is_system = usize::from(self.system().is_some());
        let is_one = self.conversation.messages().len() <= is_system + 1;
        let what = match (&self.template, is_one) {
            (None, _) => "the text",
            (Some(_), true) if is_system == 1 => "the message, with the system prompt,",
            (Some(_), true) => "the message",
            (Some(_), false) => "the conversation",
        };
        let remedy = if is_one {
            "shorten it"
        } else {
            "/clear starts over"
        };
        match error {
            Error::PromptTooLong {
                prompt, context, ..
            } => anyhow!(
                "{what} has {prompt} tokens and the context holds {context}; {remedy}; {}",
                longer_context(context, &self.context_room)
            ),
            Error::PromptTooManyBytes { bytes, limit } => anyhow!(
                "{what} has {bytes} bytes and {}; {remedy}",
                limit_in_options(&limit)
            ),
            error => error.into(),
        }
    }

    /// Keeps what an answer has cost, and says so if the context is full or nearly so.
    fn take_note(&mut self, usage: &Usage, engine: &Description) {
        let context = engine.context;
        note_full_context(usage, self.request.max_tokens, engine);
        let used = usage.prompt_tokens + usage.generated_tokens;
        let is_nearly_full = (context * 4 / 5..=context).contains(&used);
        if is_nearly_full && !self.is_warned && self.template.is_some() {
            let then = match self.context_full {
                ContextFull::Drop => "the oldest messages are dropped when it is full",
                ContextFull::Stop => "/clear starts over",
            };
            notice(&format!(
                "{used} of the context's {context} tokens are used; {then}; {}",
                longer_context(context, &self.context_room)
            ));
        }
        self.is_warned = is_nearly_full;
        self.last_usage = Some(usage.clone());
    }
}

/// As [`Talk::check_system`].
pub(super) fn check_system(
    system: Option<&str>,
    tokenizer: &Tokenizer,
    (context, room): (usize, &ContextRoom),
) -> anyhow::Result<()> {
    let tokens = system.map_or(0, |text| prompt_ids(tokenizer, text).len());
    if tokens >= context {
        bail!(
            "the system prompt has {tokens} tokens and the context holds {context}; shorten it; {}",
            longer_context(context, room)
        );
    }
    Ok(())
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    let place = |path: &Path| path.canonicalize().ok();
    place(one).is_some_and(|one| place(other) == Some(one))
}
