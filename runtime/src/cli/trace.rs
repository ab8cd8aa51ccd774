//! `emel trace`: which experts each token of a text goes to, as a file.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use clap::Args;
use emel_model::routing_log::RoutingLog;
use half::f16;

use super::ModelOptions;
use crate::blueprint::Blueprint;
use crate::experts::MixtureShape;
use crate::experts::trace::{TraceHeader, TraceWriter};
use crate::{Prompt, SamplerOptions};

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
    let header = header(&blueprint, ids.len())?;
    let failed = || format!("{}: cannot write the trace", options.output.display());
    let output = super::create_output(&options.output, &blueprint.catalog, "the trace")?;
    let writer = TraceWriter::new(BufWriter::new(output), header).with_context(failed)?;
    let recorder = Arc::new(Mutex::new(Recorder {
        writer,
        failure: None,
    }));

    let context = blueprint.context;
    let engine = super::start(blueprint).await?;
    let spinner = super::spinner("tracing");
    for ids in ids.chunks(context) {
        let taken = Arc::clone(&recorder);
        engine
            .trace(ids.to_vec(), move |position, tokens, log| {
                let mut recorder = taken.lock().unwrap_or_else(PoisonError::into_inner);
                recorder.take(position, tokens, log);
            })
            .await?;
    }
    spinner.finish_and_clear();

    // The engine is done with its shares of it.
    let recorder = Arc::into_inner(recorder).context("the trace is still being written")?;
    let Recorder { writer, failure } = recorder
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    failure
        .map_or_else(|| writer.finish(), Err)
        .with_context(failed)?;
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

fn header(blueprint: &Blueprint, positions: usize) -> anyhow::Result<TraceHeader> {
    let program = &blueprint.program;
    let (experts, used) = program.routing_max();
    let header = TraceHeader {
        shape: MixtureShape {
            layers: program.routers.len(),
            experts,
            used,
        },
        guesses: program.logged_guesses.unwrap_or(0),
        identity: blueprint.identity()?,
        positions: positions as u64,
    };
    Ok(header.check()?)
}

/// What takes the routing while it goes by.
struct Recorder {
    writer: TraceWriter<BufWriter<File>>,
    failure: Option<io::Error>,
}

impl Recorder {
    /// Takes the routing of a pass over `tokens` tokens, the first of them at `position`.
    fn take(&mut self, position: usize, tokens: usize, log: &RoutingLog) {
        for token in 0..tokens {
            if self.failure.is_none() {
                self.failure = self.write(position + token, log, token).err();
            }
        }
    }

    fn write(&mut self, position: usize, log: &RoutingLog, token: usize) -> io::Result<()> {
        let layers = 0..log.layers();
        let choices = layers.clone().flat_map(|layer| log.choices(layer, token));
        let guesses = layers.flat_map(|layer| log.guesses(layer, token));
        // The header has been checked: experts fit.
        self.writer.push(
            position as u32,
            choices.map(|choice| (choice.expert as u16, f16::from_f32(choice.weight))),
            guesses.map(|choice| choice.expert as u16),
        )
    }
}
