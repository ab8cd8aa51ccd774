//! A report to read.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use emel::internals::budget::in_binary_units;

use super::contender::Contender;
use super::group::GroupUsage;
use super::report::{COMPARED, CapReport, ContenderReport, Outcome, Range, Ratio, Report};

const MIB: f64 = 1024.0 * 1024.0;
const CONTENDERS: [Contender; 3] = [Contender::Emel, Contender::EmelMmap, Contender::Llama];

/// What nobody knows.
const UNKNOWN: &str = "–";

impl Report {
    /// The report as Markdown; the plots are files beside it.
    pub fn markdown(&self, speed_plot: &str, bytes_plot: &str) -> String {
        let mut text = format!("# {} in capped memory\n\n", self.model.name);
        text += &self.introduction();
        text += "\n## Environment\n\n| | |\n|---|---|\n";
        for (name, value) in self.environment_lines() {
            text += &row(&[name.to_owned(), value]);
        }
        text += &self.drive_table();
        text += "\n## Tokens per second after the first\n\n";
        text += &self.speeds();
        let _ = writeln!(
            text,
            "\n![tokens per second against the cap]({speed_plot})\n\
             ![bytes read for each token against the cap]({bytes_plot})"
        );
        for cap in &self.caps {
            text += &cap.markdown();
        }
        text
    }

    fn introduction(&self) -> String {
        let settings = &self.settings;
        let kind = if self.model.has_experts {
            "mixture of experts"
        } else {
            "dense"
        };
        let mut text = format!(
            "{}, {kind}; a prompt of {}, an answer of {} {}, {}{}, {}, context {}.\n",
            in_binary_units(self.model.file_bytes),
            counted(settings.prompt_tokens, "token"),
            settings.tokens,
            match settings.temperature {
                0.0 => "likeliest ones".to_owned(),
                temperature => format!("drawn at temperature {temperature}"),
            },
            counted(settings.runs, "run"),
            if settings.runs > 1 { " in turns" } else { "" },
            counted(settings.threads, "thread"),
            settings.context
        );
        text += &match settings.via.as_str() {
            "none" => "No cap: nothing held the contenders.\n".to_owned(),
            via => format!("Caps by {via}, swap off; every run in a cgroup of its own.\n"),
        };
        text += &match settings.margin_bytes {
            0 => "emel's budget is the cap, and everything counts.\n".to_owned(),
            margin => format!(
                "emel's budget is {} less than the cap.\n",
                in_binary_units(margin)
            ),
        };
        text += &self.coldness();
        if self.caps.iter().any(|cap| cap.cap_bytes.is_none()) && settings.via != "none" {
            text += "**Where the cap is `none` the contenders ran uncapped, as asked.**\n";
        }
        for skipped in &self.skipped {
            let _ = writeln!(
                text,
                "**{} did not run:** {}.",
                skipped.contender.name(),
                skipped.reason
            );
        }
        text
    }

    /// What was left of the model in the page cache before the runs.
    fn coldness(&self) -> String {
        let runs = self.caps.iter().flat_map(|cap| &cap.contenders);
        let runs = runs.flat_map(|contender| &contender.runs);
        let before: Vec<_> = runs
            .filter_map(|run| match &run.outcome {
                Outcome::Finished(figures) => Some(figures.cached_before),
                _ => None,
            })
            .collect();
        let pages = before.iter().map(|it| it.pages).max().unwrap_or(0);
        match before
            .iter()
            .map(|it| it.resident)
            .collect::<Option<Vec<_>>>()
        {
            None => "The model was put out of the page cache before each run; the kernel does not \
                     tell this user whether it went.\n"
                .to_owned(),
            Some(resident) => format!(
                "Of the model's {pages} pages at most {} were in the page cache when a run began.\n",
                resident.iter().max().unwrap_or(&0)
            ),
        }
    }

    fn environment_lines(&self) -> Vec<(&'static str, String)> {
        let environment = &self.environment;
        let unknown = || "unknown".to_owned();
        let processor = environment.processor.clone().unwrap_or_else(unknown);
        let mut lines = vec![
            (
                "processor",
                format!("{processor}, {} usable", environment.processors),
            ),
            ("memory", in_binary_units(environment.ram_bytes)),
            ("kernel", environment.kernel.clone()),
            (
                "filesystem",
                environment.filesystem.clone().unwrap_or_else(unknown),
            ),
            (
                "page cache reads ahead",
                environment
                    .read_ahead_bytes
                    .map_or_else(unknown, in_binary_units),
            ),
            ("emel", self.emel.to_owned()),
        ];
        if let Some(llama) = &self.llama {
            lines.push((
                "llama-cpp-python",
                format!("{}; {}", llama.version, llama.system),
            ));
        }
        lines
    }

