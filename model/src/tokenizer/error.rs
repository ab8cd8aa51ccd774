//! What can be wrong with a vocabulary, and what is merely worth telling.

use emel_loader::gguf::MetadataError;

/// Why a tokenizer cannot be built from a file's metadata.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A key is missing or holds another type than expected.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// The file's tokenizer is of a family that emel does not implement.
    #[error(
        "`tokenizer.ggml.model` is `{found}`, which is not supported; supported are {supported}"
    )]
    UnsupportedModel {
        /// The family the file names.
        found: String,
        /// The families that would work, separated by commas.
        supported: &'static str,
    },
    /// The vocabulary is empty, or larger than a 32-bit id can count.
    #[error("`tokenizer.ggml.tokens` holds {found} tokens, expected 1 to {maximum}")]
    VocabularySize {
        /// Tokens in the file.
        found: usize,
        /// The most that is possible.
        maximum: usize,
    },
    /// A per-token array has another length than the list of tokens.
    #[error("`{key}` has {found} elements, expected {expected}, one per token")]
    Length {
        /// The array's key.
        key: &'static str,
        /// Its length.
        found: usize,
        /// The number of tokens.
        expected: usize,
    },
    /// A token is to be added to every text, but the file does not say which.
    #[error("`{flag}` is true, but `{key}` is missing")]
    UnnamedToken {
        /// The key that asks for the token.
        flag: &'static str,
        /// The key that should name it.
        key: &'static str,
    },
    /// A token's text is longer than its family can match in linear time.
    #[error("`tokenizer.ggml.tokens` entry {index} has {found} bytes, expected {maximum} at most")]
    TokenLength {
        /// The token's id.
        index: usize,
        /// The length of its text, in bytes.
        found: usize,
        /// The most that is read.
        maximum: usize,
    },
    /// A merge rule does not consist of two parts.
    #[error("`tokenizer.ggml.merges` rule {index} is {rule:?}, expected two parts and a space")]
    Merge {
        /// Its place in the array.
        index: usize,
        /// Its text.
        rule: String,
    },
    /// The table of replacements of a `t5` vocabulary is broken.
    #[error("`tokenizer.ggml.precompiled_charsmap` holds {reason}, expected SentencePiece's table")]
    Charsmap {
        /// What is wrong.
        reason: String,
    },
    /// An expression of the pre-tokenizer does not compile.
    #[error("expression of the pre-tokenizer `{pre}` does not compile: {reason}")]
    Expression {
        /// The pre-tokenizer.
        pre: &'static str,
        /// What the regex library says.
        reason: String,
    },
}

/// Something odd in a vocabulary that does not keep it from being used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerWarning {
    /// The pre-tokenizer is unknown, so long words may be split in other places
    /// than in training.
    #[error(
        "pre-tokenizer `{found}` (tokenizer.ggml.pre) is unknown, `default` is used: expect worse answers"
    )]
    UnknownPreTokenizer {
        /// The name in the file.
        found: String,
    },
    /// A special token's id is not in the vocabulary; it is as if the file named none.
    #[error(
        "`{key}` is {found}, which is no id below the vocabulary size {vocabulary_size}, and is ignored"
    )]
    TokenId {
        /// The key of the special token.
        key: &'static str,
        /// The id it holds.
        found: i64,
        /// The number of tokens.
        vocabulary_size: usize,
    },
    /// The file names no pre-tokenizer.
    #[error("`tokenizer.ggml.pre` is missing, `default` is used: expect worse answers")]
    MissingPreTokenizer,
    /// Merge rules that use or make a text that is no token; they are left out.
    #[error(
        "{count} rules of `tokenizer.ggml.merges` name texts that are no tokens and are left out"
    )]
    UnusableMerges {
        /// How many.
        count: usize,
    },
    /// Several tokens have the same text; the first one is the one encoded.
    #[error("{count} entries of `tokenizer.ggml.tokens` repeat the text of an earlier token")]
    RepeatedTokens {
        /// How many.
        count: usize,
    },
    /// Bytes of ordinary text that no token stands for; encoding drops them.
    #[error("{count} byte values of ordinary text have no token: encoding drops them")]
    MissingBytes {
        /// How many.
        count: usize,
    },
}
