//! The command line: the program's commands, and what they share: options, progress and
//! exit codes.

#![forbid(unsafe_code)]

pub mod answers;
pub mod arguments;
mod cache_types;
pub mod chart;
pub mod conversation;
pub mod doctor;
pub mod drive;
mod edited_line;
pub mod escapes;
pub mod eval;
pub mod experts;
pub mod info;
pub mod interrupt;
mod llama_flags;
pub mod lossy;
pub mod manual;
mod message;
mod model_name;
pub mod named_files;
pub mod output;
pub mod plan;
pub mod profile;
pub mod program;
pub mod progress;
pub mod remedies;
pub mod render;
pub mod replay;
pub mod run;
pub mod sampling;
mod spelling;
pub mod statistics;
pub mod template;
pub mod tokenize;
pub mod trace;
mod units;

use std::fmt;
use std::fs::File;
use std::future::Future;
use std::io::{self, Read, Write};
use std::iter;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
pub use arguments::{parse, parse_with_llama_spellings};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use emel_model::tokenizer::Tokenizer;
use escapes::Escapes;
use interrupt::EndSignal;
use message::{message, one_line};
use nix::sys::resource::{Resource, getrlimit};
pub use progress::spinner;
use progress::{LoadingBar, beside_bar};
use remedies::{in_options, limit_in_options, longer_context, notice_in_options};
use tokio::signal::unix::{SignalKind, signal};

use emel::internals::blueprint::{Blueprint, Io, Settings};
use emel::internals::budget::{RamBudget, in_binary_units};
use emel::{Backend, Description, Engine, KvType, NoticeListener, TextLimit, Usage};

/// More text than any context holds. Someone who passes a model as the text should
/// not have all of it read into memory.
const TEXT_BYTES_MAX: usize = 64 << 20;

/// The exit status of a command that was called wrongly.
const EXIT_USAGE: u8 = 2;

/// Options of every command that runs a model.
#[derive(Debug, Clone, Args)]
pub struct ModelOptions {
    /// The model: a GGUF file, or the first of its shards [also: -m FILE]
    pub model: PathBuf,

    /// The most memory that emel may use, as 512M, 8G (powers of 1024), bytes, or 60% of the
    /// model file [default: 85% of the memory that is free]
    #[arg(
        long,
        value_name = "SIZE",
        allow_hyphen_values = true,
        default_value = "auto",
        hide_default_value = true
    )]
    pub ram_budget: RamBudget,

    /// How it is computed on.
    #[command(flatten)]
    pub computing: ComputingOptions,
}

/// How a model is computed on.
#[derive(Debug, Clone, Args)]
pub struct ComputingOptions {
    /// Number of computing threads; 0 or -1: one for each processor, which is the default
    #[arg(short, long, value_name = "N", allow_negative_numbers = true)]
    pub threads: Option<i64>,

    /// How weights are read
    #[arg(long, value_parser = io_values(), default_value = "auto")]
    pub io: Io,

    /// Never map the file, even if the model fits
    #[arg(long, conflicts_with = "io")]
    pub no_mmap: bool,

    /// Type of the keys and values in the KV cache [also: -ctk and -ctv]
    #[arg(long, value_enum, default_value_t = KvName::F16)]
    pub kv: KvName,
}

/// The values of `--io`.
fn io_values() -> impl TypedValueParser<Value = Io> {
    let auto = "Map the file if the model fits, else the first of ring and pread that works";
    let auto = PossibleValue::new("auto").help(auto);
    let readers =
        Backend::all().map(|reader| PossibleValue::new(reader.name()).help(reader.summary()));
    PossibleValuesParser::new(iter::once(auto).chain(readers)).map(|name| {
        let mut readers = Backend::all();
        readers
            .find(|reader| reader.name() == name)
            .map_or(Io::Auto, Io::Only)
    })
}

/// The values of `--kv`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KvName {
    /// Half precision
    F16,
    /// Single precision
    F32,
    /// 8 bits and a scale for each 32 elements of a head
    #[value(name = "q8_0")]
    Q8_0,
}