    /// The drive's rates, a row for each size of reads.
    fn drive_table(&self) -> String {
        let points = &self.environment.drive;
        if points.is_empty() {
            return "\nThe drive has not been measured.\n".to_owned();
        }
        let depths: BTreeSet<usize> = points.iter().map(|point| point.depth).collect();
        let blocks: BTreeSet<u64> = points.iter().map(|point| point.block_bytes).collect();
        let mut head = vec!["drive, MiB/s".to_owned()];
        head.extend(depths.iter().map(|depth| format!("{depth} slots")));
        let mut text = format!("\n{}{}", row(&head), rule(head.len()));
        for block in blocks {
            let mut cells = vec![format!("{} KiB", block >> 10)];
            cells.extend(depths.iter().map(|&depth| {
                let mut points = points.iter();
                let point = points.find(|it| (it.block_bytes, it.depth) == (block, depth));
                point.map_or_else(String::new, |it| {
                    format!("{:.0}", it.bytes_per_second / MIB)
                })
            }));
            text += &row(&cells);
        }
        text
    }

    fn speeds(&self) -> String {
        let ratios: Vec<(Contender, Contender)> = COMPARED
            .into_iter()
            .filter(|pair| self.caps.iter().any(|cap| cap.ratio(*pair).is_some()))
            .collect();
        let contenders: Vec<Contender> = CONTENDERS
            .into_iter()
            .filter(|&contender| {
                self.caps
                    .iter()
                    .any(|cap| cap.contender(contender).is_some())
            })
            .collect();
        let mut head = vec!["cap".to_owned()];
        head.extend(
            contenders
                .iter()
                .map(|contender| contender.name().to_owned()),
        );
        head.push("the drive's limit".to_owned());
        head.extend(
            ratios
                .iter()
                .map(|(of, to)| format!("{} to {}", of.name(), to.name())),
        );
        let mut text = row(&head);
        text += &rule(head.len());
        for cap in &self.caps {
            let mut cells = vec![cap.name()];
            cells.extend(contenders.iter().map(|&contender| cap.speed(contender)));
            let limit = cap
                .limit
                .map(|limit| format!("{:.2}", limit.tokens_per_second));
            cells.push(limit.unwrap_or_else(|| UNKNOWN.to_owned()));
            cells.extend(ratios.iter().map(|&pair| {
                let ratio = cap.ratio(pair);
                ratio.map_or(UNKNOWN.to_owned(), |ratio| spread(&ratio.times, 2))
            }));
            text += &row(&cells);
        }
        text += "\nThe median, with the least and the most in parentheses; ratios are taken turn by \
                 turn.\n";
        text += match self.model.has_experts {
            true => "The drive's limit is its highest rate over the bytes that emel read.\n",
            false => "The drive's limit is its highest rate over the bytes that exceed the cap.\n",
        };
        text
    }
}

impl CapReport {
    fn name(&self) -> String {
        match self.cap_bytes {
            Some(bytes) if self.asked == in_binary_units(bytes) => self.asked.clone(),
            Some(bytes) => format!("{}, {}", self.asked, in_binary_units(bytes)),
            None => "none (uncapped)".to_owned(),
        }
    }

    fn ratio(&self, (of, to): (Contender, Contender)) -> Option<&Ratio> {
        let mut ratios = self.ratios.iter();
        ratios.find(|ratio| (ratio.of, ratio.to) == (of, to))
    }

    fn speed(&self, contender: Contender) -> String {
        let Some(report) = self.contender(contender) else {
            return UNKNOWN.to_owned();
        };
        match &report.summary {
            Some(summary) => spread(&summary.tokens_per_second, 2),
            None => report.end().to_owned(),
        }
    }

