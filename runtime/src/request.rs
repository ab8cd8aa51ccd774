//! What a caller asks for.

use std::fmt;

use emel_model::sampler::SamplerOptions;
use emel_model::tokenizer::{EncodeOptions, Tokenizer};

use crate::budget::in_binary_units;
use crate::error::{Error, Setting, beyond_context};

/// The text, or the token ids, to continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// Text; special tokens in it are recognised, BOS is added as the file says.
    Text(String),
    /// A conversation as a chat template has rendered it; as text, but that BOS is not
    /// added where the template has written it.
    #[cfg(feature = "chat")]
    Rendered(String),
    /// Token ids, taken as they are.
    Tokens(Vec<u32>),
}

/// What a prompt is checked against.
#[derive(Debug, Clone, Copy)]
pub struct PromptLimits {
    /// Tokens of the context.
    pub context: usize,
    /// The budget and the tokens that it holds, where it is what limits the context.
    pub held: Option<(u64, usize)>,
    /// Tokens in the vocabulary.
    pub vocabulary: usize,
    /// Its text's length.
    pub text: TextLimit,
}

impl Prompt {
    /// The token ids of the prompt: of a text, with BOS as the file says and special
    /// tokens recognised.
    ///
    /// # Errors
    /// When there is none, when there are more than the context holds, or when one is not in
    /// the vocabulary. A text that is too long is refused before the work of tokenising it.
    pub fn ids(self, tokenizer: &Tokenizer, limits: &PromptLimits) -> Result<Vec<u32>, Error> {
        let &PromptLimits {
            context,
            held,
            vocabulary,
            ref text,
        } = limits;
        let limit = text;
        let ids = match self {
            Self::Text(text) => {
                limit.check(&text)?;
                tokenizer.encode(&text, EncodeOptions::PROMPT)
            }
            #[cfg(feature = "chat")]
            Self::Rendered(text) => {
                limit.check(&text)?;
                emel_model::chat::prompt_ids(tokenizer, &text)
            }
            Self::Tokens(ids) => ids,
        };
        let stranger = ids.iter().find(|&&id| id as usize >= vocabulary);
        match (ids.len(), stranger) {
            (0, _) => Err(Error::PromptEmpty),
            (prompt, _) if prompt > context => Err(Error::PromptTooLong {
                prompt,
                context,
                held,
            }),
            (_, Some(&id)) => Err(Error::TokenId { id, vocabulary }),
            (_, None) => Ok(ids),
        }
    }
}

/// Refuses biases of tokens that do not exist, and those that leave no token to draw.
pub fn check_biases(
    sampler: &SamplerOptions,
    tokens: usize,
    vocabulary: usize,
) -> Result<(), Error> {
    let refuse = |found, expected| {
        Err(Error::Setting {
            setting: Setting::LogitBias,
            found,
            expected,
        })
    };
    let biases = &sampler.logit_bias;
    if let Some((id, bias)) = biases.iter().find(|bias| bias.0 as usize >= vocabulary) {
        let expected = format!("an id below the vocabulary's {vocabulary}");
        return refuse(format!("{id}{bias:+}"), expected);
    }
    let ruled_out = biases.iter().filter(|bias| bias.1 == f32::NEG_INFINITY);
    if ruled_out.clone().count() < tokens {
        return Ok(());
    }
    let mut ids: Vec<u32> = ruled_out.map(|bias| bias.0).collect();
    ids.retain(|&id| (id as usize) < tokens);
    ids.sort_unstable();
    ids.dedup();
    if ids.len() < tokens {
        return Ok(());
    }
    let found = format!("-inf for all of the {tokens} tokens");
    refuse(found, "one token at least that may be drawn".to_owned())
}

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

    /// No more than `context` of the longest tokens have; `held` as in [`PromptLimits`].
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

    fn check(&self, text: &str) -> Result<(), Error> {
        if text.len() > self.bytes {
            return Err(Error::PromptTooManyBytes {
                bytes: text.len(),
                limit: *self,
            });
        }
        Ok(())
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

impl From<&str> for Prompt {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Prompt {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<Vec<u32>> for Prompt {
    fn from(ids: Vec<u32>) -> Self {
        Self::Tokens(ids)
    }
}

/// A request to continue a prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// What is continued.
    pub prompt: Prompt,
    /// Tokens to generate at most.
    pub max_tokens: usize,
    /// How tokens are chosen.
    pub sampler: SamplerOptions,
    /// Whether to go on after an end-of-generation token.
    pub ignore_eos: bool,
}

impl Request {
    /// A request for up to 128 tokens with the usual sampling.
    pub fn new(prompt: impl Into<Prompt>) -> Self {
        Self {
            prompt: prompt.into(),
            max_tokens: 128,
            sampler: SamplerOptions::default(),
            ignore_eos: false,
        }
    }

    /// Sets how many tokens to generate at most.
    #[must_use]
    pub fn max_tokens(mut self, max_tokens: usize) -> Self {
        self.max_tokens = max_tokens;
        self
    }

    /// Sets how tokens are chosen.
    #[must_use]
    pub fn sampler(mut self, sampler: SamplerOptions) -> Self {
        self.sampler = sampler;
        self
    }

    /// Goes on after an end-of-generation token.
    #[must_use]
    pub fn ignore_eos(mut self) -> Self {
        self.ignore_eos = true;
        self
    }

    /// Always takes the most probable token.
    #[must_use]
    pub fn greedy(mut self) -> Self {
        self.sampler.temperature = 0.0;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_refused_by_its_length_where_no_tokens_could_hold_it_or_no_budget() {
        let limit = |context, held, token_bytes_max, budget_bytes| {
            TextLimit::of_budget(budget_bytes).within(context, held, token_bytes_max)
        };
        let refusal = |limit: TextLimit, bytes: usize| {
            let error = limit.check(&"a".repeat(bytes)).unwrap_err();
            assert!(limit.check(&"a".repeat(bytes - 1)).is_ok());
            error.to_string()
        };
        let error = refusal(limit(5, None, 6, 1 << 30), 31);
        assert!(error.contains("31 bytes and 30 at most fit the context of 5 tokens; shorten"));
        let error = refusal(limit(5, None, 1, 1 << 30), 21);
        assert!(
            error.ends_with(
                "20 at most fit the context of 5 tokens; shorten it or raise the context"
            )
        );
        let error = refusal(limit(5, Some((1 << 30, 3)), 1, 1 << 30), 21);
        let expected = "5 tokens, of which a RAM budget of 1024M holds 3; shorten it, or raise the budget and the context";
        assert!(error.ends_with(expected), "{error}");
        let error = refusal(limit(5, Some((1 << 30, 5)), 1, 1 << 30), 21);
        let expected =
            "5 tokens, and a RAM budget of 1024M holds no more; shorten it or raise the budget";
        assert!(error.ends_with(expected), "{error}");
        let error = refusal(limit(usize::MAX, None, usize::MAX, 64_000), 1001);
        assert!(error.contains("1000 at most") && error.contains("raise the budget"));
    }
}
