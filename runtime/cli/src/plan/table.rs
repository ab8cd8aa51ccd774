//! Plans for several budgets, one a line.

use std::fmt::Write as _;

use serde::Serialize;

use super::{PlanOptions, PlanReport};
use crate::remedies::in_options;
use crate::units::GIBIBYTE;
use emel::Error;
use emel::internals::blueprint::Blueprint;
use emel::internals::budget::in_binary_units;
use emel::internals::prediction::rounded;

/// A budget with its plan, or with what is wrong with it.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Row {
    Plan(Box<PlanReport>),
    TooSmall {
        budget_bytes: u64,
        needed_bytes: u64,
        /// The error, which is that of the command if no budget is large enough.
        problem: String,
        #[serde(skip)]
        error: Box<Error>,
    },
}

impl Row {
    /// # Errors
    /// When the model cannot be run within any budget.
    pub(super) fn of(planned: Result<Blueprint, Error>) -> Result<Self, Error> {
        match planned {
            Ok(blueprint) => Ok(Self::Plan(Box::new(PlanReport::of(&blueprint)))),
            Err(error) => match error {
                Error::BudgetTooSmall {
                    budget_bytes,
                    needed_bytes,
                    ..
                } => Ok(Self::TooSmall {
                    budget_bytes,
                    needed_bytes,
                    problem: in_options(&error),
                    error: Box::new(error),
                }),
                error => Err(error),
            },
        }
    }

    fn text(&self) -> String {
        let size = in_binary_units;
        match self {
            Self::Plan(report) => format!(
                "{:>11}  {:>15}  {:>14}  {:>7}  {:>8}",
                size(report.budget_bytes),
                size(report.shares.weight_bytes + report.shares.expert_bytes),
                size(report.read_bytes()),
                report.context,
                report.speed_cell()
            ),
            Self::TooSmall {
                budget_bytes,
                needed_bytes,
                ..
            } => format!(
                "{:>11}  too small: {}M is the smallest that works",
                size(*budget_bytes),
                needed_bytes.div_ceil(1 << 20)
            ),
        }
    }
}

impl PlanReport {
    /// Tokens per second: as predicted, or at most as many as a drive allows.
    fn speed_cell(&self) -> String {
        let rate = self.drive_bytes_per_second.unwrap_or(GIBIBYTE);
        match self.predicted_tokens_per_second {
            Some(speed) if self.is_lower_bound => format!(">= {}", rounded(speed)),
            Some(speed) => rounded(speed),
            None if self.read_bytes() == 0 => "fits".to_owned(),
            None => format!("<= {}", rounded(rate / self.read_bytes() as f64)),
        }
    }
}

/// Prints the table, or its rows as JSON.
///
/// # Errors
/// When every budget is too small.
pub(super) fn print(mut rows: Vec<Row>, options: &PlanOptions) -> anyhow::Result<()> {
    let is_plan = |row: &Row| matches!(row, Row::Plan(_));
    if !rows.iter().any(is_plan)
        && let Some(Row::TooSmall { error, .. }) = rows.pop()
    {
        return Err((*error).into());
    }
    if options.json {
        crate::print(&(serde_json::to_string_pretty(&rows)? + "\n"))?;
        return Ok(());
    }
    let mut output = String::new();
    writeln!(
        output,
        "{:>11}  {:>15}  {:>14}  {:>7}  {:>8}",
        "budget", "in memory", "read per token", "context", "tokens/s"
    )?;
    for row in &rows {
        writeln!(output, "{}", row.text())?;
    }
    let reports: Vec<&PlanReport> = rows
        .iter()
        .filter_map(|row| match row {
            Row::Plan(report) => Some(&**report),
            Row::TooSmall { .. } => None,
        })
        .collect();
    output += &assumptions(&reports, options);
    crate::print(&output)?;
    Ok(())
}

/// What the column of tokens per second is about.
fn assumptions(reports: &[&PlanReport], options: &PlanOptions) -> String {
    let is_known = |report: &&PlanReport| report.drive_bytes_per_second.is_some();
    let drive = match &options.drive {
        Some(rate) => format!("a drive of {}", rate.text),
        None if reports.iter().any(is_known) => "this drive, as measured".to_owned(),
        None => "a drive of 1 GiB/s (--drive assumes another)".to_owned(),
    };
    let mut lines = vec![format!("tokens/s: {drive}")];
    let predicted = |report: &&PlanReport| report.predicted_tokens_per_second.is_some();
    lines.push(match reports.iter().all(predicted) {
        true => "          and this machine's processor, as measured".to_owned(),
        false => {
            "          <= is what the drive allows; emel doctor MODEL measures the rest".to_owned()
        }
    });
    let is_lower_bound = |report: &&PlanReport| report.is_lower_bound && predicted(report);
    if reports.iter().any(is_lower_bound) {
        lines.push(
            "          >= is for even routing; experts that are chosen often make it faster"
                .to_owned(),
        );
    }
    lines.join("\n") + "\n"
}
