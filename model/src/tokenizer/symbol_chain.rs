//! A text as a chain of symbols, of which neighbours are joined best first.
//!
//! Both families of tokenizers work this way and differ only in which pairs may
//! join and how good a pair is. A heap of candidates over a linked list makes it
//! O(n log n), whatever the text.

use std::collections::BinaryHeap;

use super::error::TokenizerWarning;

/// A link to no symbol, and the id of a symbol that is no token.
pub(super) const NONE: u32 = u32::MAX;

/// One symbol: a run of the text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Symbol {
    /// The token this symbol is, or [`NONE`].
    pub(super) token: u32,
    /// Where it starts in the text.
    pub(super) start: u32,
    /// Its length; 0 once it was joined to its left neighbour.
    pub(super) bytes: u32,
    previous: u32,
    next: u32,
}

/// How two neighbours would join.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Join {
    /// Greater joins first; among equals, the leftmost.
    pub(super) priority: u32,
    /// The token they become.
    pub(super) token: u32,
}

/// The order of the fields is the order of the candidates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    priority: u32,
    /// Complement of the left index, so that the greatest candidate is leftmost.
    left_complement: u32,
    right: u32,
    /// Length of both together when the candidate was made. Symbols only grow or
    /// vanish, so an equal length means that neither has changed since.
    bytes: u32,
    token: u32,
}

/// A chain, kept between texts for its buffers.
#[derive(Debug, Default)]
pub(super) struct SymbolChain {
    symbols: Vec<Symbol>,
    candidates: BinaryHeap<Candidate>,
}

impl SymbolChain {
    /// Empties the chain.
    pub(super) fn clear(&mut self) {
        self.symbols.clear();
        self.candidates.clear();
    }

    /// Appends a symbol of `bytes` bytes at `start`. Texts are cut so that both
    /// fit in 32 bits.
    pub(super) fn push(&mut self, token: u32, start: u32, bytes: u32) {
        let index = self.symbols.len() as u32;
        let previous = index.checked_sub(1).unwrap_or(NONE);
        if let Some(last) = self.symbols.last_mut() {
            last.next = index;
        }
        self.symbols.push(Symbol {
            token,
            start,
            bytes,
            previous,
            next: NONE,
        });
    }

    /// Joins neighbours until `propose` has no pair left.
    pub(super) fn join_all(&mut self, propose: impl Fn(&Symbol, &Symbol) -> Option<Join>) {
        for right in 1..self.symbols.len() as u32 {
            self.consider(right - 1, right, &propose);
        }
        while let Some(candidate) = self.candidates.pop() {
            let left = !candidate.left_complement;
            let Candidate { right, token, .. } = candidate;
            let (left_bytes, right_bytes) = (self.at(left).bytes, self.at(right).bytes);
            let vanished = left_bytes == 0 || right_bytes == 0;
            if vanished || left_bytes + right_bytes != candidate.bytes {
                continue;
            }
            let next = self.at(right).next;
            self.symbols[right as usize].bytes = 0;
            if next != NONE {
                self.symbols[next as usize].previous = left;
            }
            let joined = &mut self.symbols[left as usize];
            joined.bytes = candidate.bytes;
            joined.token = token;
            joined.next = next;
            let previous = joined.previous;
            self.consider(previous, left, &propose);
            self.consider(left, next, &propose);
        }
    }

    /// The symbols that are left, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Symbol> {
        self.symbols.iter().filter(|symbol| symbol.bytes > 0)
    }

    fn at(&self, index: u32) -> &Symbol {
        &self.symbols[index as usize]
    }

    fn consider(
        &mut self,
        left: u32,
        right: u32,
        propose: &impl Fn(&Symbol, &Symbol) -> Option<Join>,
    ) {
        if left == NONE || right == NONE {
            return;
        }
        let (left_symbol, right_symbol) = (self.at(left), self.at(right));
        let Some(join) = propose(left_symbol, right_symbol) else {
            return;
        };
        let candidate = Candidate {
            priority: join.priority,
            left_complement: !left,
            right,
            bytes: left_symbol.bytes + right_symbol.bytes,
            token: join.token,
        };
        self.candidates.push(candidate);
    }
}

/// A warning if bytes of ordinary text have no token. Control characters, bytes that
/// UTF-8 does not use and planes without assigned characters are not ordinary: SmolLM2
/// lacks 21 of those, and nobody misses them.
pub(super) fn missing_bytes(byte_tokens: &[u32; 256]) -> Option<TokenizerWarning> {
    let is_ordinary = |byte: u8| match byte {
        b'\t' | b'\n' | b'\r' => true,
        0..=0x1f | 0x7f | 0xc0 | 0xc1 | 0xf1..=0xff => false,
        _ => true,
    };
    let missing = (0..=255).zip(byte_tokens);
    let missing = missing.filter(|&(byte, &token)| token == NONE && is_ordinary(byte));
    let count = missing.count();
    (count > 0).then_some(TokenizerWarning::MissingBytes { count })
}
