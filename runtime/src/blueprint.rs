//! A blueprint: everything that is decided about a model before memory is allocated.
//!
//! From the file and the settings to the program, the tokenizer and the plan. `emel
//! plan` prints it; `open.rs` builds an engine of it.
//!
//! | module | decides |
//! |---|---|
//! | `settings` | nothing: what the user has decided |
//! | `contents` | what the file holds, and whether it can run |
//! | `shape` | the context, and the prompt tokens of a pass |
//! | `items` | what is taken besides weights |
//! | `room` | nothing: how much longer the context could be |
//! | `draft` | the plan, from all of these |

mod contents;
mod draft;
mod growth;
mod items;
mod room;
mod settings;
mod shape;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use emel_loader::gguf::Catalog;
use emel_loader::page::PageSize;
use emel_loader::plan::{Plan, PlanInputs};
use emel_loader::probe::Curve;
use emel_loader::reader::Faults;
use emel_loader::trace::Trace;
#[cfg(feature = "chat")]
use emel_model::chat::ChatTemplates;
use emel_model::forward::Footprint;
use emel_model::program::Program;
use emel_model::sampler::SamplerOptions;
use emel_model::tokenizer::Tokenizer;

use self::contents::Contents;
pub use self::room::ContextRoom;
pub use self::settings::{Io, Settings};
use self::shape::{RequestTokens, Shape, context_rotated};
use crate::error::Error;
use crate::lossy;
use crate::notice::{Notice, NoticeListener};
use crate::request::{Prompt, PromptLimits, check_biases};
use crate::session;
use crate::text_limit::TextLimit;

/// A model, understood and planned.
#[derive(Debug)]
pub struct Blueprint {
    /// The path it was opened by.
    pub path: PathBuf,
    /// What the files hold, but for arrays and chat templates: those who need them have
    /// taken them.
    pub catalog: Catalog,
    /// The forward pass.
    pub program: Program,
    /// Text to token ids and back.
    pub tokenizer: Arc<Tokenizer>,
    /// The form of a conversation.
    #[cfg(feature = "chat")]
    pub chat_templates: ChatTemplates,
    /// Where the memory goes.
    pub plan: Plan,
    /// Tokens a request may have.
    pub context: usize,
    /// How many more it could have.
    pub context_room: ContextRoom,
    /// Prompt tokens in a pass.
    pub chunk: usize,
    /// Rows of logits kept from a pass.
    pub logit_tokens: usize,
    /// Bytes that a sampler may take.
    pub sampler_bytes: usize,
    /// The settings it was made for.
    pub settings: Settings,
    /// What the user should know: choices made for them, unusual files.
    pub notices: Vec<Notice>,
    /// What tells the model from others, once a session has been checked.
    pub(crate) identity: OnceLock<u64>,
    /// Gets every notice, those of the blueprint included, on the engine's thread.
    pub listener: NoticeListener,
    /// What will be recorded, if the settings ask for it.
    pub trace: Option<Arc<Trace>>,
    /// What is to go wrong when the engine reads, for tests.
    pub faults: Option<Arc<dyn Faults>>,
}

/// What is known of a request before its model is planned.
#[derive(Debug, Clone)]
pub struct ExpectedRequest<'a> {
    /// The prompt, if it is known already.
    pub prompt: Option<Prompt>,
    /// Whether it is one of a conversation: [`Settings::renders`].
    pub renders: bool,
    /// Tokens of the answer at most; none if it goes on until the model ends it.
    pub answer_tokens: Option<usize>,
    /// A session's file, of which the context has to hold the tokens.
    pub session: Option<&'a Path>,
}

/// What a prompt is made with.
pub struct PromptForm<'a> {
    contents: &'a Contents,
    settings: &'a Settings,
    /// Tokens that the context may hold.
    pub context: usize,
    /// The form of a conversation.
    #[cfg(feature = "chat")]
    pub chat_templates: &'a ChatTemplates,
    /// Text to token ids and back.
    pub tokenizer: &'a Tokenizer,
}

impl PromptForm<'_> {
    /// How long the text of a prompt may be; `renders` says whether it is one of a conversation.
    ///
    /// # Errors
    /// When an option of the sampler is outside of its range.
    pub fn limit(&self, renders: bool) -> Result<TextLimit, Error> {
        let settings = self.settings(renders);
        Ok(self.contents.prompt_limits(&settings)?.text)
    }

    /// How much longer the context could be.
    ///
    /// # Errors
    /// As [`PromptForm::limit`].
    pub fn context_room(&self, renders: bool) -> Result<ContextRoom, Error> {
        self.contents.room(&self.settings(renders))
    }

    fn settings(&self, renders: bool) -> Settings {
        let mut settings = self.settings.clone();
        settings.renders |= renders;
        settings
    }

    /// Whether the model is one that only continues texts: it has no form of a conversation.
    /// Of a form that cannot be used it is said where it is used.
    #[cfg(feature = "chat")]
    pub fn is_of_base_model(&self) -> bool {
        matches!(self.chat_templates.source(false), Ok(None))
    }
}

impl Blueprint {
    /// Reads the header of the model at `path` and plans for `settings`.
    ///
    /// # Errors
    /// When the file is broken, the model is not supported, or the budget too small.
    pub fn new(path: &Path, mut settings: Settings) -> Result<Self, Error> {
        lossy::settle(&mut settings)?;
        Contents::read(path, &settings)?.plan(path, settings, None)
    }

