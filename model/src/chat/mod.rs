//! Chat templates: from a conversation to the text a model was trained to continue.
//!
//! A model's file holds its template, written for Python's jinja2 and rendered under
//! the conventions of Hugging Face's transformers. minijinja renders it here, with Python's
//! filters, tests, methods and operators; what the conventions add is in `environment`, and
//! what templates cannot take as the OpenAI API writes it is put into their form in `forms`.
//!
//! A template comes with the model and is trusted no more than the rest of the file:
//! its work and the memory it makes are bounded.
//!
//! ```
//! use emel_model::chat::{CHATML, ChatTemplate, Conversation, SpecialTexts};
//!
//! let template = ChatTemplate::new(CHATML, SpecialTexts::default())?;
//! let mut conversation = Conversation::default();
//! conversation.push("user", "Why is the sky blue?");
//! assert_eq!(
//!     template.render(&conversation)?,
//!     "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n"
//! );
//! # Ok::<(), emel_model::chat::ChatError>(())
//! ```

mod arguments;
mod attributes;
mod conversation;
mod environment;
mod error;
mod filters;
mod format;
mod forms;
mod json;
mod machine;
mod methods;
mod operators;
mod source;
mod tests;
mod text;
mod text_filters;
mod values;

use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use emel_loader::gguf::{Metadata, MetadataError};
use minijinja::Environment;
use minijinja::value::Serde;

pub use conversation::{Conversation, ConversationError, assistant_message, channels};
pub use error::ChatError;
use forms::Forms;

use crate::tokenizer::{EncodeOptions, Tokenizer};

/// The key of a model's template; variants follow after a dot.
const TEMPLATE: &str = "tokenizer.chat_template";

/// What a model without a template gets, as in llama.cpp: the form that most models
/// without one of their own were trained on.
pub const CHATML: &str = "\
{% for message in messages %}\
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}\
{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// Fuel that a template may take, in units of 64 bytes made or one operation done: 4 MiB
/// in all, and [`WORK_PER_BYTE`] bytes for each of the conversation. A template of a common
/// family takes some ten thousand units for a short one.
const FUEL: u64 = 1 << 16;
const WORK_PER_BYTE: u64 = 32;
const BYTES_PER_FUEL: u64 = 64;

/// Bytes that a rendering may take at most, for a conversation of this size: all that it
/// makes is paid for before it is there.
pub fn rendering_bytes(conversation_bytes: usize) -> u64 {
    fuel(conversation_bytes) * BYTES_PER_FUEL
}

fn fuel(conversation_bytes: usize) -> u64 {
    FUEL + conversation_bytes as u64 * WORK_PER_BYTE / BYTES_PER_FUEL
}

/// The stack of a rendering. A template can nest lists as deep as its fuel lasts, and
/// each level is a frame when they are dropped: 48 bytes, as measured, for nine units.
/// What is not used of the stack is not memory.
const STACK_BYTES: usize = 8 << 20;
const STACK_BYTES_PER_FUEL: usize = 8;

/// How long a rendering may take, and how much longer for each MiB of the conversation;
/// common ones take a millisecond.
const SECONDS_MAX: u64 = 5;
const SECONDS_PER_MIB: u64 = 1;

/// The texts that templates refer to as `bos_token` and `eos_token`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialTexts {
    /// What begins a text; undefined in the template if absent.
    pub bos: Option<String>,
    /// What ends a text; undefined in the template if absent.
    pub eos: Option<String>,
}

impl SpecialTexts {
    /// Those of a model's vocabulary.
    pub fn of(tokenizer: &Tokenizer) -> Self {
        let text = |id: Option<u32>| {
            id.map(|id| String::from_utf8_lossy(&tokenizer.token_bytes(id, true)).into_owned())
        };
        Self {
            bos: text(tokenizer.bos()),
            eos: text(tokenizer.eos()),
        }
    }
}

/// The templates in a model's file.
#[derive(Debug, Clone)]
pub struct ChatTemplates {
    names: Vec<String>,
    default: Source,
    tool_use: Source,
    special: SpecialTexts,
}

/// A template's text, if there is one. What is wrong with it matters to whoever asks for
/// it: a text can be continued without.
type Source = Result<Option<Arc<str>>, MetadataError>;

impl ChatTemplates {
    /// Takes the templates out of a model's metadata.
    pub fn take(metadata: &mut Metadata, special: SpecialTexts) -> Self {
        let source = |key: &str| Ok(metadata.str(key)?.map(Arc::from));
        let variant = |name: &str| source(&format!("{TEMPLATE}.{name}"));
        let default = match source(TEMPLATE) {
            Ok(None) => variant("default"),
            found => found,
        };
        let tool_use = variant("tool_use");
        let is_template = |key: &str| {
            let rest = key.strip_prefix(TEMPLATE)?;
            (rest.is_empty() || rest.starts_with('.')).then(|| key.to_owned())
        };
        let keys: Vec<String> = metadata
            .iter()
            .filter_map(|(key, _)| is_template(key))
            .collect();
        for key in &keys {
            metadata.remove(key);
        }
        let name = |key: &String| match key[TEMPLATE.len()..].strip_prefix('.') {
            Some(variant) => variant.to_owned(),
            None => "default".to_owned(),
        };
        Self {
            names: keys.iter().map(name).collect(),
            default,
            tool_use,
            special,
        }
    }

