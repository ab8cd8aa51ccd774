//! How long a context could be, and what a longer one would need.

use super::draft::Draft;
use super::settings::CONTEXT_MAX;

/// How long a context could be, and what a longer one would need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContextRoom {
    /// Tokens of a context that the model was trained for.
    pub trained: usize,
    /// Bytes of the budget.
    pub budget_bytes: u64,
    /// Tokens of the longest context that the budget holds: no more than the model was trained
    /// for or the context has. 0 if it holds none.
    pub held: usize,
    /// Tokens of a context that is twice as long, or as the model was trained for if that is less.
    pub longer: usize,
    /// The smallest budget that holds the longer one.
    pub longer_bytes: u64,
}

impl ContextRoom {
    /// The budget and the tokens that it holds, where it is what keeps `context` from being used
    /// whole or from being longer.
    pub(crate) fn limit(&self, context: usize) -> Option<(u64, usize)> {
        let is_full = self.held == context && context < self.trained;
        (is_full || self.held < context).then_some((self.budget_bytes, self.held))
    }
}

impl Draft<'_> {
    /// The room of a context, with the longest that the budget holds.
    pub(super) fn room(&self, context: usize, held: usize) -> ContextRoom {
        let trained = self.program.hyperparameters.context_length.min(CONTEXT_MAX);
        let longer = context.saturating_mul(2).min(trained.max(context));
        ContextRoom {
            trained,
            budget_bytes: self.budget_bytes,
            held,
            longer,
            longer_bytes: self.needed_bytes(longer),
        }
    }
}
