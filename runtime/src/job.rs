//! What the engine's thread is given to do, checked before.

use std::path::PathBuf;

use emel_model::routing_log::RoutingLog;
use emel_model::sampler::SamplerOptions;
use tokio::sync::oneshot;

use crate::error::Error;
use crate::stream::EventSender;

/// Something for the engine's thread to do.
pub(crate) enum Job {
    Generate(Generation),
    Evaluate(Evaluation),
    Trace(Tracing),
    Session(SessionJob),
}

/// A checked request: `ids` is not empty, fits the context and the vocabulary.
pub(crate) struct Generation {
    pub(crate) ids: Vec<u32>,
    pub(crate) max_tokens: usize,
    pub(crate) sampler: SamplerOptions,
    pub(crate) ignore_eos: bool,
    pub(crate) events: EventSender,
}

/// Takes a position and its row of logits.
pub(crate) type OnLogits = Box<dyn FnMut(usize, &[f32]) + Send>;

/// A checked evaluation.
pub(crate) struct Evaluation {
    pub(crate) ids: Vec<u32>,
    pub(crate) on_logits: OnLogits,
    pub(crate) finished: oneshot::Sender<Result<(), Error>>,
}

/// Takes the position of a pass's first token, how many tokens it had, and their routing.
pub(crate) type OnRouting = Box<dyn FnMut(usize, usize, &RoutingLog) + Send>;

/// Checked ids whose routing is wanted.
pub(crate) struct Tracing {
    pub(crate) ids: Vec<u32>,
    pub(crate) on_routing: OnRouting,
    pub(crate) finished: oneshot::Sender<Result<(), Error>>,
}

/// What to do with a session file.
pub(crate) enum SessionTask {
    /// Save it, with a text of the caller's.
    Save(String),
    Restore,
}

/// A session to save or restore.
pub(crate) struct SessionJob {
    pub(crate) path: PathBuf,
    pub(crate) task: SessionTask,
    pub(crate) finished: oneshot::Sender<Result<usize, Error>>,
}
