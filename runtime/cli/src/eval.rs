//! `emel eval`: scores a text under a model.
//!
//! A text that is longer than the context is scored in chunks, as llama-perplexity does
//! (`chunks`).

mod chunks;

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use clap::Args;
use emel_model::sampler::{log_probability, top_log_probabilities};
use serde::Serialize;

use self::chunks::{Chunk, Chunks};
use super::ModelOptions;
use super::named_files::NamedFiles;
use super::output::OutputKind;
use super::progress::text_bar;
use emel::internals::blueprint::Blueprint;
use emel::{Engine, Prompt, SamplerOptions, TextLimit};

/// A model, a text, and what is printed.
#[derive(Debug, Args)]
pub struct EvalOptions {
    #[command(flatten)]
    model: ModelOptions,

    #[command(flatten)]
    source: EvalSource,

    /// Tokens in the context: a longer text is scored in chunks of N tokens, each on its
    /// own; only the second half of a chunk counts, as llama-perplexity does [default: as long as
    /// the text]
    #[arg(short, long, value_name = "N", allow_negative_numbers = true)]
    ctx_size: Option<usize>,

    /// Chunks begin N tokens apart and overlap; they are N/2 tokens longer than -c, and the last
    /// N of each count, as with llama-perplexity's --ppl-stride
    #[arg(long, value_name = "N", requires = "ctx_size", value_parser = clap::value_parser!(u32).range(1..))]
    stride: Option<u32>,

    /// Print the K most probable next tokens at each position, chunk by chunk
    #[arg(
        long,
        value_name = "K",
        allow_negative_numbers = true,
        default_value_t = 0
    )]
    top: usize,

    /// Write the logits, float32 [positions, vocabulary], chunk by chunk, to a NumPy file (not
    /// standard output)
    #[arg(long, value_name = "OUT.npy")]
    logits: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The text or its token ids.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct EvalSource {
    /// The text; special tokens in it, such as <|im_end|>, are recognised
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,

    /// A file that holds the text; - reads standard input
    #[arg(short, long, value_name = "TEXTFILE")]
    file: Option<PathBuf>,

    /// Token ids, separated by commas
    #[arg(
        long,
        value_name = "IDS",
        value_delimiter = ',',
        allow_hyphen_values = true
    )]
    tokens: Option<Vec<u32>>,
}

impl EvalOptions {
    /// No scores yet, and the file of `positions` logits, if there is to be one.
    fn scores(&self, positions: usize, blueprint: &Blueprint) -> anyhow::Result<Scores> {
        let mut named = NamedFiles::of(blueprint);
        named.input("-f", self.source.file.as_deref());
        let logits = self.logits.as_deref().map(|path| {
            let file = named.create("--logits", path, OutputKind::Logits)?;
            begin_npy(file, path, positions, blueprint)
        });
        Ok(Scores {
            nll: 0.0,
            nll_squared: 0.0,
            scored_tokens: 0,
            top_count: self.top,
            top: Vec::new(),
            logits: logits.transpose()?,
            failure: None,
        })
    }

    /// What is wrong with the numbers among them.
    pub fn faults(&self) -> Vec<String> {
        self.model.computing.faults(self.ctx_size)
    }
}

#[derive(Serialize)]
struct EvalReport {
    ids: Vec<u32>,
    /// How many chunks the text was scored in; 1 if it fits the context.
    chunks: usize,
    scored_tokens: usize,
    /// None where no token follows another.
    mean_nll: Option<f64>,
    perplexity: Option<f64>,
    /// The standard error of the perplexity; none of a single score.
    perplexity_error: Option<f64>,
    top: Vec<Vec<(u32, f32)>>,
}

/// What is kept of the logits as they come.
struct Scores {
    nll: f64,
    nll_squared: f64,
    scored_tokens: usize,
    top_count: usize,
    top: Vec<Vec<(u32, f32)>>,
    logits: Option<BufWriter<File>>,
    failure: Option<io::Error>,
}

impl Scores {
    /// Takes the logits of a position of a chunk.
    fn take(&mut self, chunk: &Chunk, position: usize, logits: &[f32]) {
        if let Some(next) = chunk.scored(position) {
            let nll = -log_probability(logits, next);
            self.nll += nll;
            self.nll_squared += nll * nll;
            self.scored_tokens += 1;
        }
        if self.top_count > 0 {
            self.top.push(top_log_probabilities(logits, self.top_count));
        }
        if let Some(file) = &mut self.logits {
            let written = logits
                .iter()
                .try_for_each(|logit| file.write_all(&logit.to_le_bytes()));
            if let Err(error) = written {
                self.failure = Some(error);
                self.logits = None;
            }
        }
    }

    fn report(&mut self, ids: Vec<u32>, chunks: usize) -> EvalReport {
        let count = self.scored_tokens as f64;
        let mean = (self.scored_tokens > 0).then(|| self.nll / count);
        let error = mean.filter(|_| self.scored_tokens > 1).map(|mean| {
            let variance = (self.nll_squared / count - mean * mean).max(0.0);
            (variance / (count - 1.0)).sqrt() * mean.exp()
        });
        EvalReport {
            ids,
            chunks,
            scored_tokens: self.scored_tokens,
            mean_nll: mean,
            perplexity: mean.map(f64::exp),
            perplexity_error: error,
            top: std::mem::take(&mut self.top),
        }
    }
}