/// Where a command's text comes from.
#[derive(Debug, Clone, Args)]
pub struct TextSource {
    /// The text; special tokens in it, such as <|im_end|>, are recognised
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: Option<String>,

    /// A file that holds the text; - reads standard input
    #[arg(short, long, value_name = "FILE", conflicts_with = "prompt")]
    pub file: Option<PathBuf>,

    /// How escapes in it are read.
    #[command(flatten)]
    pub escapes: Escapes,
}

impl ModelOptions {
    /// The engine's settings.
    pub fn settings(&self) -> Settings {
        Settings {
            ram_budget: self.ram_budget,
            ..self.computing.settings(&self.model)
        }
    }
}

impl ComputingOptions {
    /// The engine's settings for `model`, but for its budget.
    pub fn settings(&self, model: &Path) -> Settings {
        let io = if self.no_mmap { Io::Unmapped } else { self.io };
        Settings {
            threads: self.threads(),
            io,
            drive: drive::kept_curve(model, io),
            kv_type: match self.kv {
                KvName::F16 => KvType::F16,
                KvName::F32 => KvType::F32,
                KvName::Q8_0 => KvType::Q8_0,
            },
            ..Settings::default()
        }
    }

    /// What is wrong with the options and a context's length, whatever the model is.
    pub fn faults(&self, context: Option<usize>) -> Vec<String> {
        let settings = Settings {
            threads: self.threads(),
            context,
            ..Settings::default()
        };
        let faults = settings.faults();
        faults.iter().map(|fault| in_options(fault)).collect()
    }

    fn threads(&self) -> usize {
        match self.threads {
            None | Some(..=0) => Settings::default().threads,
            Some(threads) => usize::try_from(threads).unwrap_or(usize::MAX),
        }
    }
}

impl TextSource {
    /// The text, with the characters that its escapes stand for. With the limit of a model it
    /// is a prompt, and one line break at the end of a file is left out, as llama.cpp does.
    ///
    /// # Errors
    /// When the file cannot be read, is too long, or the text is not UTF-8.
    pub fn read(&self, limit: Option<&TextLimit>) -> anyhow::Result<String> {
        let path = match (&self.prompt, &self.file) {
            (Some(text), _) => return self.escapes.replace(text),
            (None, Some(path)) => path,
            (None, None) => return Ok(String::new()),
        };
        let mut text = read_text(path, limit)?;
        if limit.is_some() {
            text = without_last_line_break(text);
        }
        let replaced = self.escapes.replace(&text)?;
        if replaced != text {
            notice(&format!(
                "{}: \\n and other escapes in it are read as characters; --no-escape takes them as they are",
                path.display()
            ));
        }
        Ok(replaced)
    }

    /// Whether there is a text.
    pub fn is_given(&self) -> bool {
        self.prompt.is_some() || self.file.is_some()
    }
}

/// The text in a file, or on standard input for `-`. No more is read than the limit allows.
///
/// # Errors
/// When it cannot be read, is not UTF-8, or is longer than the limit or than any prompt.
pub fn read_text(path: &Path, limit: Option<&TextLimit>) -> anyhow::Result<String> {
    let limit = limit.filter(|limit| limit.bytes() < TEXT_BYTES_MAX);
    let bytes_max = limit.map_or(TEXT_BYTES_MAX, TextLimit::bytes);
    let (name, read) = if path == Path::new("-") {
        (
            "standard input".to_owned(),
            read_bytes(io::stdin(), bytes_max),
        )
    } else {
        let bytes = File::open(path).and_then(|file| read_bytes(file, bytes_max));
        (path.display().to_string(), bytes)
    };
    let bytes = match read {
        Ok(bytes) => bytes,
        Err(error) => {
            bail!("{name}: cannot read text: {error}; check the path and its permissions")
        }
    };
    if bytes.len() > bytes_max {
        match limit {
            Some(limit) => {
                let limit = limit_in_options(limit);
                bail!("{name}: over {bytes_max} bytes of text, and {limit}")
            }
            None => bail!(
                "{name}: over {} of text, expected less; is it the right file?",
                in_binary_units(TEXT_BYTES_MAX as u64)
            ),
        }
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        anyhow::anyhow!("{name}: byte {at} is not UTF-8, expected UTF-8 text; convert it (iconv)")
    })
}

