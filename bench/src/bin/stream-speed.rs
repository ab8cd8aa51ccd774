//! `stream-speed MODEL --ids …`: how fast a model that does not fit into the budget is read,
//! with its computation and without, as JSON. `bench/stream_limit` runs it.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::ensure;
use clap::Parser;
use emel::internals::blueprint::Blueprint;
use emel::{Engine, Usage};
use emel_bench::options::PromptOptions;
use emel_bench::usage::usage;
use emel_cli::drive::streaming_reader;
use emel_cli::{self as cli, ModelOptions};
use emel_loader::files::OpenFiles;
use emel_loader::weights::{Pass, Weights};
use serde_json::{Value, json};

/// Tokens that warm up what is measured.
const WARM_UP_TOKENS: usize = 4;

/// Times decode, prefill and reading alone, of a model that streams, and prints JSON
#[derive(Debug, Parser)]
#[command(name = "stream-speed", version)]
struct Options {
    #[command(flatten)]
    model: ModelOptions,

    #[command(flatten)]
    prompt: PromptOptions,

    /// Tokens to decode after the prompt; 0 times the prompt alone
    #[arg(long, value_name = "N", default_value_t = 32)]
    decode_tokens: usize,

    /// Passes in which the same plan is read through the same ring and nothing is computed; a
    /// mixture of experts whose experts stream has none
    #[arg(long, value_name = "N", default_value_t = 32)]
    read_passes: usize,
}

fn main() -> ExitCode {
    cli::run(run(cli::parse_with_llama_spellings()))
}

async fn run(options: Options) -> anyhow::Result<()> {
    let blueprint = || {
        let mut settings = options.model.settings();
        settings.context =
            Some(options.prompt.ids.len() + WARM_UP_TOKENS + options.decode_tokens + 1);
        Blueprint::new(&options.model.model, settings)
    };
    let planned = blueprint()?;
    let plan = &planned.plan;
    ensure!(
        plan.streams(),
        "the model fits into the budget, so nothing streams; lower --ram-budget"
    );
    let mut result = json!({
        "budget_bytes": plan.budget_bytes,
        "streamed_bytes": plan.streamed_bytes(),
        "slots": plan.slots,
        "slot_bytes": plan.slot_bytes,
    });
    // Experts are read as the routing asks for them: without computing there is no routing.
    if options.read_passes > 0 && plan.expert_slots.is_none() {
        result["reader"] = read(&planned, options.read_passes).await?;
    }
    drop(planned);
    let engine = Engine::start(blueprint()?, |_, _| {}).await?;
    let (prompt, decode) = compute(&engine, &options).await?;
    result["prefill"] = json!(prompt);
    if let Some(decode) = decode {
        result["decode"] = json!(decode);
    }
    cli::print(&format!("{result}\n"))?;
    Ok(())
}

/// Reads pass after pass as decoding does, through steps that do nothing.
async fn read(blueprint: &Blueprint, passes: usize) -> anyhow::Result<Value> {
    let backend = streaming_reader(blueprint.settings.io);
    let files = OpenFiles::open_model(blueprint.catalog.files(), backend.needs_buffers())?;
    let plan = &blueprint.plan;
    let mut weights = Weights::open(&Arc::new(files), plan, backend, &mut |_| {}).await?;
    let mut started = Instant::now();
    let mut bytes_before = 0;
    for pass in 0..=passes {
        if pass == 1 {
            // The first pass has found no reads under way.
            started = Instant::now();
            bytes_before = weights.statistics().bytes_read;
        }
        weights.begin_pass(Pass::Full, Pass::Full);
        for unit in 0..plan.units.len() {
            weights.with_unit(unit, |_| {}).await?;
        }
    }
    Ok(json!({
        "passes": passes,
        "seconds": started.elapsed().as_secs_f64(),
        "bytes_read": weights.statistics().bytes_read - bytes_before,
    }))
}

/// The usage of reading the prompt, with a first token, and that of tokens after it.
async fn compute(engine: &Engine, options: &Options) -> anyhow::Result<(Usage, Option<Usage>)> {
    let PromptOptions { ids, temp } = &options.prompt;
    let answer = |ids, tokens| usage(engine, ids, tokens, *temp);
    // Another beginning, so that the prompt is not resumed.
    let other = [(ids[0] + 1) % engine.description().vocabulary as u32];
    answer(&other, WARM_UP_TOKENS).await?;
    let prompt = answer(ids, 1).await?;
    if options.decode_tokens == 0 {
        return Ok((prompt, None));
    }
    let decode = answer(ids, options.decode_tokens + 1).await?;
    Ok((prompt, Some(decode)))
}
