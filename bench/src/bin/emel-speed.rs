//! `emel-speed MODEL --ids …`: how fast prompts of some lengths are read and tokens follow, as
//! JSON. `bench/versus_llama` runs it.

use std::process::ExitCode;

use anyhow::{bail, ensure};
use clap::Parser;
use emel::Engine;
use emel::internals::blueprint::Blueprint;
use emel_bench::usage::usage;
use emel_cli::{self as cli, ModelOptions};
use serde_json::json;

/// Tokens of the prompt that decoding follows, and of the one that warms up.
const SHORT_PROMPT: usize = 32;

/// Times prefill and decode on given token ids and prints JSON
#[derive(Debug, Parser)]
#[command(name = "emel-speed", version)]
struct Options {
    #[command(flatten)]
    model: ModelOptions,

    /// Token ids, at least 32 and as many as the longest prompt; a prompt is as many from the
    /// front as it is long
    #[arg(long, value_name = "ID,…", value_delimiter = ',', required = true)]
    ids: Vec<u32>,

    /// Lengths of the prompts
    #[arg(
        long,
        value_name = "N,…",
        value_delimiter = ',',
        default_value = "128,512"
    )]
    prompt_tokens: Vec<usize>,

    /// Tokens to decode after a prompt of 32
    #[arg(long, value_name = "N", default_value_t = 64)]
    decode_tokens: usize,
}

fn main() -> ExitCode {
    cli::run(run(cli::parse_with_llama_spellings()))
}

async fn run(options: Options) -> anyhow::Result<()> {
    let longest = options.prompt_tokens.iter().copied().max().unwrap_or(0);
    let needed = longest.max(SHORT_PROMPT);
    if options.ids.len() < needed {
        bail!("{} ids, expected at least {needed}", options.ids.len());
    }
    let mut settings = options.model.settings();
    settings.context = Some(needed + options.decode_tokens + 1);
    let blueprint = Blueprint::new(&options.model.model, settings)?;
    ensure!(
        !blueprint.plan.streams(),
        "the model does not fit into the budget, so its speed is the drive's; raise --ram-budget"
    );
    let engine = Engine::start(blueprint, |_, _| {}).await?;
    let ask = |prompt: usize, tokens| usage(&engine, &options.ids[..prompt], tokens, 0.0);

    ask(SHORT_PROMPT, 4).await?;
    let mut prefill = Vec::new();
    for &tokens in &options.prompt_tokens {
        let usage = ask(tokens, 1).await?;
        let seconds = tokens as f64 / usage.prefill_tokens_per_second;
        prefill.push(json!({ "tokens": tokens, "seconds": seconds }));
    }
    // The first token comes with the prompt.
    let usage = ask(SHORT_PROMPT, options.decode_tokens + 1).await?;
    let seconds = options.decode_tokens as f64 / usage.decode_tokens_per_second;
    let decode = json!({ "tokens": options.decode_tokens, "seconds": seconds });
    let result = json!({
        "prefill": prefill,
        "decode": decode,
        "threads": usage.threads,
        "kernels": usage.kernels,
    });
    cli::print(&format!("{result}\n"))?;
    Ok(())
}