/// The text without a line break at its end, which files and pipes have.
fn without_last_line_break(mut text: String) -> String {
    text.truncate(text.strip_suffix('\n').unwrap_or(&text).len());
    text
}

fn read_bytes(source: impl Read, bytes_max: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // One byte more tells a text that is too long from one that just fits.
    source.take(bytes_max as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Standard output cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("standard output: cannot write: {source}; check the disk or the program that reads it")]
pub struct OutputError {
    source: io::Error,
}

/// A signal ended the run.
#[derive(Debug, thiserror::Error)]
#[error("{signal}{kept}")]
pub struct Interrupted {
    /// The signal.
    pub signal: EndSignal,
    /// What has become of the session.
    pub kept: Kept,
}

/// What is kept of a run that a signal has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// The session of as many tokens has been saved.
    Session(usize),
    /// There was nothing to save.
    Nothing,
    /// It has no session.
    NoSession,
}

impl fmt::Display for Kept {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Session(tokens) => write!(out, "; the session of {tokens} tokens is saved"),
            Self::Nothing => {
                out.write_str(" before there was anything to save; the session's file is unchanged")
            }
            Self::NoSession => Ok(()),
        }
    }
}

/// Writes a piece of the result to standard output, at once.
///
/// # Errors
/// When standard output does not take it.
pub fn print(text: &str) -> Result<(), OutputError> {
    let mut output = io::stdout().lock();
    output
        .write_all(text.as_bytes())
        .and_then(|()| output.flush())
        .map_err(|source| OutputError { source })
}

/// Starts an engine, with progress and notices on standard error.
///
/// # Errors
/// As [`Engine::start`].
pub async fn start(mut blueprint: Blueprint) -> anyhow::Result<Engine> {
    if blueprint.settings.ram_budget == RamBudget::Automatic {
        notice(&format!(
            "RAM budget {}, 85% of what is available; --ram-budget sets it",
            in_binary_units(blueprint.plan.budget_bytes)
        ));
    }
    blueprint.check_memory()?;
    drive::measure_new(&mut blueprint).await;
    let bar = LoadingBar::start();
    let shown = bar.clone();
    blueprint.listener = NoticeListener::new(|found| notice(&notice_in_options(found)));
    let on_progress = move |bytes, total| shown.update(bytes, total);
    let started = Engine::start(blueprint, on_progress).await;
    // Before the error is written.
    match &started {
        Ok(_) => bar.finish(),
        Err(_) => bar.clear(),
    }
    Ok(started?)
}

/// Says so if an answer ended because the context was full.
pub fn note_full_context(usage: &Usage, max_tokens: usize, engine: &Description) {
    let context = engine.context;
    // The last token of an answer needs no place in the context.
    let is_full = usage.prompt_tokens + usage.generated_tokens > context;
    if is_full && usage.generated_tokens < max_tokens {
        notice(&format!(
            "stopped because the context of {context} tokens is full; {}",
            longer_context(context, &engine.context_room)
        ));
    }
}

/// Says so if a prompt begins with BOS twice: its text has one, and the tokenizer adds one.
pub fn note_two_bos(tokenizer: &Tokenizer, ids: &[u32]) {
    let [first, second, ..] = *ids else {
        return;
    };
    if tokenizer.adds_bos() && first == second && Some(first) == tokenizer.bos() {
        let bos = tokenizer.token_bytes(first, true);
        notice(&format!(
            "the prompt begins with two BOS tokens: one is added, and the text has its own; leave {} out of the text",
            String::from_utf8_lossy(&bos)
        ));
    }
}

/// Tells the user something that is no error.
pub fn notice(text: &str) {
    tell(&format!("note: {}", one_line(text)));
}

