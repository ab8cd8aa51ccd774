//! What the commands `emel-run` and `emel` share: options, progress and exit codes.

use std::future::Future;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, ValueEnum};
use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::blueprint::{Blueprint, Io, Settings};
use crate::budget::RamBudget;
use crate::{Backend, Engine, KvType};

/// Work that takes longer shows its progress.
const QUIET_TIME: Duration = Duration::from_secs(1);

/// Options of every command that runs a model.
#[derive(Debug, Clone, Args)]
pub struct ModelOptions {
    /// The model: a GGUF file, or the first of its shards
    pub model: PathBuf,

    /// Memory for everything: bytes, 512M, 8G (powers of 1024), or 60% of the model file
    /// [default: 85% of what the machine and the cgroup leave]
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "auto",
        hide_default_value = true
    )]
    pub ram_budget: RamBudget,

    /// Threads that compute [default: one for each processor]
    #[arg(short, long)]
    pub threads: Option<usize>,

    /// How weights are read
    #[arg(long, value_enum, default_value_t = IoName::Auto)]
    pub io: IoName,

    /// How keys and values are kept
    #[arg(long, value_enum, default_value_t = KvName::F16)]
    pub kv: KvName,
}

/// The values of `--io`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum IoName {
    /// The mapping if the model fits, else io_uring, else pread
    Auto,
    /// io_uring with O_DIRECT
    Uring,
    /// A pool of threads with O_DIRECT
    Pread,
    /// The mapping of the file
    Mmap,
}

/// The values of `--kv`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KvName {
    /// Half precision
    F16,
    /// Single precision
    F32,
}

/// Where a command's text comes from.
#[derive(Debug, Clone, Args)]
#[group(required = true, multiple = false)]
pub struct TextSource {
    /// The text
    #[arg(short, long, value_name = "TEXT")]
    pub prompt: Option<String>,

    /// A file that holds the text; - reads standard input
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
}

impl ModelOptions {
    /// The engine's settings.
    pub fn settings(&self) -> Settings {
        let default = Settings::default();
        Settings {
            ram_budget: self.ram_budget,
            threads: self.threads.unwrap_or(default.threads),
            io: match self.io {
                IoName::Auto => Io::Auto,
                IoName::Uring => Io::Only(Backend::Uring),
                IoName::Pread => Io::Only(Backend::Pread),
                IoName::Mmap => Io::Only(Backend::Mmap),
            },
            kv_type: match self.kv {
                KvName::F16 => KvType::F16,
                KvName::F32 => KvType::F32,
            },
            ..default
        }
    }
}

impl TextSource {
    /// The text.
    ///
    /// # Errors
    /// When the file cannot be read or is not UTF-8.
    pub fn read(&self) -> anyhow::Result<String> {
        match (&self.prompt, &self.file) {
            (Some(text), _) => Ok(text.clone()),
            (None, Some(path)) => read_text(path),
            // clap sees to it that one of the two is given.
            (None, None) => Ok(String::new()),
        }
    }
}

/// The text in a file, or on standard input for `-`.
///
/// # Errors
/// When it cannot be read or is not UTF-8.
pub fn read_text(path: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    if path == Path::new("-") {
        io::stdin()
            .read_to_string(&mut text)
            .context("standard input: cannot read UTF-8 text")?;
    } else {
        text = std::fs::read_to_string(path)
            .with_context(|| format!("{}: cannot read UTF-8 text", path.display()))?;
    }
    Ok(text)
}

/// Starts an engine, with progress and notices on standard error.
///
/// # Errors
/// As [`Engine::start`].
pub async fn start(blueprint: Blueprint) -> anyhow::Result<Engine> {
    if blueprint.settings.ram_budget == RamBudget::Automatic {
        notice(&format!(
            "RAM budget {}, 85% of what is available; --ram-budget sets it",
            HumanBytes(blueprint.plan.budget_bytes)
        ));
    }
    let bar = bar("loading");
    let shown = bar.clone();
    let engine = Engine::start(blueprint, move |bytes, total| {
        shown.set_length(total);
        shown.set_position(bytes);
    })
    .await?;
    bar.finish_and_clear();
    for text in &engine.description().notices {
        notice(text);
    }
    Ok(engine)
}

/// A progress bar in bytes on standard error, which appears after a second.
fn bar(what: &'static str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
    if let Ok(style) = ProgressStyle::with_template("{msg} {bar:30} {bytes}/{total_bytes}") {
        bar.set_style(style);
    }
    bar.set_message(what);
    show_later(&bar);
    bar
}

/// A spinner on standard error, which appears after a second.
pub fn spinner(what: &'static str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
    bar.set_message(what);
    show_later(&bar);
    bar
}

fn show_later(bar: &ProgressBar) {
    if !io::stderr().is_terminal() {
        return;
    }
    let bar = bar.downgrade();
    let started = Instant::now();
    std::thread::spawn(move || {
        std::thread::sleep(QUIET_TIME.saturating_sub(started.elapsed()));
        if let Some(bar) = bar.upgrade().filter(|bar| !bar.is_finished()) {
            bar.set_draw_target(ProgressDrawTarget::stderr());
            bar.enable_steady_tick(Duration::from_millis(100));
        }
    });
}

/// Tells the user something that is no error.
pub fn notice(text: &str) {
    eprintln!("note: {text}");
}

/// Runs a command to its end. Errors become one line on standard error and status 1.
/// A reader of our output that has left early is no error.
pub fn run(command: impl Future<Output = anyhow::Result<()>>) -> ExitCode {
    let outcome = tokio::runtime::Builder::new_current_thread()
        .build()
        .context("cannot start")
        .and_then(|runtime| runtime.block_on(command));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
