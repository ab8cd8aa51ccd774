//! WordPiece, the `bert` family.
//!
//! The text is normalised and cut into words, punctuation and Chinese characters
//! being words of their own. A word is the longest token that it begins with, then
//! the longest that the rest begins with; a word that cannot be spelt so is unknown.
//! Stored texts mark the beginning of a word by U+2581 instead of continuations by
//! `##`.
//!
//! Normalising keeps the first character of a canonical decomposition and drops marks,
//! as llama.cpp does.

use emel_loader::gguf::{Metadata, MetadataError};
use regex_syntax::hir::{Class, ClassUnicodeRange, HirKind};
use unicode_normalization::char::decompose_canonical;

use super::error::TokenizerError;
use super::prefix_index::PrefixIndex;
use super::sentence_piece::ESCAPED_SPACE;
use super::vocabulary::Vocabulary;

const LOWERCASE: &str = "tokenizer.ggml.normalizer.lowercase";
const STRIP_ACCENTS: &str = "tokenizer.ggml.normalizer.strip_accents";

const CONTROL: &str = r"[\p{Cc}\p{Cf}\p{Co}\u{FFFD}]";
const MARK: &str = r"\p{M}";
/// What is a word of its own: punctuation, symbols of ASCII, and Chinese characters in
/// the blocks that BERT's own tokenizer counts as such.
const SINGLE: &str = r"[\p{P}$+<=>^`|~\u{4E00}-\u{9FFF}\u{3400}-\u{4DBF}\u{20000}-\u{2A6DF}\u{2A700}-\u{2B73F}\u{2B740}-\u{2B81F}\u{2B920}-\u{2CEAF}\u{F900}-\u{FAFF}\u{2F800}-\u{2FA1F}]";

/// The encoder of the `bert` family.
#[derive(Debug)]
pub(super) struct WordPiece {
    pieces: PrefixIndex,
    unknown: Option<u32>,
    lowercase: bool,
    strips_accents: bool,
    control: CharacterSet,
    mark: CharacterSet,
    single: CharacterSet,
}

impl WordPiece {
    /// An encoder as `metadata` asks for; what it cannot spell becomes `unknown`.
    pub(super) fn new(
        metadata: &Metadata,
        vocabulary: &Vocabulary,
        unknown: Option<u32>,
    ) -> Result<Self, TokenizerError> {
        let flag = |key, default| {
            let found = metadata.bool(key)?;
            Ok::<bool, MetadataError>(found.unwrap_or(default))
        };
        let lowercase = flag(LOWERCASE, true)?;
        Ok(Self {
            pieces: PrefixIndex::new(vocabulary, |_| true)?,
            unknown,
            lowercase,
            strips_accents: flag(STRIP_ACCENTS, lowercase)?,
            control: CharacterSet::new(CONTROL)?,
            mark: CharacterSet::new(MARK)?,
            single: CharacterSet::new(SINGLE)?,
        })
    }

    /// Appends the tokens of `text`, which holds no special tokens any more.
    pub(super) fn encode(&self, vocabulary: &Vocabulary, text: &str, tokens: &mut Vec<u32>) {
        let mut word = String::from(ESCAPED_SPACE);
        for original in text.chars() {
            if original.is_whitespace() {
                self.end_word(vocabulary, &mut word, tokens);
                continue;
            }
            let Some(character) = self.normalise(original) else {
                continue;
            };
            if self.single.contains(character) {
                self.end_word(vocabulary, &mut word, tokens);
                word.push(self.cased(character));
                self.end_word(vocabulary, &mut word, tokens);
            } else {
                word.push(self.cased(character));
            }
        }
        self.end_word(vocabulary, &mut word, tokens);
    }

    /// The character without its accents; nothing for what is dropped.
    fn normalise(&self, character: char) -> Option<char> {
        let mut first = None;
        if self.strips_accents {
            decompose_canonical(character, |part| first = first.or(Some(part)));
        }
        let character = first.unwrap_or(character);
        let is_dropped = self.control.contains(character)
            || (self.strips_accents && self.mark.contains(character));
        (!is_dropped).then_some(character)
    }

    fn cased(&self, character: char) -> char {
        let lower = self.lowercase.then(|| character.to_lowercase().next());
        lower.flatten().unwrap_or(character)
    }

    /// Appends the tokens of a word, which begins with the mark, and empties it.
    fn end_word(&self, vocabulary: &Vocabulary, word: &mut String, tokens: &mut Vec<u32>) {
        let mut rest = word.as_bytes();
        if rest.len() == ESCAPED_SPACE.len() {
            return;
        }
        let before = tokens.len();
        while !rest.is_empty() {
            let Some((token, bytes)) = self.pieces.prefixes(vocabulary, rest).last() else {
                tokens.truncate(before);
                tokens.extend(self.unknown);
                break;
            };
            tokens.push(token);
            rest = &rest[bytes..];
        }
        word.truncate(ESCAPED_SPACE.len());
    }

