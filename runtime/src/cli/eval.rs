//! `emel eval`: scores a text under a model.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use clap::Args;
use emel_model::sampler::{log_probability, top_log_probabilities};
use serde::Serialize;

use super::ModelOptions;
use super::named_files::{NamedFiles, OutputKind};
use crate::blueprint::Blueprint;
use crate::{Prompt, SamplerOptions, TextLimit, cli};

/// A model, a text, and what is printed.
#[derive(Debug, Args)]
pub struct EvalOptions {
    #[command(flatten)]
    model: ModelOptions,

    #[command(flatten)]
    source: EvalSource,

    /// Print the K most probable next tokens of each position
    #[arg(
        long,
        value_name = "K",
        allow_negative_numbers = true,
        default_value_t = 0
    )]
    top: usize,

    /// Write the logits, float32 [positions, vocabulary], to a NumPy file, not standard output
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

#[derive(Serialize)]
struct EvalReport {
    ids: Vec<u32>,
    /// None where no token follows another.
    mean_nll: Option<f64>,
    top: Vec<Vec<(u32, f32)>>,
}

/// What is kept of the logits while they go by.
struct Scores {
    ids: Vec<u32>,
    nll: f64,
    top_count: usize,
    top: Vec<Vec<(u32, f32)>>,
    logits: Option<BufWriter<File>>,
    failure: Option<io::Error>,
}

impl Scores {
    fn take(&mut self, position: usize, logits: &[f32]) {
        if let Some(&next) = self.ids.get(position + 1) {
            self.nll -= log_probability(logits, next);
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
}

/// Scores the text.
///
/// # Errors
/// When the model cannot be run, the text cannot be read, or the logits cannot be written.
pub async fn run(options: EvalOptions) -> anyhow::Result<()> {
    let model = &options.model.model;
    let EvalSource {
        prompt,
        file,
        tokens,
    } = &options.source;
    let prompt = |limit: &TextLimit| -> anyhow::Result<Prompt> {
        Ok(match (prompt, file, tokens) {
            (Some(text), ..) => Prompt::Text(text.clone()),
            (_, Some(path), _) => Prompt::Text(cli::read_text(path, Some(limit))?),
            // clap sees to it that one of the three is given.
            (.., ids) => Prompt::Tokens(ids.clone().unwrap_or_default()),
        })
    };
    let mut settings = options.model.settings();
    settings.all_logits = true;
    settings.sampler = Some(SamplerOptions::default());
    let (blueprint, ids) = Blueprint::for_prompt(model, settings, prompt)?;
    cli::note_two_bos(&blueprint.tokenizer, &ids);
    let mut named = NamedFiles::of(&blueprint);
    named.input("-f", options.source.file.as_deref());
    let logits = options
        .logits
        .as_deref()
        .map(|path| {
            let file = named.create("--logits", path, OutputKind::Logits)?;
            begin_npy(file, path, ids.len(), &blueprint)
        })
        .transpose()?;
    let scores = Arc::new(Mutex::new(Scores {
        ids: ids.clone(),
        nll: 0.0,
        top_count: options.top,
        top: Vec::new(),
        logits,
        failure: None,
    }));

    let engine = cli::start(blueprint).await?;
    let spinner = cli::spinner("evaluating");
    let taken = Arc::clone(&scores);
    engine
        .evaluate(ids.clone(), move |position, row| {
            let mut scores = taken.lock().unwrap_or_else(PoisonError::into_inner);
            scores.take(position, row);
        })
        .await?;
    spinner.finish_and_clear();

    let mut scores = scores.lock().unwrap_or_else(PoisonError::into_inner);
    finish_npy(&mut scores, options.logits.as_deref())?;
    let report = EvalReport {
        mean_nll: (ids.len() > 1).then(|| scores.nll / (ids.len() - 1) as f64),
        top: std::mem::take(&mut scores.top),
        ids,
    };
    print_eval(&report, options.json)
}

fn print_eval(report: &EvalReport, json: bool) -> anyhow::Result<()> {
    if json {
        cli::print(&(serde_json::to_string(report)? + "\n"))?;
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
    match report.mean_nll {
        Some(mean) => writeln!(
            output,
            "{} tokens, {} scored: mean negative log-likelihood {mean:.6}, perplexity {:.4}",
            report.ids.len(),
            report.ids.len() - 1,
            mean.exp()
        )?,
        None => writeln!(output, "1 token, which follows none and so has no score")?,
    }
    cli::print(&output)?;
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
