//! `emel replay`: what an expert cache would hit on a trace.

use std::fs::File;
use std::io::{BufReader, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, anyhow};
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::chart::{Chart, Line, Point, Style};
use super::named_files::{NamedFiles, is_no_file};
use super::output::{OutputFile, OutputKind};
use super::remedies::OptionError;
use emel::internals::experts::MixtureShape;
use emel::internals::experts::heat::{self, Heat, HeatError};
use emel::internals::experts::predictor::Source;
use emel::internals::experts::replay::{Policy, Replay, Score, Textbook};
use emel::internals::experts::trace::{Trace, TraceError};
use emel::internals::whole_file::{end_of_links, file_beside};

/// Options of `emel replay`.
#[derive(Debug, Args)]
pub struct ReplayOptions {
    /// A trace that `emel trace` has written
    trace: PathBuf,

    /// Experts that fit in memory: numbers, or shares of those of all layers
    #[arg(
        long,
        value_name = "N,…",
        value_delimiter = ',',
        default_value = "25%,50%,75%"
    )]
    slots: Vec<Slots>,

    /// Which expert is evicted [default: each of them; with --predict or --heat
    /// learned]
    #[arg(long, value_enum, value_name = "POLICY,…", value_delimiter = ',')]
    policy: Vec<PolicyName>,

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

    /// Give each layer an equal share of the slots, instead of sharing all of them
    #[arg(long, conflicts_with = "predict")]
    per_layer: bool,

    /// Replay this many positions only, from the first on
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    positions: Option<usize>,

    /// Begin with what another replay has learnt; with the learned policy only
    #[arg(long, value_name = "FILE", conflicts_with = "per_layer")]
    heat: Option<PathBuf>,

    /// Write what was learnt; needs --predict. A file that is there is replaced only if it is
    /// one of these
    #[arg(long, value_name = "FILE", conflicts_with = "per_layer")]
    save_heat: Option<PathBuf>,

    /// Write a chart of the hits to an SVG file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The values of `--policy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum PolicyName {
    /// emel's own: the one whose next use is expected last, as learnt from all uses
    Learned,
    /// Least recently used
    Lru,
    /// Least frequently used
    Lfu,
    /// Least frequently used, where old uses count less
    AgedLfu,
    /// The one whose next use is furthest away: no policy can do better
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