    fn markdown(&self) -> String {
        let budget = self.budget_bytes.map(in_binary_units);
        let budget = budget.unwrap_or_else(|| "what the machine leaves".to_owned());
        let mut text = format!("\n## Cap {}\n\nemel's budget: {budget}.\n\n", self.name());
        let head = [
            "contender",
            "counts",
            "tokens/s",
            "first token, s",
            "MiB for each token",
            "MiB in all, process",
            "cgroup",
            "major faults",
            "drive busy",
            "peak, MiB",
            "oom",
            "oom kills",
            "high",
            "max",
        ];
        text += &row(&head.map(str::to_owned));
        text += &rule(head.len());
        for contender in &self.contenders {
            text += &row(&contender.cells());
        }
        text += &self.troubles();
        text
    }

    /// What was said of the runs that did not finish.
    fn troubles(&self) -> String {
        let mut text = String::new();
        for contender in &self.contenders {
            let Some(run) = contender.runs.last().filter(|run| !run.has_finished()) else {
                continue;
            };
            let trouble = match &run.outcome {
                Outcome::Failed { status, message } => {
                    let status = status.map_or(UNKNOWN.to_owned(), |status| status.to_string());
                    format!("failed with status {status}: {}", in_one_line(message))
                }
                Outcome::TimedOut { seconds } => format!("was ended after {seconds} s"),
                _ => "was killed by the kernel for want of memory".to_owned(),
            };
            let name = contender.variant.name();
            let _ = write!(text, "\n{name} {trouble}, in turn {}; ", run.turn);
            text += "it was not tried again.\n";
        }
        text
    }
}

impl ContenderReport {
    /// How the last run ended, if in no answer.
    fn end(&self) -> &'static str {
        match self.runs.last().map(|run| &run.outcome) {
            Some(Outcome::OutOfMemory { .. }) => "killed",
            Some(Outcome::TimedOut { .. }) => "timed out",
            Some(Outcome::Failed { .. }) => "failed",
            _ => UNKNOWN,
        }
    }

    fn cells(&self) -> Vec<String> {
        let unknown = || UNKNOWN.to_owned();
        let summary = self.summary.as_ref();
        let of = |range: Option<Range>, digits: usize, unit: f64| {
            range.map_or_else(unknown, |it| format!("{:.digits$}", it.median / unit))
        };
        let speed = summary.map(|it| spread(&it.tokens_per_second, 2));
        let first = summary.map(|it| it.first_token_seconds);
        let finished = self.runs.iter().filter_map(|run| match &run.outcome {
            Outcome::Finished(figures) => Some(figures),
            _ => None,
        });
        let figures: Vec<_> = finished.collect();
        let read = Range::of(figures.iter().filter_map(|it| Some(it.bytes_read? as f64)));
        let groups: Vec<&GroupUsage> = self.runs.iter().filter_map(|run| run.group()).collect();
        let group_read = Range::of(groups.iter().filter_map(|it| Some(it.bytes_read? as f64)));
        let peak = groups.iter().filter_map(|it| it.peak_bytes).max();
        let most = |of: fn(&GroupUsage) -> Option<u64>| {
            let counts = groups.iter().filter_map(|group| of(group));
            counts.max().map_or_else(unknown, |count| count.to_string())
        };
        let busy = summary.and_then(|it| it.drive_busy_share);
        vec![
            self.variant.name().to_owned(),
            if self.counts { "yes" } else { "no" }.to_owned(),
            speed.unwrap_or_else(|| self.end().to_owned()),
            of(first, 2, 1.0),
            of(summary.and_then(|it| it.bytes_per_token), 1, MIB),
            of(read, 0, MIB),
            of(group_read, 0, MIB),
            of(summary.and_then(|it| it.major_faults), 0, 1.0),
            busy.map_or_else(unknown, |it| format!("{:.0}%", it.median * 100.0)),
            peak.map_or_else(unknown, |bytes| format!("{:.0}", bytes as f64 / MIB)),
            most(|it| it.oom),
            most(|it| it.oom_kills),
            most(|it| it.high),
            most(|it| it.max),
        ]
    }
}

/// A number of things, as in "1 run" and "2 runs".
fn counted(number: usize, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// What Markdown wants below the head of a table.
fn rule(columns: usize) -> String {
    format!("|{}\n", "---|".repeat(columns))
}

fn in_one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A median with its range.
fn spread(range: &Range, digits: usize) -> String {
    let Range { min, median, max } = range;
    format!("{median:.digits$} ({min:.digits$}–{max:.digits$})")
}

fn row(cells: &[String]) -> String {
    // A message may hold what ends a cell or a line.
    let cells = cells
        .iter()
        .map(|cell| cell.replace('|', "/").replace('\n', " "));
    format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
}
