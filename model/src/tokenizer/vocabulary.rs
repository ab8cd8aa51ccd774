//! The tokens: text, kind and score by id, and id by text.
//!
//! A vocabulary of 262,144 tokens has to fit a budget of a few dozen MiB, so the
//! texts stay in the one buffer they were read into, and the index from text to
//! id holds ids only.

use std::hash::BuildHasher;

use emel_loader::gguf::{Array, Metadata, MetadataError, StringTable, Value};
use hashbrown::{DefaultHashBuilder, HashTable};

use super::error::{TokenizerError, TokenizerWarning};

pub(super) const TOKENS: &str = "tokenizer.ggml.tokens";
const SCORES: &str = "tokenizer.ggml.scores";
const KINDS: &str = "tokenizer.ggml.token_type";

/// What a token is for, as `tokenizer.ggml.token_type` counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum TokenKind {
    /// A kind that is not known; renders as nothing.
    Undefined,
    /// A piece of text.
    Normal,
    /// The token for what the vocabulary cannot express.
    Unknown,
    /// A token that steers the model, such as the start of a turn.
    Control,
    /// A text that is always one token.
    UserDefined,
    /// A placeholder; renders as nothing.
    Unused,
    /// One byte, with the text `<0xNN>`.
    Byte,
}

impl TokenKind {
    fn from_number(number: i32) -> Self {
        match number {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => Self::Undefined,
        }
    }
}

/// All tokens of a model.
#[derive(Debug)]
pub(super) struct Vocabulary {
    texts: StringTable,
    ids: HashTable<u32>,
    hash: DefaultHashBuilder,
    kinds: Vec<TokenKind>,
    /// Empty when the merge order comes from somewhere else.
    scores: Vec<f32>,
    token_bytes_max: usize,
}

impl Vocabulary {
    /// Takes the tokens, their kinds and, if asked for, their scores out of
    /// `metadata`; `unescape` makes the texts what they stand for.
    pub(super) fn take(
        metadata: &mut Metadata,
        with_scores: bool,
        unescape: impl FnOnce(StringTable) -> StringTable,
        warnings: &mut Vec<TokenizerWarning>,
    ) -> Result<Self, TokenizerError> {
        let texts = Metadata::required(
            take_strings(metadata, TOKENS)?,
            TOKENS,
            "an array of strings",
        )?;
        let texts = unescape(texts);
        let maximum = u32::MAX as usize - 1;
        if texts.is_empty() || texts.len() > maximum {
            let found = texts.len();
            return Err(TokenizerError::VocabularySize { found, maximum });
        }
        let scores = take_scores(metadata, texts.len())?;
        let mut vocabulary = Self {
            kinds: take_kinds(metadata, texts.len())?,
            scores: if with_scores { scores } else { Vec::new() },
            token_bytes_max: texts.iter().map(<[u8]>::len).max().unwrap_or(0),
            ids: HashTable::with_capacity(texts.len()),
            hash: DefaultHashBuilder::default(),
            texts,
        };
        let count = vocabulary.index_texts();
        if count > 0 {
            warnings.push(TokenizerWarning::RepeatedTokens { count });
        }
        Ok(vocabulary)
    }

    /// Fills the index and returns how many texts were already in it. Empty texts
    /// are not indexed: nothing could ever encode to them.
    fn index_texts(&mut self) -> usize {
        let Self {
            texts, ids, hash, ..
        } = self;
        let text_of = |id: u32| texts.get(id as usize).unwrap_or_default();
        let mut repeated = 0;
        for (id, text) in (0u32..).zip(texts.iter()) {
            if text.is_empty() {
                continue;
            }
            let hash_of_text = hash.hash_one(text);
            if ids
                .find(hash_of_text, |&other| text_of(other) == text)
                .is_some()
            {
                repeated += 1;
                continue;
            }
            ids.insert_unique(hash_of_text, id, |&other| hash.hash_one(text_of(other)));
        }
        repeated
    }

