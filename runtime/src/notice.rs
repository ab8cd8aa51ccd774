//! What the user should know though nothing has failed: choices made for them, fallbacks,
//! unusual files, and changes while the engine runs.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use emel_model::routing::LossyRouting;

use crate::budget::in_binary_units;
use crate::weights_change::WeightsChange;

/// Something that the user should know though nothing has failed. Shown as one line, without
/// the names of a program's options.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Notice {
    /// The context was not chosen and is shorter than it would be with a larger budget.
    ContextShortened {
        /// Tokens of the context.
        context: usize,
        /// Tokens it would have.
        wished: usize,
        /// Tokens of the longest context that the budget holds.
        held: usize,
        /// The smallest budget that holds what it would have.
        needed_bytes: u64,
    },
    /// The context is longer than those the model was trained on.
    ContextUntrained {
        /// Tokens of the context.
        context: usize,
        /// Tokens it was trained on.
        trained: usize,
    },
    /// The file has factors of LongRoPE for short and for long contexts, and a context decides
    /// which are used.
    LongRope {
        /// Tokens of that context.
        context: usize,
        /// Whether it is the one that was asked for; else it stands for any.
        is_asked: bool,
        /// Tokens of the longest context that the short factors are for.
        original: usize,
    },
    /// The plan takes more memory than there is.
    ScarceMemory {
        /// What the plan takes.
        planned_bytes: u64,
        /// What the machine and the cgroup leave.
        available_bytes: u64,
    },
    /// Lossy routing is on.
    Lossy {
        /// Its rules.
        lossy: LossyRouting,
        /// What they do with this plan.
        effect: LossyEffect,
    },
    /// Something in the model's file is unusual, in words.
    Model(String),
    /// Something in the file's tokenizer is unusual, in words.
    Tokenizer(String),
    /// The system refuses a faster reader.
    SlowerReader {
        /// The reader that is used: `ring`, `uring`, `pread` or `mmap`.
        backend: &'static str,
        /// Why, in words.
        reason: String,
        /// What makes the system allow it, in words.
        remedy: String,
    },
    /// Reads go through the page cache, because the filesystem refuses `O_DIRECT`.
    NoDirectIo,
    /// What earlier runs have learnt about the model's experts cannot be used.
    LearntIgnored {
        /// Its file.
        path: PathBuf,
        /// Why, in words.
        why: String,
    },
    /// What was learnt about the model's experts cannot be written.
    LearntNotKept {
        /// Its file.
        path: PathBuf,
        /// Why, in words.
        why: String,
    },
    /// Weights are given back or taken again, because the memory that may be used has changed.
    Weights(WeightsChange),
}

/// What the rules of lossy routing do with a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LossyEffect {
    /// They change answers.
    ChangesAnswers,
    /// All experts are in memory until it becomes scarce.
    NoneYet,
    /// All experts stay in memory.
    None,
}

impl fmt::Display for Notice {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ContextShortened {
                context,
                wished,
                held,
                needed_bytes,
            } => {
                write!(out, "context of {context} tokens instead of {wished}")?;
                let needed = needed_bytes.div_ceil(1 << 20);
                match held {
                    held if held <= context => write!(
                        out,
                        ": the budget holds no more, and {wished} need {needed}M"
                    ),
                    held if held < wished => write!(
                        out,
                        ", to keep more weights in memory: the budget holds up to {held}, and {wished} need {needed}M"
                    ),
                    held => write!(out, ", to keep more weights in memory: the budget holds up to {held}"),
                }
            }
            Self::ContextUntrained { context, trained } => write!(
                out,
                "a context of {context} tokens is longer than the {trained} the model was trained for"
            ),
            Self::LongRope {
                context,
                is_asked,
                original,
            } => {
                let (which, than) = match context > original {
                    true => ("long", "longer than"),
                    false => ("short", "within"),
                };
                let which_context = match is_asked {
                    true => format!("the context of {context} tokens"),
                    false => format!("no context was asked for, and one of {context} tokens"),
                };
                write!(
                    out,
                    "the {which} factors of LongRoPE are used: {which_context} is {than} the model's first {original}"
                )
            }
            Self::ScarceMemory {
                planned_bytes,
                available_bytes,
            } => write!(
                out,
                "the plan takes {} and {} of memory are available; lower the budget if the system swaps or kills the process",
                in_binary_units(*planned_bytes),
                in_binary_units(*available_bytes)
            ),
            Self::Lossy { lossy, effect } => write!(out, "LOSSY: {} {effect}", rules(lossy)),
            Self::Model(note) | Self::Tokenizer(note) => out.write_str(note),
            Self::SlowerReader {
                backend,
                reason,
                remedy,
            } => write!(out, "reading with {backend}, because {reason}: {remedy}"),
            Self::NoDirectIo => out.write_str(
                "the filesystem refuses O_DIRECT; reads go through the page cache and are dropped from it",
            ),
            Self::LearntIgnored { path, why } => {
                write!(out, "{} is ignored: {why}", path.display())
            }
            Self::LearntNotKept { path, why } => write!(out, "{}: {why}", path.display()),
            Self::Weights(change) => change.fmt(out),
        }
    }
}

impl fmt::Display for LossyEffect {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::ChangesAnswers => {
                "changes the answers of the model while it decodes, and by how much depends on the budget"
            }
            Self::NoneYet => {
                "changes nothing here as long as all experts stay in memory, as they do until it becomes scarce"
            }
            Self::None => "changes nothing here, because all experts stay in memory",
        })
    }
}

/// The rules that are on.
fn rules(lossy: &LossyRouting) -> String {
    let cache_routing = lossy
        .cache_routing
        .map(|rule| format!("cache routing {},{}", rule.kept, rule.among));
    let budget = lossy
        .expert_budget
        .map(|experts| format!("expert budget {experts}"));
    let rules = cache_routing.into_iter().chain(budget);
    rules.collect::<Vec<_>>().join(" with ")
}

type OnNotice = dyn FnMut(&Notice) + Send;

/// Gets notices as they come: those of the start, and those of the time after it.
#[derive(Default, Clone)]
pub struct NoticeListener(Option<Arc<Mutex<OnNotice>>>);

impl NoticeListener {
    /// Has `listener` called on the engine's thread.
    pub fn new(listener: impl FnMut(&Notice) + Send + 'static) -> Self {
        Self(Some(Arc::new(Mutex::new(listener))))
    }

    pub(crate) fn tell(&self, notice: &Notice) {
        if let Some(listener) = &self.0 {
            let mut listener = listener.lock().unwrap_or_else(PoisonError::into_inner);
            listener(notice);
        }
    }
}

impl fmt::Debug for NoticeListener {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0 {
            Some(_) => "NoticeListener(Some)",
            None => "NoticeListener(None)",
        };
        formatter.write_str(name)
    }
}
