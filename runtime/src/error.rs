//! What can go wrong between a path and a token. Every message is one line that names
//! the file, what was found, what was expected and what to do.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use emel_loader::files::OpenError;
use emel_loader::gguf::GgufError;
use emel_loader::probe::ProbeError;
use emel_loader::reader::ReadError;
use emel_loader::weights::WeightsError;
#[cfg(feature = "chat")]
use emel_model::chat::ChatError;
use emel_model::error::ModelError;
use emel_model::forward::ForwardError;
use emel_model::sampler::SamplerError;
use emel_model::tokenizer::TokenizerError;

use crate::budget::{BudgetError, in_binary_units, in_mebibytes};
use crate::notice::Notice;
use crate::session::SessionError;
use crate::text_limit::{TextLimit, beyond_context};

/// Why a model could not be opened or a request not be answered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file is not a GGUF file that can be read.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The file describes a model that cannot be run.
    #[error("{}: {source}", path.display())]
    Model {
        /// The model's file.
        path: PathBuf,
        /// What is wrong with it.
        source: ModelError,
    },
    /// The file's tokenizer cannot be used.
    #[error("{}: {source}", path.display())]
    Tokenizer {
        /// The model's file.
        path: PathBuf,
        /// What is wrong with it.
        source: TokenizerError,
    },
    /// Routing was asked for of a model that has no experts.
    #[error(
        "{}: the model has no experts, expected a mixture of experts (MoE), as `emel info` says; choose another model",
        path.display()
    )]
    NoExperts {
        /// The model's file.
        path: PathBuf,
    },
    /// The budget is no size, or the machine's memory cannot be read.
    #[error(transparent)]
    Budget(#[from] BudgetError),
    /// The budget cannot hold the model at this context length.
    #[error(
        "{}: a RAM budget of {} is too small: with a context of {context} tokens the smallest that works is {}M{}; raise the budget or {instead}{}",
        path.display(),
        in_mebibytes(*budget_bytes),
        needed_bytes.div_ceil(1 << 20),
        held(*budget_bytes, *context_held),
        without_profile(*profile_bytes)
    )]
    BudgetTooSmall {
        /// The model's file.
        path: PathBuf,
        /// The budget.
        budget_bytes: u64,
        /// The smallest budget that works.
        needed_bytes: u64,
        /// The context length it was computed for.
        context: usize,
        /// The longest context that the budget holds; 0 if it holds none.
        context_held: usize,
        /// What the user can do instead of raising the budget.
        instead: Instead,
        /// What of the smallest budget a profile takes.
        profile_bytes: u64,
    },
    /// A setting that no model works with.
    #[error("{setting} is {found}, expected {expected}")]
    Setting {
        /// Which one.
        setting: Setting,
        /// What it was.
        found: String,
        /// What would be right.
        expected: String,
    },
    /// The system does not give the memory that the plan takes.
    #[error("{}: {}", path.display(), memory_refused(*planned_bytes, *available_bytes))]
    Memory {
        /// The model's file.
        path: PathBuf,
        /// What the plan takes.
        planned_bytes: u64,
        /// What the machine and the cgroup leave.
        available_bytes: u64,
    },
    /// A file of the model cannot be opened for streaming, or is another than before.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Weights cannot be brought into memory.
    #[error("{}: {source}", path.display())]
    Weights {
        /// The model's file.
        path: PathBuf,
        /// What was refused.
        source: WeightsError,
    },
    /// The start failed after something else had been tried.
    #[error("{source}; before that: {notice}")]
    Fallback {
        /// Why it failed in the end.
        source: Box<Error>,
        /// What had been tried, and why it was of no use.
        notice: Box<Notice>,
    },
    /// The drive cannot be measured.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// A read failed during a request. The engine serves the next one.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A conversation does not become a prompt.
    #[cfg(feature = "chat")]
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// The sampler's options make no sense.
    #[error(transparent)]
    Sampler(#[from] SamplerError),
    /// The sampler needs more memory than was planned for.
    #[error(
        "the sampler needs {needed_bytes} bytes and {planned_bytes} are planned; choose its options when the engine is opened (Builder::sampler)"
    )]
    SamplerTooLarge {
        /// What the request's options need.
        needed_bytes: usize,
        /// What the engine was opened for.
        planned_bytes: usize,
    },
    /// The forward pass cannot be made ready.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// A thread of the engine cannot be started.
    #[error("cannot start a thread: {message}; raise the limit (ulimit -u, ulimit -v, TasksMax)")]
    Thread {
        /// What the system said.
        message: String,
    },
    /// The prompt does not fit the context.
    #[error(
        "the prompt has {prompt} tokens and the context holds {context}{}",
        beyond_context(*context, *held)
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens of the context.
        context: usize,
        /// Bytes of the budget, and the tokens that it holds, where it is what limits the context.
        held: Option<(u64, usize)>,
    },
    /// The prompt is longer than any that could be answered; it was not tokenised.
    #[error("the prompt has {bytes} bytes and {limit}")]
    PromptTooManyBytes {
        /// Bytes of the prompt.
        bytes: usize,
        /// How many there may be, and why.
        limit: TextLimit,
    },
    /// There is nothing to continue.
    #[error("the prompt has no tokens; give some text")]
    PromptEmpty,
    /// A token id outside the vocabulary.
    #[error("token id {id} is outside the vocabulary of {vocabulary}")]
    TokenId {
        /// The id.
        id: u32,
        /// Tokens in the vocabulary.
        vocabulary: usize,
    },
    /// A session cannot be saved or restored.
    #[error("{}: {source}", path.display())]
    Session {
        /// The session's file.
        path: PathBuf,
        /// What is wrong with it.
        source: SessionError,
    },
    /// The engine's thread has ended.
    #[error("the engine has stopped; open the model again")]
    Stopped,
}

