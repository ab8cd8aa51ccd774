//! The runs of a sweep in their order: for each cap all contenders in turns, as often as asked.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use emel::RamBudget;
use emel::internals::blueprint::{Blueprint, Settings};
use emel::internals::budget::in_binary_units;
use emel_cli::tell;
use serde::Deserialize;

use super::cap::SizedCap;
use super::contender::{Contender, Variant};
use super::report::{ContenderReport, Llama, Model, Outcome, Run, Skipped};
use super::run::Runner;

/// More memory than planning for a model in memory takes besides its file.
const AMPLE_BYTES: u64 = 4 << 30;

/// A model that is to be run, as far as its header tells.
#[derive(Debug, Clone)]
pub struct Subject {
    /// What the report says of it.
    pub model: Model,
    /// Its files.
    pub files: Vec<PathBuf>,
    /// Tokens of its vocabulary.
    pub vocabulary: usize,
}

impl Subject {
    /// Reads the header of the model at `path`.
    ///
    /// # Errors
    /// When it cannot be read or is not supported.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let file_bytes = std::fs::metadata(path).map_or(0, |it| it.len());
        let settings = Settings {
            ram_budget: RamBudget::Bytes(file_bytes.saturating_mul(2).saturating_add(AMPLE_BYTES)),
            context: Some(1),
            ..Settings::default()
        };
        let blueprint = Blueprint::new(path, settings)?;
        let units = blueprint.plan.units.iter().map(|unit| unit.extent.bytes);
        let name = path.file_name().unwrap_or_default();
        let files = blueprint.catalog.files().iter();
        Ok(Self {
            model: Model {
                name: name.to_string_lossy().into_owned(),
                file_bytes: blueprint.catalog.file_bytes(),
                pass_bytes: units.sum(),
                has_experts: !blueprint.program.expert_uses.is_empty(),
            },
            files: files.map(|file| file.path.clone()).collect(),
            vocabulary: blueprint.program.vocabulary(),
        })
    }
}

/// Contenders in their settings, of those that are asked for and can run.
#[derive(Debug, Clone, Default)]
pub struct Contenders {
    /// In the order of the first turn.
    pub variants: Vec<Variant>,
    /// The others.
    pub skipped: Vec<Skipped>,
    /// llama.cpp, if it is here.
    pub llama: Option<Llama>,
}

impl Contenders {
    /// Looks for what the contenders need.
    ///
    /// # Errors
    /// When none can run.
    pub fn find(asked: &[Contender], runner: &Runner) -> anyhow::Result<Self> {
        let mut contenders = Self::default();
        for (index, &contender) in asked.iter().enumerate() {
            if asked[..index].contains(&contender) {
                continue;
            }
            match contender {
                Contender::Emel => contenders.variants.push(Variant::Emel),
                Contender::EmelMmap => contenders.variants.push(Variant::EmelMmap),
                Contender::Llama => match find_llama(runner) {
                    Ok(llama) => {
                        contenders.variants.push(Variant::Llama);
                        if llama.has_repacking {
                            contenders.variants.push(Variant::LlamaRepacked);
                        }
                        contenders.llama = Some(llama);
                    }
                    Err(error) => {
                        let reason = runner.without_folders(&format!("{error:#}"));
                        contenders.skip(contender, reason);
                    }
                },
            }
        }
        ensure!(
            !contenders.variants.is_empty(),
            "no contender is left to run"
        );
        Ok(contenders)
    }

    fn skip(&mut self, contender: Contender, reason: String) {
        tell(&format!("{} is left out: {reason}", contender.name()));
        self.skipped.push(Skipped { contender, reason });
    }
}

/// What `bench/versus_llama` says of llama.cpp.
#[derive(Deserialize)]
struct Described {
    version: String,
    system: String,
    settings: Vec<serde_json::Map<String, serde_json::Value>>,
}

fn find_llama(runner: &Runner) -> anyhow::Result<Llama> {
    ensure!(
        runner.task.llama_python.exists(),
        "there is no Python that has llama.cpp; run bench/versus_llama once, which installs it, \
         or name one with --llama-python"
    );
    let command = runner.task.describe_llama();
    let mut process = std::process::Command::new(&command[0]);
    let done = process.args(&command[1..]).output();
    let done = done.context("its Python cannot be run; remove it and run bench/versus_llama")?;
    let (output, said) = (
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr),
    );
    let described: Option<Described> = output
        .lines()
        .last()
        .filter(|_| done.status.success())
        .and_then(|line| serde_json::from_str(line).ok());
    let said = said.lines().last().unwrap_or("it said nothing").to_owned();
    let described = described.with_context(|| format!("it does not load the model: {said}"))?;
    Ok(Llama {
        has_repacking: described
            .settings
            .iter()
            .any(|it| it.contains_key("repack")),
        version: described.version,
        system: described.system,
    })
}

/// Runs the contenders in a cap, as many turns as asked. In each turn another contender comes first.
/// A contender that does not finish is not tried again in this cap.
///
/// # Errors
/// When a run cannot be made.
pub fn run_cap(
    runner: &Runner,
    variants: &[Variant],
    turns: usize,
    cap: &SizedCap,
) -> anyhow::Result<Vec<ContenderReport>> {
    let mut runs: Vec<Vec<Run>> = variants.iter().map(|_| Vec::new()).collect();
    for turn in 1..=turns {
        for place in 0..variants.len() {
            let index = (place + turn - 1) % variants.len();
            let of_contender = &mut runs[index];
            let has_failed = of_contender.last().is_some_and(|run| !run.has_finished());
            if has_failed {
                continue;
            }
            let outcome = runner.run(variants[index], cap)?;
            let name = variants[index].name();
            let outcome_line = summary(&outcome);
            let asked = cap.asked;
            tell(&format!("{asked}, turn {turn}, {name}: {outcome_line}"));
            of_contender.push(Run { turn, outcome });
        }
    }
    let contenders = variants.iter().zip(runs);
    Ok(contenders
        .map(|(&variant, runs)| ContenderReport::new(variant, runs))
        .collect())
}

/// An outcome in a line.
fn summary(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Finished(figures) => {
            let group = figures.group.as_ref();
            let peak = group.and_then(|group| group.peak_bytes);
            let peak = peak.map_or(String::new(), |it| {
                format!(", peak {}", in_binary_units(it))
            });
            let bytes = figures.bytes_per_token;
            let read = bytes.map_or(String::new(), |bytes| {
                format!(", {} read for each", in_binary_units(bytes as u64))
            });
            format!("{:.2} tokens/s{read}{peak}", figures.tokens_per_second)
        }
        Outcome::OutOfMemory { .. } => "killed for want of memory".to_owned(),
        Outcome::TimedOut { seconds } => format!("not done after {seconds} s, ended"),
        Outcome::Failed { message, .. } => format!("failed: {message}"),
    }
}
