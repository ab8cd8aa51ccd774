//! `emel`: looks into models and measures them.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use clap::{ArgGroup, Args, Parser, Subcommand};
use emel::blueprint::Blueprint;
use emel::budget::in_binary_units;
use emel::cli::doctor::{self, DoctorOptions};
use emel::cli::drive;
use emel::cli::info::{self, InfoOptions};
use emel::cli::named_files::{NamedFiles, OutputKind};
use emel::cli::render::{self, RenderOptions};
use emel::cli::replay::{self, ReplayOptions};
use emel::cli::trace::{self, TraceOptions};
use emel::cli::{self, ModelOptions, TextSource};
use emel::prediction::{self, MissShare, Prediction};
use emel::{Prompt, SamplerOptions, TextLimit};
use emel_loader::gguf::Catalog;
use emel_loader::plan::{Plan, ROW_SLOTS, held_bytes};
use emel_model::sampler::{log_probability, top_log_probabilities};
use emel_model::tokenizer::{EncodeOptions, Tokenizer};
use serde::Serialize;

/// Looks into GGUF models: what they need, how they read text, how they score it.
#[derive(Debug, Parser)]
#[command(version, name = "emel")]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print what a model's file holds, and whether it runs
    Info(InfoOptions),
    /// Print where the memory of a run would go, without running
    Plan(PlanOptions),
    /// Print what this machine allows and what its drive gives, for later runs to go by
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
}

#[derive(Debug, Args)]
struct PlanOptions {
    #[command(flatten)]
    model: ModelOptions,

    /// Tokens in the context [default: 4096, or what the model and the budget allow]
    #[arg(short, long, value_name = "N", allow_negative_numbers = true)]
    ctx_size: Option<usize>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("task").args(["prompt", "file"]).required(true)))]
struct TokenizeOptions {
    /// The model: a GGUF file, or the first of its shards [also: -m FILE]
    model: PathBuf,

