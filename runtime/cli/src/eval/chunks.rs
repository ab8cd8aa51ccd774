//! A text cut into chunks that fit the context, each of which is scored on its own.
//!
//! The rules are those of llama-perplexity (`tools/perplexity/perplexity.cpp` in llama.cpp), so
//! that its numbers compare. Where the tokenizer adds BOS, it takes the place of each chunk's
//! first token.
//!
//! - Without a stride, chunks of `context` tokens follow one another. A token is scored if at
//!   least half a chunk comes before it. What is left at the end of the text fills no chunk.
//! - With a stride, chunks have `context + stride / 2` tokens and begin `stride` tokens apart; the
//!   last `stride` tokens of each are scored.
//!
//! A text that fits is one chunk, of which all tokens but the first are scored.

use std::ops::Range;

use crate::remedies::OptionError;

/// A text, and how it is cut.
pub(super) struct Chunks<'a> {
    ids: &'a [u32],
    /// Tokens of a chunk.
    length: usize,
    /// Tokens from the beginning of one to that of the next.
    step: usize,
    count: usize,
    /// Positions of a chunk whose next token is scored.
    scored: Range<usize>,
    bos: Option<u32>,
}

/// Tokens that are computed together.
pub(super) struct Chunk {
    pub(super) ids: Vec<u32>,
    scored: Range<usize>,
}

impl Chunk {
    /// The token after `position`, if it is scored.
    pub(super) fn scored(&self, position: usize) -> Option<u32> {
        let is_scored = self.scored.contains(&position);
        is_scored.then(|| self.ids[position + 1])
    }
}

impl<'a> Chunks<'a> {
    /// Cuts `ids` for a context of `context` tokens; `bos` is what a chunk begins with, if the
    /// tokenizer adds it.
    ///
    /// # Errors
    /// When no token of a chunk would be scored, or the stride is longer than the context.
    pub(super) fn new(
        ids: &'a [u32],
        context: usize,
        stride: Option<usize>,
        bos: Option<u32>,
    ) -> Result<Self, OptionError> {
        /// With two tokens, none has half a chunk before it.
        const CONTEXT_MIN: usize = 3;
        let whole = Self {
            ids,
            length: ids.len(),
            step: ids.len(),
            count: 1,
            scored: 0..ids.len().saturating_sub(1),
            bos: None,
        };
        if ids.len() <= context {
            return Ok(whole);
        }
        let refuse = |option, found: usize, expected: String| {
            Err(OptionError {
                option,
                found: found.to_string(),
                expected,
            })
        };
        if context < CONTEXT_MIN {
            let expected = format!("{CONTEXT_MIN} at least for a text of {} tokens", ids.len());
            return refuse("-c", context, expected);
        }
        let Some(stride) = stride else {
            return Ok(Self {
                length: context,
                step: context,
                count: ids.len() / context,
                scored: context / 2..context - 1,
                bos,
                ..whole
            });
        };
        if stride > context {
            let expected = format!("the {context} tokens of -c at most");
            return refuse("--stride", stride, expected);
        }
        let length = context + stride / 2;
        if ids.len() <= length {
            return Ok(whole);
        }
        Ok(Self {
            length,
            step: stride,
            count: (ids.len() - length).div_ceil(stride),
            scored: length - stride - 1..length - 1,
            bos,
            ..whole
        })
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Positions of all chunks.
    pub(super) fn positions(&self) -> usize {
        self.count * self.length
    }

    /// Tokens behind the last chunk.
    pub(super) fn left_out(&self) -> Option<usize> {
        let end = (self.count - 1) * self.step + self.length;
        self.ids.len().checked_sub(end).filter(|&rest| rest > 0)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Chunk> {
        (0..self.count).map(|index| {
            let begin = index * self.step;
            let mut ids = self.ids[begin..begin + self.length].to_vec();
            if let (Some(bos), Some(first)) = (self.bos, ids.first_mut()) {
                *first = bos;
            }
            Chunk {
                ids,
                scored: self.scored.clone(),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOS: u32 = 1000;

    /// The ids of each chunk, and those of its tokens that are scored.
    fn cut(tokens: u32, context: usize, stride: Option<usize>) -> Vec<(Vec<u32>, Vec<u32>)> {
        let ids: Vec<u32> = (0..tokens).collect();
        let chunks = Chunks::new(&ids, context, stride, Some(BOS)).unwrap();
        let scored = |chunk: &Chunk| {
            (0..chunk.ids.len())
                .filter_map(|at| chunk.scored(at))
                .collect()
        };
        chunks
            .iter()
            .map(|chunk| (chunk.ids.clone(), scored(&chunk)))
            .collect()
    }

    #[test]
    fn a_text_that_fits_is_one_chunk_as_it_is() {
        let expected = vec![(vec![0, 1, 2, 3], vec![1, 2, 3])];
        assert_eq!(cut(4, 4, None), expected);
        assert_eq!(cut(4, 100, Some(3)), expected);
        assert_eq!(cut(1, 1, None), [(vec![0], vec![])]);
    }

    #[test]
    fn the_second_half_of_each_chunk_is_scored_as_llama_perplexity_does() {
        let found = cut(14, 6, None);
        let expected = [
            (vec![BOS, 1, 2, 3, 4, 5], vec![4, 5]),
            (vec![BOS, 7, 8, 9, 10, 11], vec![10, 11]),
        ];
        assert_eq!(found, expected);
        let ids: Vec<u32> = (0..14).collect();
        let chunks = Chunks::new(&ids, 6, None, None).unwrap();
        assert_eq!((chunks.left_out(), chunks.positions()), (Some(2), 12));
    }

    #[test]
    fn with_a_stride_the_last_tokens_of_longer_chunks_are_scored_once_each() {
        let found = cut(12, 4, Some(2));
        let expected = [
            (vec![BOS, 1, 2, 3, 4], vec![3, 4]),
            (vec![BOS, 3, 4, 5, 6], vec![5, 6]),
            (vec![BOS, 5, 6, 7, 8], vec![7, 8]),
            (vec![BOS, 7, 8, 9, 10], vec![9, 10]),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn what_would_score_nothing_is_refused() {
        let ids = [0; 9];
        let refused = |context, stride| match Chunks::new(&ids, context, stride, None) {
            Ok(_) => panic!("{context} and {stride:?} are taken"),
            Err(error) => error.to_string(),
        };
        assert_eq!(
            refused(2, None),
            "-c is 2, expected 3 at least for a text of 9 tokens"
        );
        assert_eq!(
            refused(4, Some(5)),
            "--stride is 5, expected the 4 tokens of -c at most"
        );
    }
}
