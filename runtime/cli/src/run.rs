//! `emel run`: continues a text, or holds a conversation.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;

use super::answers::AnswerOptions;
use super::conversation::{self, Answering, ConversationOptions, Turns};
use super::experts::ExpertOptions;
use super::interrupt::{EndSignal, Event, Interrupts};
use super::lossy::LossyOptions;
use super::named_files::NamedFiles;
use super::output::OutputFile;
use super::output::OutputKind;
use super::profile::ProfileFile;
use super::progress::PromptBar;
use super::remedies::OptionError;
use super::statistics::{tell_speed, tell_statistics};
use super::{Interrupted, Kept, ModelOptions, TextSource, read_text, without_last_line_break};
use emel::internals::blueprint::{Blueprint, ExpectedRequest, PromptForm, Settings};
use emel::{Prompt, Request, StopTexts, TokenStream, Usage, session_attachment};

/// Tokens that a text is continued by unless the user says how many.
const CONTINUED_TOKENS: i64 = 128;

/// What the help ends with.
pub(super) const EXAMPLES: &str = r#"Examples:
  emel-run MODEL.gguf --ram-budget 8G
  emel-run MODEL.gguf -sys "Be brief." --session talk.session
  emel-run MODEL.gguf -no-cnv -p "Once upon a time" -n 200
  git diff | emel-run MODEL.gguf -sys "Describe this change in a sentence."

  # Continue a text. Pass all of it each time: what the session holds is not
  # computed again.
  story="Once upon a time"
  story+=$(emel-run MODEL.gguf -no-cnv -p "$story" -n 100 --session story.session)
  story+=$(emel-run MODEL.gguf -no-cnv -p "$story" -n 100 --session story.session)"#;

/// What is run, and how.
#[derive(Debug, Args)]
pub struct RunOptions {
    #[command(flatten)]
    model: ModelOptions,

    #[command(flatten)]
    text: TextSource,

    #[command(flatten)]
    conversation: ConversationOptions,

    /// Tokens in the context, prompt included; 0 for as many as the model was trained for
    /// [default: what prompt and answer need; in a conversation as many as the model and the
    /// budget allow]
    #[arg(short, long, value_name = "N", allow_negative_numbers = true)]
    ctx_size: Option<usize>,

    /// Keep the session in a file: messages or text, and the model's state after them. The next
    /// run continues without computing them again. The file is written at the end; SIGTERM,
    /// SIGHUP and Ctrl-C save what there is (a second signal does not wait for the current
    /// pass). See the example below
    #[arg(long, value_name = "FILE")]
    session: Option<PathBuf>,

    /// Print statistics to standard error
    #[arg(long)]
    stats: bool,

    /// Write statistics to a JSON file; - is standard output, after the answer
    #[arg(long, value_name = "FILE")]
    stats_json: Option<PathBuf>,

    /// Write the latest 65536 reads, waits and computing steps to a trace file, which Perfetto
    /// (ui.perfetto.dev) and chrome://tracing open; - is standard output, after the answer
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,

    #[command(flatten)]
    experts: ExpertOptions,

    #[command(flatten)]
    answers: AnswerOptions,

    #[command(flatten)]
    lossy: LossyOptions,
}

/// What is done with the model.
enum Task {
    /// The text is continued as it is.
    Continue(String),
    Converse(Box<Turns>),
}

