//! `emel plan`: where the memory of a run would go, and how fast it would be.

mod bar;
mod table;

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use clap::Args;
use emel_loader::plan::{ExpertSlotsPlan, Plan, ROW_SLOTS};
use serde::Serialize;

use self::bar::Bar;
use self::table::Row;
use super::ComputingOptions;
use super::drive::{self, DriveRate};
use super::remedies::notice_in_options;
use super::units::{GIBIBYTE, in_gibibytes};
use emel::Error;
use emel::Settings;
use emel::internals::blueprint::{Blueprint, ExpectedRequest, PromptForm};
use emel::internals::budget::{RamBudget, in_binary_units};
use emel::internals::prediction::{self, MissShare, Prediction, rounded};

/// What is planned for.
#[derive(Debug, Args)]
pub struct PlanOptions {
    /// The model: a GGUF file, or the first of its shards [also: -m FILE]
    model: PathBuf,

    /// The most memory that emel may use, as 512M, 8G (powers of 1024), bytes, or 60% of the
    /// model file; several, as in 4G,8G,16G, give a table [default: 85% of the memory that is
    /// free]
    #[arg(
        long,
        value_name = "SIZES",
        allow_hyphen_values = true,
        value_delimiter = ',',
        default_value = "auto",
        hide_default_value = true
    )]
    ram_budget: Vec<RamBudget>,

    #[command(flatten)]
    computing: ComputingOptions,

    /// Tokens in the context; 0 for as many as the model was trained for [default: as many as
    /// the model and the budget allow]
    #[arg(short, long, value_name = "N", allow_negative_numbers = true)]
    ctx_size: Option<usize>,

    /// Plan for a conversation, whose template takes memory too: the default for a model that
    /// has one [short: -cnv]
    #[arg(long, overrides_with_all = ["conversation", "no_conversation"])]
    conversation: bool,

    /// Plan for a text that is continued as it is, the default for a base model [short:
    /// -no-cnv]
    #[arg(long, overrides_with_all = ["conversation", "no_conversation"])]
    no_conversation: bool,

    /// Speed of the drive, as 2GB/s or 2GiB/s, to plan for another machine [default: what emel
    /// doctor has measured here]
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    drive: Option<DriveRate>,

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
    #[serde(skip)]
    shares: Shares,
}

/// What the bar shows of the items.
#[derive(Debug, Clone, Copy, Default)]
struct Shares {
    weight_bytes: u64,
    expert_bytes: u64,
    kv_bytes: u64,
    activation_bytes: u64,
    /// With the embedding rows, which pass through memory, too.
    ring_bytes: u64,
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

impl PlanOptions {
    /// What is wrong with the numbers among them.
    pub fn faults(&self) -> Vec<String> {
        self.computing.faults(self.ctx_size)
    }
}

/// Prints the plan, or a table of several.
///
/// # Errors
/// When the model cannot be run within the budget, or within any of several.
pub fn run(options: &PlanOptions) -> anyhow::Result<()> {
    let mut settings = options.computing.settings(&options.model);
    settings.context = options.ctx_size;
    let assumed = options.drive.as_ref().map(DriveRate::curve);
    settings.drive = assumed.or(settings.drive);
    let converses = match (options.conversation, options.no_conversation) {
        (false, false) => None,
        (converses, _) => Some(converses),
    };
    let plan = |&ram_budget: &RamBudget| {
        let settings = Settings {
            ram_budget,
            ..settings.clone()
        };
        of_run(&options.model, settings, converses)
    };
    let [budget] = &options.ram_budget[..] else {
        let rows: Result<Vec<Row>, Error> = options
            .ram_budget
            .iter()
            .map(|budget| Row::of(plan(budget)))
            .collect();
        return table::print(rows?, options);
    };
    let blueprint = plan(budget)?;
    let notices = blueprint.notices.iter().map(notice_in_options);
    notices.for_each(|text| crate::notice(&text));
    let report = PlanReport::of(&blueprint);
    crate::print(&match options.json {
        true => serde_json::to_string_pretty(&report)? + "\n",
        false => report.text(options)?,
    })?;
    Ok(())
}

/// What `emel run` would plan before it knows of any text; unless it is said, it `converses` with
/// a model that has a chat template.
///
/// # Errors
/// As [`Blueprint::new`].
pub(super) fn of_run(
    model: &Path,
    mut settings: Settings,
    converses: Option<bool>,
) -> Result<Blueprint, Error> {
    settings.sampler.get_or_insert_default();
    let request = |form: &PromptForm<'_>| -> Result<_, Error> {
        let expected = ExpectedRequest {
            prompt: None,
            renders: converses.unwrap_or(!form.is_of_base_model()),
            answer_tokens: None,
            session: None,
        };
        Ok((expected, ()))
    };
    let (blueprint, (), _) = Blueprint::for_request(model, settings, request)?;
    Ok(blueprint)
}

