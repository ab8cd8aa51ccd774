//! What a sweep has found, as it is written to `report.json`.

use std::cmp::Reverse;

use emel_loader::page_cache::CachedPages;
use serde::Serialize;
use serde_json::Value;

use super::cap::SizedCap;
use super::contender::{Contender, Variant};
use super::environment::Environment;
use super::group::GroupUsage;

/// Contenders that are compared, each with the one that it is told as so many times as fast as.
pub(super) const COMPARED: [(Contender, Contender); 3] = [
    (Contender::Emel, Contender::Llama),
    (Contender::Emel, Contender::EmelMmap),
    (Contender::EmelMmap, Contender::Llama),
];

/// A sweep.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The version of emel.
    pub emel: &'static str,
    /// llama.cpp, if it took part.
    pub llama: Option<Llama>,
    /// What was run.
    pub model: Model,
    /// How it was run.
    pub settings: Settings,
    /// On what.
    pub environment: Environment,
    /// Contenders that were asked for and did not run, and why.
    pub skipped: Vec<Skipped>,
    /// A report for each cap.
    pub caps: Vec<CapReport>,
}

/// The llama.cpp that took part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Llama {
    /// The version of `llama-cpp-python`.
    pub version: String,
    /// What it says of the machine.
    pub system: String,
    /// Whether weights can be repacked or not.
    #[serde(skip)]
    pub has_repacking: bool,
}

/// The model, by its file's name alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Model {
    /// The file's name.
    pub name: String,
    /// Bytes of all its files.
    pub file_bytes: u64,
    /// Bytes of weights that every token goes through, but for experts and a row of the
    /// embedding.
    pub pass_bytes: u64,
    /// Whether it has experts, of which a token uses few.
    pub has_experts: bool,
}

/// What all contenders have in common.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Settings {
    /// How the caps were made: `systemd`, `cgroup2`, `cgroup1`, or `none`.
    pub via: String,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the answer, the first included.
    pub tokens: usize,
    /// At which these were drawn; 0 takes the likeliest.
    pub temperature: f32,
    /// Tokens of the context.
    pub context: usize,
    /// Runs of each contender, which take turns.
    pub runs: usize,
    /// Threads that compute.
    pub threads: usize,
    /// Of the random ids of the prompt.
    pub seed: u64,
    /// By how much emel's budget is less than the cap.
    pub margin_bytes: u64,
}

/// A contender that did not run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// The contender.
    pub contender: Contender,
    /// Why, and what to do.
    pub reason: String,
}

/// The contenders in one cap.
#[derive(Debug, Clone, Serialize)]
pub struct CapReport {
    /// The cap as it was asked for.
    pub asked: String,
    /// The cap; none where the contenders ran without.
    pub cap_bytes: Option<u64>,
    /// What emel was told to keep to; none where it was not told.
    pub budget_bytes: Option<u64>,
    /// What the drive allows.
    pub limit: Option<Limit>,
    /// The contenders, in a setting each.
    pub contenders: Vec<ContenderReport>,
    /// Of any two contenders.
    pub ratios: Vec<Ratio>,
}

/// The tokens per second at which reading alone takes all the time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Limit {
    /// The drive's highest rate over the bytes below.
    pub tokens_per_second: f64,
    /// Bytes that a token needs read: what does not fit into the cap, or, with experts,
    /// what emel did read.
    pub bytes_per_token: f64,
}

/// A contender in one setting.
#[derive(Debug, Clone, Serialize)]
pub struct ContenderReport {
    /// The contender and its setting.
    pub variant: Variant,
    /// Whether it is the better setting of its contender.
    pub counts: bool,
    /// Over all runs that have finished.
    pub summary: Option<Summary>,
    /// Every run.
    pub runs: Vec<Run>,
}

/// A run of a contender.
#[derive(Debug, Clone, Serialize)]
pub struct Run {
    /// Which turn, from 1.
    pub turn: usize,
    /// How it ended.
    #[serde(flatten)]
    pub outcome: Outcome,
}