/// Runs the command.
///
/// # Errors
/// When an option has a value that nothing works with, or the model cannot be run.
pub async fn run(options: RunOptions) -> anyhow::Result<()> {
    let escapes = options.text.escapes.clone();
    let sampler = options.answers.sampling.sampler(&escapes)?;
    let stops = options.answers.stop_texts(&escapes)?;
    let mut settings = options.model.settings();
    settings.context = options.ctx_size;
    settings.sampler = Some(sampler.clone());
    settings.lossy = options.lossy.routing();
    settings.profile = options.profile.is_some();
    options.experts.apply(&mut settings);
    let (blueprint, task, ids) = options.blueprint(settings)?;
    let answers = options.answers.clone();
    let predict_default = task.predict_default();
    let mut request = answers.request(sampler, &blueprint.tokenizer, predict_default);
    blueprint.check_sampler(&request.sampler)?;
    let (statistics, profile) = options.outputs(&task, &blueprint)?;
    let mut last_usage = None;
    let colours = options.conversation.colours();
    let on_usage = |usage: &Usage| {
        match options.stats {
            true => tell_statistics(usage),
            false => tell_speed(usage, colours),
        }
        last_usage = Some(usage.clone());
    };
    let session = options.session.clone();
    let outcome = match task {
        Task::Converse(turns) => {
            let answering = Answering {
                options: answers,
                predict_default,
                escapes,
                request,
            };
            conversation::run(
                &options.conversation,
                *turns,
                blueprint,
                answering,
                session,
                on_usage,
            )
            .await
        }
        Task::Continue(_) => {
            crate::note_two_bos(&blueprint.tokenizer, &ids);
            request.prompt = ids.into();
            let listens = options.stats || profile.is_some() || statistics.is_some();
            continue_text(blueprint, (request, stops), session, listens, on_usage).await
        }
    };
    // An answer that was interrupted or failed has had its costs too.
    let written = profile.map_or(Ok(()), ProfileFile::write);
    let outcome = outcome.and(written);
    match statistics {
        Some(file) => {
            let written = write_statistics(file, last_usage.as_ref(), crate::failure(&outcome));
            outcome.and(written)
        }
        None => outcome,
    }
}

impl Task {
    /// Tokens of an answer unless the user says how many.
    fn predict_default(&self) -> i64 {
        match self.is_of_text() {
            true => CONTINUED_TOKENS,
            false => conversation::PREDICT_DEFAULT,
        }
    }

    /// Whether texts are continued.
    fn is_of_text(&self) -> bool {
        match self {
            Self::Continue(_) => true,
            Self::Converse(turns) => turns.are_texts(),
        }
    }
}

