//! The program: its commands, and its two names.

use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use super::arguments::parse_checked;
use super::doctor::{self, DoctorOptions};
use super::eval::{self, EvalOptions};
use super::info::{self, InfoOptions};
use super::manual::{self, CompletionsOptions, ManOptions};
use super::plan::{self, PlanOptions};
use super::render::{self, RenderOptions};
use super::replay::{self, ReplayOptions};
use super::run::{self, EXAMPLES, RunOptions};
use super::tokenize::{self, TokenizeOptions};
use super::trace::{self, TraceOptions};

/// The name under which the program is `emel run`.
const RUN_NAME: &str = "emel-run";

/// Runs language models that may be larger than RAM, from GGUF files, and inspects them.
#[derive(Debug, Parser)]
#[command(version, name = "emel", args_override_self = true)]
pub(super) struct Options {
    #[command(subcommand)]
    command: Command,
}

/// Runs a language model that may be larger than RAM, from its GGUF file, inside a
/// memory budget. The answer goes to standard output, everything else to standard error.
#[derive(Debug, Parser)]
#[command(version, name = RUN_NAME, after_long_help = EXAMPLES, args_override_self = true)]
pub(super) struct RunAlone {
    #[command(flatten)]
    options: RunOptions,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a model: continue a text, or hold a conversation. The answer goes to standard
    /// output, everything else to standard error
    #[command(after_long_help = EXAMPLES)]
    Run(Box<RunOptions>),
    /// Print what a model's file holds, and whether it runs
    Info(InfoOptions),
    /// Print where the memory of a run would go, without running the model
    Plan(PlanOptions),
    /// Check this machine and measure its drive; later runs use the results
    Doctor(DoctorOptions),
    /// Print the token ids of a text
    Tokenize(TokenizeOptions),
    /// Print the prompt that a conversation becomes
    Render(RenderOptions),
    /// Score a text: log-probabilities of its tokens under the model
    Eval(EvalOptions),
    /// Write which experts each token of a text goes to
    Trace(TraceOptions),
    /// Score what an expert cache would hit on a trace
    Replay(ReplayOptions),
    /// Print completions for a shell
    #[command(hide = true)]
    Completions(CompletionsOptions),
    /// Write man pages
    #[command(hide = true)]
    Man(ManOptions),
}

/// The whole program. Called as `emel-run`, by a link or a copy, it is `emel run`.
pub fn main() -> ExitCode {
    let name = std::env::args_os().next().unwrap_or_default();
    let is_run = Path::new(&name)
        .file_name()
        .is_some_and(|name| name == RUN_NAME);
    crate::with_stack(move || {
        let command = match is_run {
            true => {
                let alone = parse_checked(|alone: &RunAlone| alone.options.faults());
                Command::Run(Box::new(alone.options))
            }
            false => parse_checked(|options: &Options| options.command.faults()).command,
        };
        crate::run(command.run())
    })
}

/// The definitions of the program under both names.
fn programs() -> [clap::Command; 2] {
    [Options::command(), RunAlone::command()]
}

impl Command {
    /// What is wrong with the numbers among its options.
    fn faults(&self) -> Vec<String> {
        match self {
            Self::Run(options) => options.faults(),
            Self::Info(options) => options.faults(),
            Self::Plan(options) => options.faults(),
            Self::Eval(options) => options.faults(),
            Self::Trace(options) => options.faults(),
            _ => Vec::new(),
        }
    }

    async fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Run(options) => run::run(*options).await,
            Self::Info(options) => info::run(&options),
            Self::Plan(options) => plan::run(&options),
            Self::Doctor(options) => doctor::run(&options).await,
            Self::Tokenize(options) => tokenize::run(&options),
            Self::Render(options) => render::run(&options),
            Self::Eval(options) => eval::run(options).await,
            Self::Trace(options) => trace::run(&options).await,
            Self::Replay(options) => replay::run(&options),
            Self::Completions(options) => manual::completions(&options, programs()),
            Self::Man(options) => manual::man(&options, programs()),
        }
    }
}
