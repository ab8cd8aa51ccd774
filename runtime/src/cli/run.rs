//! `emel run`: continues a text, or holds a conversation.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{ArgGroup, Args};
use serde::Serialize;

use super::conversation::{self, ConversationOptions, Opening};
use super::experts::ExpertOptions;
use super::interrupt::{EndSignal, Event, Interrupts};
use super::lossy::LossyOptions;
use super::named_files::{NamedFiles, OutputKind};
use super::output::OutputFile;
use super::profile::ProfileFile;
use super::progress::PromptBar;
use super::sampling::SamplingOptions;
use super::statistics::{tell_speed, tell_statistics};
use super::{Interrupted, Kept, ModelOptions, TextSource};
use crate::blueprint::{Blueprint, ExpectedRequest, PromptForm, Settings};
use crate::{Prompt, Request, TokenStream, Usage, cli};

/// Tokens of an answer unless the user says how many, but in a conversation.
const ANSWER_TOKENS: usize = 128;

/// What the help ends with.
pub(super) const EXAMPLES: &str = r#"Examples:
  emel-run MODEL.gguf --ram-budget 8G -p "Once upon a time" -n 200
  emel-run MODEL.gguf -cnv -sys "Be brief."

  # Goes on with an answer. The prompt is the whole text each time; what the session
  # holds of it is not computed again.
  story="Once upon a time"
  story+=$(emel-run MODEL.gguf -p "$story" -n 100 --session story.session)
  story+=$(emel-run MODEL.gguf -p "$story" -n 100 --session story.session)"#;

/// What is run, and how.
#[derive(Debug, Args)]
#[command(group(
    ArgGroup::new("task").args(["prompt", "file", "conversation"]).required(true).multiple(true)
))]
pub struct RunOptions {
    #[command(flatten)]
    model: ModelOptions,

    #[command(flatten)]
    text: TextSource,

    #[command(flatten)]
    conversation: ConversationOptions,

    /// Tokens to generate; -1 or -2 goes on until the model ends or the context is full
    /// [default: 128, in a conversation -1]
    #[arg(short = 'n', long, alias = "n-predict", value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-2..))]
    predict: Option<i64>,

    /// Tokens in the context, prompt included; 0 for as many as the model was trained for
    /// [default: what prompt and answer need; in a conversation as many as the model and the
    /// budget allow]
    #[arg(short, long, value_name = "N", allow_negative_numbers = true)]
    ctx_size: Option<usize>,

    /// Keep the session in a file: what it already holds of the prompt is not computed
    /// again; prompt and answer are saved to it at the end, and what there is of them on
    /// Ctrl-C, SIGTERM and SIGHUP (a second one does not wait for the pass that runs). Not
    /// with --conversation. See the example below
    #[arg(long, value_name = "FILE", conflicts_with = "conversation")]
    session: Option<PathBuf>,

    /// Print statistics to standard error
    #[arg(long)]
    stats: bool,

    /// Write statistics to a JSON file; - is standard output, after the answer
    #[arg(long, value_name = "FILE")]
    stats_json: Option<PathBuf>,

    /// Write a trace of reads, waits and computing, the latest 65536 of them, to a file
    /// that Perfetto (ui.perfetto.dev) and chrome://tracing open; - is standard output, after
    /// the answer
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,

    #[command(flatten)]
    experts: ExpertOptions,

    #[command(flatten)]
    sampling: SamplingOptions,

    #[command(flatten)]
    lossy: LossyOptions,
}

/// Runs the command.
///
/// # Errors
/// When an option has a value that nothing works with, or the model cannot be run.
pub async fn run(options: RunOptions) -> anyhow::Result<()> {
    let mut sampler = options.sampling.sampler(&options.text.escapes)?;
    options.conversation.check()?;
    let mut settings = options.model.settings();
    settings.context = options.ctx_size;
    settings.sampler = Some(sampler.clone());
    settings.lossy = options.lossy.routing();
    settings.profile = options.profile.is_some();
    options.experts.apply(&mut settings);
    let (blueprint, beginning) = options.blueprint(settings)?;
    let sampling = &options.sampling;
    sampling.rule_out_ends(&mut sampler, &blueprint.tokenizer);
    blueprint.check_sampler(&sampler)?;
    let mut request = Request::new(Vec::new()).sampler(sampler);
    request.max_tokens = options.answer_tokens().unwrap_or(usize::MAX);
    request.ignore_eos = sampling.ignore_eos;
    let (statistics, profile) = options.outputs(&blueprint)?;
    let mut last_usage = None;
    let on_usage = |usage: &Usage| {
        match options.stats {
            true => tell_statistics(usage),
            false => tell_speed(usage),
        }
        last_usage = Some(usage.clone());
    };
    let outcome = match beginning {
        Beginning::Conversation(opening) => {
            conversation::run(
                &options.conversation,
                *opening,
                blueprint,
                request,
                on_usage,
            )
            .await
        }
        Beginning::Prompt(ids) => {
            request.prompt = ids.into();
            let session = options.session.as_deref();
            let listens = options.stats || profile.is_some() || statistics.is_some();
            continue_text(blueprint, request, session, listens, on_usage).await
        }
    };
    // An answer that was interrupted or failed has had its costs too.
    let written = profile.map_or(Ok(()), ProfileFile::write);
    let outcome = outcome.and(written);
    match statistics {
        Some(file) => {
            let written = write_statistics(file, last_usage.as_ref(), cli::failure(&outcome));
            outcome.and(written)
        }
        None => outcome,
    }
}