impl RunOptions {
    /// What is wrong with the numbers among them.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = self.answers.sampling.faults();
        faults.extend(self.model.computing.faults(self.ctx_size));
        faults
    }

    /// The model, planned for what is known of its task, and the token ids of a prompt that is
    /// known. What can be refused of it is refused here: loading may take minutes.
    fn blueprint(&self, settings: Settings) -> anyhow::Result<(Blueprint, Task, Vec<u32>)> {
        let model = &self.model.model;
        let read = |form: &PromptForm<'_>| -> anyhow::Result<_> {
            let task = self.task(form)?;
            let expected = self.expected_request(&task)?;
            Ok((expected, task))
        };
        Blueprint::for_request(model, settings, read)
    }

    /// What is known of the first request of a task.
    fn expected_request(&self, task: &Task) -> anyhow::Result<ExpectedRequest<'_>> {
        let session = self.session.as_deref();
        let prompt = match task {
            Task::Continue(text) => Some(Prompt::Text(text.clone())),
            // What was said before is in the session.
            Task::Converse(_) if session.is_some_and(Path::exists) => None,
            Task::Converse(turns) => turns.first_prompt()?,
        };
        let is_last = match task {
            Task::Continue(_) => true,
            Task::Converse(turns) => turns.is_single,
        };
        let predict = self.answers.predict.unwrap_or(task.predict_default());
        // Of a message to a saved conversation the length is not known here.
        let is_known = is_last && prompt.is_some();
        let answer_tokens = usize::try_from(predict).ok().filter(|_| is_known);
        Ok(ExpectedRequest {
            prompt,
            renders: !task.is_of_text(),
            answer_tokens,
            session,
        })
    }

    /// What is to be done with this model, and the text for it, which may come through a
    /// pipe.
    fn task(&self, form: &PromptForm<'_>) -> anyhow::Result<Task> {
        let options = &self.conversation;
        let is_base = form.is_of_base_model();
        let is_asked_for = options.is_asked_for();
        let is_conversation = is_asked_for || !(is_base || options.no_conversation);
        let limit = form.limit(is_conversation)?;
        let is_given = self.text.is_given();
        let has_terminal = io::stdin().is_terminal();
        let takes_lines = has_terminal || options.conversation;
        let text = match () {
            () if is_given => Some(self.text.read(Some(&limit))?),
            () if is_conversation && takes_lines => None,
            () if has_terminal => {
                crate::notice(match is_base {
                    true => {
                        "this is a base model (no chat template): it continues each text that you type; -cnv holds a conversation all the same"
                    }
                    false => "the model continues each text that you type (-no-cnv)",
                });
                return Ok(Task::Converse(Box::new(Turns::of_texts(
                    options.single_turn,
                ))));
            }
            () => match without_last_line_break(read_text(Path::new("-"), Some(&limit))?) {
                text if text.trim().is_empty() => {
                    return Err(no_text(is_base).into());
                }
                text => Some(text),
            },
        };
        if !is_conversation {
            return Ok(Task::Continue(text.unwrap_or_default()));
        }
        // Who sends an answer to a file or a program waits for no other message.
        let is_answer_for_file = is_given && !io::stdout().is_terminal();
        let is_whole_text = !takes_lines || self.text.file.is_some() || is_answer_for_file;
        let is_single = options.single_turn || (is_whole_text && !options.conversation);
        let turns = options.turns(&self.model.model, form, (text, is_single))?;
        Ok(Task::Converse(Box::new(turns)))
    }

    /// The files that results go to, seen to before anything is loaded.
    fn outputs(
        &self,
        task: &Task,
        blueprint: &Blueprint,
    ) -> anyhow::Result<(Option<OutputFile>, Option<ProfileFile>)> {
        let mut named = NamedFiles::of(blueprint);
        named.input("-f", self.text.file.as_deref());
        for (option, path) in self.conversation.files() {
            named.input(option, Some(path));
        }
        if let Some(session) = &self.session {
            named.kept("--session", session)?;
            blueprint.check_session(session)?;
            let is_text = task.is_of_text() && session.exists();
            if is_text && session_attachment(session)?.is_some() {
                bail!(
                    "{}: the session is of a conversation, which a text would replace; choose another name, or go on with it (-cnv)",
                    session.display()
                );
            }
        }
        let statistics = self.stats_json.as_deref();
        let statistics = statistics
            .map(|path| named.output("--stats-json", path, OutputKind::Statistics))
            .transpose()?;
        let profile = match &self.profile {
            Some(path) => ProfileFile::new(path, &mut named, blueprint)?,
            None => None,
        };
        Ok((statistics, profile))
    }
}

/// An error where there is no text and nothing else to do.
fn no_text(is_base: bool) -> OptionError {
    let expected = match is_base {
        true => {
            "a text to continue; give one with -p TEXT or -f FILE (this is a base model, without a chat template; -cnv holds a conversation all the same)"
        }
        false => "a text; give one with -p TEXT or -f FILE",
    };
    OptionError {
        option: "standard input",
        found: "empty".to_owned(),
        expected: expected.to_owned(),
    }
}

/// Writes what the last answer has cost, as far as it is known, and how the run failed.
fn write_statistics(
    file: OutputFile,
    usage: Option<&Usage>,
    error: Option<String>,
) -> anyhow::Result<()> {
    #[derive(Serialize)]
    struct Statistics<'a> {
        #[serde(flatten)]
        usage: Option<&'a Usage>,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    }
    if usage.is_none() && error.is_none() {
        return Ok(());
    }
    let json = serde_json::to_string_pretty(&Statistics { usage, error })?;
    file.write(|out| writeln!(out, "{json}"))
}

