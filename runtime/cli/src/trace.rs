//! `emel trace`: which experts each token of a text goes to, as a file.

use std::future::{Future, poll_fn};
use std::io;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use anyhow::{Context, bail};
use clap::Args;
use emel_model::routing_log::RoutingLog;
use tokio::sync::oneshot;

use super::interrupt::Interrupts;
use super::named_files::NamedFiles;
use super::output::OutputKind;
use super::output::OutputWriter;
use super::{Interrupted, Kept, ModelOptions};
use emel::internals::blueprint::Blueprint;
use emel::internals::experts::MixtureShape;
use emel::internals::experts::trace::{
    EXPERTS_MAX, LAYERS_MAX, TABLE_BYTES_MAX, TraceHeader, TraceWriter,
};
use emel::internals::request::PromptLimits;
use emel::{Prompt, SamplerOptions, TextLimit};

/// Options of `emel trace`.
#[derive(Debug, Args)]
pub struct TraceOptions {
    #[command(flatten)]
    model: ModelOptions,

    /// A file that holds the text; - reads standard input
    #[arg(short, long, value_name = "TEXTFILE")]
    file: PathBuf,

    /// The trace, for `emel replay`; - is standard output
    #[arg(short, long, value_name = "TRACE")]
    output: PathBuf,

    /// Tokens after which a new context begins; 0 for as many as the model was trained for
    /// [default: as many as the model and the budget allow]
    #[arg(short, long, value_name = "N", allow_negative_numbers = true)]
    ctx_size: Option<usize>,

    /// How many experts the next layer's router is asked for, one layer early
    #[arg(
        long,
        value_name = "M",
        allow_negative_numbers = true,
        default_value_t = 16
    )]
    look_ahead: usize,
}

impl TraceOptions {
    /// What is wrong with the numbers among them.
    pub fn faults(&self) -> Vec<String> {
        self.model.computing.faults(self.ctx_size)
    }
}

/// Runs the command.
///
/// # Errors
/// When the model has no experts or cannot be run, or a file cannot be read or written.
pub async fn run(options: &TraceOptions) -> anyhow::Result<()> {
    let mut settings = options.model.settings();
    settings.context = options.ctx_size;
    settings.sampler = Some(SamplerOptions::default());
    settings.logged_guesses = Some(options.look_ahead);
    let blueprint = Blueprint::new(&options.model.model, settings)?;
    // Of any number of contexts.
    let limits = PromptLimits {
        context: usize::MAX,
        held: None,
        vocabulary: blueprint.program.vocabulary(),
        text: TextLimit::of_budget(blueprint.plan.budget_bytes),
    };
    let text = super::read_text(&options.file, Some(&limits.text))?;
    let ids = Prompt::Text(text).ids(&blueprint.tokenizer, &limits)?;
    let header = checked(header(&blueprint, ids.len())?)
        .with_context(|| options.model.model.display().to_string())?;
    let mut named = NamedFiles::of(&blueprint);
    named.input("-f", Some(&options.file));
    let output = named.output("-o", &options.output, OutputKind::Trace)?;
    let failed = output.failure();
    let is_result = output.is_standard_output();
    let context = blueprint.context;
    let engine = super::start(blueprint).await?;
    // From here on there is a file to be cleared away.
    let mut interrupts = Interrupts::listen().context("cannot listen for signals (Ctrl-C)")?;
    let writer = output.begin().and_then(|out| TraceWriter::new(out, header));
    let (failure, mut failing) = oneshot::channel();
    let recorder = Arc::new(Mutex::new(Recorder {
        writer: writer.map_err(&failed)?,
        failure: Some(failure),
    }));
    let spinner = super::spinner("tracing");
    for ids in ids.chunks(context) {
        let taken = Arc::clone(&recorder);
        let tracing = engine.trace(ids.to_vec(), move |position, tokens, log| {
            let mut recorder = taken.lock().unwrap_or_else(PoisonError::into_inner);
            recorder.take(position, tokens, log);
        });
        let mut work = pin!(until_failure(tracing, &mut failing));
        let outcome = interrupts.or(|context| work.as_mut().poll(context)).await;
        let outcome = outcome.map_err(|signal| Interrupted {
            signal,
            kept: Kept::NoSession,
        })?;
        outcome.map_err(&failed)??;
    }
    spinner.finish_and_clear();

    // The engine is done with its shares of it.
    let recorder = Arc::into_inner(recorder).context("the trace is still being written")?;
    let Recorder { writer, .. } = recorder
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    let written = writer.finish().and_then(OutputWriter::finish);
    written.map_err(&failed)?;
    let summary = summary(&header);
    if is_result {
        super::tell(&summary);
    } else {
        super::print(&(summary + "\n"))?;
    }
    Ok(())
}

