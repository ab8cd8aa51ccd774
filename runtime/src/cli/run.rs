//! `emel run`: continues a text, or holds a conversation.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{ArgGroup, Args};
use serde::Serialize;

use super::conversation::{self, ConversationOptions};
use super::experts::ExpertOptions;
use super::interrupt::{EndSignal, Event, Interrupts};
use super::lossy::LossyOptions;
use super::named_files::{NamedFiles, OutputKind};
use super::output::OutputFile;
use super::profile::ProfileFile;
use super::sampling::SamplingOptions;
use super::{Interrupted, Kept, ModelOptions, TextSource};
use crate::blueprint::Blueprint;
use crate::budget::in_binary_units;
use crate::{ExpertUsage, Prompt, Request, Spent, TokenStream, Usage, cli};

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

    /// Tokens to generate; -1 goes on until the model ends or the context is full
    /// [default: 128, in a conversation -1]
    #[arg(short = 'n', long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..))]
    predict: Option<i64>,

    /// Tokens in the context [default: 4096, or what the model and the budget allow]
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
    let mut sampler = options.sampling.sampler()?;
    options.conversation.check()?;
    let mut settings = options.model.settings();
    settings.context = options.ctx_size;
    settings.sampler = Some(sampler.clone());
    settings.lossy = options.lossy.routing();
    settings.profile = options.profile.is_some();
    settings.renders = options.conversation.conversation;
    options.experts.apply(&mut settings);
    let blueprint = Blueprint::new(&options.model.model, settings)?;
    let text = options.text.read(Some(&blueprint.text_limit()))?;
    let sampling = &options.sampling;
    sampling.rule_out_ends(&mut sampler, &blueprint.tokenizer);
    blueprint.check_sampler(&sampler)?;
    let is_conversation = options.conversation.conversation;
    let predict = options
        .predict
        .unwrap_or(if is_conversation { -1 } else { 128 });
    let mut request = Request::new(Vec::new()).sampler(sampler);
    request.max_tokens = usize::try_from(predict).unwrap_or(usize::MAX);
    request.ignore_eos = sampling.ignore_eos;
    if !is_conversation {
        // Whatever can be refused is refused here: loading may take minutes.
        request.prompt = blueprint.prompt_ids(Prompt::Text(text.clone()))?.into();
    }
    let (statistics, profile) = options.outputs(&blueprint)?;
    let mut last_usage = None;
    let on_usage = |usage: &Usage| {
        if options.stats {
            print_statistics(usage);
        }
        last_usage = Some(usage.clone());
    };
    let outcome = if is_conversation {
        let first = options.text.is_given().then_some(text);
        conversation::run(&options.conversation, first, blueprint, request, on_usage).await
    } else {
        let session = options.session.as_deref();
        let listens = options.stats || profile.is_some() || statistics.is_some();
        continue_text(blueprint, request, session, listens, on_usage).await
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

impl RunOptions {
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
    let spinner = cli::spinner("reading the prompt");
    let mut ending = None;
    let mut printed = Ok(());
    loop {
        let event = match &mut interrupts {
            Some(interrupts) => interrupts.or_next(stream).await,
            None => match stream.next().await {
                Some(Ok(token)) => Event::Token(token),
                Some(Err(error)) => Event::Failed(error),
                None => Event::Over,
            },
        };
        spinner.finish_and_clear();
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

fn print_statistics(usage: &Usage) {
    let size = in_binary_units;
    cli::tell(&format!(
        "prompt:  {} tokens ({} of them resumed), {:.1} tokens/s, first token after {:.0} ms",
        usage.prompt_tokens,
        usage.resumed_tokens,
        usage.prefill_tokens_per_second,
        usage.first_token_ms
    ));
    cli::tell(&format!(
        "answer:  {} tokens, {:.1} tokens/s",
        usage.generated_tokens, usage.decode_tokens_per_second
    ));
    cli::tell(&format!("sampler: seed {}", usage.seed));
    cli::tell(&format!(
        "reading: {} for prompt and answer ({} with what came before, loading included), {} per token, {}/s while decoding, {} retries, {} major faults",
        size(usage.bytes_read),
        size(usage.bytes_read_since_open),
        size(usage.streamed_bytes_per_token),
        size(usage.decode_bytes_per_second as u64),
        usage.retries,
        usage.major_faults,
    ));
    cli::tell(&format!(
        "reader:  {}: {} ({}direct, {}registered buffers)",
        usage.io_backend,
        usage.io_reason,
        if usage.direct_io { "" } else { "not " },
        if usage.registered_buffers { "" } else { "no " },
    ));
    if let Some(experts) = &usage.experts {
        tell_experts(experts, usage.generated_tokens.saturating_sub(1));
    }
    if let Some(lossy) = &usage.lossy {
        cli::tell(&format!(
            "LOSSY:   of {} expert choices while decoding {} were substituted and {} dropped",
            lossy.of_choices, lossy.substituted, lossy.dropped
        ));
    }
    tell_times("time:    ", "for prompt and answer", &usage.spent);
    tell_times("decode:  ", "after the first token", &usage.decode);
    cli::tell(&format!(
        "kernels: {}, {} threads",
        usage.kernels, usage.threads
    ));
    let expert_bytes = usage
        .experts
        .as_ref()
        .map_or(0, |experts| experts.slots as u64 * experts.slot_bytes);
    cli::tell(&format!(
        "memory:  budget {}, planned {} (pinned {}, ring {}, experts {}, KV {}), given back {}, peak {}",
        size(usage.budget_bytes),
        size(usage.planned_bytes),
        size(usage.pinned_bytes),
        size(usage.ring_bytes),
        size(expert_bytes),
        size(usage.kv_bytes),
        size(usage.given_back_bytes),
        size(usage.peak_memory_bytes),
    ));
}

fn tell_experts(experts: &ExpertUsage, decoded_tokens: usize) {
    let size = in_binary_units;
    cli::tell(&format!(
        "experts: {} of {} in memory, {} hits, {} late, {} misses ({} per token), {:.0} ms waiting for them",
        experts.slots,
        experts.of_experts,
        experts.hits,
        experts.late,
        experts.misses,
        size(experts.missed_bytes_per_token),
        experts.wait_ms,
    ));
    let guesses = &experts.prefetch.counts;
    cli::tell(&format!(
        "guesses: {} ({} of {} tokens): {} read ({}), {} useful, {} late, {} wasted; {} filled in from earlier runs",
        experts.prefetch.setting,
        guesses.tokens,
        decoded_tokens,
        guesses.issued,
        size(guesses.issued_bytes),
        guesses.useful,
        guesses.late,
        guesses.wasted,
        guesses.filled,
    ));
    let wait = &experts.decode_wait;
    cli::tell(&format!(
        "waiting: {:.0} ms for experts while decoding, the drive idle in {:.0} of them, else {:.1} reads under way and {}/s",
        wait.total_ms,
        wait.idle_ms,
        wait.reads,
        size(wait.bytes_per_second as u64),
    ));
}

fn tell_times(label: &str, of: &str, spent: &Spent) {
    cli::tell(&format!(
        "{label}{:.0} ms {of}: {:.0} waiting for weights ({:.0} for experts), {:.0} computing, {:.0} sampling, {:.0} else",
        spent.total_ms,
        spent.wait_ms,
        spent.expert_wait_ms,
        spent.compute_ms,
        spent.sampling_ms,
        spent.other_ms
    ));
}
