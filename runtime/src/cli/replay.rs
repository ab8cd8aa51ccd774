//! `emel replay`: what an expert cache would hit on a trace.

use std::fmt::Write as _;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, anyhow, bail};
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::named_files::is_no_file;
use crate::experts::MixtureShape;
use crate::experts::heat::{self, Heat, HeatError};
use crate::experts::predictor::Source;
use crate::experts::replay::{Policy, Replay, Score, Textbook};
use crate::experts::trace::{Trace, TraceError};
use crate::whole_file::{end_of_links, file_beside};

/// Options of `emel replay`.
#[derive(Debug, Args)]
pub struct ReplayOptions {
    /// A trace that `emel trace` has written
    trace: PathBuf,

    /// Experts that fit in memory: a number, or a share of those of all layers, as 25%
    #[arg(long, value_name = "N")]
    slots: Slots,

    /// Which expert has to go for another
    #[arg(long, value_enum, default_value_t = PolicyName::Learned)]
    policy: PolicyName,

    /// What the next layer's experts are guessed from; with the learned policy only
    #[arg(long, value_enum, default_value_t = SourceName::Off)]
    predict: SourceName,

    /// Experts of the next layer that are guessed, and read if that evicts nothing warmer
    #[arg(
        long,
        value_name = "K",
        allow_negative_numbers = true,
        default_value_t = 8
    )]
    guess: usize,

    /// Give each layer an equal share of the slots instead of all to all
    #[arg(long, conflicts_with = "predict")]
    per_layer: bool,

    /// Replay this many positions only, from the first on
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    positions: Option<usize>,

    /// Begin with what another replay has learnt; with the learned policy only
    #[arg(long, value_name = "FILE", conflicts_with = "per_layer")]
    heat: Option<PathBuf>,

    /// Write what was learnt; needs --predict. What is there is replaced if it is such a file
    #[arg(long, value_name = "FILE", conflicts_with = "per_layer")]
    save_heat: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The values of `--policy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PolicyName {
    /// The expert cache's own: the longest wait for the next use, as learnt from all uses
    Learned,
    /// Least recently used
    Lru,
    /// Least frequently used
    Lfu,
    /// Least frequently used, where old uses count less
    AgedLfu,
    /// Used last of all from here on: no policy can do better
    Belady,
}

/// The values of `--predict`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SourceName {
    /// Nothing: no guesses
    Off,
    /// How often each expert is used
    Frequent,
    /// The co-activation table
    Coact,
    /// The next layer's router, asked one layer early
    Router,
    /// Router and table together
    Both,
}

/// The value of `--slots`.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Slots {
    Count(usize),
    Percent(f64),
}

impl FromStr for Slots {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = match text.strip_suffix('%') {
            Some(percent) => percent.parse().ok().map(Self::Percent),
            None => text.parse().ok().map(Self::Count),
        };
        let is_sane =
            |slots: &Self| !matches!(slots, Self::Percent(p) if !(0.0..=100.0).contains(p));
        parsed
            .filter(is_sane)
            .ok_or_else(|| "expected a number of experts, or a share from 0% to 100%".to_owned())
    }
}

#[derive(Serialize)]
struct Report {
    slots: usize,
    experts: usize,
    hit_rate: f64,
    reads_per_demand: f64,
    recall: Option<f64>,
    #[serde(flatten)]
    score: Score,
}

/// Runs the command.
///
/// # Errors
/// When the trace cannot be read, or there are too few slots.
pub fn run(options: &ReplayOptions) -> anyhow::Result<()> {
    let path = &options.trace;
    let mut trace = read(path)?;
    if let Some(count) = options.positions {
        if count == 0 {
            bail!("--positions is 0, expected 1 or more");
        }
        trace.truncate(count);
    }
    let replay = options.replay(&trace)?;
    let score = options.score(&replay, &trace)?;
    let report = Report {
        slots: replay.slots,
        experts: trace.header().shape.all(),
        hit_rate: score.hit_rate(),
        reads_per_demand: score.reads_per_demand(),
        recall: (score.guessed_demands > 0).then(|| score.recall()),
        score,
    };
    print(&report, options.json)
}

fn read(path: &Path) -> anyhow::Result<Trace> {
    let open = || -> Result<Trace, TraceError> {
        // Not a FIFO, which would be waited for.
        if path.exists() && !path.is_file() {
            return Err(TraceError::Foreign);
        }
        let file = File::open(path)?;
        let bytes = file.metadata()?.len();
        Trace::read(BufReader::new(file), bytes)
    };
    open().with_context(|| path.display().to_string())
}

impl ReplayOptions {
    fn score(&self, replay: &Replay, trace: &Trace) -> anyhow::Result<Score> {
        if self.heat.is_none() && self.save_heat.is_none() {
            return Ok(replay.run(trace));
        }
        if replay.policy != Policy::Learned {
            bail!("--heat and --save-heat work with --policy learned; leave them out");
        }
        if let Some(path) = &self.save_heat {
            if replay.guesses.is_none() {
                bail!(
                    "--save-heat needs --predict coact or another; without it no table is learnt"
                );
            }
            if path == Path::new("-") {
                return Err(is_no_file("--save-heat").into());
            }
            // Before the work begins; saving looks again.
            heat::check_place(path).map_err(|error| told(path, error))?;
            end_of_links(path)
                .and_then(|path| file_beside(&path))
                .map_err(|error| told(path, HeatError::Write(error)))?;
            let header = trace.header();
            let found = Heat::load(path, header.identity, header.shape);
            if let Err(error @ HeatError::OtherModel) = found {
                return Err(told(path, error));
            }
        }
        let header = trace.header();
        let found = self.heat.as_ref().and_then(|path| {
            let found = Heat::load(path, header.identity, header.shape);
            let why = match found {
                Ok(Some(heat)) => return Some(heat),
                Ok(None) => "there is no such file".to_owned(),
                Err(HeatError::Foreign) => "this is not what emel has learnt".to_owned(),
                Err(error) => error.to_string(),
            };
            super::notice(&format!("{} is ignored: {why}", path.display()));
            None
        });
        let (score, learnt) = replay.run_from(trace, found.as_ref());
        if let Some(path) = &self.save_heat {
            let saved = learnt.save(path, header.identity);
            saved.map_err(|error| told(path, error))?;
        }
        Ok(score)
    }

    fn replay(&self, trace: &Trace) -> anyhow::Result<Replay> {
        let shape = trace.header().shape;
        let slots = match self.slots {
            Slots::Count(count) => count.min(shape.all()),
            Slots::Percent(percent) => (percent / 100.0 * shape.all() as f64).round() as usize,
        };
        let least = if self.per_layer {
            shape.used * shape.layers
        } else {
            shape.used
        };
        if slots < least {
            bail!(
                "--slots is {slots} experts, expected {least} or more: {}",
                needs(shape, self.per_layer)
            );
        }
        let guesses = self.guesses(trace)?;
        let policy = match self.policy {
            PolicyName::Learned => Policy::Learned,
            PolicyName::Lru => Policy::Textbook(Textbook::Lru),
            PolicyName::Lfu => Policy::Textbook(Textbook::Lfu),
            PolicyName::AgedLfu => Policy::Textbook(Textbook::AgedLfu),
            PolicyName::Belady => Policy::Textbook(Textbook::Belady),
        };
        Ok(Replay {
            slots,
            policy,
            per_layer: self.per_layer,
            guesses,
        })
    }

    fn guesses(&self, trace: &Trace) -> anyhow::Result<Option<(Source, usize)>> {
        let source = match self.predict {
            SourceName::Off => return Ok(None),
            SourceName::Frequent => Source::Frequency,
            SourceName::Coact => Source::Coactivation,
            SourceName::Router => Source::Router,
            SourceName::Both => Source::Both,
        };
        if self.policy != PolicyName::Learned {
            bail!("--predict works with --policy learned; leave one of them out");
        }
        let needs_router = matches!(source, Source::Router | Source::Both);
        if needs_router && trace.header().guesses == 0 {
            bail!(
                "--predict {source} needs guesses of the router and the trace has none; write it again with `emel trace --look-ahead 16`"
            );
        }
        Ok(Some((source, self.guess)))
    }
}

/// An error with what helps where the name of the file can be chosen.
fn told(path: &Path, error: HeatError) -> anyhow::Error {
    let path = path.display();
    match error {
        HeatError::Foreign => {
            anyhow!("{path}: this is not what emel has learnt; choose another name")
        }
        HeatError::Write(error) => {
            anyhow!(
                "{path}: cannot write what was learnt: {error}; check the folder, its permissions and the disk"
            )
        }
        other => anyhow!("{path}: {other}"),
    }
}

fn needs(shape: MixtureShape, per_layer: bool) -> String {
    let layers = if per_layer { "each layer" } else { "a layer" };
    format!("{layers} uses {} for a token", shape.used)
}

fn print(report: &Report, json: bool) -> anyhow::Result<()> {
    if json {
        super::print(&(serde_json::to_string_pretty(report)? + "\n"))?;
        return Ok(());
    }
    let score = &report.score;
    let mut output = String::new();
    writeln!(
        output,
        "slots        {} of {} experts",
        report.slots, report.experts
    )?;
    writeln!(
        output,
        "hits         {:.4} of {} demands",
        report.hit_rate, score.demands
    )?;
    writeln!(
        output,
        "reads        {:.4} a demand",
        report.reads_per_demand
    )?;
    if let Some(recall) = report.recall {
        writeln!(
            output,
            "prefetched   {}, of which {} were used",
            score.prefetched, score.prefetched_used
        )?;
        writeln!(
            output,
            "recall       {recall:.4} of the next layer's experts"
        )?;
    }
    super::print(&output)?;
    Ok(())
}
