//! SentencePiece's byte-pair encoding, the `llama` family.
//!
//! Every character is a symbol, two symbols may join when together they are a
//! token, and the token with the highest score joins first. What is left without a
//! token is spelt in bytes.

use super::error::TokenizerWarning;
use super::symbol_chain::{Join, NONE, SymbolChain, missing_bytes};
use super::vocabulary::Vocabulary;

/// The character that stands for a space in the vocabulary, U+2581.
pub(super) const ESCAPED_SPACE: &str = "\u{2581}";

/// The encoder of the `llama` family.
#[derive(Debug)]
pub(super) struct SentencePiece {
    /// Whether a text, and what follows a special token, begins with a space.
    pub(super) add_space_prefix: bool,
    /// The token of each byte, [`NONE`] where there is none.
    byte_tokens: [u32; 256],
}

impl SentencePiece {
    /// Finds the byte tokens, `<0xNN>` or else the plain byte; a byte with neither
    /// becomes `unknown`.
    pub(super) fn new(
        vocabulary: &Vocabulary,
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
            add_space_prefix,
            byte_tokens,
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
        let bytes = escaped.as_bytes();
        let mut chain = SymbolChain::default();
        for (start, character) in escaped.char_indices() {
            let end = start + character.len_utf8();
            let token = vocabulary.id(&bytes[start..end]).unwrap_or(NONE);
            chain.push(token, start as u32, character.len_utf8() as u32);
        }
        chain.join_all(|left, right| {
            let start = left.start as usize;
            let end = start + (left.bytes + right.bytes) as usize;
            let token = vocabulary.id(&bytes[start..end])?;
            Some(Join {
                priority: ordered(vocabulary.score(token)),
                token,
            })
        });
        for symbol in chain.iter() {
            if symbol.token != NONE {
                tokens.push(symbol.token);
                continue;
            }
            let start = symbol.start as usize;
            let spelt = &bytes[start..start + symbol.bytes as usize];
            let found = spelt
                .iter()
                .map(|&byte| self.byte_tokens[usize::from(byte)]);
            tokens.extend(found.filter(|&token| token != NONE));
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
}
