//! `--profile FILE`: a trace that Perfetto and chrome://tracing open.
//!
//! The format is the JSON of Chrome's trace events ("complete" events, times in
//! microseconds). The engine has a row, and every slot of the ring has one for its reads.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use emel_loader::trace::{Activity, Event, Trace};
use serde_json::{Value, json};

use super::named_files::{NamedFiles, OutputKind};
use super::output::OutputFile;
use crate::blueprint::Blueprint;

/// The row of the engine's thread; those of slots follow it.
const ENGINE_ROW: usize = 1;

/// A file that a profile goes to.
pub struct ProfileFile {
    file: OutputFile,
    trace: Arc<Trace>,
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
        }))
    }

    /// Writes what has been recorded.
    ///
    /// # Errors
    /// When the file does not take it.
    pub fn write(self) -> anyhow::Result<()> {
        self.file.write(|output| write_trace(&self.trace, output))
    }
}

/// Writes the events one by one, so that the text is never in memory as a whole.
fn write_trace(trace: &Trace, output: &mut impl Write) -> std::io::Result<()> {
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
        writeln!(output, "{},", span(event))?;
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

fn span(event: &Event) -> Value {
    let (name, row, mut details) = match event.activity {
        Activity::Read { slot, bytes } => {
            ("read", ENGINE_ROW + 1 + slot, json!({ "bytes": bytes }))
        }
        Activity::Wait => ("wait", ENGINE_ROW, json!({})),
        Activity::Compute => ("compute", ENGINE_ROW, json!({})),
        Activity::Sample => ("sample", ENGINE_ROW, json!({})),
        Activity::Pass { tokens } => ("pass", ENGINE_ROW, json!({ "tokens": tokens })),
    };
    if let Some(unit) = event.unit {
        details["unit"] = json!(unit);
    }
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

fn microseconds(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}
