//! `emel tokenize`: the token ids of a text.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{ArgGroup, Args};
use emel_loader::gguf::Catalog;
use emel_model::arch;
use emel_model::tokenizer::{EncodeOptions, Tokenizer};
use serde::Serialize;

use super::TextSource;

/// A model and a text.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("task").args(["prompt", "file"]).required(true)))]
pub struct TokenizeOptions {
    /// The model: a GGUF file, or the first of its shards [also: -m FILE]
    model: PathBuf,

    #[command(flatten)]
    text: TextSource,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct TokenizeReport {
    ids: Vec<u32>,
}

/// Prints the ids.
///
/// # Errors
/// When the model has no tokenizer that runs here, or the text cannot be read.
pub fn run(options: &TokenizeOptions) -> anyhow::Result<()> {
    let tokenizer = tokenizer(&options.model)?;
    for text in tokenizer.warnings() {
        crate::notice(&text.to_string());
    }
    let report = TokenizeReport {
        ids: tokenizer.encode(&options.text.read(None)?, EncodeOptions::PROMPT),
    };
    crate::note_two_bos(&tokenizer, &report.ids);
    if options.json {
        crate::print(&(serde_json::to_string(&report)? + "\n"))?;
    } else {
        let mut output = String::new();
        for &id in &report.ids {
            let text = String::from_utf8_lossy(&tokenizer.token_bytes(id, true)).into_owned();
            writeln!(output, "{id:>8}  {text:?}")?;
        }
        crate::print(&output)?;
    }
    Ok(())
}

fn tokenizer(model: &Path) -> anyhow::Result<Tokenizer> {
    let mut catalog = Catalog::open(model)?;
    let path = || model.display().to_string();
    arch::check_kind(catalog.metadata()).with_context(path)?;
    Tokenizer::from_metadata(catalog.metadata_mut()).with_context(path)
}
