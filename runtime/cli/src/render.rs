//! `emel render`: the prompt that a conversation becomes.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use emel_loader::gguf::Catalog;
use emel_model::chat::{ChatTemplates, Conversation, SpecialTexts};
use emel_model::tokenizer::Tokenizer;
use serde::Serialize;

use super::template::TemplateOptions;
use super::{print, read_text};

/// Options of `emel render`.
#[derive(Debug, Args)]
pub struct RenderOptions {
    /// The model: a GGUF file, or the first of its shards [also: -m FILE]
    model: PathBuf,

    /// Messages as in the OpenAI API: a JSON array, or an object with `messages`, and
    /// `tools`, `documents`, `add_generation_prompt` [default: true] and
    /// `chat_template_kwargs` if wanted; - reads standard input
    #[arg(short, long, value_name = "MESSAGES.json")]
    file: PathBuf,

    #[command(flatten)]
    template: TemplateOptions,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct RenderReport {
    prompt: String,
}

/// Prints the prompt, with nothing added to it.
///
/// # Errors
/// When the model, the messages or the template cannot be read, or do not fit together.
pub fn run(options: &RenderOptions) -> anyhow::Result<()> {
    let model = || options.model.display().to_string();
    let text = read_text(&options.file, None)?;
    let conversation = Conversation::from_json(&text)
        .with_context(|| format!("{}: cannot read messages", options.file.display()))?;
    let mut catalog = Catalog::open(&options.model)?;
    let tokenizer = Tokenizer::from_metadata(catalog.metadata_mut()).with_context(model)?;
    let special = SpecialTexts::of(&tokenizer);
    let templates = ChatTemplates::take(catalog.metadata_mut(), special);
    let template =
        options
            .template
            .compile(&options.model, &templates, conversation.has_tools())?;
    let prompt = template.render(&conversation)?;
    if options.json {
        print(&(serde_json::to_string(&RenderReport { prompt })? + "\n"))?;
    } else {
        print(&prompt)?;
    }
    Ok(())
}