impl From<PolicyName> for Policy {
    fn from(name: PolicyName) -> Self {
        match name {
            PolicyName::Learned => Self::Learned,
            PolicyName::Lru => Self::Textbook(Textbook::Lru),
            PolicyName::Lfu => Self::Textbook(Textbook::Lfu),
            PolicyName::AgedLfu => Self::Textbook(Textbook::AgedLfu),
            PolicyName::Belady => Self::Textbook(Textbook::Belady),
        }
    }
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

/// What one policy hit with some number of slots.
#[derive(Serialize)]
struct Report {
    policy: PolicyName,
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
            return Err(wrong("--positions", 0, "1 or more".to_owned()));
        }
        trace.truncate(count);
    }
    let policies = options.policies()?;
    let slots = options.slots(trace.header().shape)?;
    let svg = options.svg_file()?;
    let mut reports = Vec::with_capacity(policies.len() * slots.len());
    for &policy in &policies {
        for &slots in &slots {
            reports.push(options.report(&trace, policy, slots)?);
        }
    }
    match options.json {
        true => super::print(&(serde_json::to_string_pretty(&reports)? + "\n"))?,
        false => super::print(&table(&reports, slots.len()))?,
    }
    if let Some(file) = svg {
        let svg = chart(path, &reports, slots.len()).svg()?;
        file.write(|output| output.write_all(svg.as_bytes()))?;
    }
    Ok(())
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
    /// The policies that were asked for. Guesses and what was learnt are the learned one's.
    fn policies(&self) -> anyhow::Result<Vec<PolicyName>> {
        let option = match (self.predict, &self.heat, &self.save_heat) {
            (_, Some(_), _) => "--heat",
            (_, _, Some(_)) => "--save-heat",
            (SourceName::Off, None, None) => {
                return Ok(match self.policy.is_empty() {
                    true => PolicyName::value_variants().to_vec(),
                    false => self.policy.clone(),
                });
            }
            _ => "--predict",
        };
        let mut policies = self.policy.iter().filter_map(PolicyName::to_possible_value);
        if let Some(other) = policies.find(|it| it.get_name() != "learned") {
            let expected = format!("learned, which alone works with {option}");
            return Err(wrong("--policy", other.get_name(), expected));
        }
        Ok(vec![PolicyName::Learned])
    }

    fn svg_file(&self) -> anyhow::Result<Option<OutputFile>> {
        let Some(path) = &self.svg else {
            return Ok(None);
        };
        let mut named = NamedFiles::without_model();
        named.input("TRACE", Some(&self.trace));
        named.input("--heat", self.heat.as_deref());
        if let Some(path) = &self.save_heat {
            named.kept("--save-heat", path)?;
        }
        let file = named.output("--svg", path, OutputKind::Chart)?;
        Ok(Some(file))
    }

    fn report(&self, trace: &Trace, policy: PolicyName, slots: usize) -> anyhow::Result<Report> {
        let replay = Replay {
            slots,
            policy: policy.into(),
            per_layer: self.per_layer,
            guesses: self.guesses(trace)?,
        };
        let score = self.score(&replay, trace)?;
        Ok(Report {
            policy,
            slots,
            experts: trace.header().shape.all(),
            hit_rate: score.hit_rate(),
            reads_per_demand: score.reads_per_demand(),
            recall: (score.guessed_demands > 0).then(|| score.recall()),
            score,
        })
    }

    fn score(&self, replay: &Replay, trace: &Trace) -> anyhow::Result<Score> {
        if self.heat.is_none() && self.save_heat.is_none() {
            return Ok(replay.run(trace));
        }
        if let Some(path) = &self.save_heat {
            if replay.guesses.is_none() {
                let expected = "coact or another: without it there is nothing for --save-heat";
                return Err(wrong("--predict", "off", expected.to_owned()));
            }
            if path == Path::new("-") {
                return Err(is_no_file("--save-heat").into());
            }
            if self.slots.len() != 1 {
                let found = format!("{} numbers", self.slots.len());
                let expected = "one with --save-heat, as --slots 25%".to_owned();
                return Err(wrong("--slots", found, expected));
            }
            // Before the work begins; saving looks again.
            heat::check_place(path).map_err(|error| heat_error(path, error))?;
            end_of_links(path)
                .and_then(|path| file_beside(&path))
                .map_err(|error| heat_error(path, HeatError::Write(error)))?;
            let header = trace.header();
            let found = Heat::load(path, header.identity, header.shape);
            if let Err(error @ HeatError::OtherModel) = found {
                return Err(heat_error(path, error));
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
            saved.map_err(|error| heat_error(path, error))?;
        }
        Ok(score)
    }

    /// The numbers of slots, of which each is enough.
    fn slots(&self, shape: MixtureShape) -> anyhow::Result<Vec<usize>> {
        let least = if self.per_layer {
            shape.used * shape.layers
        } else {
            shape.used
        };
        let count = |&slots: &Slots| {
            let slots = match slots {
                Slots::Count(count) => count.min(shape.all()),
                Slots::Percent(percent) => (percent / 100.0 * shape.all() as f64).round() as usize,
            };
            if slots < least {
                let expected = format!("{least} or more: {}", needs(shape, self.per_layer));
                return Err(wrong("--slots", format!("{slots} experts"), expected));
            }
            Ok(slots)
        };
        self.slots.iter().map(count).collect()
    }

    fn guesses(&self, trace: &Trace) -> anyhow::Result<Option<(Source, usize)>> {
        let source = match self.predict {
            SourceName::Off => return Ok(None),
            SourceName::Frequent => Source::Frequency,
            SourceName::Coact => Source::Coactivation,
            SourceName::Router => Source::Router,
            SourceName::Both => Source::Both,
        };
        let needs_router = matches!(source, Source::Router | Source::Both);
        if needs_router && trace.header().guesses == 0 {
            let expected = "frequent or coact: the trace has no guesses of the router, which `emel trace --look-ahead 16` writes";
            return Err(wrong("--predict", source, expected.to_owned()));
        }
        Ok(Some((source, self.guess)))
    }
}

