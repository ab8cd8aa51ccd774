//! Runs a forward pass by hand, with units cut at will.

use std::path::Path;

use emel_loader::expert_layout::ExpertBytes;
use emel_loader::files::OpenFiles;
use emel_loader::gguf::{Catalog, Extent};
use emel_loader::unit::partition;
use emel_model::arch;
use emel_model::error::ModelError;
use emel_model::forward::{Batch, Footprint, Forward};
use emel_model::kv_cache::KvType;
use emel_model::program::Program;
use emel_model::steps::steps_of;

/// How a pass is cut.
#[derive(Debug, Clone, Copy)]
pub struct Cut {
    /// The largest unit, in bytes.
    pub unit_bytes: u64,
    /// Experts that are computed together, the last ones first.
    pub experts: usize,
    /// Tokens that go through together.
    pub chunk: usize,
    /// Threads that compute.
    pub threads: usize,
    /// Whether steps that may be joined are.
    pub joined: bool,
    /// How keys and values are kept.
    pub kv_type: KvType,
}

/// The logits of every position, row after row.
///
/// # Errors
/// When the model describes itself badly.
///
/// # Panics
/// When its file cannot be read.
pub fn logits(model: &Path, cut: Cut, tokens: &[u32]) -> Result<Vec<Vec<f32>>, ModelError> {
    logits_in_context(model, cut, tokens, tokens.len())
}

/// The same for a context of `context_wished` positions, which `LongRoPE` asks about.
///
/// # Errors
/// When the model describes itself badly.
///
/// # Panics
/// When its file cannot be read.
pub fn logits_in_context(
    model: &Path,
    cut: Cut,
    tokens: &[u32],
    context_wished: usize,
) -> Result<Vec<Vec<f32>>, ModelError> {
    let catalog = Catalog::open(model).expect("a good file");
    let program = arch::program(&catalog)?;
    let files = OpenFiles::open([model], false).expect("a readable file");
    let bytes = std::fs::read(model).expect("a readable file");
    let units = partition(&catalog, &program.uses, cut.unit_bytes);
    let steps = steps_of(&program, &units);
    let footprint = Footprint {
        context: tokens.len(),
        context_wished,
        chunk: cut.chunk,
        logit_tokens: cut.chunk,
        threads: cut.threads,
        kv_type: cut.kv_type,
    };
    let mut forward =
        Forward::new(&program, &catalog, &files, footprint).expect("threads and memory");
    let embedding = &catalog.tensors()[program.embedding];
    let row_bytes = embedding.row_bytes() as usize;
    let mut rows = Vec::new();
    for (index, tokens) in tokens.chunks(cut.chunk).enumerate() {
        forward.begin(Batch {
            tokens,
            position: index * cut.chunk,
            logit_tokens: tokens.len(),
        });
        for (index, &token) in tokens.iter().enumerate() {
            let start = embedding.extent.offset as usize + token as usize * row_bytes;
            forward.embed(index, &bytes[start..start + row_bytes]);
        }
        let mut rest = steps.as_slice();
        while let Some(step) = rest.first() {
            if let Some(group) = step.experts {
                let model = (&program, &catalog, bytes.as_slice());
                run_experts(&mut forward, model, group, cut.experts);
            }
            let count = if cut.joined { step.joined } else { 1 };
            let (together, later) = rest.split_at(count);
            rest = later;
            forward.run_together(together.iter().map(|step| {
                let unit = step.unit.map(|unit| bytes_of(&bytes, units[unit].extent));
                (step.work.as_slice(), unit.unwrap_or_default())
            }));
        }
        forward.finish();
        rows.extend((0..tokens.len()).map(|index| forward.logits(index).to_vec()));
    }
    Ok(rows)
}

fn bytes_of(file: &[u8], extent: Extent) -> &[u8] {
    &file[extent.offset as usize..(extent.offset + extent.bytes) as usize]
}

fn run_experts(
    forward: &mut Forward,
    (program, catalog, bytes): (&Program, &Catalog, &[u8]),
    group: usize,
    together: usize,
) {
    let weights = &program.expert_uses[group];
    let chosen: Vec<ExpertBytes<'_>> = (0..weights.experts)
        .filter(|&expert| !forward.routing().rows_of_expert(expert).is_empty())
        .map(|expert| ExpertBytes {
            expert,
            parts: [0, 1, 2].map(|part| bytes_of(bytes, weights.extent(catalog, part, expert))),
        })
        .collect();
    for experts in chosen.rchunks(together) {
        forward.run_experts(group, experts);
    }
}