    /// As [`Blueprint::new`], for a text that is scored: its token ids, and, unless the user
    /// chose a context, one that just holds them. The text is asked for once it is known how
    /// long it may be.
    ///
    /// # Errors
    /// As [`Blueprint::new`] and `text`, and when the text is empty or not of this vocabulary.
    pub fn for_text<E: From<Error>>(
        path: &Path,
        mut settings: Settings,
        text: impl FnOnce(&TextLimit) -> Result<Prompt, E>,
    ) -> Result<(Self, Vec<u32>), E> {
        lossy::settle(&mut settings)?;
        let contents = Contents::read(path, &settings)?;
        let limits = PromptLimits {
            context: usize::MAX,
            held: None,
            vocabulary: contents.program.vocabulary(),
            text: TextLimit::of_budget(contents.budget_bytes),
        };
        let ids = text(&limits.text)?.ids(&contents.tokenizer, &limits)?;
        settings.context.get_or_insert(ids.len());
        Ok((contents.plan(path, settings, None)?, ids))
    }

    /// As [`Blueprint::new`], for a request of which something is known: unless the user chose a
    /// context, it is as long as prompt and answer. Returns what `request` does besides, and the
    /// prompt's token ids, none where it is not known. The request is asked for once it is known
    /// how long its prompt may be.
    ///
    /// # Errors
    /// As [`Blueprint::new`] and `request`, and when the prompt is empty, too long or not of
    /// this vocabulary.
    pub fn for_request<'a, T, E: From<Error>>(
        path: &Path,
        mut settings: Settings,
        request: impl FnOnce(&PromptForm<'_>) -> Result<(ExpectedRequest<'a>, T), E>,
    ) -> Result<(Self, T, Vec<u32>), E> {
        lossy::settle(&mut settings)?;
        let contents = Contents::read(path, &settings)?;
        let form = PromptForm {
            contents: &contents,
            settings: &settings,
            context: contents.context_max(&settings),
            #[cfg(feature = "chat")]
            chat_templates: &contents.chat_templates,
            tokenizer: &contents.tokenizer,
        };
        let (expected, besides) = request(&form)?;
        settings.renders |= expected.renders;
        let ids = match expected.prompt {
            Some(prompt) => {
                let limits = contents.prompt_limits(&settings)?;
                prompt.ids(&contents.tokenizer, &limits)?
            }
            None => Vec::new(),
        };
        let kept = expected.session.map_or(0, session::saved_tokens);
        let tokens = (ids.len().max(kept) > 0).then_some(RequestTokens {
            prompt: ids.len(),
            kept,
            answer: expected.answer_tokens,
        });
        Ok((contents.plan(path, settings, tokens)?, besides, ids))
    }

    /// The token ids of a prompt, checked as the engine will check them, so that a
    /// prompt that cannot be answered is refused before any weights are read.
    ///
    /// # Errors
    /// When the prompt is empty, too long or not of this vocabulary.
    pub fn prompt_ids(&self, prompt: Prompt) -> Result<Vec<u32>, Error> {
        let limits = PromptLimits {
            context: self.context,
            held: self.context_room.limit(self.context),
            vocabulary: self.program.vocabulary(),
            text: self.text_limit(),
        };
        prompt.ids(&self.tokenizer, &limits)
    }

    /// How long the text of a prompt may be.
    pub fn text_limit(&self) -> TextLimit {
        let held = self.context_room.limit(self.context);
        let token_bytes_max = self.tokenizer.token_bytes_max();
        TextLimit::of_budget(self.plan.budget_bytes).within(self.context, held, token_bytes_max)
    }

    /// Checks a request's sampler, as the engine will, against the vocabulary.
    ///
    /// # Errors
    /// When an option is outside of its range, or biases are for tokens that do not exist or
    /// leave none to draw.
    pub fn check_sampler(&self, sampler: &SamplerOptions) -> Result<(), Error> {
        sampler.check()?;
        let tokens = self.tokenizer.vocabulary_size();
        check_biases(sampler, tokens, self.program.vocabulary())
    }

    /// As [`Program::long_factors`], for the context that the forward pass rotates by.
    pub(crate) fn long_factors(&self) -> Option<(usize, bool)> {
        let context = context_rotated(&self.settings, &self.program);
        self.program.long_factors(context)
    }

    /// Plans anew, for a drive that has been measured since. Only the ring changes, and
    /// with it what is pinned.
    pub fn plan_for_drive(&mut self, curve: Curve) {
        let inputs = PlanInputs {
            budget_bytes: self.plan.budget_bytes,
            items: self.plan.items.clone(),
            uses: &self.program.uses,
            experts: &self.program.expert_uses,
            embedding: self.program.embedding,
            may_map: self.settings.io.may_map(),
            drive: Some(&curve),
            page: PageSize::of_system(),
        };
        if let Ok(plan) = Plan::new(&self.catalog, inputs) {
            self.plan = plan;
        }
        self.settings.drive = Some(curve);
    }

    /// Bytes of the budget that are left to weights.
    pub fn weight_bytes(&self) -> u64 {
        let items = self.plan.items.iter().map(|item| item.bytes);
        let taken = items.fold(0, u64::saturating_add);
        self.plan.budget_bytes.saturating_sub(taken)
    }

    /// What the forward pass allocates.
    pub fn footprint(&self) -> Footprint {
        let shape = Shape {
            context: self.context,
            chunk: self.chunk,
            logit_tokens: self.logit_tokens,
        };
        shape.footprint(&self.settings, &self.program)
    }

    /// Bytes of the KV cache.
    pub fn kv_bytes(&self) -> u64 {
        self.footprint().kv_bytes(&self.program)
    }
}
