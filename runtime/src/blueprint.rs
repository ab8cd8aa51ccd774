//! A blueprint: everything that is decided about a model before memory is allocated.
//!
//! From the file and the settings to the program, the tokenizer and the plan. `emel
//! plan` prints it; the engine builds it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use emel_kernels::Kernels;
use emel_loader::expert_slots;
use emel_loader::files::OpenFiles;
use emel_loader::gguf::Catalog;
use emel_loader::plan::{Item, Plan, PlanInputs};
use emel_loader::probe::Curve;
use emel_loader::reader::{Backend, Faults};
use emel_loader::trace::Trace;
use emel_model::arch;
#[cfg(feature = "chat")]
use emel_model::chat::{ChatTemplates, SpecialTexts};
use emel_model::forward::{Footprint, ForwardError};
use emel_model::kv_cache::KvType;
use emel_model::program::Program;
use emel_model::routing::LossyRouting;
use emel_model::sampler::{Breakers, Sampler, SamplerOptions};
use emel_model::tokenizer::Tokenizer;
use emel_systemd::{Memory, MemoryWatch};

use crate::budget::{RamBudget, available_bytes, in_binary_units};
use crate::error::Error;
use crate::experts::demand::ExpertDemand;
use crate::experts::heat::Learning;
use crate::experts::prefetch::{GUESSES_PER_USED, Prefetch};
use crate::live_budget::NoticeListener;
use crate::lossy;
use crate::request::{Prompt, PromptLimits, TextLimit, check_biases};
use crate::session::{Identity, SessionKind};

/// The context length where neither the user nor the model asks for less.
const CONTEXT_DEFAULT: usize = 4096;
/// A context that nobody chose is shortened to fit, but not below this.
const CONTEXT_MIN: usize = 512;
/// Largest and smallest number of prompt tokens in a pass.
const CHUNK_MAX: usize = 512;
const CHUNK_MIN: usize = 8;
/// Parts of the budget that a KV cache and activations may take unasked, as divisors.
const KV_SHARE: u64 = 4;
const ACTIVATION_SHARE: u64 = 8;
/// Code, stacks, allocator and kernel structures, as measured on a small model with a
/// program that was not cached.
const PROCESS_BYTES: u64 = 10 << 20;
/// Events that a profile keeps.
const TRACE_EVENTS: usize = 1 << 16;
/// What a worker thread adds, as measured with 1024 of them.
const THREAD_BYTES: u64 = 16 << 10;

/// How weights are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Io {
    /// The mapping if everything fits, else the fastest that works of
    /// [`Backend::FASTEST_FIRST`].
    #[default]
    Auto,
    /// As [`Io::Auto`], but never the mapping.
    Unmapped,
    /// Only this reader.
    Only(Backend),
}

impl Io {
    /// Why weights are read through `backend`; `refusal` is what the system said to the
    /// reader that would have been faster.
    pub fn reason(self, backend: Backend, refusal: Option<&str>) -> String {
        match (self, backend, refusal) {
            (Self::Only(_), _, _) => "as asked".to_owned(),
            (_, Backend::Mmap, _) => "the model fits".to_owned(),
            (_, _, None) => "the fastest that works".to_owned(),
            (_, Backend::Pread, Some(refusal)) => {
                format!("io_uring is refused ({refusal})")
            }
            (_, _, Some(refusal)) => format!("the faster ring is refused ({refusal})"),
        }
    }

    fn may_map(self) -> bool {
        matches!(self, Self::Auto | Self::Only(Backend::Mmap))
    }
}