    /// The names of the templates in the file, in the order of their keys: `default`, and
    /// those of the variants, of which only `default` and `tool_use` are ever used.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The source of the template for conversations with or without tools.
    ///
    /// # Errors
    /// When its key holds no UTF-8 text.
    pub fn source(&self, has_tools: bool) -> Result<Option<&str>, ChatError> {
        if has_tools && let Some(source) = found(&self.tool_use)? {
            return Ok(Some(source));
        }
        found(&self.default)
    }

    /// The template for conversations with or without tools; [`CHATML`] for a model
    /// that has none.
    ///
    /// # Errors
    /// When it is no text or does not parse.
    pub fn template(&self, has_tools: bool) -> Result<ChatTemplate, ChatError> {
        self.with_source(self.source(has_tools)?.unwrap_or(CHATML))
    }

    /// Another template for the same model.
    ///
    /// # Errors
    /// When it does not parse.
    pub fn with_source(&self, source: &str) -> Result<ChatTemplate, ChatError> {
        ChatTemplate::new(source, self.special.clone())
    }
}

fn found(source: &Source) -> Result<Option<&str>, ChatError> {
    match source {
        Ok(source) => Ok(source.as_deref()),
        Err(error) => Err(error.clone().into()),
    }
}

/// The token ids of a rendered prompt: the texts of special tokens are those tokens,
/// and BOS comes first where the model asks for it, whether or not the template has
/// written it. No EOS follows, for the prompt is to be continued.
pub fn prompt_ids(tokenizer: &Tokenizer, prompt: &str) -> Vec<u32> {
    let options = EncodeOptions {
        add_special: false,
        parse_special: true,
    };
    let mut ids = tokenizer.encode(prompt, options);
    let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
    if let Some(bos) = bos.filter(|&bos| ids.first() != Some(&bos)) {
        ids.insert(0, bos);
    }
    ids
}

/// A template, compiled.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    special: SpecialTexts,
    forms: OnceLock<Forms>,
}

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    /// When it does not parse.
    pub fn new(source: &str, special: SpecialTexts) -> Result<Self, ChatError> {
        Ok(Self {
            environment: environment::compiled(source)?,
            source: source.to_owned(),
            special,
            forms: OnceLock::new(),
        })
    }

    /// Fixes what `strftime_now` shows, in seconds since 1970 and as UTC. Without it,
    /// the time is now and local, as in transformers.
    #[must_use]
    pub fn at(mut self, unix_seconds: i64) -> Self {
        environment::fix_time(&mut self.environment, unix_seconds);
        self
    }

    /// The prompt that a conversation becomes.
    ///
    /// # Errors
    /// When the template refuses the conversation, asks for something that is not
    /// there, or takes more work or makes more text than any conversation needs.
    pub fn render(&self, conversation: &Conversation) -> Result<String, ChatError> {
        let forms = match self.forms.get() {
            Some(forms) => *forms,
            None => {
                let forms = Forms::probe(self)?;
                *self.forms.get_or_init(|| forms)
            }
        };
        self.render_as_is(&forms.fit(conversation)?)
    }

    /// Whether it reads an attribute of this name.
    fn names(&self, attribute: &str) -> bool {
        let quoted = |quote: char| format!("{quote}{attribute}{quote}");
        [format!(".{attribute}"), quoted('\''), quoted('"')]
            .iter()
            .any(|text| self.source.contains(text.as_str()))
    }

    /// As [`ChatTemplate::render`], with the conversation just as the API writes it, which
    /// is how transformers renders it.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub fn render_as_is(&self, conversation: &Conversation) -> Result<String, ChatError> {
        let bytes = conversation.bytes() as u64;
        let mut environment = self.environment.clone();
        let fuel = fuel(conversation.bytes());
        environment.set_fuel(Some(fuel));
        let mut variables = conversation.variables();
        let special = [
            ("bos_token", &self.special.bos),
            ("eos_token", &self.special.eos),
        ];
        for (name, text) in special {
            if let Some(text) = text {
                variables
                    .entry(name)
                    .or_insert_with(|| text.as_str().into());
            }
        }
        let limit = Duration::from_secs(SECONDS_MAX + (bytes >> 20) * SECONDS_PER_MIB);
        let stack_bytes = STACK_BYTES + fuel as usize * STACK_BYTES_PER_FUEL;
        on_a_thread(limit, stack_bytes, move || {
            environment::render(&environment, Serde(variables).into())
                .map_err(|error| ChatError::render(&error))
        })
    }
}

/// Renders on a thread with a stack of this size. One that has not come back in time
/// cannot be stopped, but nobody waits for it any longer.
fn on_a_thread(
    limit: Duration,
    stack_bytes: usize,
    render: impl FnOnce() -> Result<String, ChatError> + Send + 'static,
) -> Result<String, ChatError> {
    let (finished, rendered) = mpsc::sync_channel(1);
    let work = move || {
        // Whoever waited may have given up.
        let _ = finished.send(render());
    };
    let thread = std::thread::Builder::new()
        .name("emel-chat".to_owned())
        .stack_size(stack_bytes)
        .spawn(work)
        .map_err(|error| {
            let message = error.to_string();
            ChatError::Thread { message }
        })?;
    match rendered.recv_timeout(limit) {
        Ok(prompt) => prompt,
        Err(mpsc::RecvTimeoutError::Timeout) => Err(ChatError::TooMuchTime { limit }),
        Err(mpsc::RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("the thread sends before it ends"),
        },
    }
}
