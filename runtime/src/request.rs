//! What a caller asks for.

use emel_model::sampler::SamplerOptions;
use emel_model::tokenizer::{EncodeOptions, Tokenizer};

use crate::error::{Error, Setting};
use crate::text_limit::TextLimit;

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
                check_length(&text, limit)?;
                tokenizer.encode(&text, EncodeOptions::PROMPT)
            }
            #[cfg(feature = "chat")]
            Self::Rendered(text) => {
                check_length(&text, limit)?;
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

fn check_length(text: &str, limit: &TextLimit) -> Result<(), Error> {
    if text.len() > limit.bytes() {
        return Err(Error::PromptTooManyBytes {
            bytes: text.len(),
            limit: *limit,
        });
    }
    Ok(())
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
            let error = check_length(&"a".repeat(bytes), &limit).unwrap_err();
            assert!(check_length(&"a".repeat(bytes - 1), &limit).is_ok());
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