/// What the user can choose about an engine.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Memory for everything.
    pub ram_budget: RamBudget,
    /// Tokens a request may have, prompt included; chosen to fit if absent.
    pub context: Option<usize>,
    /// Threads that compute.
    pub threads: usize,
    /// How weights are read.
    pub io: Io,
    /// What the drive gives, if it has been measured
    /// ([`probe::measure`](emel_loader::probe::measure)): the ring is then as small as
    /// saves the most time. The bits of a result do not depend on it.
    pub drive: Option<Curve>,
    /// How keys and values are kept.
    pub kv_type: KvType,
    /// The sampler that requests will use, of which the plan includes the memory; if
    /// absent, it leaves room for any.
    pub sampler: Option<SamplerOptions>,
    /// Whether the logits of all positions will be asked for, as evaluation does.
    pub all_logits: bool,
    /// Whether reads, waits and computing are recorded, in [`Blueprint::trace`].
    pub profile: bool,
    /// Whether routing will be asked for, as a trace does, and how many experts of the
    /// next mixture are to be guessed for each token.
    pub logged_guesses: Option<usize>,
    /// How tokens that are decoded may leave their router's choice, for fewer reads: the
    /// answers are then no longer the model's. Off by default.
    pub lossy: LossyRouting,
    /// Whether experts that do not all fit are read before they are needed.
    pub prefetch: Prefetch,
    /// What becomes of what is learnt about such experts.
    pub learning: Learning,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            ram_budget: RamBudget::Automatic,
            context: None,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            io: Io::Auto,
            drive: None,
            kv_type: KvType::F16,
            sampler: None,
            all_logits: false,
            profile: false,
            logged_guesses: None,
            lossy: LossyRouting::default(),
            prefetch: Prefetch::Auto,
            learning: Learning::Off,
        }
    }
}

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
    /// Prompt tokens in a pass.
    pub chunk: usize,
    /// Rows of logits kept from a pass.
    pub logit_tokens: usize,
    /// Bytes that a sampler may take.
    pub sampler_bytes: usize,
    /// The settings it was made for.
    pub settings: Settings,
    /// What the user should know: choices made for them, unusual files.
    pub notices: Vec<String>,
    /// What tells the model from others, once a session has been checked.
    pub(crate) identity: OnceLock<u64>,
    /// Who is told when pinned weights are given back or taken again.
    pub listener: NoticeListener,
    /// What will be recorded, if the settings ask for it.
    pub trace: Option<Arc<Trace>>,
    /// What is to go wrong when the engine reads, for tests.
    pub faults: Option<Arc<dyn Faults>>,
}

impl Blueprint {
    /// Reads the header of the model at `path` and plans for `settings`.
    ///
    /// # Errors
    /// When the file is broken, the model is not supported, or the budget too small.
    pub fn new(path: &Path, mut settings: Settings) -> Result<Self, Error> {
        lossy::settle(&mut settings)?;
        Contents::read(path, &settings)?.plan(path, settings)
    }

    /// As [`Blueprint::new`], for one prompt: its token ids, and a context that just holds
    /// them. The prompt is asked for once it is known how long a text may be.
    ///
    /// # Errors
    /// As [`Blueprint::new`] and `prompt`, and when the prompt is empty, too long or not of
    /// this vocabulary.
    pub fn for_prompt<E: From<Error>>(
        path: &Path,
        mut settings: Settings,
        prompt: impl FnOnce(&TextLimit) -> Result<Prompt, E>,
    ) -> Result<(Self, Vec<u32>), E> {
        lossy::settle(&mut settings)?;
        let contents = Contents::read(path, &settings)?;
        let limits = PromptLimits {
            context: usize::MAX,
            vocabulary: contents.program.vocabulary(),
            text: TextLimit::of_budget(contents.budget_bytes),
        };
        let ids = prompt(&limits.text)?.ids(&contents.tokenizer, &limits)?;
        settings.context = Some(ids.len());
        Ok((contents.plan(path, settings)?, ids))
    }
}

/// What a model's file holds, understood.
struct Contents {
    catalog: Catalog,
    program: Program,
    tokenizer: Tokenizer,
    #[cfg(feature = "chat")]
    chat_templates: ChatTemplates,
    budget_bytes: u64,
}

