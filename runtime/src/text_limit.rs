//! How long a text may be.

use std::fmt;

use crate::budget::{in_binary_units, in_mebibytes};

/// How long a text may be that is to become token ids: no longer than the tokens of the
/// context can stand for, and than can be tokenised within the budget. Who reads a text from
/// elsewhere need not read more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextLimit {
    bytes: usize,
    reason: Reason,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    /// A context of so many tokens, of which a budget may hold no more than some.
    Context(usize, Option<(u64, usize)>),
    /// A budget of so many bytes.
    Budget(u64),
}

impl TextLimit {
    /// Tokenising takes up to 48 bytes for each byte of a text.
    const BUDGET_SHARE: u64 = 64;

    /// What can be tokenised within a budget.
    pub fn of_budget(budget_bytes: u64) -> Self {
        let bytes = budget_bytes / Self::BUDGET_SHARE;
        Self {
            bytes: usize::try_from(bytes).unwrap_or(usize::MAX),
            reason: Reason::Budget(budget_bytes),
        }
    }

    /// No more than `context` of the longest tokens have; `held` is the budget and the tokens that it holds, where
    /// it is what limits the context.
    pub fn within(
        self,
        context: usize,
        held: Option<(u64, usize)>,
        token_bytes_max: usize,
    ) -> Self {
        // A character outside the vocabulary can be one unknown token.
        let bytes = context.saturating_mul(token_bytes_max.max(char::MAX.len_utf8()));
        if bytes > self.bytes {
            return self;
        }
        Self {
            bytes,
            reason: Reason::Context(context, held),
        }
    }

    /// Whether a larger budget is needed for a longer text.
    pub fn is_of_budget(&self) -> bool {
        !matches!(self.reason, Reason::Context(_, None))
    }

    /// Whether a longer context has to be asked for if the text is to be longer.
    pub fn is_of_context(&self) -> bool {
        match self.reason {
            Reason::Context(context, held) => held.is_none_or(|(_, held)| held < context),
            Reason::Budget(_) => false,
        }
    }

    /// Bytes of the longest text.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl fmt::Display for TextLimit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.bytes;
        match self.reason {
            Reason::Context(context, held) => write!(
                formatter,
                "{bytes} at most fit the context of {context} tokens{}",
                beyond_context(context, held)
            ),
            Reason::Budget(budget_bytes) => write!(
                formatter,
                "{bytes} at most can be tokenised in a RAM budget of {}; shorten it or raise the budget",
                in_binary_units(budget_bytes)
            ),
        }
    }
}

/// What a budget holds of a context that is too short for a prompt, and what to do.
pub(crate) fn beyond_context(context: usize, held: Option<(u64, usize)>) -> String {
    let Some((budget_bytes, tokens)) = held else {
        return "; shorten it or raise the context".to_owned();
    };
    let budget = in_mebibytes(budget_bytes);
    match tokens < context {
        true => format!(
            ", of which a RAM budget of {budget} holds {tokens}; shorten it, or raise the budget and the context"
        ),
        false => {
            format!(", and a RAM budget of {budget} holds no more; shorten it or raise the budget")
        }
    }
}