/// Writes a line to standard error, above a bar that is shown or a line that is edited. If that
/// fails, there is no other place to say so.
pub fn tell(line: &str) {
    if edited_line::write_above(line) {
        return;
    }
    beside_bar(|| {
        let _ = writeln!(io::stderr(), "{line}");
    });
}

/// Runs a command on a stack that is large enough, whatever the limit (`ulimit -s`) is.
pub fn with_stack(command: impl FnOnce() -> ExitCode + Send + 'static) -> ExitCode {
    /// A quarter of it has been enough, with a vocabulary of 262144 tokens too.
    const STACK_BYTES: usize = 1 << 20;
    let limit = getrlimit(Resource::RLIMIT_STACK);
    if limit.is_ok_and(|(bytes, _)| bytes >= STACK_BYTES as u64) {
        return command();
    }
    let thread = std::thread::Builder::new()
        .stack_size(STACK_BYTES)
        .spawn(command);
    match thread.map(std::thread::JoinHandle::join) {
        Ok(Ok(status)) => status,
        Ok(Err(panic)) => std::panic::resume_unwind(panic),
        Err(error) => {
            tell(&format!(
                "error: cannot start a thread with a stack: {error}; raise the limits (ulimit -s, -u, -v)"
            ));
            ExitCode::FAILURE
        }
    }
}

/// Runs a command to its end. Errors become one line on standard error and status 1,
/// or 2 if an option has a value that nothing works with. A reader of our output that
/// has left early is no error.
pub fn run(command: impl Future<Output = anyhow::Result<()>>) -> ExitCode {
    let started = check_limits().and_then(|()| executor().context("cannot start"));
    let outcome = started.and_then(|runtime| {
        runtime.block_on(async {
            // Once it is asked for, a file that reaches its limit (ulimit -f) no longer
            // ends the process: the write fails, and what was half written goes.
            let _limit_reached = signal(SignalKind::from_raw(libc::SIGXFSZ));
            command.await
        })
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            tell(&format!("error: {}", one_line(&message(&error))));
            if let Some(interrupted) = error.downcast_ref::<Interrupted>() {
                return interrupted.signal.exit_status().into();
            }
            match remedies::is_usage_error(&error) {
                true => EXIT_USAGE.into(),
                false => ExitCode::FAILURE,
            }
        }
    }
}

/// Refuses limits under which memory would run out before a plan is made, which could then
/// say so: it would be in the middle of anything.
fn check_limits() -> anyhow::Result<()> {
    /// Half of it has been enough for a plan, with a vocabulary of 262144 tokens too.
    const LEAST_BYTES: u64 = 64 << 20;
    for (limit, name) in [(Resource::RLIMIT_AS, "-v"), (Resource::RLIMIT_DATA, "-d")] {
        let found = getrlimit(limit).map_or(u64::MAX, |(bytes, _)| bytes);
        if found < LEAST_BYTES {
            bail!(
                "this process is limited to {} of memory (ulimit {name}), expected {} or more; raise the limit (ulimit {name} unlimited)",
                in_binary_units(found),
                in_binary_units(LEAST_BYTES)
            );
        }
    }
    Ok(())
}

/// What commands wait on. tokio panics where the files for its signals cannot be opened, so it
/// is seen to before that they can.
fn executor() -> io::Result<tokio::runtime::Runtime> {
    const PIPES: usize = 4;
    // They need no file system: there may be next to nothing in it.
    let probes: io::Result<Vec<_>> = (0..PIPES).map(|_| io::pipe()).collect();
    drop(probes?);
    tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
}

/// A run's error as its statistics say it; none if a reader of our output has just left.
pub fn failure(outcome: &anyhow::Result<()>) -> Option<String> {
    let error = outcome.as_ref().err()?;
    (!is_broken_pipe(error)).then(|| one_line(&message(error)))
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<OutputError>()
        .is_some_and(|error| error.source.kind() == io::ErrorKind::BrokenPipe)
}