/// A setting of [`Settings`](crate::Settings) or of a request's
/// [`SamplerOptions`](crate::SamplerOptions), shown by its name there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Setting {
    /// [`Settings::threads`](crate::Settings::threads).
    Threads,
    /// [`Settings::context`](crate::Settings::context).
    Context,
    /// [`Settings::prefetch`](crate::Settings::prefetch).
    Prefetch,
    /// [`LossyRouting::cache_routing`](crate::LossyRouting::cache_routing).
    CacheRouting,
    /// [`LossyRouting::expert_budget`](crate::LossyRouting::expert_budget).
    ExpertBudget,
    /// [`SamplerOptions::logit_bias`](crate::SamplerOptions::logit_bias).
    LogitBias,
}

impl fmt::Display for Setting {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Threads => "threads",
            Self::Context => "context",
            Self::Prefetch => "prefetch",
            Self::CacheRouting => "cache_routing",
            Self::ExpertBudget => "expert_budget",
            Self::LogitBias => "logit_bias",
        })
    }
}

/// What helps where a budget is too small and cannot be raised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Instead {
    /// No context would fit.
    SmallerModel,
    /// The context is as long as the text that is scored; chunks of it need less.
    Chunks,
    /// The context is as long as the prompt makes it.
    ShorterPrompt,
    /// The context was chosen, or is the shortest that is useful.
    ShorterContext,
}

impl fmt::Display for Instead {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::SmallerModel => "choose a smaller model",
            Self::Chunks => "score the text in chunks of a lower context",
            Self::ShorterPrompt => "shorten the prompt",
            Self::ShorterContext => "lower the context",
        })
    }
}

impl Error {
    pub(crate) fn session(path: &Path, source: SessionError) -> Self {
        Self::Session {
            path: path.to_owned(),
            source,
        }
    }

    pub(crate) fn thread(error: &io::Error) -> Self {
        Self::Thread {
            message: error.to_string(),
        }
    }

    pub(crate) fn model(path: &Path, source: ModelError) -> Self {
        Self::Model {
            path: path.to_owned(),
            source,
        }
    }
}

/// Memory that there is may be refused all the same.
fn memory_refused(planned_bytes: u64, available_bytes: u64) -> String {
    let planned = in_binary_units(planned_bytes);
    let available = in_binary_units(available_bytes);
    if planned_bytes <= available_bytes {
        return format!(
            "the system refuses the {planned} that the plan takes, though {available} of memory are available; raise the limit of the address space (ulimit -v, vm.overcommit_memory), or lower the context or the budget"
        );
    }
    format!(
        "the plan takes {planned} and {available} of memory are available; lower the context or the budget"
    )
}

/// What of a context a budget holds.
fn held(budget_bytes: u64, context: usize) -> String {
    match context {
        0 => String::new(),
        held => format!(", and {} hold {held} tokens", in_mebibytes(budget_bytes)),
    }
}

fn without_profile(profile_bytes: u64) -> String {
    match profile_bytes {
        0 => String::new(),
        bytes => format!("; leaving out the profile would free {bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_never_looks_as_large_as_the_smallest_that_works() {
        let found = |bytes| in_mebibytes(bytes);
        assert_eq!(found(1), "less than 0.1M");
        assert_eq!(found(500 << 20), "500M");
        assert_eq!(found((3 << 30) - 1), "3071.9M");
    }
}