    /// Heap bytes held.
    pub(super) fn heap_bytes(&self) -> usize {
        let sets = [&self.control, &self.mark, &self.single];
        let sets = sets.map(CharacterSet::heap_bytes);
        self.pieces.heap_bytes() + sets.iter().sum::<usize>()
    }
}

/// Drops spaces that a reader would not write: before `?`, `!`, `.` and `,`, around a
/// lone apostrophe, and before the contractions 's, 'm, 're and 've. This is what
/// `clean_up_tokenization_spaces` asks for, in llama.cpp's order and with its limits.
pub(super) fn clean_up_spaces(text: &str) -> String {
    let after_space = |text: &[u8], index: usize| index > 0 && text[index - 1] == b' ';
    let mut bytes = drop_spaces(text.as_bytes(), |text, index| {
        after_space(text, index) && matches!(text[index], b'?' | b'!' | b'.' | b',')
    });
    // Both spaces go, and the second one then precedes nothing any more.
    let mut index = 1;
    while index + 1 < bytes.len() {
        if bytes[index] == b'\'' && bytes[index - 1] == b' ' && bytes[index + 1] == b' ' {
            (bytes[index - 1], bytes[index + 1]) = (0xff, 0xff);
            index += 1;
        }
        index += 1;
    }
    // 0xff is no byte of UTF-8, so it marks what is gone.
    bytes.retain(|&byte| byte != 0xff);
    let bytes = drop_spaces(&bytes, |text, index| {
        let rest = &text[index..];
        let contraction = rest.starts_with(b"'s") || rest.starts_with(b"'m");
        let long = rest.starts_with(b"'re") || rest.starts_with(b"'ve");
        after_space(text, index) && (contraction || long)
    });
    // Only spaces were dropped, so this is UTF-8 still.
    String::from_utf8(bytes).unwrap_or_default()
}

/// The bytes without those that stand before a place `follows` accepts.
fn drop_spaces(text: &[u8], follows: impl Fn(&[u8], usize) -> bool) -> Vec<u8> {
    let kept = |&index: &usize| index + 1 == text.len() || !follows(text, index + 1);
    (0..text.len())
        .filter(kept)
        .map(|index| text[index])
        .collect()
}

/// Characters as sorted ranges.
#[derive(Debug)]
struct CharacterSet {
    ranges: Box<[(char, char)]>,
}

impl CharacterSet {
    /// The set that a class of a regular expression names.
    fn new(class: &str) -> Result<Self, TokenizerError> {
        let failed = |reason: String| TokenizerError::Expression {
            pre: "bert",
            reason,
        };
        let parsed = regex_syntax::parse(class).map_err(|error| failed(error.to_string()))?;
        let HirKind::Class(Class::Unicode(class)) = parsed.kind() else {
            return Err(failed(format!("{class} is no class of characters")));
        };
        let pair = |range: &ClassUnicodeRange| (range.start(), range.end());
        let ranges = class.ranges().iter().map(pair).collect();
        Ok(Self { ranges })
    }

    fn contains(&self, character: char) -> bool {
        let index = self.ranges.partition_point(|range| range.1 < character);
        self.ranges
            .get(index)
            .is_some_and(|range| range.0 <= character)
    }

    fn heap_bytes(&self) -> usize {
        size_of_val(&*self.ranges)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spaces_are_cleaned_up_as_in_llama_cpp() {
        for (text, cleaned) in [
            ("a , b . c ! d ?", "a, b. c! d?"),
            ("a ' b", "a'b"),
            (" 's 'm 're 've 't 'd 'll", "'s'm're've 't 'd 'll"),
            ("it ' s", "it's"),
            ("a ' ' b", "a'' b"),
            (" .", "."),
            ("é ,日", "é,日"),
            ("", ""),
        ] {
            assert_eq!(clean_up_spaces(text), cleaned, "{text:?}");
        }
    }

    #[test]
    fn a_set_holds_the_characters_of_its_class() {
        let mark = CharacterSet::new(MARK).unwrap();
        assert!(mark.contains('\u{301}') && mark.contains('\u{93f}'));
        assert!(!mark.contains('a') && !mark.contains('\0') && !mark.contains(char::MAX));
        let single = CharacterSet::new(SINGLE).unwrap();
        for character in ['!', '$', '|', '`', '…', '語'] {
            assert!(single.contains(character), "{character}");
        }
        assert!(!single.contains('€') && !single.contains('の'));
    }
}