/// What a run begins with.
enum Beginning {
    /// Token ids to continue.
    Prompt(Vec<u32>),
    Conversation(Box<Opening>),
}

impl RunOptions {
    /// Tokens of an answer at most; none if it goes on until the model ends it.
    fn answer_tokens(&self) -> Option<usize> {
        match self.predict {
            Some(tokens) => usize::try_from(tokens).ok(),
            None => (!self.conversation.conversation).then_some(ANSWER_TOKENS),
        }
    }

    /// The model, planned for what is known of the prompt, and the prompt. What can be refused
    /// of it is refused here: loading may take minutes.
    fn blueprint(&self, settings: Settings) -> anyhow::Result<(Blueprint, Beginning)> {
        let model = &self.model.model;
        let talk = &self.conversation;
        if talk.conversation && !self.text.is_given() {
            let blueprint = Blueprint::new(model, settings)?;
            let (templates, limit) = (&blueprint.chat_templates, blueprint.text_limit());
            let opening = talk.opening(model, templates, &limit, None)?;
            return Ok((blueprint, Beginning::Conversation(Box::new(opening))));
        }
        let expected = ExpectedRequest {
            // More messages may follow.
            answer_tokens: self.answer_tokens().filter(|_| !talk.conversation),
            session: self.session.as_deref(),
        };
        let mut opening = None;
        let prompt = |form: &PromptForm<'_>| -> anyhow::Result<Prompt> {
            let text = self.text.read(Some(&form.limit))?;
            if !talk.conversation {
                return Ok(Prompt::Text(text));
            }
            let opened = talk.opening(model, form.chat_templates, &form.limit, Some(text))?;
            opening.insert(opened).prompt()
        };
        let (blueprint, ids) = Blueprint::for_request(model, settings, &expected, prompt)?;
        let beginning = match opening {
            Some(opening) => Beginning::Conversation(Box::new(opening)),
            None => {
                cli::note_two_bos(&blueprint.tokenizer, &ids);
                Beginning::Prompt(ids)
            }
        };
        Ok((blueprint, beginning))
    }

    /// The files that results go to, seen to before anything is loaded.
    fn outputs(
        &self,
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
    request: Request,
    session: Option<&Path>,
    listens: bool,
    mut on_usage: impl FnMut(&Usage),
) -> anyhow::Result<()> {
    let max_tokens = request.max_tokens;
    let saved = session.filter(|path| path.exists());
    let engine = cli::start(blueprint).await?;
    let restored = match saved {
        Some(path) => engine.restore_session(path).await?,
        None => 0,
    };
    let listens = listens || session.is_some() || engine.description().keeps_heat;
    let mut interrupts = listens
        .then(Interrupts::listen)
        .transpose()
        .context("cannot be told of signals (Ctrl-C)")?;
    let mut stream = engine.generate(request).await?;
    let restored = saved.map(|path| (path, restored));
    let (signal, printed) = print_answer(&mut stream, interrupts.as_mut(), restored).await?;
    let usage = stream.usage().cloned();
    // If it goes on all the same, it stops when nobody listens any more.
    drop(stream);
    let printed = printed.and_then(|()| Ok(cli::print("\n")?));
    let tokens = match session {
        Some(path) => {
            let saving = engine.save_session(path);
            Some(Interrupts::or_exit(interrupts.as_mut(), saving).await?)
        }
        None => None,
    };
    if let Some(usage) = usage {
        cli::note_full_context(&usage, max_tokens, engine.description().context);
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
/// could be printed: if nobody reads any more, the answer ends and is kept as far as it came.
/// The first signal has the pass that runs completed, because a recurrent state cannot go back
/// to before it; the second does not wait for it. Of a `restored` session, a file and its
/// tokens, it is said first if not all of it is of use.
async fn print_answer(
    stream: &mut TokenStream,
    mut interrupts: Option<&mut Interrupts>,
    mut restored: Option<(&Path, usize)>,
) -> anyhow::Result<(Option<EndSignal>, anyhow::Result<()>)> {
    let mut bar = PromptBar::start();
    let mut ending = None;
    let mut printed = Ok(());
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
            cli::notice(&format!(
                "{path}: {resumed} of the session's {tokens} tokens are reused"
            ));
        }
        match event {
            Event::Prompt(_) => {}
            Event::Token(token) => {
                if printed.is_ok() {
                    printed = cli::print(&token.text).map_err(anyhow::Error::from);
                    if printed.is_err() {
                        stream.stop();
                    }
                }
            }
            Event::Failed(error) => return Err(error.into()),
            Event::Over => return Ok((ending, printed)),
            Event::Interrupted(signal) if ending.is_some() => return Ok((Some(signal), printed)),
            Event::Interrupted(signal) => {
                stream.stop();
                ending = Some(signal);
            }
        }
    }
}