    #[command(flatten)]
    text: TextSource,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct EvalOptions {
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

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct EvalSource {
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

fn main() -> ExitCode {
    cli::with_stack(command)
}

fn command() -> ExitCode {
    let options: Options = cli::parse_with_llama_spellings();
    cli::run(async {
        match options.command {
            Command::Info(options) => info::run(&options),
            Command::Plan(options) => plan(&options),
            Command::Doctor(options) => doctor::run(&options).await,
            Command::Tokenize(options) => tokenize(&options),
            Command::Render(options) => render::run(&options),
            Command::Eval(options) => eval(options).await,
            Command::Trace(options) => trace::run(&options).await,
            Command::Replay(options) => replay::run(&options),
        }
    })
}

#[derive(Serialize)]
struct PlanReport {
    budget_bytes: u64,
    file_bytes: u64,
    planned_bytes: u64,
    context: usize,
    prompt_tokens_per_pass: usize,
    items: Vec<PlanItem>,
    pinned_bytes: u64,
    streamed_bytes_per_pass: u64,
    mapped: bool,
    ring_slots: usize,
    ring_slot_bytes: usize,
    /// What the drive gives to this plan, if it has been measured.
    drive_bytes_per_second: Option<f64>,
    /// If the kernels have been measured too.
    predicted_tokens_per_second: Option<f64>,
    /// Whether it is for even routing: one that prefers some experts is faster.
    is_lower_bound: bool,
    experts: Option<PlanExperts>,
}

#[derive(Serialize)]
struct PlanExperts {
    slots: usize,
    slot_bytes: usize,
    of_experts: usize,
    /// Of the experts that a token goes to, in memory or not.
    bytes_per_token: u64,
    /// What of that is read if all experts are as likely to be chosen.
    expected_bytes_per_token: u64,
    /// What is read if routing goes on as in earlier runs, if there were any.
    learnt_bytes_per_token: Option<u64>,
}

#[derive(Serialize)]
struct PlanItem {
    name: String,
    bytes: u64,
}

fn plan(options: &PlanOptions) -> anyhow::Result<()> {
    let mut settings = options.model.settings();
    settings.context = options.ctx_size;
    settings.sampler = Some(SamplerOptions::default());
    let blueprint = Blueprint::new(&options.model.model, settings)?;
    blueprint.notices.iter().for_each(|text| cli::notice(text));
    let report = plan_report(&blueprint);
    if options.json {
        cli::print(&(serde_json::to_string_pretty(&report)? + "\n"))?;
        return Ok(());
    }
    let mut output = String::new();
    let size = in_binary_units;
    writeln!(output, "budget    {:>11}", size(report.budget_bytes))?;
    for item in &report.items {
        writeln!(output, "{:>21}  {}", size(item.bytes), item.name)?;
    }
    writeln!(output, "planned   {:>11}", size(report.planned_bytes))?;
    let streamed = report.streamed_bytes_per_pass;
    match &report.experts {
        None if streamed == 0 => writeln!(output, "the model fits: nothing is read per token")?,
        None => writeln!(
            output,
            "read      {:>11}  per token: {}",
            size(streamed),
            speed(&report, streamed)
        )?,
        Some(experts) if streamed + experts.expected_bytes_per_token == 0 => writeln!(
            output,
            "every expert has a slot: once each has been read, nothing is read per token"
        )?,
        Some(experts) => {
            let learnt = experts.learnt_bytes_per_token;
            let expected = streamed + learnt.unwrap_or(experts.expected_bytes_per_token);
            let (if_so, note) = match learnt {
                Some(_) => ("as earlier runs have gone", ""),
                None => (
                    "if all experts are as likely",
                    "; less is read, and faster, where some are chosen often",
                ),
            };
            writeln!(
                output,
                "read      {:>11}  per token {if_so}, {} at most: {}{note}",
                size(expected),
                size(streamed + experts.bytes_per_token),
                speed(&report, expected)
            )?;
        }
    }
    cli::print(&output)?;
    Ok(())
}

/// What the bytes that are read for each token allow.
fn speed(report: &PlanReport, bytes: u64) -> String {
    let gibibyte = f64::from(1 << 30);
    let allows = |rate: f64| rate / bytes as f64;
    match (
        report.drive_bytes_per_second,
        report.predicted_tokens_per_second,
    ) {
        (Some(rate), Some(predicted)) => format!(
            "{} {predicted:.1} tokens/s, from this drive's {:.2} GiB/s",
            if report.is_lower_bound {
                "at least"
            } else {
                "about"
            },
            rate / gibibyte
        ),
        // Earlier runs have missed nothing.
        _ if bytes == 0 => "the drive is no limit".to_owned(),
        (Some(rate), None) => format!(
            "this drive's {:.2} GiB/s allow {:.1} tokens/s",
            rate / gibibyte,
            allows(rate)
        ),
        (None, _) => format!("a drive of 1 GiB/s allows {:.1} tokens/s", allows(gibibyte)),
    }
}

/// Where the memory goes, one after the other as it is printed.
fn plan_items(plan: &Plan) -> Vec<PlanItem> {
    let mut items: Vec<PlanItem> = plan
        .items
        .iter()
        .map(|item| PlanItem {
            name: item.name.clone(),
            bytes: item.bytes,
        })
        .collect();
    let mut add = |name: String, bytes: u64| {
        if bytes > 0 {
            items.push(PlanItem { name, bytes });
        }
    };
    let slot_size = in_binary_units(plan.slot_bytes as u64);
    let ring = format!("ring ({} slots of {slot_size})", plan.slots);
    add(ring, plan.ring_bytes());
    add(format!("embedding rows ({ROW_SLOTS})"), plan.row_bytes());
    if let Some(experts) = &plan.expert_slots {
        let name = format!(
            "experts ({} slots of {}, for {})",
            experts.slots,
            in_binary_units(experts.layout.slot_bytes as u64),
            experts.layout.experts()
        );
        add(name, experts.bytes());
    }
    if plan.is_mapped {
        add("weights, mapped".to_owned(), plan.file_bytes);
    } else {
        let units: u64 = plan.units.iter().map(held_bytes).sum();
        let all = in_binary_units(units.max(plan.pinned_bytes()));
        let name = match plan.expert_slots {
            Some(_) => format!("weights but experts, pinned of {all}"),
            None => format!("weights, pinned of {all}"),
        };
        add(name, plan.pinned_bytes());
    }
    items
}

fn plan_report(blueprint: &Blueprint) -> PlanReport {
    let plan = &blueprint.plan;
    let rates = drive::kept_rates(blueprint.settings.threads);
    let misses = plan.expert_slots.as_ref().map(|experts| {
        let learnt = blueprint.learnt().unwrap_or_else(|why| {
            cli::notice(&format!("what was learnt is ignored: {why}"));
            None
        });
        MissShare::new(experts, learnt.as_ref())
    });
    PlanReport {
        budget_bytes: plan.budget_bytes,
        file_bytes: plan.file_bytes,
        planned_bytes: plan.total_bytes(),
        context: blueprint.context,
        prompt_tokens_per_pass: blueprint.chunk,
        items: plan_items(plan),
        pinned_bytes: plan.pinned_bytes(),
        streamed_bytes_per_pass: plan.streamed_bytes(),
        mapped: plan.is_mapped,
        ring_slots: plan.slots,
        ring_slot_bytes: plan.slot_bytes,
        drive_bytes_per_second: prediction::drive_bytes_per_second(blueprint),
        predicted_tokens_per_second: rates
            .and_then(|rates| Prediction::new(blueprint, &rates, misses))
            .map(|prediction| prediction.tokens_per_second),
        is_lower_bound: matches!(misses, Some(MissShare::Even(share)) if share > 0.0),
        experts: plan.expert_slots.as_ref().map(|experts| PlanExperts {
            slots: experts.slots,
            slot_bytes: experts.layout.slot_bytes,
            of_experts: experts.layout.experts(),
            bytes_per_token: experts.bytes_per_token(),
            expected_bytes_per_token: experts.expected_bytes_per_token(),
            learnt_bytes_per_token: match misses {
                Some(MissShare::Learnt(share)) => {
                    Some((share * experts.bytes_per_token() as f64) as u64)
                }
                _ => None,
            },
        }),
    }
}

#[derive(Serialize)]
struct TokenizeReport {
    ids: Vec<u32>,
}

fn tokenize(options: &TokenizeOptions) -> anyhow::Result<()> {
    let tokenizer = tokenizer(&options.model)?;
    for text in tokenizer.warnings() {
        cli::notice(&text.to_string());
    }
    let report = TokenizeReport {
        ids: tokenizer.encode(&options.text.read(None)?, EncodeOptions::PROMPT),
    };
    if options.json {
        cli::print(&(serde_json::to_string(&report)? + "\n"))?;
    } else {
        let mut output = String::new();
        for &id in &report.ids {
            let text = String::from_utf8_lossy(&tokenizer.token_bytes(id, true)).into_owned();
            writeln!(output, "{id:>8}  {text:?}")?;
        }
        cli::print(&output)?;
    }
    Ok(())
}

fn tokenizer(model: &Path) -> anyhow::Result<Tokenizer> {
    let mut catalog = Catalog::open(model)?;
    Tokenizer::from_metadata(catalog.metadata_mut()).with_context(|| model.display().to_string())
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

async fn eval(options: EvalOptions) -> anyhow::Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_nothing_is_read_no_speed_is_told_of_the_drive() {
        let mut report = PlanReport {
            budget_bytes: 1 << 30,
            file_bytes: 1 << 30,
            planned_bytes: 1 << 30,
            context: 512,
            prompt_tokens_per_pass: 8,
            items: Vec::new(),
            pinned_bytes: 0,
            streamed_bytes_per_pass: 0,
            mapped: false,
            ring_slots: 0,
            ring_slot_bytes: 0,
            drive_bytes_per_second: None,
            predicted_tokens_per_second: None,
            is_lower_bound: false,
            experts: None,
        };
        assert_eq!(speed(&report, 0), "the drive is no limit");
        assert!(speed(&report, 1 << 29).contains("allows 2.0 tokens/s"));
        report.drive_bytes_per_second = Some(2e9);
        assert_eq!(speed(&report, 0), "the drive is no limit");
        report.predicted_tokens_per_second = Some(12.0);
        assert!(speed(&report, 0).starts_with("about 12.0 tokens/s"));
        report.is_lower_bound = true;
        assert!(speed(&report, 1 << 29).starts_with("at least 12.0 tokens/s"));
    }
}