impl Contents {
    fn read(path: &Path, settings: &Settings) -> Result<Self, Error> {
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

    fn plan(self, path: &Path, settings: Settings) -> Result<Blueprint, Error> {
        check(&settings)?;
        let Self {
            catalog,
            program,
            tokenizer,
            #[cfg(feature = "chat")]
            chat_templates,
            budget_bytes,
        } = self;
        let sampler = match &settings.sampler {
            Some(options) => options.clone(),
            None => SamplerOptions::most_demanding(),
        };
        sampler.check()?;
        let draft = Draft {
            catalog: &catalog,
            program: &program,
            settings: &settings,
            tokenizer_bytes: tokenizer.heap_bytes() as u64,
            breakers: Breakers::new(&sampler, &tokenizer),
            sampler,
            budget_bytes,
        };
        let (plan, shape) =
            draft
                .plan()
                .map_err(|(needed_bytes, context)| Error::BudgetTooSmall {
                    path: path.to_owned(),
                    budget_bytes,
                    needed_bytes,
                    context,
                    shorten: if settings.all_logits {
                        "shorten the text"
                    } else {
                        "lower -c"
                    },
                    profile_bytes: profile_bytes(&settings).unwrap_or(0),
                })?;
        let sampler_bytes = draft.sampler_bytes(shape.context);
        let mut notices = draft.notices(&shape);
        // What the process has already is part of the plan, but pages of files are no limit's
        // raise: no plan has more than its cgroup allows.
        let own_bytes = Memory::default().own().map_or(0, |own| own.resident_bytes);
        let available_bytes = available_bytes().unwrap_or(u64::MAX);
        notices.extend(lossy::notice(&settings.lossy, &plan));
        let limit = MemoryWatch::own().limit().unwrap_or(u64::MAX);
        notices.extend(scarcity(
            &plan,
            available_bytes.saturating_add(own_bytes).min(limit),
        ));
        notices.extend(tokenizer.warnings().iter().map(ToString::to_string));
        let trace = settings.profile.then(|| Arc::new(Trace::new(TRACE_EVENTS)));
        Ok(Blueprint {
            path: path.to_owned(),
            plan,
            trace,
            context: shape.context,
            chunk: shape.chunk,
            logit_tokens: shape.logit_tokens,
            sampler_bytes,
            settings,
            notices,
            identity: OnceLock::new(),
            listener: NoticeListener::default(),
            faults: None,
            catalog,
            program,
            #[cfg(feature = "chat")]
            chat_templates,
            tokenizer: Arc::new(tokenizer),
        })
    }
}

impl Blueprint {
    /// A budget may be more than the machine has; the plan is made for it all the same.
    /// Memory that the system would refuse later, where the process aborts, is asked
    /// for once and given back untouched. [`crate::Engine::start`] begins with it.
    ///
    /// # Errors
    /// When the system refuses it.
    pub fn check_memory(&self) -> Result<(), Error> {
        let plan = &self.plan;
        let mapped_bytes = if plan.is_mapped { plan.file_bytes } else { 0 };
        let planned_bytes = plan.total_bytes();
        let allocated = usize::try_from(planned_bytes - mapped_bytes).unwrap_or(usize::MAX);
        match Vec::<u8>::new().try_reserve_exact(allocated) {
            Ok(()) => Ok(()),
            Err(_) => Err(Error::Memory {
                path: self.path.clone(),
                planned_bytes,
                available_bytes: available_bytes().unwrap_or(u64::MAX),
            }),
        }
    }

    /// The token ids of a prompt, checked as the engine will check them, so that a
    /// prompt that cannot be answered is refused before any weights are read.
    ///
    /// # Errors
    /// When the prompt is empty, too long or not of this vocabulary.
    pub fn prompt_ids(&self, prompt: Prompt) -> Result<Vec<u32>, Error> {
        let limits = PromptLimits {
            context: self.context,
            vocabulary: self.program.vocabulary(),
            text: self.text_limit(),
        };
        prompt.ids(&self.tokenizer, &limits)
    }