impl Run {
    /// Whether it came to its last token.
    pub fn has_finished(&self) -> bool {
        matches!(self.outcome, Outcome::Finished(_))
    }

    /// What the cgroup said of it, if there was one and it said anything.
    pub fn group(&self) -> Option<&GroupUsage> {
        match &self.outcome {
            Outcome::Finished(figures) => figures.group.as_ref(),
            Outcome::OutOfMemory { group } => group.as_ref(),
            _ => None,
        }
    }
}

/// How a run ended.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// With its tokens.
    Finished(Box<Figures>),
    /// The kernel killed it for want of memory.
    OutOfMemory {
        /// What the cgroup says.
        group: Option<GroupUsage>,
    },
    /// It took too long and was ended.
    TimedOut {
        /// What it was given.
        seconds: u64,
    },
    /// In some other way.
    Failed {
        /// The exit status, if it was not ended by a signal.
        status: Option<i32>,
        /// The last that it said.
        message: String,
    },
}

/// What was measured of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figures {
    /// Of the tokens after the first.
    pub tokens_per_second: f64,
    /// From the prompt to the first token.
    pub first_token_seconds: f64,
    /// Until the prompt could be taken.
    pub load_seconds: f64,
    /// For each token after the first.
    pub token_seconds: Vec<f64>,
    /// Bytes that the drive read for the process, for each token after the first.
    pub bytes_per_token: Option<f64>,
    /// And in all.
    pub bytes_read: Option<u64>,
    /// The process's page faults that had to wait for the drive, in all.
    pub major_faults: Option<u64>,
    /// The share of the time after the first token for which the drive was busy.
    pub drive_busy_share: Option<f64>,
    /// What emel planned for.
    pub budget_bytes: Option<u64>,
    /// Pages of the model that were in the page cache before.
    pub cached_before: CachedBefore,
    /// What the cgroup says, if there was one.
    pub group: Option<GroupUsage>,
    /// What the engine says of itself.
    pub usage: Value,
}

/// Pages of the model that were in the page cache when a run began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct CachedBefore {
    /// Pages of all files.
    pub pages: u64,
    /// Those that were cached; none where the kernel does not tell, to users who may not
    /// write to the model.
    pub resident: Option<u64>,
}

impl From<CachedPages> for CachedBefore {
    fn from(found: CachedPages) -> Self {
        Self {
            pages: found.pages,
            resident: found.is_told.then_some(found.resident),
        }
    }
}

/// The smallest, the middle and the largest of some values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Range {
    /// The smallest.
    pub min: f64,
    /// The middle one, or the mean of the two.
    pub median: f64,
    /// The largest.
    pub max: f64,
}

impl Range {
    /// Of `values`; none where there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[middle]
        } else {
            f64::midpoint(values[middle - 1], values[middle])
        };
        Some(Self { min, median, max })
    }
}

/// A contender's runs together. What only some runs know is left out.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// Of the tokens after the first.
    pub tokens_per_second: Range,
    /// From the prompt to the first token.
    pub first_token_seconds: Range,
    /// Bytes read for each token after the first.
    pub bytes_per_token: Option<Range>,
    /// Page faults in all that had to wait.
    pub major_faults: Option<Range>,
    /// The share of the time for which the drive was busy.
    pub drive_busy_share: Option<Range>,
    /// The highest peak of the cgroups.
    pub peak_bytes: Option<u64>,
}

/// How many times as fast one contender is as another, turn by turn.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ratio {
    /// The one.
    pub of: Contender,
    /// The other.
    pub to: Contender,
    /// Of the tokens after the first.
    pub times: Range,
}

impl ContenderReport {
    /// Of a contender's runs; `counts` is settled by [`CapReport::new`].
    pub fn new(variant: Variant, runs: Vec<Run>) -> Self {
        Self {
            variant,
            counts: false,
            summary: Summary::of(&runs),
            runs,
        }
    }