impl EvalSource {
    fn prompt(&self, limit: &TextLimit) -> anyhow::Result<Prompt> {
        Ok(match (&self.prompt, &self.file, &self.tokens) {
            (Some(text), ..) => Prompt::Text(text.clone()),
            (_, Some(path), _) => Prompt::Text(crate::read_text(path, Some(limit))?),
            // clap sees to it that one of the three is given.
            (.., ids) => Prompt::Tokens(ids.clone().unwrap_or_default()),
        })
    }
}

/// Scores the text.
///
/// # Errors
/// When the model cannot be run, the text cannot be read, or the logits cannot be written.
pub async fn run(options: EvalOptions) -> anyhow::Result<()> {
    let mut settings = options.model.settings();
    settings.all_logits = true;
    settings.sampler = Some(SamplerOptions::default());
    let stride = options.stride.map(|stride| stride as usize);
    // A chunk that overlaps another is longer than the context.
    let overlap = stride.unwrap_or(0) / 2;
    settings.context = options.ctx_size.map(|context| match context {
        0 => 0,
        context => context.saturating_add(overlap),
    });
    let prompt = |limit: &TextLimit| options.source.prompt(limit);
    let (blueprint, ids) = Blueprint::for_text(&options.model.model, settings, prompt)?;
    crate::note_two_bos(&blueprint.tokenizer, &ids);
    let bos = blueprint.tokenizer.bos();
    let bos = bos.filter(|_| blueprint.tokenizer.adds_bos());
    let context = match options.ctx_size {
        Some(_) => blueprint.context.saturating_sub(overlap),
        None => ids.len(),
    };
    let chunks = Chunks::new(&ids, context, stride, bos)?;
    let mut scores = options.scores(chunks.positions(), &blueprint)?;

    let engine = crate::start(blueprint).await?;
    if let Some(left_out) = chunks.left_out() {
        crate::notice(&format!(
            "the last {left_out} of {} tokens fill no chunk and are left out",
            ids.len()
        ));
    }
    scores = score(&engine, &chunks, scores).await?;
    finish_npy(&mut scores, options.logits.as_deref())?;
    let chunks = chunks.count();
    print_eval(&scores.report(ids, chunks), options.json)
}

/// The scores with those of all chunks.
async fn score(engine: &Engine, chunks: &Chunks<'_>, scores: Scores) -> anyhow::Result<Scores> {
    let scores = Arc::new(Mutex::new(scores));
    let bar = text_bar(chunks.positions());
    for chunk in chunks.iter() {
        let (taken, bar) = (Arc::clone(&scores), bar.clone());
        engine
            .evaluate(chunk.ids.clone(), move |position, row| {
                let mut scores = taken.lock().unwrap_or_else(PoisonError::into_inner);
                scores.take(&chunk, position, row);
                bar.inc(1);
            })
            .await?;
    }
    bar.finish_and_clear();
    let scores = Arc::into_inner(scores).context("the text is still being scored")?;
    Ok(scores.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn print_eval(report: &EvalReport, json: bool) -> anyhow::Result<()> {
    if json {
        crate::print(&(serde_json::to_string(report)? + "\n"))?;
        return Ok(());
    }
    let mut output = String::new();
    for (position, row) in report.top.iter().enumerate() {
        write!(output, "{position:>6}")?;
        for (id, log_probability) in row {
            write!(output, "  {id}:{log_probability:.4}")?;
        }
        writeln!(output)?;
    }
    let tokens = report.ids.len();
    let chunks = match report.chunks {
        1 => String::new(),
        chunks => format!(" in {chunks} chunks"),
    };
    let error = report.perplexity_error;
    let error = error.map_or(String::new(), |error| format!(" ± {error:.4}"));
    match (report.mean_nll, report.perplexity) {
        (Some(mean), Some(perplexity)) => writeln!(
            output,
            "{tokens} tokens, {} scored{chunks}: mean negative log-likelihood {mean:.6}, perplexity {perplexity:.4}{error}",
            report.scored_tokens,
        )?,
        _ => writeln!(output, "1 token, which follows none and so has no score")?,
    }
    crate::print(&output)?;
    Ok(())
}

/// Starts a NumPy file of float32 [rows, columns]; the rows follow.
/// <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>
fn begin_npy(
    file: File,
    path: &Path,
    rows: usize,
    blueprint: &Blueprint,
) -> anyhow::Result<BufWriter<File>> {
    let failed = || format!("{}: cannot write logits", path.display());
    let columns = blueprint.program.vocabulary();
    let mut file = BufWriter::new(file);
    let header =
        format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {columns}), }}");
    // Magic, version and length take 10 bytes; data starts at a multiple of 64.
    let padded = (10 + header.len() + 1).next_multiple_of(64) - 10;
    file.write_all(b"\x93NUMPY\x01\x00").with_context(failed)?;
    file.write_all(&(padded as u16).to_le_bytes())
        .with_context(failed)?;
    writeln!(file, "{header:<width$}", width = padded - 1).with_context(failed)?;
    // A full disk is noticed before the work rather than after it.
    file.flush().with_context(failed)?;
    Ok(file)
}

fn finish_npy(scores: &mut Scores, path: Option<&Path>) -> anyhow::Result<()> {
    let flushed = scores.logits.as_mut().map_or(Ok(()), io::Write::flush);
    let outcome = scores.failure.take().map_or(flushed, Err);
    outcome.with_context(|| {
        let path = path.unwrap_or(Path::new(""));
        format!("{}: cannot write logits", path.display())
    })
}