fn wrong(option: &'static str, found: impl ToString, expected: String) -> anyhow::Error {
    let found = found.to_string();
    let error = OptionError {
        option,
        found,
        expected,
    };
    error.into()
}

/// An error with what helps where the name of the file can be chosen.
fn heat_error(path: &Path, error: HeatError) -> anyhow::Error {
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

/// A row for each policy, and where guesses were made for what came of them; a column for each
/// number of slots, of which there are `columns`.
fn table(reports: &[Report], columns: usize) -> String {
    let Some(first) = reports.first() else {
        return String::new();
    };
    let share = |it: &Report| (100.0 * it.slots as f64 / it.experts as f64).round();
    let mut rows = vec![row("slots", &reports[..columns], |it| {
        format!("{} ({}%)", it.slots, share(it))
    })];
    for of_policy in reports.chunks(columns) {
        let policy = of_policy[0].policy.to_possible_value();
        let name = policy.as_ref().map_or("", |value| value.get_name());
        rows.push(row(name, of_policy, |it| format!("{:.4}", it.hit_rate)));
    }
    if first.recall.is_some() {
        rows.push(row("reads per demand", reports, |it| {
            format!("{:.4}", it.reads_per_demand)
        }));
        rows.push(row("prefetched", reports, |it| {
            it.score.prefetched.to_string()
        }));
        rows.push(row("prefetched and used", reports, |it| {
            it.score.prefetched_used.to_string()
        }));
        rows.push(row("recall of guesses", reports, |it| {
            format!("{:.4}", it.recall.unwrap_or_default())
        }));
    }
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.len()).max().unwrap_or(0)
    };
    let mut text = format!(
        "hits per demand, of {} demands for {} experts\n",
        first.score.demands, first.experts
    );
    for row in &rows {
        let name = format!("{:<1$}", row[0], width(0));
        let cells = row.iter().enumerate().skip(1);
        let cells = cells.map(|(column, cell)| format!("  {cell:>0$}", width(column)));
        text += &(name + &cells.collect::<String>() + "\n");
    }
    text
}

/// The hits of every policy by the share of the experts that have slots.
fn chart(trace: &Path, reports: &[Report], columns: usize) -> Chart {
    let styles = [
        Style::BLUE,
        Style::GREEN,
        Style::ORANGE,
        Style::PURPLE,
        Style::GREY,
    ];
    let line = |(of_policy, &style): (&[Report], &Style)| {
        let policy = of_policy[0].policy.to_possible_value();
        let point = |report: &Report| Point {
            x: 100.0 * report.slots as f64 / report.experts as f64,
            y: report.hit_rate,
            range: None,
        };
        let mut points: Vec<Point> = of_policy.iter().map(point).collect();
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        Line {
            name: policy.map_or_else(String::new, |value| value.get_name().to_owned()),
            style,
            points,
            is_bound: false,
            has_markers: true,
        }
    };
    let lines = reports.chunks(columns).zip(styles.iter().cycle()).map(line);
    let (demands, experts) = reports
        .first()
        .map_or((0, 0), |first| (first.score.demands, first.experts));
    let name = trace.file_name().unwrap_or(trace.as_os_str());
    Chart {
        title: format!("{}: hits of the expert cache", name.display()),
        note: format!("{demands} demands for {experts} experts"),
        x_label: "slots, % of all experts".to_owned(),
        y_label: "hits per demand".to_owned(),
        lines: lines.collect(),
    }
}

/// A row's name and its cells.
fn row(name: &str, reports: &[Report], cell: impl Fn(&Report) -> String) -> Vec<String> {
    let cells = reports.iter().map(cell);
    [name.to_owned()].into_iter().chain(cells).collect()
}
