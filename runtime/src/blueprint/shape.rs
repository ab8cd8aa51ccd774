//! The context and the chunk that a plan is made for.

use emel_model::forward::Footprint;
use emel_model::program::Program;

use super::settings::{CONTEXT_MAX, Settings};

/// A context that the user did not choose and that is shorter is worth a notice. LongRoPE's
/// factors are those of this length then, whatever the context is.
const CONTEXT_DEFAULT: usize = 4096;
/// The shortest context where the tokens of a request are not known, and the room for an
/// answer of unknown length.
const CONTEXT_MIN: usize = 512;
/// Sizes that the plan is free to choose.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) context: usize,
    pub(super) chunk: usize,
    pub(super) logit_tokens: usize,
}

impl Shape {
    /// What the forward pass allocates.
    pub(super) fn footprint(self, settings: &Settings, program: &Program) -> Footprint {
        Footprint {
            context: self.context,
            context_wished: context_rotated(settings, program),
            chunk: self.chunk,
            logit_tokens: self.logit_tokens,
            threads: settings.threads,
            kv_type: settings.kv_type,
        }
    }
}

/// The context by which LongRoPE chooses its factors: the one that was asked for, or else a
/// fixed one, so that neither the budget nor the request decides about bits.
pub(super) fn context_rotated(settings: &Settings, program: &Program) -> usize {
    let unasked = CONTEXT_DEFAULT.min(program.hyperparameters.context_length);
    context_asked(settings, program).unwrap_or(unasked)
}

/// The context that was asked for, where 0 is the one that the model was trained for.
pub(super) fn context_asked(settings: &Settings, program: &Program) -> Option<usize> {
    match settings.context {
        Some(0) => Some(program.hyperparameters.context_length.clamp(1, CONTEXT_MAX)),
        asked => asked,
    }
}

/// The longest context that the user need not ask for: the one the model was trained for, and
/// no longer than LongRoPE's factors are right for.
pub(super) fn context_limit(settings: &Settings, program: &Program) -> usize {
    let trained = program.hyperparameters.context_length;
    let factors = program.long_factors(context_rotated(settings, program));
    let limit = match factors {
        Some((original, false)) => original.min(trained),
        _ => trained,
    };
    limit.clamp(1, CONTEXT_MAX)
}

/// Tokens of a request, where they are known before the plan is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RequestTokens {
    /// Those of the prompt, 0 if it is not known yet.
    pub(super) prompt: usize,
    /// Those of a saved session, which is checked later.
    pub(super) kept: usize,
    /// Those of the answer at most; unknown if it goes on until the model ends it.
    pub(super) answer: Option<usize>,
}

/// How long the context may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ContextRange {
    /// Below this there is an error.
    pub(super) floor: usize,
    /// Weights give way to this many tokens.
    pub(super) least: usize,
    /// At most this many, as far as memory is spare.
    pub(super) most: usize,
}

impl ContextRange {
    pub(super) fn exactly(context: usize) -> Self {
        Self {
            floor: context,
            least: context,
            most: context,
        }
    }

    /// What the user asked for; else what `request` needs, and without one as much as there is
    /// room for.
    pub(super) fn new(
        settings: &Settings,
        program: &Program,
        request: Option<RequestTokens>,
    ) -> Self {
        if let Some(context) = context_asked(settings, program) {
            return Self::exactly(context);
        }
        let limit = context_limit(settings, program);
        let Some(RequestTokens {
            prompt,
            kept,
            answer,
        }) = request
        else {
            let least = CONTEXT_MIN.min(limit);
            return Self {
                floor: least,
                least,
                most: limit,
            };
        };
        let held = prompt.max(kept);
        let wanted = held.saturating_add(answer.unwrap_or(CONTEXT_MIN));
        let least = wanted.clamp(1, limit);
        Self {
            floor: prompt.clamp(1, limit),
            least,
            // A longer one would be of no use to an answer that ends before.
            most: if answer.is_some() { least } else { limit },
        }
    }

    /// The length below which the user should know that it was shortened.
    pub(super) fn expected(self) -> usize {
        self.least.max(CONTEXT_DEFAULT.min(self.most))
    }
}