fn summary(header: &TraceHeader) -> String {
    let MixtureShape {
        layers,
        experts,
        used,
    } = header.shape;
    format!(
        "{} positions, {layers} layers, {used} of {experts} experts, {} guessed",
        header.positions, header.guesses
    )
}

fn header(blueprint: &Blueprint, positions: usize) -> anyhow::Result<TraceHeader> {
    let program = &blueprint.program;
    let (experts, used) = program.routing_max();
    Ok(TraceHeader {
        shape: MixtureShape {
            layers: program.routers.len(),
            experts,
            used,
        },
        guesses: program.logged_guesses.unwrap_or(0),
        identity: blueprint.identity()?,
        positions: positions as u64,
    })
}

/// The header, if a trace can have it.
fn checked(header: TraceHeader) -> anyhow::Result<TraceHeader> {
    let MixtureShape {
        layers, experts, ..
    } = header.shape;
    if header.check().is_err() {
        bail!(
            "{layers} layers with {experts} experts, expected up to {LAYERS_MAX} with {EXPERTS_MAX}, and up to {TABLE_BYTES_MAX} pairs of neighbours: no trace can hold them"
        );
    }
    Ok(header)
}

/// What the work comes to, or the failure that makes it useless, at once.
async fn until_failure<T>(
    work: impl Future<Output = T>,
    failing: &mut oneshot::Receiver<io::Error>,
) -> io::Result<T> {
    let mut work = pin!(work);
    poll_fn(|context| {
        if let Poll::Ready(Ok(error)) = Pin::new(&mut *failing).poll(context) {
            return Poll::Ready(Err(error));
        }
        work.as_mut().poll(context).map(Ok)
    })
    .await
}

/// What takes the routing while it goes by.
struct Recorder {
    writer: TraceWriter<OutputWriter>,
    /// Told of the first failure; nothing is written after it.
    failure: Option<oneshot::Sender<io::Error>>,
}

impl Recorder {
    /// Takes the routing of a pass over `tokens` tokens, the first of them at `position`.
    fn take(&mut self, position: usize, tokens: usize, log: &RoutingLog) {
        for token in 0..tokens {
            if self.failure.is_some()
                && let Err(error) = self.write(position + token, log, token)
                && let Some(failure) = self.failure.take()
            {
                // Where nobody listens any more, the command is over.
                let _ = failure.send(error);
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
            choices.map(|choice| (choice.expert as u16, choice.weight)),
            guesses.map(|choice| choice.expert as u16),
        )
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn a_failed_write_ends_the_work_at_once() {
        let mut context = Context::from_waker(Waker::noop());
        let (failure, mut failing) = oneshot::channel();
        {
            let work = pin!(until_failure(ready(7), &mut failing));
            let found = work.poll(&mut context);
            assert!(matches!(found, Poll::Ready(Ok(7))), "{found:?}");
        }
        let mut work = pin!(until_failure(pending::<()>(), &mut failing));
        assert!(work.as_mut().poll(&mut context).is_pending());
        failure.send(io::Error::other("the disk is full")).ok();
        let found = work.poll(&mut context);
        assert!(matches!(found, Poll::Ready(Err(_))), "{found:?}");
    }

    #[test]
    fn a_model_that_no_trace_can_hold_is_not_called_damaged() {
        let header = TraceHeader {
            shape: MixtureShape {
                layers: 8,
                experts: 4096,
                used: 2,
            },
            guesses: 0,
            identity: 0,
            positions: 1,
        };
        let message = checked(header).map_err(|error| error.to_string());
        let message = message.expect_err("refused");
        assert!(message.contains("8 layers with 4096 experts"), "{message}");
        assert!(!message.contains("damaged"), "{message}");
    }
}
