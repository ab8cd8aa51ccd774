//! Which chat template a command uses.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use emel_model::chat::{CHATML, ChatTemplate, ChatTemplates};

use super::remedies::OptionError;
use super::{notice, read_text};

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
            (Some(file), None) if !Path::new(file).exists() => Err(OptionError {
                option: "--chat-template",
                found: format!("{file}, which is no file here"),
                expected: "a file, a template or chatml; without it the model's own is used"
                    .to_owned(),
            }
            .into()),
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