    /// The number of tokens.
    pub(super) fn len(&self) -> usize {
        self.texts.len()
    }

    /// The stored text of a token, empty for an id outside the vocabulary.
    pub(super) fn text(&self, id: u32) -> &[u8] {
        self.texts.get(id as usize).unwrap_or_default()
    }

    /// The kind of a token, [`TokenKind::Undefined`] outside the vocabulary.
    pub(super) fn kind(&self, id: u32) -> TokenKind {
        let kind = self.kinds.get(id as usize);
        kind.copied().unwrap_or(TokenKind::Undefined)
    }

    /// Replaces the kind of a token, for files that are known to mislabel it.
    pub(super) fn set_kind(&mut self, id: u32, kind: TokenKind) {
        if let Some(slot) = self.kinds.get_mut(id as usize) {
            *slot = kind;
        }
    }

    /// The score of a token, 0 where the file has none.
    pub(super) fn score(&self, id: u32) -> f32 {
        self.scores.get(id as usize).copied().unwrap_or(0.0)
    }

    /// The id of the token with exactly this stored text.
    pub(super) fn id(&self, text: &[u8]) -> Option<u32> {
        if text.len() > self.token_bytes_max {
            return None;
        }
        let hash_of_text = self.hash.hash_one(text);
        let found = self.ids.find(hash_of_text, |&id| self.text(id) == text);
        found.copied()
    }

    /// The length of the longest stored text.
    pub(super) fn token_bytes_max(&self) -> usize {
        self.token_bytes_max
    }

    /// Heap bytes held.
    pub(super) fn heap_bytes(&self) -> usize {
        self.texts.heap_bytes()
            + self.ids.allocation_size()
            + self.kinds.capacity() * size_of::<TokenKind>()
            + self.scores.capacity() * size_of::<f32>()
    }
}

/// Takes an array of strings out of `metadata`.
pub(super) fn take_strings(
    metadata: &mut Metadata,
    key: &str,
) -> Result<Option<StringTable>, MetadataError> {
    metadata.strings(key)?;
    Ok(match metadata.remove(key) {
        Some(Value::Array(Array::String(mut table))) => {
            table.shrink_to_fit();
            Some(table)
        }
        _ => None,
    })
}

fn take_scores(metadata: &mut Metadata, tokens: usize) -> Result<Vec<f32>, TokenizerError> {
    let mut scores = match metadata.get(SCORES) {
        // Whole-number scores are legal and stand for ranks.
        Some(Value::Array(Array::I32(_))) => match metadata.remove(SCORES) {
            Some(Value::Array(Array::I32(ranks))) => {
                ranks.into_iter().map(|rank| rank as f32).collect()
            }
            _ => Vec::new(),
        },
        None => return Ok(Vec::new()),
        Some(_) => {
            metadata.f32s(SCORES)?;
            match metadata.remove(SCORES) {
                Some(Value::Array(Array::F32(scores))) => scores,
                _ => Vec::new(),
            }
        }
    };
    check_length(SCORES, scores.len(), tokens)?;
    scores.truncate(tokens);
    scores.shrink_to_fit();
    Ok(scores)
}

fn take_kinds(metadata: &mut Metadata, tokens: usize) -> Result<Vec<TokenKind>, TokenizerError> {
    let Some(numbers) = metadata.i32s(KINDS)? else {
        return Ok(vec![TokenKind::Normal; tokens]);
    };
    check_length(KINDS, numbers.len(), tokens)?;
    let numbers = numbers[..tokens].iter();
    let kinds = numbers.map(|&number| TokenKind::from_number(number));
    let kinds = kinds.collect();
    metadata.remove(KINDS);
    Ok(kinds)
}

/// Longer arrays are tolerated, as in llama.cpp: what is behind the last token is not
/// looked at.
fn check_length(key: &'static str, found: usize, expected: usize) -> Result<(), TokenizerError> {
    if found >= expected {
        return Ok(());
    }
    Err(TokenizerError::Length {
        key,
        found,
        expected,
    })
}
