//! Tokens by prefix: which of them a text begins with.
//!
//! A trie over 250,000 tokens takes a hundred bytes a token. The ids sorted by text
//! are a trie as well: the tokens with a common prefix lie together, and each further
//! byte of the text narrows their range. That takes 4 bytes a token.

use super::error::TokenizerError;
use super::vocabulary::Vocabulary;

/// The longest text of an indexed token: each place of a text is compared with as many
/// bytes at most.
const TOKEN_BYTES_MAX: usize = 1024;

/// The ids of some tokens, sorted by text.
#[derive(Debug)]
pub(super) struct PrefixIndex {
    ids: Vec<u32>,
    /// Where the tokens of each first byte start, and the end of the last.
    starts: Vec<u32>,
}

impl PrefixIndex {
    /// An index of the tokens that `is_wanted` picks; tokens without text are left
    /// out, and of several with the same text the first one counts.
    ///
    /// # Errors
    /// When a token's text is longer than 1 KiB.
    pub(super) fn new(
        vocabulary: &Vocabulary,
        is_wanted: impl Fn(u32) -> bool,
    ) -> Result<Self, TokenizerError> {
        let all = 0..vocabulary.len() as u32;
        let mut ids: Vec<u32> = all
            .filter(|&id| !vocabulary.text(id).is_empty() && is_wanted(id))
            .collect();
        let bytes = |id: u32| vocabulary.text(id).len();
        if let Some(&id) = ids.iter().find(|&&id| bytes(id) > TOKEN_BYTES_MAX) {
            return Err(TokenizerError::TokenLength {
                index: id as usize,
                found: bytes(id),
                maximum: TOKEN_BYTES_MAX,
            });
        }
        ids.sort_unstable_by(|&left, &right| {
            let by_text = vocabulary.text(left).cmp(vocabulary.text(right));
            by_text.then(left.cmp(&right))
        });
        ids.dedup_by(|later, first| vocabulary.text(*later) == vocabulary.text(*first));
        ids.shrink_to_fit();
        let start = |byte: u16| {
            let first = |&id: &u32| u16::from(vocabulary.text(id)[0]);
            ids.partition_point(|id| first(id) < byte) as u32
        };
        Ok(Self {
            starts: (0..=256).map(start).collect(),
            ids,
        })
    }

    /// The tokens that `text` begins with, shortest first, and their lengths.
    pub(super) fn prefixes<'a>(
        &'a self,
        vocabulary: &'a Vocabulary,
        text: &'a [u8],
    ) -> impl Iterator<Item = (u32, usize)> + 'a {
        let mut range = match text.first() {
            Some(&byte) => {
                let start = |index: usize| self.starts[index] as usize;
                start(byte.into())..start(usize::from(byte) + 1)
            }
            None => 0..0,
        };
        let mut bytes = 0;
        std::iter::from_fn(move || {
            while bytes < text.len() && !range.is_empty() {
                let ids = &self.ids[range.clone()];
                // Texts of this range agree up to `bytes`; the shortest sorts first.
                let next = |&id: &u32| vocabulary.text(id).get(bytes).copied();
                if bytes > 0 {
                    let wanted = Some(text[bytes]);
                    let start = range.start + ids.partition_point(|id| next(id) < wanted);
                    let end = range.start + ids.partition_point(|id| next(id) <= wanted);
                    range = start..end;
                }
                bytes += 1;
                let first = self.ids[range.clone()].first();
                if let Some(&id) = first.filter(|&&id| vocabulary.text(id).len() == bytes) {
                    return Some((id, bytes));
                }
            }
            None
        })
    }

    /// Heap bytes held.
    pub(super) fn heap_bytes(&self) -> usize {
        (self.ids.capacity() + self.starts.capacity()) * size_of::<u32>()
    }
}
