//! Text from tokens, one token at a time.

use super::{DecodeOptions, Tokenizer};

/// A token is a run of bytes that may end within a character. A detokenizer holds
/// such bytes back until the character is complete, and replaces them by U+FFFD
/// once no continuation can complete it.
///
/// Its buffers hold any token of the vocabulary it was made for, so that
/// [`push`](Self::push) does not allocate.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    options: DecodeOptions,
    at_start: bool,
    /// Bytes of an incomplete character, followed by those of the latest token.
    pending: Vec<u8>,
    text: String,
}

/// A character has up to four bytes, so up to three can be waiting.
const WAITING_BYTES_MAX: usize = 3;

impl Detokenizer {
    /// A detokenizer for the tokens of `tokenizer`.
    pub fn new(tokenizer: &Tokenizer, options: DecodeOptions) -> Self {
        let bytes_max = tokenizer.token_bytes_max() + WAITING_BYTES_MAX;
        Self {
            options,
            at_start: options.from_start,
            pending: Vec::with_capacity(bytes_max),
            // In the worst case every byte becomes a U+FFFD.
            text: String::with_capacity(bytes_max * char::REPLACEMENT_CHARACTER.len_utf8()),
        }
    }

    /// Adds a token and returns the text that is complete with it, which is empty
    /// for an unknown id and for a token that ends within a character.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> &str {
        let kept = self.pending.len();
        tokenizer.append_token_bytes(id, self.options.special, &mut self.pending);
        if self.at_start && tokenizer.adds_space_prefix() && self.pending.get(kept) == Some(&b' ') {
            self.pending.remove(kept);
        }
        self.at_start = false;
        self.text.clear();
        let waiting = append_complete(&self.pending, &mut self.text);
        self.pending.drain(..self.pending.len() - waiting);
        &self.text
    }

    /// Ends the text: returns U+FFFD for bytes that still wait, and starts over.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        if !self.pending.is_empty() {
            self.text.push(char::REPLACEMENT_CHARACTER);
        }
        self.pending.clear();
        self.at_start = self.options.from_start;
        &self.text
    }
}

/// Appends the characters of `bytes` to `text` and returns how many bytes at the end
/// are the beginning of a character.
fn append_complete(bytes: &[u8], text: &mut String) -> usize {
    let mut rest = bytes;
    loop {
        let error = match std::str::from_utf8(rest) {
            Ok(valid) => {
                text.push_str(valid);
                return 0;
            }
            Err(error) => error,
        };
        let (valid, invalid) = rest.split_at(error.valid_up_to());
        text.push_str(std::str::from_utf8(valid).unwrap_or_default());
        let Some(length) = error.error_len() else {
            return invalid.len();
        };
        text.push(char::REPLACEMENT_CHARACTER);
        rest = &invalid[length..];
    }
}
