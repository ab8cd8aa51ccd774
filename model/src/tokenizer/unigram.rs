//! Unigram, the `t5` family: the most probable way to cut a text into tokens.
//!
//! Each token has a log-probability, and the cut with the greatest sum wins, found by
//! Viterbi's algorithm; scores are added in 64 bits from the text's beginning, as
//! SentencePiece does. A character without a token is unknown, at ten below the least
//! score; unknown neighbours are one token.

use emel_loader::gguf::Metadata;

use super::charsmap::{Charsmap, GROWTH_MAX};
use super::error::TokenizerError;
use super::prefix_index::PrefixIndex;
use super::sentence_piece::{ESCAPED_SPACE, crosses_words, words};
use super::symbol_chain::NONE;
use super::vocabulary::{TokenKind, Vocabulary};

const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";
const ADD_SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";
const REMOVE_EXTRA_SPACES: &str = "tokenizer.ggml.remove_extra_whitespaces";

/// How much less probable than any token an unknown character is.
const UNKNOWN_PENALTY: f32 = 10.0;

/// Places in a normalised text are counted in 32 bits; replacing makes a text longer,
/// and escaping its spaces three times as long again.
pub(super) const STRETCH_BYTES_MAX: usize = u32::MAX as usize / (3 * GROWTH_MAX) - 1;

/// The encoder of the `t5` family.
#[derive(Debug)]
pub(super) struct Unigram {
    pieces: PrefixIndex,
    charsmap: Option<Charsmap>,
    /// Whether a text begins with a space.
    pub(super) add_space_prefix: bool,
    /// Whether runs of spaces count as one, and those at the ends as none.
    merges_spaces: bool,
    unknown: Option<u32>,
    unknown_score: f32,
    /// Whether a token reaches over the end of a word, so that words depend on each
    /// other.
    crosses_words: bool,
}

/// The best way to reach a place in the text.
#[derive(Debug, Clone, Copy)]
struct Best {
    score: f64,
    /// Where its last token starts.
    start: u32,
    token: u32,
}

impl Unigram {
    /// An encoder as `metadata` asks for; what it cannot spell becomes `unknown`.
    pub(super) fn take(
        metadata: &mut Metadata,
        vocabulary: &Vocabulary,
        unknown: Option<u32>,
    ) -> Result<Self, TokenizerError> {
        let is_piece = |id| {
            let kind = vocabulary.kind(id);
            matches!(
                kind,
                TokenKind::Normal | TokenKind::UserDefined | TokenKind::Unused
            )
        };
        let normal =
            (0..vocabulary.len() as u32).filter(|&id| vocabulary.kind(id) == TokenKind::Normal);
        let least = normal.map(|id| vocabulary.score(id)).reduce(f32::min);
        Ok(Self {
            pieces: PrefixIndex::new(vocabulary, is_piece)?,
            charsmap: take_charsmap(metadata)?,
            add_space_prefix: metadata.bool(ADD_SPACE_PREFIX)?.unwrap_or(false),
            merges_spaces: metadata.bool(REMOVE_EXTRA_SPACES)?.unwrap_or(false),
            unknown,
            unknown_score: least.unwrap_or(0.0) - UNKNOWN_PENALTY,
            crosses_words: crosses_words(vocabulary, is_piece),
        })
    }

    /// Appends the tokens of `text`, which holds no special tokens any more.
    pub(super) fn encode(&self, vocabulary: &Vocabulary, text: &str, tokens: &mut Vec<u32>) {
        let normalised = self.normalise(text);
        let mut best = Vec::new();
        let mut score = 0.0;
        let mut follows_unknown = false;
        for word in words(&normalised, self.crosses_words) {
            score = self.search(vocabulary, word, score, &mut best);
            let first = tokens.len();
            let mut end = word.len();
            while end > 0 {
                let Best { start, token, .. } = best[end];
                tokens.push(token);
                end = start as usize;
            }
            tokens[first..].reverse();
            follows_unknown = self.merge_unknown(first, follows_unknown, tokens);
        }
    }

    /// Fills `best` for every place in `word`, whose beginning has `score`; returns the
    /// score of its end.
    fn search(&self, vocabulary: &Vocabulary, word: &str, score: f64, best: &mut Vec<Best>) -> f64 {
        let unreached = Best {
            score: f64::MIN,
            start: 0,
            token: NONE,
        };
        best.clear();
        best.resize(word.len() + 1, unreached);
        best[0].score = score;
        for (start, character) in word.char_indices() {
            let reached = best[start].score;
            let mut reach = |token: u32, bytes: usize, score: f64| {
                let place = &mut best[start + bytes];
                if reached + score > place.score {
                    *place = Best {
                        score: reached + score,
                        start: start as u32,
                        token,
                    };
                }
            };
            let mut is_spelt = false;
            let rest = &word.as_bytes()[start..];
            for (token, bytes) in self.pieces.prefixes(vocabulary, rest) {
                is_spelt |= bytes == character.len_utf8();
                let is_user_defined = vocabulary.kind(token) == TokenKind::UserDefined;
                let score = if is_user_defined {
                    0.0
                } else {
                    vocabulary.score(token).into()
                };
                reach(token, bytes, score);
            }
            if !is_spelt {
                reach(NONE, character.len_utf8(), self.unknown_score.into());
            }
        }
        best[word.len()].score
    }

    /// Replaces runs of unknown characters from `first` on by one token each; returns
    /// whether the last one is unknown.
    fn merge_unknown(&self, first: usize, mut follows: bool, tokens: &mut Vec<u32>) -> bool {
        let mut length = first;
        for index in first..tokens.len() {
            let is_unknown = tokens[index] == NONE;
            let token = if is_unknown {
                self.unknown
            } else {
                Some(tokens[index])
            };
            if let Some(token) = token.filter(|_| !(is_unknown && follows)) {
                tokens[length] = token;
                length += 1;
            }
            follows = is_unknown;
        }
        tokens.truncate(length);
        follows
    }

    /// The text as the model was trained to see it.
    fn normalise(&self, text: &str) -> String {
        let mut normalised = String::with_capacity(text.len() + text.len() / 2 + 3);
        let mut is_first = true;
        let mut in_word = false;
        let mut push = |part: &str| {
            for character in part.chars() {
                if character == ' ' {
                    in_word = false;
                    if !self.merges_spaces {
                        normalised.push_str(ESCAPED_SPACE);
                    }
                    continue;
                }
                if !in_word {
                    in_word = true;
                    if self.merges_spaces || (self.add_space_prefix && is_first) {
                        normalised.push_str(ESCAPED_SPACE);
                    }
                    is_first = false;
                }
                normalised.push(character);
            }
        };
        match &self.charsmap {
            Some(charsmap) => charsmap.replace(text, push),
            None => push(text),
        }
        normalised
    }

    /// Heap bytes held.
    pub(super) fn heap_bytes(&self) -> usize {
        let charsmap = self.charsmap.as_ref().map_or(0, Charsmap::heap_bytes);
        self.pieces.heap_bytes() + charsmap
    }
}

/// The table of replacements, which the file stores as an array of bytes.
fn take_charsmap(metadata: &mut Metadata) -> Result<Option<Charsmap>, TokenizerError> {
    let bytes: Vec<u8> = match metadata.i32s(CHARSMAP)? {
        // Files store it as signed or unsigned bytes.
        Some(numbers) => numbers.iter().map(|&number| number as u8).collect(),
        None => return Ok(None),
    };
    metadata.remove(CHARSMAP);
    if bytes.is_empty() {
        return Ok(None);
    }
    Charsmap::new(&bytes).map(Some)
}
