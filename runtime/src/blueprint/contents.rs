//! What a model's file holds, understood, and made a blueprint of.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use emel_kernels::Kernels;
use emel_loader::gguf::Catalog;
use emel_loader::page::PageSize;
use emel_loader::plan::{Plan, PlanInputs};
use emel_loader::trace::Trace;
use emel_model::arch;
#[cfg(feature = "chat")]
use emel_model::chat::{ChatTemplates, SpecialTexts};
use emel_model::forward::ForwardError;
use emel_model::program::Program;
use emel_model::sampler::{Breakers, SamplerOptions};
use emel_model::tokenizer::Tokenizer;
use emel_systemd::{Memory, MemoryWatch};

use super::Blueprint;
use super::draft::Draft;
use super::items::{TRACE_EVENTS, profile_bytes};
use super::room::ContextRoom;
use super::settings::{Settings, check};
use super::shape::{ContextRange, RequestTokens, context_asked, context_limit, context_rotated};
use crate::budget::available_bytes;
use crate::error::{Error, Instead};
use crate::experts::prefetch::GUESSES_PER_USED;
use crate::lossy;
use crate::notice::{Notice, NoticeListener};
use crate::request::PromptLimits;
use crate::text_limit::TextLimit;

/// What a model's file holds, understood.
pub(super) struct Contents {
    catalog: Catalog,
    pub(super) program: Program,
    pub(super) tokenizer: Tokenizer,
    #[cfg(feature = "chat")]
    pub(super) chat_templates: ChatTemplates,
    pub(super) budget_bytes: u64,
}

impl Contents {
    /// Reads the header of the model at `path`.
    ///
    /// # Errors
    /// When the file is broken or the model not supported.
    pub(super) fn read(path: &Path, settings: &Settings) -> Result<Self, Error> {
        check(settings)?;
        // Asked again when the engine starts, but by then the weights have been read.
        Kernels::from_environment().map_err(ForwardError::from)?;
        let mut catalog = Catalog::open(path)?;
        let budget_bytes = settings.ram_budget.bytes(catalog.file_bytes())?;
        let mut program = arch::program(&catalog).map_err(|source| Error::model(path, source))?;
        if let Some(guesses) = settings.logged_guesses {
            if program.routers.is_empty() {
                return Err(Error::NoExperts {
                    path: path.to_owned(),
                });
            }
            program.log_routing(guesses);
        }
        lossy::check(&settings.lossy, &program)?;
        if settings.prefetch.asks_routers() {
            let (_, used) = program.routing_max();
            program.look_ahead(GUESSES_PER_USED * used);
        }
        let tokenizer = Tokenizer::from_metadata(catalog.metadata_mut()).map_err(|source| {
            Error::Tokenizer {
                path: path.to_owned(),
                source,
            }
        })?;
        #[cfg(feature = "chat")]
        let chat_templates =
            ChatTemplates::take(catalog.metadata_mut(), SpecialTexts::of(&tokenizer));
        catalog.metadata_mut().drop_arrays();
        if tokenizer.vocabulary_size() > program.vocabulary() {
            return Err(Error::model(
                path,
                vocabulary_mismatch(&program, &tokenizer),
            ));
        }
        Ok(Self {
            catalog,
            program,
            tokenizer,
            #[cfg(feature = "chat")]
            chat_templates,
            budget_bytes,
        })
    }

    /// The longest context that a plan for `settings` may have.
    pub(super) fn context_max(&self, settings: &Settings) -> usize {
        let limit = || context_limit(settings, &self.program);
        context_asked(settings, &self.program).unwrap_or_else(limit)
    }

    /// Plans for `settings`, and for `request` if its tokens are known.
    ///
    /// # Errors
    /// When the budget is too small or a setting out of its range.
    pub(super) fn plan(
        self,
        path: &Path,
        settings: Settings,
        request: Option<RequestTokens>,
    ) -> Result<Blueprint, Error> {
        check(&settings)?;
        let wanted = ContextRange::new(&settings, &self.program, request);
        let mut draft = self.draft(&settings, wanted)?;
        let held = draft.context_held();
        let (plan, shape) = draft.plan(held).map_err(|too_small| {
            let instead = match request {
                _ if too_small.context_held == 0 => Instead::SmallerModel,
                _ if settings.all_logits => Instead::Chunks,
                Some(_) if settings.context.is_none() => Instead::ShorterPrompt,
                _ => Instead::ShorterContext,
            };
            Error::BudgetTooSmall {
                path: path.to_owned(),
                budget_bytes: self.budget_bytes,
                needed_bytes: too_small.needed_bytes,
                context: too_small.context,
                context_held: too_small.context_held,
                instead,
                profile_bytes: profile_bytes(&settings).unwrap_or(0),
            }
        })?;
        let sampler_bytes = draft.sampler_bytes(shape.context);
        let context_room = draft.room(shape.context, held);
        let mut notices = draft.notices(&shape, wanted, held);
        notices.extend(self.notices(&settings, &plan));
        let trace = settings.profile.then(|| Arc::new(Trace::new(TRACE_EVENTS)));
        Ok(Blueprint {
            path: path.to_owned(),
            plan,
            trace,
            context: shape.context,
            context_room,
            chunk: shape.chunk,
            logit_tokens: shape.logit_tokens,
            sampler_bytes,
            settings,
            notices,
            identity: OnceLock::new(),
            listener: NoticeListener::default(),
            faults: None,
            catalog: self.catalog,
            program: self.program,
            #[cfg(feature = "chat")]
            chat_templates: self.chat_templates,
            tokenizer: Arc::new(self.tokenizer),
        })
    }