impl PlanReport {
    fn text(&self, options: &PlanOptions) -> Result<String, std::fmt::Error> {
        let mut output = String::new();
        let size = in_binary_units;
        let origin = match options.ram_budget[..] {
            [RamBudget::Automatic] => "  85% of what is available; --ram-budget sets it",
            _ => "",
        };
        writeln!(output, "budget    {:>11}{origin}", size(self.budget_bytes))?;
        let characters = match std::io::stdout().is_terminal() {
            true => bar::BLOCKS,
            false => bar::PLAIN,
        };
        output += &self.bar().text(characters);
        for item in &self.items {
            writeln!(output, "{:>21}  {}", size(item.bytes), item.name)?;
        }
        writeln!(output, "planned   {:>11}", size(self.planned_bytes))?;
        output += &self.outcome(options.drive.as_ref());
        output.push('\n');
        if self.predicted_tokens_per_second.is_none() {
            output += "emel doctor MODEL measures how fast this machine is\n";
        }
        Ok(output)
    }

    /// What is read for each token, and what that allows.
    fn outcome(&self, assumed: Option<&DriveRate>) -> String {
        let size = in_binary_units;
        let read = format!("read      {:>11}  per token", size(self.read_bytes()));
        match &self.experts {
            None if self.streamed_bytes_per_pass == 0 => {
                let speed = self.predicted_tokens_per_second;
                let speed = speed.map(|speed| format!(", about {} tokens/s", rounded(speed)));
                let speed = speed.unwrap_or_default();
                format!("the model fits: nothing is read per token{speed}")
            }
            None => format!("{read}: {}", self.speed(assumed)),
            Some(experts) if self.read_bytes_if_even(experts) == 0 => {
                "every expert has a slot: once each has been read, nothing is read per token"
                    .to_owned()
            }
            Some(experts) => {
                let (if_so, note) = match experts.learnt_bytes_per_token {
                    Some(_) => ("as earlier runs have gone", ""),
                    None => ("if routing is even", "; faster where some are preferred"),
                };
                let most = size(self.streamed_bytes_per_pass + experts.bytes_per_token);
                let speed = self.speed(assumed);
                format!("{read} {if_so}, {most} at most:\n{:>21}  {speed}{note}", "")
            }
        }
    }

    /// Bytes that are read for a token, as far as it is known which experts these are.
    fn read_bytes(&self) -> u64 {
        let of_experts = self.experts.as_ref().map_or(0, |experts| {
            let learnt = experts.learnt_bytes_per_token;
            learnt.unwrap_or(experts.expected_bytes_per_token)
        });
        self.streamed_bytes_per_pass + of_experts
    }

    fn read_bytes_if_even(&self, experts: &PlanExperts) -> u64 {
        self.streamed_bytes_per_pass + experts.expected_bytes_per_token
    }

    /// What the bytes that are read for each token allow.
    fn speed(&self, assumed: Option<&DriveRate>) -> String {
        let (drive, allow) = match (assumed, self.drive_bytes_per_second) {
            (Some(rate), _) => (format!("a drive of {}", rate.text), "allows"),
            (None, None) => ("a drive of 1 GiB/s".to_owned(), "allows"),
            (None, Some(rate)) => {
                let rate = in_gibibytes(rate);
                (format!("this drive's {rate:.2} GiB/s"), "allow")
            }
        };
        match (
            self.drive_bytes_per_second,
            self.predicted_tokens_per_second,
        ) {
            (Some(_), Some(predicted)) => {
                let about = if self.is_lower_bound {
                    "at least"
                } else {
                    "about"
                };
                format!("{about} {} tokens/s, with {drive}", rounded(predicted))
            }
            // Earlier runs have missed nothing.
            _ if self.read_bytes() == 0 => "the drive is no limit".to_owned(),
            (rate, _) => {
                let allowed = rate.unwrap_or(GIBIBYTE) / self.read_bytes() as f64;
                format!("{drive} {allow} {} tokens/s", rounded(allowed))
            }
        }
    }

