//! SentencePiece's byte-pair encoding, the `llama` and `gemma4` families.
//!
//! Every character is a symbol, two symbols may join when together they are a token,
//! and the best pair joins first: by the score of the token (`llama`), or by the rank
//! of the merge rule (`gemma4`). What is left without a token is spelt in bytes.

use super::error::TokenizerWarning;
use super::merge_table::MergeTable;
use super::symbol_chain::{Join, NONE, Symbol, SymbolChain, missing_bytes};
use super::vocabulary::Vocabulary;

/// The character that stands for a space in the vocabulary, U+2581.
pub(super) const ESCAPED_SPACE: &str = "\u{2581}";

/// Which pairs join, and which first.
#[derive(Debug)]
pub(super) enum Order {
    /// Pairs that are a token together, the highest score first.
    Scores,
    /// Pairs with a merge rule, the lowest rank first; runs of newlines stay among
    /// themselves.
    Ranks(MergeTable),
}

/// The encoder of the `llama` and `gemma4` families.
#[derive(Debug)]
pub(super) struct SentencePiece {
    order: Order,
    /// Whether a text, and what follows a special token, begins with a space.
    pub(super) add_space_prefix: bool,
    /// The token of each byte, [`NONE`] where there is none.
    byte_tokens: [u32; 256],
    /// Whether a token reaches over the end of a word, so that words depend on each
    /// other.
    crosses_words: bool,
}

impl SentencePiece {
    /// Finds the byte tokens, `<0xNN>` or else the plain byte; a byte with neither
    /// becomes `unknown`.
    pub(super) fn new(
        vocabulary: &Vocabulary,
        order: Order,
        add_space_prefix: bool,
        unknown: Option<u32>,
    ) -> Self {
        let mut byte_tokens = [NONE; 256];
        for (byte, token) in (0u8..=255).zip(&mut byte_tokens) {
            let spelt = vocabulary.id(format!("<0x{byte:02X}>").as_bytes());
            let found = spelt.or_else(|| vocabulary.id(&[byte]));
            *token = found.or(unknown).unwrap_or(NONE);
        }
        Self {
            order,
            add_space_prefix,
            byte_tokens,
            crosses_words: crosses_words(vocabulary, |_| true),
        }
    }

    /// A warning if ordinary text may need bytes that no token stands for.
    pub(super) fn missing_bytes(&self) -> Option<TokenizerWarning> {
        missing_bytes(&self.byte_tokens)
    }

    /// Appends the tokens of `text`, which holds no special tokens any more.
    /// `after_special` says that it is the first text or follows a special token.
    pub(super) fn encode(
        &self,
        vocabulary: &Vocabulary,
        text: &str,
        after_special: bool,
        tokens: &mut Vec<u32>,
    ) {
        let escaped = self.escape(text, after_special);
        let mut chain = SymbolChain::default();
        if matches!(self.order, Order::Scores) {
            self.encode_words(vocabulary, &escaped, &mut chain, tokens);
            return;
        }
        let is_newline = |character: char| character == '\n';
        let mut rest = escaped.as_str();
        while !rest.is_empty() {
            let newlines = rest.starts_with(is_newline);
            let end = rest.find(|character| is_newline(character) != newlines);
            let (run, after) = rest.split_at(end.unwrap_or(rest.len()));
            rest = after;
            // Such runs are tokens without rules that would make them.
            match vocabulary.id(run.as_bytes()).filter(|_| newlines) {
                Some(token) => tokens.push(token),
                None => self.encode_words(vocabulary, run, &mut chain, tokens),
            }
        }
    }

    /// Appends the tokens of bytes that are not UTF-8.
    pub(super) fn encode_bytes(&self, bytes: &[u8], tokens: &mut Vec<u32>) {
        let found = bytes
            .iter()
            .map(|&byte| self.byte_tokens[usize::from(byte)]);
        tokens.extend(found.filter(|&token| token != NONE));
    }

