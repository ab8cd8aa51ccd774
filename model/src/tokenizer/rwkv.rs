//! RWKV's tokenizer: at each place the longest token, byte by byte.
//!
//! Stored texts are Python byte strings without their quotes; they are unescaped when
//! the vocabulary is read.

use emel_loader::gguf::StringTable;

use super::error::TokenizerError;
use super::prefix_index::PrefixIndex;
use super::vocabulary::Vocabulary;

/// The encoder of the `rwkv` family.
#[derive(Debug)]
pub(super) struct Rwkv {
    pieces: PrefixIndex,
    unknown: Option<u32>,
}

impl Rwkv {
    /// An encoder; bytes that no token begins with become `unknown`.
    pub(super) fn new(
        vocabulary: &Vocabulary,
        unknown: Option<u32>,
    ) -> Result<Self, TokenizerError> {
        Ok(Self {
            pieces: PrefixIndex::new(vocabulary, |_| true)?,
            unknown,
        })
    }

    /// Appends the tokens of `text`, which need not be UTF-8.
    pub(super) fn encode(&self, vocabulary: &Vocabulary, text: &[u8], tokens: &mut Vec<u32>) {
        let mut rest = text;
        while !rest.is_empty() {
            let longest = self.pieces.prefixes(vocabulary, rest).last();
            let bytes = longest.map_or(1, |(_, bytes)| bytes);
            tokens.extend(longest.map(|(token, _)| token).or(self.unknown));
            rest = &rest[bytes..];
        }
    }

    /// Heap bytes held.
    pub(super) fn heap_bytes(&self) -> usize {
        self.pieces.heap_bytes()
    }
}

/// The texts without their escapes: `\t`, `\n`, `\r`, `\xNN`, and a backslash before
/// any other byte.
pub(super) fn unescape(texts: StringTable) -> StringTable {
    let mut unescaped = StringTable::default();
    let mut bytes = Vec::new();
    for text in texts.iter() {
        bytes.clear();
        let mut rest = text;
        while let Some((&first, after)) = rest.split_first() {
            let escaped = after.first().filter(|_| first == b'\\');
            let (byte, length) = match escaped {
                Some(b't') => (b'\t', 2),
                Some(b'n') => (b'\n', 2),
                Some(b'r') => (b'\r', 2),
                Some(b'x') => match after.get(1..3).and_then(hexadecimal) {
                    Some(byte) => (byte, 4),
                    None => (b'x', 2),
                },
                Some(&other) => (other, 2),
                None => (first, 1),
            };
            bytes.push(byte);
            rest = &rest[length..];
        }
        // Texts only get shorter, so they fit as before.
        unescaped.push(&bytes);
    }
    unescaped.shrink_to_fit();
    unescaped
}

fn hexadecimal(digits: &[u8]) -> Option<u8> {
    let is_digits = digits.iter().all(u8::is_ascii_hexdigit);
    let digits = std::str::from_utf8(digits).ok().filter(|_| is_digits)?;
    u8::from_str_radix(digits, 16).ok()
}
