//! Runs a forward pass by hand, with units cut at will.

use std::path::Path;

use emel_loader::files::OpenFiles;
use emel_loader::gguf::Catalog;
use emel_loader::unit::partition;
use emel_model::arch;
use emel_model::error::ModelError;
use emel_model::forward::{Batch, Footprint, Forward};
use emel_model::kv_cache::KvType;
use emel_model::schedule::schedule;

/// How a pass is cut.
#[derive(Debug, Clone, Copy)]
pub struct Cut {
    /// The largest unit, in bytes.
    pub unit_bytes: u64,
    /// Tokens that go through together.
    pub chunk: usize,
    /// Threads that compute.
    pub threads: usize,
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
    let catalog = Catalog::open(model).expect("a good file");
    let program = arch::program(&catalog)?;
    let files = OpenFiles::open([model], false).expect("a readable file");
    let bytes = std::fs::read(model).expect("a readable file");
    let units = partition(&catalog, &program.uses, cut.unit_bytes);
    let steps = schedule(&program, &units);
    let footprint = Footprint {
        context: tokens.len(),
        context_wished: tokens.len(),
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
        for step in &steps {
            let unit = step.unit.map_or(0..0, |unit| {
                let extent = units[unit].extent;
                extent.offset as usize..(extent.offset + extent.bytes) as usize
            });
            forward.run(&step.work, &bytes[unit]);
        }
        forward.finish();
        rows.extend((0..tokens.len()).map(|index| forward.logits(index).to_vec()));
    }
    Ok(rows)
}
