//! `emel plan`: where the memory of a run would go, and how fast it would be.

use std::fmt::Write as _;

use clap::Args;
use emel_loader::plan::{Plan, ROW_SLOTS, held_bytes};
use serde::Serialize;

use super::remedies::notice_in_options;
use super::{ModelOptions, drive};
use crate::blueprint::Blueprint;
use crate::budget::in_binary_units;
use crate::prediction::{self, MissShare, Prediction};
use crate::{SamplerOptions, cli};

/// What is planned for.
#[derive(Debug, Args)]
pub struct PlanOptions {
    #[command(flatten)]
    model: ModelOptions,

    /// Tokens in the context [default: 4096, or what the model and the budget allow]
    #[arg(short, long, value_name = "N", allow_negative_numbers = true)]
    ctx_size: Option<usize>,

    /// Print JSON
    #[arg(long)]
    json: bool,
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

/// Prints the plan.
///
/// # Errors
/// When the model cannot be run within the budget.
pub fn run(options: &PlanOptions) -> anyhow::Result<()> {
    let mut settings = options.model.settings();
    settings.context = options.ctx_size;
    settings.sampler = Some(SamplerOptions::default());
    let blueprint = Blueprint::new(&options.model.model, settings)?;
    let notices = blueprint.notices.iter().map(notice_in_options);
    notices.for_each(|text| cli::notice(&text));
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
