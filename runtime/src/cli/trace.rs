//! `emel trace`: which experts each token of a text goes to, as a file.

use std::io::BufWriter;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use clap::Args;
use emel_model::routing_log::RoutingLog;
use half::f16;

use super::ModelOptions;
use crate::Prompt;
use crate::SamplerOptions;
use crate::blueprint::Blueprint;
use crate::experts::MixtureShape;
use crate::experts::trace::Trace;

/// Options of `emel trace`.
#[derive(Debug, Args)]
pub struct TraceOptions {
    #[command(flatten)]
    model: ModelOptions,

    /// A file that holds the text; - reads standard input
    #[arg(short, long, value_name = "TEXTFILE")]
    file: PathBuf,

    /// The trace, for `emel replay`
    #[arg(short, long, value_name = "TRACE")]
    output: PathBuf,

    /// Tokens after which a new context begins [default: 4096, or what the model and the
    /// budget allow]
    #[arg(short, long, value_name = "N", allow_negative_numbers = true)]
    ctx_size: Option<usize>,

    /// Experts of the next layer that its router is asked for one layer early
    #[arg(
        long,
        value_name = "M",
        allow_negative_numbers = true,
        default_value_t = 16
    )]
    look_ahead: usize,
}

/// Runs the command.
///
/// # Errors
/// When the model has no experts or cannot be run, or a file cannot be read or written.
pub async fn run(options: &TraceOptions) -> anyhow::Result<()> {
    let text = super::read_text(&options.file)?;
    let mut settings = options.model.settings();
    settings.context = options.ctx_size;
    settings.sampler = Some(SamplerOptions::default());
    settings.logged_guesses = Some(options.look_ahead);
    let blueprint = Blueprint::new(&options.model.model, settings)?;
    let (tokenizer, vocabulary) = (&blueprint.tokenizer, blueprint.program.vocabulary());
    let ids = Prompt::Text(text).ids(tokenizer, usize::MAX, vocabulary)?;
    let output = super::create_output(&options.output, &blueprint.catalog, "the trace")?;
    let trace = Arc::new(Mutex::new(empty_trace(&blueprint)?));

    let context = blueprint.context;
    let engine = super::start(blueprint).await?;
    let spinner = super::spinner("tracing");
    for ids in ids.chunks(context) {
        let taken = Arc::clone(&trace);
        engine
            .trace(ids.to_vec(), move |position, tokens, log| {
                let mut trace = taken.lock().unwrap_or_else(PoisonError::into_inner);
                (0..tokens).for_each(|token| add(&mut trace, position + token, log, token));
            })
            .await?;
    }
    spinner.finish_and_clear();

    let trace = trace.lock().unwrap_or_else(PoisonError::into_inner);
    trace.write(BufWriter::new(output)).with_context(|| {
        let path = options.output.display();
        format!("{path}: cannot write the trace")
    })?;
    let header = trace.header();
    let MixtureShape {
        layers,
        experts,
        used,
    } = header.shape;
    super::print(&format!(
        "{} positions, {layers} layers, {used} of {experts} experts, {} guessed\n",
        header.positions, header.guesses
    ))?;
    Ok(())
}

fn empty_trace(blueprint: &Blueprint) -> anyhow::Result<Trace> {
    let program = &blueprint.program;
    let (experts, used) = program.routing_max();
    let shape = MixtureShape {
        layers: program.routers.len(),
        experts,
        used,
    };
    let guesses = program.logged_guesses.unwrap_or(0);
    Ok(Trace::new(shape, guesses, blueprint.identity()?)?)
}

/// Appends a token of a pass.
fn add(trace: &mut Trace, position: usize, log: &RoutingLog, token: usize) {
    let layers = 0..log.layers();
    let choices = layers.clone().flat_map(|layer| log.choices(layer, token));
    let guesses = layers.flat_map(|layer| log.guesses(layer, token));
    trace.push(
        u32::try_from(position).unwrap_or(u32::MAX),
        choices.map(|choice| (choice.expert as u16, f16::from_f32(choice.weight))),
        guesses.map(|choice| choice.expert as u16),
    );
}
