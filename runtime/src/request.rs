//! What a caller asks for.

use emel_model::sampler::SamplerOptions;
use emel_model::tokenizer::{EncodeOptions, Tokenizer};

use crate::error::Error;

/// The text, or the token ids, to continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// Text; special tokens in it are recognised, BOS is added as the file says.
    Text(String),
    /// Token ids, taken as they are.
    Tokens(Vec<u32>),
}

impl Prompt {
    /// The token ids of the prompt: of a text, with BOS as the file says and special
    /// tokens recognised.
    ///
    /// # Errors
    /// When there is none, when there are more than `context`, or when one is not in
    /// the vocabulary. A text that can only be too long is refused before the work of
    /// tokenising it.
    pub(crate) fn ids(
        self,
        tokenizer: &Tokenizer,
        context: usize,
        vocabulary: usize,
    ) -> Result<Vec<u32>, Error> {
        let ids = match self {
            Self::Text(text) => {
                check_length(text.len(), tokenizer.token_bytes_max(), context)?;
                tokenizer.encode(&text, EncodeOptions::PROMPT)
            }
            Self::Tokens(ids) => ids,
        };
        let stranger = ids.iter().find(|&&id| id as usize >= vocabulary);
        match (ids.len(), stranger) {
            (0, _) => Err(Error::PromptEmpty),
            (prompt, _) if prompt > context => Err(Error::PromptTooLong { prompt, context }),
            (_, Some(&id)) => Err(Error::TokenId { id, vocabulary }),
            (_, None) => Ok(ids),
        }
    }
}

/// Refuses a text of more bytes than `context` of the longest tokens have.
fn check_length(bytes: usize, token_bytes_max: usize, context: usize) -> Result<(), Error> {
    // A character outside the vocabulary can be one unknown token.
    let limit_bytes = context.saturating_mul(token_bytes_max.max(char::MAX.len_utf8()));
    if bytes > limit_bytes {
        return Err(Error::PromptTooManyBytes {
            bytes,
            context,
            limit_bytes,
        });
    }
    Ok(())
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
    fn a_text_is_refused_by_its_length_only_where_no_tokens_could_hold_it() {
        assert!(check_length(30, 6, 5).is_ok());
        let error = check_length(31, 6, 5).unwrap_err();
        assert!(matches!(
            error,
            Error::PromptTooManyBytes {
                bytes: 31,
                context: 5,
                limit_bytes: 30
            }
        ));
        assert!(check_length(20, 1, 5).is_ok());
        assert!(check_length(usize::MAX, usize::MAX, 2).is_ok());
    }
}
