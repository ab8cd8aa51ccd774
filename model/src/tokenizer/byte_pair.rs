//! Byte-level byte-pair encoding, the `gpt2` family.
//!
//! The text is cut into words, every byte of a word becomes a symbol, and the
//! merge rules join symbols, lowest rank first.

use emel_loader::gguf::Metadata;

use super::byte_alphabet;
use super::error::{TokenizerError, TokenizerWarning};
use super::merge_table::MergeTable;
use super::pre_tokenizer::PreTokenizer;
use super::symbol_chain::{NONE, SymbolChain, missing_bytes};
use super::vocabulary::Vocabulary;

/// The encoder of the `gpt2` family.
#[derive(Debug)]
pub(super) struct BytePair {
    pre_tokenizer: PreTokenizer,
    merges: MergeTable,
    /// The token of each byte, [`NONE`] where there is none.
    byte_tokens: [u32; 256],
}

impl BytePair {
    /// Takes the merge rules out of `metadata` and prepares the pre-tokenizer.
    pub(super) fn take(
        metadata: &mut Metadata,
        vocabulary: &Vocabulary,
        warnings: &mut Vec<TokenizerWarning>,
    ) -> Result<Self, TokenizerError> {
        let pre_tokenizer = PreTokenizer::from_metadata(metadata, warnings)?;
        let mut byte_tokens = [NONE; 256];
        for (byte, token) in (0u8..=255).zip(&mut byte_tokens) {
            let mut text = [0; 4];
            let text = byte_alphabet::character(byte).encode_utf8(&mut text);
            *token = vocabulary.id(text.as_bytes()).unwrap_or(NONE);
        }
        warnings.extend(missing_bytes(&byte_tokens));
        Ok(Self {
            pre_tokenizer,
            merges: MergeTable::take(metadata, vocabulary, warnings)?,
            byte_tokens,
        })
    }

    /// Whether the pre-tokenizer's models begin every text with a BOS token when
    /// their file does not say.
    pub(super) fn adds_bos(&self) -> bool {
        self.pre_tokenizer.adds_bos()
    }

    /// Appends the tokens of `text`, which holds no special tokens any more.
    pub(super) fn encode(&self, vocabulary: &Vocabulary, text: &str, tokens: &mut Vec<u32>) {
        let mut chain = SymbolChain::default();
        let mut stored = String::new();
        for range in self.pre_tokenizer.split(text) {
            let word = text[range].as_bytes();
            if let &[byte] = word {
                self.push_byte(byte, tokens);
                continue;
            }
            if self.pre_tokenizer.ignores_merges() {
                stored.clear();
                stored.extend(word.iter().map(|&byte| byte_alphabet::character(byte)));
                if let Some(token) = vocabulary.id(stored.as_bytes()) {
                    tokens.push(token);
                    continue;
                }
            }
            self.encode_word(word, &mut chain, tokens);
        }
    }

    fn encode_word(&self, word: &[u8], chain: &mut SymbolChain, tokens: &mut Vec<u32>) {
        chain.clear();
        for (start, &byte) in (0u32..).zip(word) {
            chain.push(self.byte_tokens[usize::from(byte)], start, 1);
        }
        chain.join_all(|left, right| self.merges.join(left, right));
        let found = chain.iter().map(|symbol| symbol.token);
        tokens.extend(found.filter(|&token| token != NONE));
    }

    /// Appends the tokens of bytes that are not UTF-8.
    pub(super) fn encode_bytes(&self, bytes: &[u8], tokens: &mut Vec<u32>) {
        for &byte in bytes {
            self.push_byte(byte, tokens);
        }
    }

    fn push_byte(&self, byte: u8, tokens: &mut Vec<u32>) {
        let token = self.byte_tokens[usize::from(byte)];
        if token != NONE {
            tokens.push(token);
        }
    }

    /// Heap bytes held.
    pub(super) fn heap_bytes(&self) -> usize {
        self.merges.heap_bytes() + self.pre_tokenizer.heap_bytes()
    }
}
