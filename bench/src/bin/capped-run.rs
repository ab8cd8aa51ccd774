//! `capped-run MODEL --ids …`: answers a prompt once, and prints a line of JSON when it is
//! loaded, when it has the first token, and at the end. `bench/capped.sh` runs it.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use clap::Parser;
use emel::Engine;
use emel::internals::blueprint::Blueprint;
use emel_bench::capped::contender::{Answer, Event, Mark};
use emel_bench::options::PromptOptions;
use emel_bench::usage::request;
use emel_cli::{self as cli, ModelOptions};
use emel_systemd::Memory;

/// Answers a prompt of given token ids once, and prints times and reads as JSON
#[derive(Debug, Parser)]
#[command(name = "capped-run", version)]
struct Options {
    #[command(flatten)]
    model: ModelOptions,

    #[command(flatten)]
    prompt: PromptOptions,

    /// Tokens to answer with, the first included
    #[arg(long, value_name = "N", default_value_t = 32)]
    tokens: usize,
}

fn main() -> ExitCode {
    cli::run(run(cli::parse_with_llama_spellings()))
}

async fn run(options: Options) -> anyhow::Result<()> {
    let mut settings = options.model.settings();
    settings.context = Some(options.prompt.ids.len() + options.tokens + 1);
    let started = Instant::now();
    let blueprint = Blueprint::new(&options.model.model, settings)?;
    blueprint.check_memory()?;
    let budget_bytes = Some(blueprint.plan.budget_bytes);
    let engine = Engine::start(blueprint, |_, _| {}).await?;
    let load_seconds = started.elapsed().as_secs_f64();
    mark(Event::Loaded, None)?;

    let request = request(&options.prompt.ids, options.tokens, options.prompt.temp);
    let mut before = Instant::now();
    let mut seconds_since_last = || {
        let now = Instant::now();
        now.duration_since(std::mem::replace(&mut before, now))
            .as_secs_f64()
    };
    let mut stream = engine.generate(request).await?;
    stream.next().await.context("no token came")??;
    let first_token_seconds = seconds_since_last();
    mark(Event::FirstToken, None)?;
    let mut token_seconds = Vec::with_capacity(options.tokens);
    while let Some(token) = stream.next().await {
        token?;
        token_seconds.push(seconds_since_last());
    }
    let usage = stream.usage().context("the stream has ended")?;
    let answer = Answer {
        load_seconds,
        first_token_seconds,
        token_seconds,
        budget_bytes,
        usage: serde_json::to_value(usage)?,
    };
    mark(Event::Done, Some(answer))
}

fn mark(event: Event, answer: Option<Answer>) -> anyhow::Result<()> {
    let memory = Memory::default();
    let mark = Mark {
        event,
        bytes_read: memory.own_bytes_read().ok(),
        major_faults: memory.own_major_faults().ok(),
        answer,
    };
    cli::print(&(serde_json::to_string(&mark)? + "\n"))?;
    Ok(())
}
