//! SentencePiece's table of replacements, by which it normalises texts.
//!
//! The table is a double-array trie of texts (each node's children lie at its base
//! exclusive-or the next byte), whose leaves point to replacements that end in a zero
//! byte. The array comes first, behind its length in bytes, all little-endian.
//! <https://github.com/s-yata/darts-clone> describes the format of a node.

use super::error::TokenizerError;

/// The longest replacement that a table may hold; Unicode's longest has 33 bytes.
const REPLACEMENT_BYTES_MAX: usize = 256;
/// The longest text that is replaced, so that a trie with a loop is left.
const MATCH_BYTES_MAX: usize = 256;
/// The most bytes that a replaced byte becomes; U+FDFA, the worst of Unicode, has 11.
pub(super) const GROWTH_MAX: usize = 16;

/// The replacements of a model.
#[derive(Debug)]
pub(super) struct Charsmap {
    nodes: Box<[u32]>,
    replacements: Box<[u8]>,
}

impl Charsmap {
    /// Reads the table.
    pub(super) fn new(bytes: &[u8]) -> Result<Self, TokenizerError> {
        let failed = |reason: String| TokenizerError::Charsmap { reason };
        let Some((length, rest)) = bytes.split_first_chunk() else {
            return Err(failed(format!(
                "{} bytes, expected 4 at least",
                bytes.len()
            )));
        };
        let length = u32::from_le_bytes(*length) as usize;
        let Some((array, replacements)) = rest.split_at_checked(length) else {
            return Err(failed(format!(
                "an array of {length} bytes in {}",
                rest.len()
            )));
        };
        let (nodes, odd) = array.as_chunks();
        if !odd.is_empty() || replacements.last() != Some(&0) {
            return Err(failed(
                "an array or replacements that are cut off".to_owned(),
            ));
        }
        let longest = replacements.split(|&byte| byte == 0).map(<[u8]>::len).max();
        if let Some(bytes) = longest.filter(|&bytes| bytes > REPLACEMENT_BYTES_MAX) {
            return Err(failed(format!(
                "a replacement of {bytes} bytes, more than {REPLACEMENT_BYTES_MAX}"
            )));
        }
        Ok(Self {
            nodes: nodes.iter().map(|&node| u32::from_le_bytes(node)).collect(),
            replacements: replacements.into(),
        })
    }

    /// Hands `text` to `push` in parts, each replaced by what the longest match says or
    /// as it is.
    pub(super) fn replace(&self, text: &str, mut push: impl FnMut(&str)) {
        let mut rest = text;
        while let Some(character) = rest.chars().next() {
            let (bytes, replacement) = match self.longest(rest.as_bytes()) {
                // A table that cuts characters in two or inflates them is not followed.
                Some((bytes, replacement))
                    if rest.is_char_boundary(bytes) && replacement.len() <= bytes * GROWTH_MAX =>
                {
                    (bytes, std::str::from_utf8(replacement).ok())
                }
                _ => (character.len_utf8(), None),
            };
            push(replacement.unwrap_or(&rest[..bytes]));
            rest = &rest[bytes..];
        }
    }

    /// The longest prefix of `text` in the table: its length and its replacement.
    fn longest(&self, text: &[u8]) -> Option<(usize, &[u8])> {
        let mut found = None;
        let mut index = base(*self.nodes.first()?);
        for (place, &byte) in text.iter().take(MATCH_BYTES_MAX).enumerate() {
            index ^= usize::from(byte);
            let node = *self.nodes.get(index)?;
            if byte == 0 || label(node) != u32::from(byte) {
                break;
            }
            index ^= base(node);
            if node >> 8 & 1 == 1 {
                let value = (*self.nodes.get(index)? & 0x7fff_ffff) as usize;
                let replacement = self.replacements.get(value..)?;
                let end = replacement.iter().position(|&byte| byte == 0)?;
                found = Some((place + 1, &replacement[..end]));
            }
        }
        found
    }

    /// Heap bytes held.
    pub(super) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.nodes) + self.replacements.len()
    }
}

/// Where the children of a node are, by exclusive or.
fn base(node: u32) -> usize {
    ((node >> 10) << ((node & 1 << 9) >> 6)) as usize
}

/// The byte that leads to a node; a leaf's has a bit that no byte has.
fn label(node: u32) -> u32 {
    node & (1 << 31 | 0xff)
}