    /// The run of a turn, if it has finished.
    fn figures(&self, turn: usize) -> Option<&Figures> {
        let mut runs = self.runs.iter();
        runs.find_map(|run| match &run.outcome {
            Outcome::Finished(figures) if run.turn == turn => Some(figures.as_ref()),
            _ => None,
        })
    }

    fn median(&self) -> f64 {
        let summary = self.summary.as_ref();
        summary.map_or(-1.0, |summary| summary.tokens_per_second.median)
    }
}

impl Summary {
    fn of(runs: &[Run]) -> Option<Self> {
        let finished: Vec<&Figures> = runs
            .iter()
            .filter_map(|run| match &run.outcome {
                Outcome::Finished(figures) => Some(figures.as_ref()),
                _ => None,
            })
            .collect();
        let some = |of: fn(&Figures) -> Option<f64>| -> Option<Range> {
            let values: Option<Vec<f64>> = finished.iter().map(|figures| of(figures)).collect();
            Range::of(values?)
        };
        let peaks = finished
            .iter()
            .filter_map(|it| it.group.as_ref()?.peak_bytes);
        Some(Self {
            tokens_per_second: some(|it| Some(it.tokens_per_second))?,
            first_token_seconds: some(|it| Some(it.first_token_seconds))?,
            bytes_per_token: some(|it| it.bytes_per_token),
            major_faults: some(|it| it.major_faults.map(|count| count as f64)),
            drive_busy_share: some(|it| it.drive_busy_share),
            peak_bytes: peaks.max(),
        })
    }
}

impl CapReport {
    /// Of the contenders in one cap, on a drive of so many bytes per second.
    pub fn new(
        cap: &SizedCap,
        mut contenders: Vec<ContenderReport>,
        model: &Model,
        drive_bytes_per_second: Option<f64>,
    ) -> Self {
        for index in 0..contenders.len() {
            let contender = contenders[index].variant.contender();
            let of_contender = contenders.iter().enumerate();
            let of_contender =
                of_contender.filter(|(_, other)| other.variant.contender() == contender);
            // Of two that are as good the first.
            let best = of_contender.max_by(|(i, a), (j, b)| {
                let by_speed = a.median().total_cmp(&b.median());
                by_speed.then(Reverse(i).cmp(&Reverse(j)))
            });
            let best = best.map(|(best, _)| best);
            contenders[index].counts = best == Some(index);
        }
        let mut report = Self {
            asked: cap.asked.to_string(),
            cap_bytes: cap.bytes,
            budget_bytes: cap.budget_bytes,
            limit: None,
            ratios: Vec::new(),
            contenders,
        };
        report.limit = report.limit(model, drive_bytes_per_second);
        report.ratios = report.ratios();
        report
    }

    /// The report of a contender in its better setting.
    pub fn contender(&self, contender: Contender) -> Option<&ContenderReport> {
        let mut contenders = self.contenders.iter();
        contenders.find(|report| report.counts && report.variant.contender() == contender)
    }

    fn limit(&self, model: &Model, drive_bytes_per_second: Option<f64>) -> Option<Limit> {
        let cap_bytes = self.cap_bytes?;
        let bytes_per_token = if model.has_experts {
            let window = self.contender(Contender::Emel)?.summary.as_ref()?;
            window.bytes_per_token?.median
        } else {
            model.pass_bytes.saturating_sub(cap_bytes) as f64
        };
        let limit = Limit {
            tokens_per_second: drive_bytes_per_second? / bytes_per_token,
            bytes_per_token,
        };
        (bytes_per_token > 0.0).then_some(limit)
    }

    fn ratios(&self) -> Vec<Ratio> {
        let ratio = |(of, to)| {
            let (ours, theirs) = (self.contender(of)?, self.contender(to)?);
            let turns = ours.runs.iter().map(|run| run.turn);
            let times = turns.filter_map(|turn| {
                let (one, other) = (ours.figures(turn)?, theirs.figures(turn)?);
                Some(one.tokens_per_second / other.tokens_per_second)
            });
            let times = Range::of(times)?;
            Some(Ratio { of, to, times })
        };
        COMPARED.into_iter().filter_map(ratio).collect()
    }
}
