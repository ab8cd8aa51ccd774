//! Which chat template a command uses.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use emel_model::chat::{CHATML, ChatTemplate, ChatTemplates};

use super::remedies::OptionError;
use super::{notice, read_text};

/// Names of llama.cpp's own templates, of its `src/llama-chat.cpp`, but for `chatml`.
const LLAMA_CPP_NAMES: [&str; 53] = [
    "llama2",
    "llama2-sys",
    "llama2-sys-bos",
    "llama2-sys-strip",
    "mistral-v1",
    "mistral-v3",
    "mistral-v3-tekken",
    "mistral-v7",
    "mistral-v7-tekken",
    "phi3",
    "phi4",
    "falcon3",
    "zephyr",
    "monarch",
    "gemma",
    "orion",
    "openchat",
    "vicuna",
    "vicuna-orca",
    "deepseek",
    "deepseek2",
    "deepseek3",
    "deepseek-ocr",
    "command-r",
    "llama3",
    "chatglm3",
    "chatglm4",
    "glmedge",
    "minicpm",
    "exaone3",
    "exaone4",
    "exaone-moe",
    "rwkv-world",
    "granite",
    "granite-4.0",
    "granite-4.1",
    "gigachat",
    "megrez",
    "yandex",
    "bailing",
    "bailing-think",
    "bailing2",
    "llama4",
    "smolvlm",
    "hunyuan-moe",
    "gpt-oss",
    "hunyuan-dense",
    "hunyuan-vl",
    "kimi-k2",
    "seed_oss",
    "grok-2",
    "pangu-embedded",
    "solar-open",
];

/// The choice of a chat template, by llama.cpp's names.
#[derive(Debug, Clone, Args)]
pub struct TemplateOptions {
    /// Chat template instead of the model's own: a file, the template itself, or `chatml`
    #[arg(long, value_name = "FILE", allow_hyphen_values = true)]
    pub chat_template: Option<String>,

    /// A file that holds the chat template
    #[arg(long, value_name = "FILE", conflicts_with = "chat_template")]
    pub chat_template_file: Option<PathBuf>,
}

impl TemplateOptions {
    /// Whether a template was chosen.
    pub fn is_given(&self) -> bool {
        self.chat_template.is_some() || self.chat_template_file.is_some()
    }

    /// The file that it is read from, if it is, and the option that names that.
    pub fn file(&self) -> Option<(&'static str, &Path)> {
        let file = self.chat_template_file.as_deref();
        let file = file.map(|path| ("--chat-template-file", path));
        let text = self.chat_template.as_deref();
        file.or_else(|| text.map(|path| ("--chat-template", Path::new(path))))
    }

    /// The template to use for the model at `path`. That a model has none is said, and
    /// ChatML used.
    ///
    /// # Errors
    /// When a file cannot be read, or the template does not parse.
    pub fn compile(
        &self,
        path: &Path,
        templates: &ChatTemplates,
        has_tools: bool,
    ) -> anyhow::Result<ChatTemplate> {
        let from_file = |path: &Path| {
            let template = templates.with_source(&read_text(path, None)?);
            template.with_context(|| path.display().to_string())
        };
        match (&self.chat_template, &self.chat_template_file) {
            (_, Some(file)) => from_file(file),
            (Some(text), None) if text.trim().is_empty() => Err(OptionError {
                option: "--chat-template",
                found: "empty".to_owned(),
                expected: "a file, a template or chatml".to_owned(),
            }
            .into()),
            (Some(name), None) if name == "chatml" => Ok(templates.with_source(CHATML)?),
            (Some(text), None) if text.contains("{{") || text.contains("{%") => {
                Ok(templates.with_source(text)?)
            }
            (Some(file), None) if !Path::new(file).exists() => Err(no_template(file).into()),
            (Some(file), None) => from_file(Path::new(file)),
            (None, None) => {
                let model = || path.display().to_string();
                if templates.source(has_tools).with_context(model)?.is_none() {
                    notice(
                        "this is a base model (no chat template): ChatML is used, which it may not know; --chat-template sets another",
                    );
                }
                templates.template(has_tools).with_context(model)
            }
        }
    }
}

/// An error about a name that is neither a template's nor a file's.
fn no_template(name: &str) -> OptionError {
    let found = match LLAMA_CPP_NAMES.contains(&name) {
        true => "one of the templates inside llama.cpp, which emel does not have",
        false => "which is no file here",
    };
    OptionError {
        option: "--chat-template",
        found: format!("{name}, {found}"),
        expected: "a file, a template or chatml; without the option the model's own is used"
            .to_owned(),
    }
}
