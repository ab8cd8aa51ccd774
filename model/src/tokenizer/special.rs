//! Tokens that are found in a text before anything else.
//!
//! Longer tokens go first, wherever they are, and a token takes its occurrences
//! from left to right. Gemma has 6,400 of them, so the search goes by length: one
//! pass over the places where a token of that length can begin.

use std::ops::Range;

use super::vocabulary::{TokenKind, Vocabulary};

/// One part of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fragment {
    /// Text to encode.
    Text(Range<usize>),
    /// A token that stood in the text.
    Token(u32),
}

/// All special tokens of one length.
#[derive(Debug)]
struct Length {
    bytes: usize,
    /// The bytes that such tokens begin with, one bit each.
    first_bytes: [u64; 4],
}

/// The special tokens of a vocabulary.
#[derive(Debug)]
pub(super) struct SpecialTokens {
    /// Longest first.
    lengths: Vec<Length>,
    /// Phi-3 was trained on texts where white space after a special token is
    /// gone; the tokens listed here keep it. `None` for every other model.
    keeps_space: Option<Vec<u32>>,
}

struct Occurrence {
    start: usize,
    /// Where the text goes on, which is after stripped white space.
    end: usize,
    token: u32,
}

impl SpecialTokens {
    /// Collects the special tokens. `strips_space` says that white space after a
    /// special token is to be dropped.
    pub(super) fn new(vocabulary: &Vocabulary, strips_space: bool) -> Self {
        let mut lengths: Vec<Length> = Vec::new();
        for id in 0..vocabulary.len() as u32 {
            let text = vocabulary.text(id);
            let Some(&first) = text.first() else { continue };
            if !is_special(vocabulary.kind(id), true) {
                continue;
            }
            let place = lengths.binary_search_by(|length| text.len().cmp(&length.bytes));
            let index = place.unwrap_or_else(|index| {
                let bytes = text.len();
                let first_bytes = [0; 4];
                lengths.insert(index, Length { bytes, first_bytes });
                index
            });
            lengths[index].first_bytes[usize::from(first / 64)] |= 1 << (first % 64);
        }
        lengths.shrink_to_fit();
        let kept = ["<unk>", "<s>", "<|endoftext|>"];
        let kept = kept
            .iter()
            .filter_map(|text| vocabulary.id(text.as_bytes()));
        Self {
            lengths,
            keeps_space: strips_space.then(|| kept.collect()),
        }
    }

    /// Cuts `text` at its special tokens. Control and unknown tokens are only
    /// looked for when `parse_special` is set, user-defined ones always.
    pub(super) fn partition(
        &self,
        vocabulary: &Vocabulary,
        text: &str,
        parse_special: bool,
    ) -> Vec<Fragment> {
        let mut occurrences = self.find(vocabulary, text, parse_special);
        occurrences.sort_unstable_by_key(|occurrence| occurrence.start);
        let mut fragments = Vec::with_capacity(2 * occurrences.len() + 1);
        let mut position = 0;
        for occurrence in occurrences {
            if position < occurrence.start {
                fragments.push(Fragment::Text(position..occurrence.start));
            }
            fragments.push(Fragment::Token(occurrence.token));
            position = occurrence.end;
        }
        if position < text.len() {
            fragments.push(Fragment::Text(position..text.len()));
        }
        fragments
    }

    fn find(&self, vocabulary: &Vocabulary, text: &str, parse_special: bool) -> Vec<Occurrence> {
        let mut taken = vec![false; text.len()];
        let mut occurrences = Vec::new();
        for length in &self.lengths {
            let mut candidates = length.candidates(vocabulary, text, &taken, parse_special);
            // Tokens of one length take turns in the order of their ids.
            candidates.sort_unstable();
            for (token, start) in candidates {
                let end = start + length.bytes;
                // What is taken is at least as long, so it would cover an end.
                if taken[start] || taken[end - 1] {
                    continue;
                }
                let end = end + self.space_after(token, &text.as_bytes()[end..], &taken[end..]);
                taken[start..end].fill(true);
                occurrences.push(Occurrence { start, end, token });
            }
        }
        occurrences
    }

    /// How many bytes after a token are dropped with it.
    fn space_after(&self, token: u32, text: &[u8], taken: &[bool]) -> usize {
        match &self.keeps_space {
            Some(keeping) if !keeping.contains(&token) => {
                let is_space = |&byte: &u8| matches!(byte, b' ' | b'\t'..=b'\r');
                let free = text.iter().zip(taken).take_while(|&(_, &taken)| !taken);
                free.take_while(|&(byte, _)| is_space(byte)).count()
            }
            _ => 0,
        }
    }

    /// Heap bytes held.
    pub(super) fn heap_bytes(&self) -> usize {
        self.lengths.capacity() * size_of::<Length>()
    }
}

impl Length {
    /// Tokens of this length that stand in free text, as (token, start). One that is no UTF-8
    /// stands in none, but may be a part of a character.
    fn candidates(
        &self,
        vocabulary: &Vocabulary,
        text: &str,
        taken: &[bool],
        parse_special: bool,
    ) -> Vec<(u32, usize)> {
        let mut candidates = Vec::new();
        for (start, window) in text.as_bytes().windows(self.bytes).enumerate() {
            let first = window[0];
            let begins = self.first_bytes[usize::from(first / 64)] >> (first % 64) & 1 == 1;
            if !begins || taken[start] || taken[start + self.bytes - 1] {
                continue;
            }
            if !(text.is_char_boundary(start) && text.is_char_boundary(start + self.bytes)) {
                continue;
            }
            let found = vocabulary.id(window);
            let found = found.filter(|&id| is_special(vocabulary.kind(id), parse_special));
            candidates.extend(found.map(|id| (id, start)));
        }
        candidates
    }
}

fn is_special(kind: TokenKind, parse_special: bool) -> bool {
    match kind {
        TokenKind::UserDefined => true,
        TokenKind::Control | TokenKind::Unknown => parse_special,
        _ => false,
    }
}
