//! `--profile FILE`: a trace that Perfetto and chrome://tracing open.
//!
//! The format is the JSON of Chrome's trace events ("complete" events, times in
//! microseconds). The engine has a row, and every slot of the ring has one for its reads.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use emel_loader::expert_layout::{EXPERT_PARTS, ExpertPart};
use emel_loader::trace::{Activity, Event, Subject, Trace};
use serde_json::{Value, json};

use super::named_files::NamedFiles;
use super::output::OutputFile;
use super::output::OutputKind;
use emel::internals::blueprint::Blueprint;

/// The row of the engine's thread; those of slots follow it.
const ENGINE_ROW: usize = 1;

/// A file that a profile goes to.
pub struct ProfileFile {
    file: OutputFile,
    trace: Arc<Trace>,
    names: Names,
}

/// The tensors that events are about.
struct Names {
    embedding: String,
    /// Of every matrix of a pass, in compute order.
    matrices: Vec<String>,
    /// The first unit that each of them is in. A unit is a part of one matrix or holds
    /// several whole ones.
    first_units: Vec<usize>,
    /// Of every MoE layer, the gate, up and down tensors: one for all experts, or one for each.
    mixtures: Vec<[Vec<String>; EXPERT_PARTS]>,
}

impl ProfileFile {
    /// A file for what `blueprint` will record; `None` if it records nothing.
    ///
    /// # Errors
    /// As [`NamedFiles::output`].
    pub fn new(
        path: &Path,
        named: &mut NamedFiles,
        blueprint: &Blueprint,
    ) -> anyhow::Result<Option<Self>> {
        let Some(trace) = &blueprint.trace else {
            return Ok(None);
        };
        Ok(Some(Self {
            file: named.output("--profile", path, OutputKind::Profile)?,
            trace: Arc::clone(trace),
            names: Names::new(blueprint),
        }))
    }

    /// Writes what has been recorded.
    ///
    /// # Errors
    /// When the file does not take it.
    pub fn write(self) -> anyhow::Result<()> {
        let Self { file, trace, names } = self;
        file.write(|output| write_trace(&trace, &names, output))
    }
}

/// Writes the events one by one, so that the text is never in memory as a whole.
fn write_trace(trace: &Trace, names: &Names, output: &mut impl Write) -> std::io::Result<()> {
    let events = trace.events();
    let slots = events.iter().filter_map(|event| match event.activity {
        Activity::Read { slot, .. } => Some(slot + 1),
        _ => None,
    });
    let rows = ENGINE_ROW + slots.max().unwrap_or(0);
    writeln!(output, "{{\"displayTimeUnit\": \"ms\", \"traceEvents\": [")?;
    for row in ENGINE_ROW..=rows {
        writeln!(output, "{},", row_name(row))?;
    }
    for event in &events {
        writeln!(output, "{},", span(event, names))?;
    }
    // The last entry has no comma after it.
    let process = json!({
        "name": "process_name", "ph": "M", "pid": 1, "args": { "name": "emel" },
    });
    writeln!(output, "{process}")?;
    let other = json!({ "events": events.len(), "dropped_events": trace.dropped() });
    writeln!(output, "], \"otherData\": {other}}}")
}

fn row_name(row: usize) -> Value {
    let name = if row == ENGINE_ROW {
        "engine".to_owned()
    } else {
        format!("reads into slot {}", row - ENGINE_ROW - 1)
    };
    json!({ "name": "thread_name", "ph": "M", "pid": 1, "tid": row, "args": { "name": name } })
}

fn span(event: &Event, names: &Names) -> Value {
    let (name, row, mut details) = match event.activity {
        Activity::Read { slot, bytes } => {
            ("read", ENGINE_ROW + 1 + slot, json!({ "bytes": bytes }))
        }
        Activity::Wait => ("wait", ENGINE_ROW, json!({})),
        Activity::Compute => ("compute", ENGINE_ROW, json!({})),
        Activity::Sample => ("sample", ENGINE_ROW, json!({})),
        Activity::Pass { tokens } => ("pass", ENGINE_ROW, json!({ "tokens": tokens })),
    };
    names.describe(event.subject, &mut details);
    json!({
        "name": name,
        "ph": "X",
        "pid": 1,
        "tid": row,
        "ts": microseconds(event.start),
        "dur": microseconds(event.length),
        "args": details,
    })
}

impl Names {
    fn new(blueprint: &Blueprint) -> Self {
        let (program, units) = (&blueprint.program, &blueprint.plan.units);
        let name = |tensor: usize| blueprint.catalog.tensors()[tensor].name.clone();
        let names = |part: &ExpertPart| match part {
            ExpertPart::Stacked { tensor, .. } => vec![name(*tensor)],
            ExpertPart::Separate(tensors) => tensors.iter().copied().map(name).collect(),
        };
        let mut first_units = vec![0; program.uses.len()];
        for (index, unit) in units.iter().enumerate().rev() {
            for part in &unit.parts {
                first_units[part.weight] = index;
            }
        }
        Self {
            embedding: name(program.embedding),
            matrices: program.uses.iter().map(|it| name(it.tensor)).collect(),
            first_units,
            mixtures: program
                .expert_uses
                .iter()
                .map(|experts| experts.parts.each_ref().map(names))
                .collect(),
        }
    }

    /// Adds unit, layer, tensors and expert to an event's details, as far as it has them.
    fn describe(&self, subject: Subject, details: &mut Value) {
        let tensors: Vec<&str> = match subject {
            Subject::Nothing => return,
            Subject::Unit(unit) => {
                details["unit"] = json!(unit);
                self.matrices(unit, unit)
            }
            Subject::Units { first, last } => {
                details["unit"] = json!(first);
                self.matrices(first as usize, last as usize)
            }
            Subject::Embedding => vec![&self.embedding],
            Subject::Mixture(mixture) => {
                let parts = self.mixtures[mixture].iter();
                parts.map(|names| names[0].as_str()).collect()
            }
            Subject::Expert {
                mixture,
                expert,
                part,
            } => {
                details["expert"] = json!(expert);
                let names = &self.mixtures[mixture as usize][usize::from(part)];
                // One tensor for all experts, or one for each.
                vec![names.get(expert as usize).unwrap_or(&names[0])]
            }
        };
        if let Some(layer) = tensors.first().and_then(|name| layer_of(name)) {
            details["layer"] = json!(layer);
        }
        details["tensor"] = json!(tensors.join(", "));
    }

    /// The matrices of the units from `first` to `last`.
    fn matrices(&self, first: usize, last: usize) -> Vec<&str> {
        let end = self.first_units.partition_point(|&unit| unit <= last);
        // The first unit may be a later part of a matrix that began before it.
        let began = self.first_units[..end].partition_point(|&unit| unit <= first);
        let began = self.first_units[began.saturating_sub(1)];
        let start = self.first_units.partition_point(|&unit| unit < began);
        self.matrices[start..end]
            .iter()
            .map(String::as_str)
            .collect()
    }
}

/// The layer in a tensor's name: `blk.7.attn_q.weight` is in layer 7.
fn layer_of(tensor: &str) -> Option<u32> {
    let (layer, _) = tensor.strip_prefix("blk.")?.split_once('.')?;
    layer.parse().ok()
}

fn microseconds(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}
