//! What the user can choose about an engine.

use emel_loader::probe::Curve;
use emel_loader::reader::Backend;
use emel_model::kv_cache::KvType;
use emel_model::routing::LossyRouting;
use emel_model::sampler::SamplerOptions;

use crate::budget::RamBudget;
use crate::error::{Error, Setting};
use crate::experts::heat::Learning;
use crate::experts::prefetch::Prefetch;

/// The longest context.
pub(super) const CONTEXT_MAX: usize = 0x1000_0000;

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
            (_, _, Some(refusal)) => format!("io_uring is refused ({refusal})"),
        }
    }

    pub(super) fn may_map(self) -> bool {
        matches!(self, Self::Auto | Self::Only(Backend::Mmap))
    }
}

/// What the user can choose about an engine.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Memory for everything.
    pub ram_budget: RamBudget,
    /// Tokens a request may have, prompt included; 0 for as many as the model was trained for;
    /// chosen to suit the request and the budget if absent.
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
    /// Whether reads, waits and computing are recorded, in
    /// [`Blueprint::trace`](super::Blueprint::trace).
    pub profile: bool,
    /// Whether a chat template is rendered while the model is loaded: the plan then includes
    /// the memory that this takes.
    pub renders: bool,
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
            renders: false,
            logged_guesses: None,
            lossy: LossyRouting::default(),
            prefetch: Prefetch::Auto,
            learning: Learning::Off,
        }
    }
}

impl Settings {
    /// The numbers that no engine can be made of.
    pub fn faults(&self) -> Vec<Error> {
        let refuse = |setting, found: usize, expected: &str| Error::Setting {
            setting,
            found: found.to_string(),
            expected: expected.to_owned(),
        };
        let threads = matches!(self.threads, 0 | 1025..)
            .then(|| refuse(Setting::Threads, self.threads, "1 to 1024 threads"));
        let context = self.context.filter(|&context| context > CONTEXT_MAX);
        let context = context.map(|found| refuse(Setting::Context, found, "0 to 268435456 tokens"));
        threads.into_iter().chain(context).collect()
    }
}

/// Refuses numbers that no engine can be made of.
///
/// # Errors
/// When there is such a number: the first.
pub(super) fn check(settings: &Settings) -> Result<(), Error> {
    settings.faults().into_iter().next().map_or(Ok(()), Err)
}