    /// How long the text of a prompt may be.
    pub fn text_limit(&self) -> TextLimit {
        TextLimit::of_budget(self.plan.budget_bytes)
            .within(self.context, self.tokenizer.token_bytes_max())
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

    /// Checks, before any weights are read, that a session can be kept at `path`, and, if
    /// there is one, that it can be restored, as far as its beginning tells.
    ///
    /// # Errors
    /// When the folder takes no files, or the file is no session, or one of another model,
    /// KV type or version, or is longer than the context.
    pub fn check_session(&self, path: &Path) -> Result<(), Error> {
        let paths = self.catalog.files().iter().map(|file| file.path.as_path());
        let files = Arc::new(OpenFiles::open(paths, false)?);
        let check = || {
            let vocabulary = self.tokenizer.vocabulary_size();
            let identity = Identity::new(&self.catalog, vocabulary, files).get()?;
            let identity = *self.identity.get_or_init(|| identity);
            let kind = SessionKind {
                identity,
                kv_type: self.settings.kv_type,
                long_factors: self.long_factors(),
                is_lossy: self.settings.lossy.is_on(),
            };
            kind.check(path, self.context)
        };
        check().map_err(|source| Error::session(path, source))
    }

    /// Tells the model from others: a hash of what its header says, and of samples of its
    /// weights.
    ///
    /// # Errors
    /// When its files cannot be read.
    pub fn identity(&self) -> Result<u64, Error> {
        let paths = self.catalog.files().iter().map(|file| file.path.as_path());
        let files = Arc::new(OpenFiles::open(paths, false)?);
        let vocabulary = self.tokenizer.vocabulary_size();
        Ok(Identity::new(&self.catalog, vocabulary, files).get()?)
    }

    /// As [`Program::long_factors`], for the context that the forward pass rotates by.
    pub(crate) fn long_factors(&self) -> Option<(usize, bool)> {
        let context = context_wished(&self.settings, &self.program);
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

/// Says so when a plan takes more memory than there is.
fn scarcity(plan: &Plan, available_bytes: u64) -> Option<String> {
    let planned_bytes = plan.total_bytes();
    (planned_bytes > available_bytes).then(|| {
        format!(
            "the plan takes {} and {} of memory are available; lower --ram-budget if the system swaps or kills the process",
            in_binary_units(planned_bytes),
            in_binary_units(available_bytes)
        )
    })
}

fn check(settings: &Settings) -> Result<(), Error> {
    let refuse = |setting, found: usize, expected: &str| {
        Err(Error::Setting {
            setting,
            found: found.to_string(),
            expected: expected.to_owned(),
        })
    };
    match (settings.threads, settings.context) {
        (threads @ (0 | 1025..), _) => refuse("-t", threads, "1 to 1024 threads"),
        (_, Some(context @ (0 | 0x1000_0001..))) => refuse("-c", context, "1 to 268435456 tokens"),
        _ => Ok(()),
    }
}

fn vocabulary_mismatch(program: &Program, tokenizer: &Tokenizer) -> emel_model::error::ModelError {
    emel_model::error::ModelError::Shape {
        name: "token_embd.weight".to_owned(),
        found: format!("{} rows", program.vocabulary()),
        expected: format!("one for each of the {} tokens", tokenizer.vocabulary_size()),
    }
}

/// Sizes that the plan is free to choose.
#[derive(Debug, Clone, Copy)]
struct Shape {
    context: usize,
    chunk: usize,
    logit_tokens: usize,
}

impl Shape {
    fn footprint(self, settings: &Settings, program: &Program) -> Footprint {
        Footprint {
            context: self.context,
            context_wished: context_wished(settings, program),
            chunk: self.chunk,
            logit_tokens: self.logit_tokens,
            threads: settings.threads,
            kv_type: settings.kv_type,
        }
    }
}

/// Bytes of what is recorded, if anything is.
fn profile_bytes(settings: &Settings) -> Option<u64> {
    let bytes = Trace::required_bytes(TRACE_EVENTS) as u64;
    settings.profile.then_some(bytes)
}

/// The context before the budget shortens it.
fn context_wished(settings: &Settings, program: &Program) -> usize {
    let trained = program.hyperparameters.context_length;
    settings
        .context
        .unwrap_or_else(|| CONTEXT_DEFAULT.min(trained))
}

/// A plan in the making.
struct Draft<'a> {
    catalog: &'a Catalog,
    program: &'a Program,
    settings: &'a Settings,
    tokenizer_bytes: u64,
    sampler: SamplerOptions,
    breakers: Breakers,
    budget_bytes: u64,
}

impl Draft<'_> {
    /// The best plan, or the bytes and context of the smallest one that would work.
    fn plan(&self) -> Result<(Plan, Shape), (u64, usize)> {
        let generous = self.shape();
        if let Ok(plan) = self.plan_for(generous) {
            return Ok((plan, generous));
        }
        let frugal = self.with_chunk(self.context_min(), CHUNK_MIN);
        match self.plan_for(frugal) {
            Ok(plan) => Ok((plan, frugal)),
            Err(error) => Err((error.needed_bytes, frugal.context)),
        }
    }

    fn plan_for(&self, shape: Shape) -> Result<Plan, emel_loader::plan::PlanError> {
        let inputs = PlanInputs {
            budget_bytes: self.budget_bytes,
            items: self.items(shape),
            uses: &self.program.uses,
            experts: &self.program.expert_uses,
            embedding: self.program.embedding,
            may_map: self.settings.io.may_map(),
            drive: self.settings.drive.as_ref(),
        };
        Plan::new(self.catalog, inputs)
    }

    /// Context and chunk that leave most of the budget to weights.
    fn shape(&self) -> Shape {
        let mut context = self.context_wished();
        if self.settings.context.is_none() {
            let kv_bytes = |context| {
                let shape = self.with_chunk(context, CHUNK_MIN);
                shape
                    .footprint(self.settings, self.program)
                    .kv_bytes(self.program)
            };
            while kv_bytes(context) > self.budget_bytes / KV_SHARE
                && context / 2 >= self.context_min()
            {
                context /= 2;
            }
        }
        let mut chunk = CHUNK_MAX;
        let of_chunk = |chunk| {
            let shape = self.with_chunk(context, chunk);
            let footprint = shape.footprint(self.settings, self.program);
            (
                footprint.activation_bytes(self.program),
                footprint.kv_bytes(self.program),
            )
        };
        // A cache with a window has room for a chunk on top.
        let (_, kv_bytes_min) = of_chunk(CHUNK_MIN);
        let activation_bytes = |chunk| {
            let (activations, kv_bytes) = of_chunk(chunk);
            activations + (kv_bytes - kv_bytes_min)
        };
        while chunk > CHUNK_MIN && activation_bytes(chunk) > self.budget_bytes / ACTIVATION_SHARE {
            chunk /= 2;
        }
        self.with_chunk(context, chunk)
    }

    fn with_chunk(&self, context: usize, chunk: usize) -> Shape {
        let chunk = chunk.min(context);
        Shape {
            context,
            chunk,
            logit_tokens: if self.settings.all_logits { chunk } else { 1 },
        }
    }

    fn context_wished(&self) -> usize {
        context_wished(self.settings, self.program)
    }

    fn context_min(&self) -> usize {
        match self.settings.context {
            Some(context) => context,
            None => self.context_wished().min(CONTEXT_MIN),
        }
    }

    fn items(&self, shape: Shape) -> Vec<Item> {
        let footprint = shape.footprint(self.settings, self.program);
        let item = |name: String, bytes| Item { name, bytes };
        let profile = profile_bytes(self.settings).map(|bytes| item("profile".to_owned(), bytes));
        let expert_uses = &self.program.expert_uses;
        let expert_tables = (!expert_uses.is_empty()).then(|| {
            let bytes =
                expert_slots::table_bytes(expert_uses) + ExpertDemand::required_bytes(self.program);
            item("expert tables".to_owned(), bytes)
        });
        let mut items = vec![
            item(
                "process".to_owned(),
                PROCESS_BYTES + self.settings.threads as u64 * THREAD_BYTES,
            ),
            item("tokenizer".to_owned(), self.tokenizer_bytes),
            item(
                "sampler".to_owned(),
                self.sampler_bytes(shape.context) as u64,
            ),
            item(
                "norms and biases".to_owned(),
                self.program.resident_bytes(self.catalog),
            ),
            item(
                format!(
                    "KV cache ({} tokens, {})",
                    shape.context,
                    self.settings.kv_type.name()
                ),
                footprint.kv_bytes(self.program),
            ),
            item(
                "tokens and recurrent state".to_owned(),
                footprint.recurrent_bytes(self.program),
            ),
            item(
                format!("activations ({} tokens a pass)", shape.chunk),
                footprint.activation_bytes(self.program),
            ),
        ];
        items.extend(expert_tables);
        items.extend(profile);
        items
    }

    /// What the sampler takes for a context, in whole pages, and a page for the biases
    /// that rule out the ends of generation.
    fn sampler_bytes(&self, context: usize) -> usize {
        const PAGE_BYTES: usize = 4096;
        let (options, vocabulary) = (&self.sampler, self.program.vocabulary());
        let tokens_max = context.saturating_add(1);
        let bytes = Sampler::required_bytes(options, vocabulary, tokens_max, &self.breakers);
        let pages = bytes.div_ceil(PAGE_BYTES).saturating_add(1);
        pages.saturating_mul(PAGE_BYTES)
    }

    fn notices(&self, shape: &Shape) -> Vec<String> {
        let mut notices = Vec::new();
        let trained = self.program.hyperparameters.context_length;
        if shape.context < self.context_wished() {
            notices.push(format!(
                "context of {} tokens, shortened from {} to fit the budget; -c sets it",
                shape.context,
                self.context_wished()
            ));
        }
        if shape.context > trained {
            notices.push(format!(
                "a context of {} tokens is longer than the {trained} the model was trained for",
                shape.context
            ));
        }
        notices
    }
}