    fn encode_words(
        &self,
        vocabulary: &Vocabulary,
        text: &str,
        chain: &mut SymbolChain,
        tokens: &mut Vec<u32>,
    ) {
        for word in words(text, self.crosses_words) {
            let bytes = word.as_bytes();
            chain.clear();
            for (start, character) in word.char_indices() {
                let end = start + character.len_utf8();
                let token = vocabulary.id(&bytes[start..end]).unwrap_or(NONE);
                chain.push(token, start as u32, character.len_utf8() as u32);
            }
            chain.join_all(|left, right| self.join(vocabulary, bytes, left, right));
            for symbol in chain.iter() {
                let start = symbol.start as usize;
                match symbol.token {
                    NONE => {
                        let spelt = &bytes[start..start + symbol.bytes as usize];
                        self.encode_bytes(spelt, tokens);
                    }
                    token => tokens.push(token),
                }
            }
        }
    }

    fn join(
        &self,
        vocabulary: &Vocabulary,
        word: &[u8],
        left: &Symbol,
        right: &Symbol,
    ) -> Option<Join> {
        match &self.order {
            Order::Scores => {
                let start = left.start as usize;
                let end = start + (left.bytes + right.bytes) as usize;
                let token = vocabulary.id(&word[start..end])?;
                Some(Join {
                    priority: ordered(vocabulary.score(token)),
                    token,
                })
            }
            Order::Ranks(merges) => merges.join(left, right),
        }
    }

    fn escape(&self, text: &str, after_special: bool) -> String {
        let mut escaped = String::with_capacity(text.len() + text.len() / 2 + 3);
        if self.add_space_prefix && after_special {
            escaped.push_str(ESCAPED_SPACE);
        }
        for (index, part) in text.split(' ').enumerate() {
            if index > 0 {
                escaped.push_str(ESCAPED_SPACE);
            }
            escaped.push_str(part);
        }
        escaped
    }

    /// Heap bytes held.
    pub(super) fn heap_bytes(&self) -> usize {
        match &self.order {
            Order::Scores => 0,
            Order::Ranks(merges) => merges.heap_bytes(),
        }
    }
}

/// Whether one of the tokens that `is_piece` picks has an escaped space after another
/// character. In the usual vocabularies none has.
pub(super) fn crosses_words(vocabulary: &Vocabulary, is_piece: impl Fn(u32) -> bool) -> bool {
    (0..vocabulary.len() as u32)
        .filter(|&id| is_piece(id))
        .any(|id| {
            let mut text = vocabulary.text(id);
            while let Some(rest) = text.strip_prefix(ESCAPED_SPACE.as_bytes()) {
                text = rest;
            }
            let mut places = text.windows(ESCAPED_SPACE.len());
            places.any(|place| place == ESCAPED_SPACE.as_bytes())
        })
}

/// The words of an escaped text, each with the spaces before it. When tokens cross
/// words, all of the text is one.
pub(super) fn words(text: &str, tokens_cross_words: bool) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let content = rest.trim_start_matches(ESCAPED_SPACE);
        let spaces = rest.len() - content.len();
        let end = content
            .find(ESCAPED_SPACE)
            .filter(|_| !tokens_cross_words)
            .map_or(rest.len(), |end| spaces + end);
        let (word, after) = rest.split_at(end);
        rest = after;
        Some(word)
    })
}
/// A score as an unsigned number of the same order: IEEE 754 numbers compare like
/// integers once negative ones are complemented. Adding 0 makes −0 equal to 0.
fn ordered(score: f32) -> u32 {
    let bits = (score + 0.0).to_bits();
    if bits >> 31 == 0 {
        bits | 1 << 31
    } else {
        !bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordered_scores_compare_like_the_scores() {
        let ascending = [
            f32::NEG_INFINITY,
            -1e9,
            -1.5,
            -1e-40,
            0.0,
            1e-40,
            2.0,
            f32::INFINITY,
        ];
        for pair in ascending.windows(2) {
            assert!(ordered(pair[0]) < ordered(pair[1]), "{pair:?}");
        }
        assert_eq!(ordered(-0.0), ordered(0.0));
    }

    #[test]
    fn words_begin_with_their_spaces() {
        let found = |text, cross| Vec::from_iter(words(text, cross));
        assert_eq!(found("▁▁a▁bc▁▁", false), ["▁▁a", "▁bc", "▁▁"]);
        assert_eq!(found("a▁b", false), ["a", "▁b"]);
        assert_eq!(found("a▁b", true), ["a▁b"]);
        assert_eq!(found("", false).len(), 0);
    }
}