    /// What the budget goes to.
    fn bar(&self) -> Bar {
        let Shares {
            kv_bytes,
            activation_bytes,
            ring_bytes,
            expert_bytes,
            weight_bytes,
        } = self.shares;
        let named = [
            weight_bytes,
            expert_bytes,
            kv_bytes,
            activation_bytes,
            ring_bytes,
        ];
        let named_bytes: u64 = named.iter().sum();
        Bar {
            budget_bytes: self.budget_bytes,
            shares: [
                ("weights", weight_bytes),
                ("experts", expert_bytes),
                ("KV cache", kv_bytes),
                ("activations", activation_bytes),
                ("ring", ring_bytes),
                ("other", self.planned_bytes.saturating_sub(named_bytes)),
            ],
        }
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
    let ring = format!("ring of read buffers ({} slots of {slot_size})", plan.slots);
    add(ring, plan.ring_bytes());
    let rows = format!("embedding rows ({ROW_SLOTS} at a time)");
    add(rows, plan.row_bytes());
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
        add(
            "weights: the whole file, mapped".to_owned(),
            plan.file_bytes,
        );
    } else {
        let kind = match plan.expert_slots {
            Some(_) => "weights but experts",
            None => "weights",
        };
        // What stays and what is read per token add up.
        let name = match plan.streamed_bytes() {
            0 => format!("{kind}, all in memory"),
            read => {
                let all = in_binary_units(plan.pinned_bytes() + read);
                format!("{kind} in memory, of {all}")
            }
        };
        add(name, plan.pinned_bytes());
    }
    items
}

impl Shares {
    fn of(blueprint: &Blueprint) -> Self {
        let plan = &blueprint.plan;
        let experts = plan.expert_slots.as_ref();
        Self {
            weight_bytes: match plan.is_mapped {
                true => plan.file_bytes,
                false => plan.pinned_bytes(),
            },
            expert_bytes: experts.map_or(0, ExpertSlotsPlan::bytes),
            kv_bytes: blueprint.kv_bytes(),
            activation_bytes: blueprint.footprint().activation_bytes(&blueprint.program),
            ring_bytes: plan.ring_bytes() + plan.row_bytes(),
        }
    }
}

impl PlanReport {
    fn of(blueprint: &Blueprint) -> Self {
        let plan = &blueprint.plan;
        let rates = drive::kept_rates(blueprint.settings.threads);
        let misses = plan.expert_slots.as_ref().map(|experts| {
            let learnt = blueprint.learnt().unwrap_or_else(|why| {
                crate::notice(&format!("what was learnt is ignored: {why}"));
                None
            });
            MissShare::new(experts, learnt.as_ref())
        });
        Self {
            shares: Shares::of(blueprint),
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
            is_lower_bound: misses.is_some_and(MissShare::is_lower_bound),
            experts: plan.expert_slots.as_ref().map(|experts| PlanExperts {
                slots: experts.slots,
                slot_bytes: experts.layout.slot_bytes,
                of_experts: experts.layout.experts(),
                bytes_per_token: experts.bytes_per_token(),
                expected_bytes_per_token: experts.expected_bytes_per_token(),
                learnt_bytes_per_token: misses
                    .filter(|misses| matches!(misses, MissShare::Learnt(_)))
                    .map(|misses| misses.read_bytes(experts)),
            }),
        }
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
            shares: Shares::default(),
        };
        let assumed: DriveRate = "1GiB/s".parse().unwrap();
        assert_eq!(report.speed(None), "the drive is no limit");
        report.streamed_bytes_per_pass = 1 << 29;
        let speed = report.speed(None);
        assert_eq!(speed, "a drive of 1 GiB/s allows 2.0 tokens/s");
        report.drive_bytes_per_second = Some(f64::from(1 << 30));
        let speed = report.speed(Some(&assumed));
        assert_eq!(speed, "a drive of 1GiB/s allows 2.0 tokens/s");
        report.streamed_bytes_per_pass = 0;
        assert_eq!(report.speed(None), "the drive is no limit");
        report.predicted_tokens_per_second = Some(12.0);
        let speed = report.speed(None);
        assert_eq!(speed, "about 12 tokens/s, with this drive's 1.00 GiB/s");
        report.is_lower_bound = true;
        let speed = report.speed(Some(&assumed));
        assert_eq!(speed, "at least 12 tokens/s, with a drive of 1GiB/s");
    }
}