/// Continues the prompt. With `listens`, or a session, Ctrl-C and the like end the answer and
/// not the process.
async fn continue_text(
    blueprint: Blueprint,
    (request, stops): (Request, StopTexts),
    session: Option<PathBuf>,
    listens: bool,
    mut on_usage: impl FnMut(&Usage),
) -> anyhow::Result<()> {
    let max_tokens = request.max_tokens;
    let session = session.as_deref();
    let saved = session.filter(|path| path.exists());
    let engine = crate::start(blueprint).await?;
    let restored = match saved {
        Some(path) => engine.restore_session(path).await?,
        None => 0,
    };
    let listens = listens || session.is_some() || engine.description().keeps_heat;
    let mut interrupts = listens
        .then(Interrupts::listen)
        .transpose()
        .context("cannot listen for signals (Ctrl-C)")?;
    let mut stream = engine.generate(request).await?;
    let restored = saved.map(|path| (path, restored));
    let (signal, printed) = print_answer(&mut stream, stops, interrupts.as_mut(), restored).await?;
    let usage = stream.usage().cloned();
    // If the answer goes on all the same, it stops when its stream is dropped.
    drop(stream);
    let printed = printed.and_then(|()| Ok(crate::print("\n")?));
    let tokens = match session {
        Some(path) => {
            let saving = engine.save_session(path);
            Some(Interrupts::or_exit(interrupts.as_mut(), saving).await?)
        }
        None => None,
    };
    if let Some(usage) = usage {
        crate::note_full_context(&usage, max_tokens, engine.description());
        on_usage(&usage);
    }
    let Some(signal) = signal else {
        return printed;
    };
    let kept = match tokens {
        None => Kept::NoSession,
        Some(0) => Kept::Nothing,
        Some(tokens) => Kept::Session(tokens),
    };
    Err(Interrupted { signal, kept }.into())
}

/// Prints tokens as they come. Returns the signal that has ended the answer, and whether all
/// could be printed: if standard output is closed, the answer ends and is kept as far as it came.
/// The first signal has the pass that runs completed, because a recurrent state cannot go back
/// to before it; the second does not wait for it. Of a `restored` session, a file and its
/// tokens, it is said first if not all of it is of use.
async fn print_answer(
    stream: &mut TokenStream,
    mut stops: StopTexts,
    mut interrupts: Option<&mut Interrupts>,
    mut restored: Option<(&Path, usize)>,
) -> anyhow::Result<(Option<EndSignal>, anyhow::Result<()>)> {
    let mut bar = PromptBar::start();
    let mut ending = None;
    let mut printed = Ok(());
    let mut is_over = false;
    loop {
        let event = match &mut interrupts {
            Some(interrupts) => interrupts.or_next(stream).await,
            None => Event::of(stream.next_event().await),
        };
        match &event {
            Event::Prompt(progress) => bar.update(progress),
            _ => bar.finish(),
        }
        if let Some((path, tokens)) = restored.take()
            && let Some(resumed) = stream.resumed_tokens()
            && resumed < tokens
        {
            let path = path.display();
            crate::notice(&format!(
                "{path}: {resumed} of the session's {tokens} tokens are reused"
            ));
        }
        match event {
            Event::Prompt(_) => {}
            // The engine may be some tokens ahead.
            Event::Token(_) if is_over => {}
            Event::Token(token) => {
                let checked = stops.push(&token.text);
                printed = crate::print(&checked.text).map_err(anyhow::Error::from);
                is_over = checked.is_stopped || printed.is_err();
                if is_over {
                    stream.stop();
                }
            }
            Event::Failed(error) => return Err(error.into()),
            Event::Over => {
                if !is_over {
                    printed = crate::print(&stops.finish()).map_err(anyhow::Error::from);
                }
                return Ok((ending, printed));
            }
            Event::Interrupted(signal) if ending.is_some() => return Ok((Some(signal), printed)),
            Event::Interrupted(signal) => {
                stream.stop();
                ending = Some(signal);
            }
        }
    }
}