    /// A plan to be made.
    ///
    /// # Errors
    /// When an option of the sampler is outside of its range.
    fn draft<'a>(
        &'a self,
        settings: &'a Settings,
        context: ContextRange,
    ) -> Result<Draft<'a>, Error> {
        let sampler = match &settings.sampler {
            Some(options) => options.clone(),
            None => SamplerOptions::most_demanding(),
        };
        sampler.check()?;
        Ok(Draft {
            catalog: &self.catalog,
            program: &self.program,
            settings,
            tokenizer_bytes: self.tokenizer.heap_bytes() as u64,
            breakers: Breakers::new(&sampler, &self.tokenizer),
            sampler,
            budget_bytes: self.budget_bytes,
            weight_bytes_min: self.weight_bytes_min(settings),
            context,
        })
    }

    /// The least that weights take, whatever else the budget holds.
    fn weight_bytes_min(&self, settings: &Settings) -> u64 {
        let inputs = PlanInputs {
            budget_bytes: 0,
            items: Vec::new(),
            uses: &self.program.uses,
            experts: &self.program.expert_uses,
            embedding: self.program.embedding,
            may_map: settings.io.may_map(),
            drive: None,
            page: PageSize::of_system(),
        };
        Plan::new(&self.catalog, inputs).map_or_else(|error| error.needed_bytes, |_| 0)
    }

    /// How much longer the longest context of a plan for `settings` could be.
    ///
    /// # Errors
    /// When an option of the sampler is outside of its range.
    pub(super) fn room(&self, settings: &Settings) -> Result<ContextRoom, Error> {
        let context = self.context_max(settings);
        let draft = self.draft(settings, ContextRange::exactly(context))?;
        Ok(draft.room(context, draft.context_held()))
    }

    /// What a prompt is checked against before there is a plan.
    ///
    /// # Errors
    /// When an option of the sampler is outside of its range.
    pub(super) fn prompt_limits(&self, settings: &Settings) -> Result<PromptLimits, Error> {
        let context = self.context_max(settings);
        let held = self.room(settings)?.limit(context);
        let token_bytes_max = self.tokenizer.token_bytes_max();
        Ok(PromptLimits {
            context,
            held,
            vocabulary: self.program.vocabulary(),
            text: TextLimit::of_budget(self.budget_bytes).within(context, held, token_bytes_max),
        })
    }

    /// What the user should know of the model, and of what the plan takes.
    fn notices(&self, settings: &Settings, plan: &Plan) -> Vec<Notice> {
        // What the process has already is part of the plan, but pages of files are no limit's
        // raise: no plan has more than its cgroup allows.
        let own_bytes = Memory::default().own().map_or(0, |own| own.resident_bytes);
        let available_bytes = available_bytes().unwrap_or(u64::MAX);
        let limit = MemoryWatch::own().limit().unwrap_or(u64::MAX);
        let available_bytes = available_bytes.saturating_add(own_bytes).min(limit);
        let mut notices: Vec<Notice> = lossy::notice(settings.lossy, plan).into_iter().collect();
        notices.extend(scarcity(plan, available_bytes));
        notices.extend(self.rotation_factors(settings));
        notices.extend(self.program.notes.iter().cloned().map(Notice::Model));
        let warnings = self.tokenizer.warnings().iter().map(ToString::to_string);
        notices.extend(warnings.map(Notice::Tokenizer));
        notices
    }

    /// Which of two sets of rotary factors are used, and why.
    fn rotation_factors(&self, settings: &Settings) -> Option<Notice> {
        let context = context_rotated(settings, &self.program);
        let (original, _) = self.program.long_factors(context)?;
        Some(Notice::LongRope {
            context,
            is_asked: context_asked(settings, &self.program).is_some(),
            original,
        })
    }
}

/// Says so when a plan takes more memory than there is.
fn scarcity(plan: &Plan, available_bytes: u64) -> Option<Notice> {
    let planned_bytes = plan.total_bytes();
    (planned_bytes > available_bytes).then_some(Notice::ScarceMemory {
        planned_bytes,
        available_bytes,
    })
}

fn vocabulary_mismatch(program: &Program, tokenizer: &Tokenizer) -> emel_model::error::ModelError {
    emel_model::error::ModelError::Shape {
        name: "token_embd.weight".to_owned(),
        found: format!("{} rows", program.vocabulary()),
        expected: format!("one for each of the {} tokens", tokenizer.vocabulary_size()),
    }
}
