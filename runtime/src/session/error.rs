//! Why a session cannot be saved or restored.

use std::io;

use emel_loader::reader::ReadError;
use emel_model::kv_cache::KvType;

use super::VERSION;

/// Why a session cannot be saved or restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The file cannot be opened or read.
    #[error("cannot read the session: {0}; check the path and its permissions")]
    Read(io::Error),
    /// The file cannot be written.
    #[error("cannot write the session: {0}; check the folder, its permissions and the disk")]
    Write(io::Error),
    /// The path leads to no file that keeps what is written to it.
    #[error("cannot read the session: it is {found}, expected a regular file; choose another name")]
    NotAFile {
        /// What it is.
        found: &'static str,
    },
    /// The file is something else.
    #[error("this is not a session, expected one that emel has saved; choose another name")]
    Foreign,
    /// The file is from another version of emel.
    #[error(
        "the session has format {found}, expected {VERSION}; use the version of emel that saved it, or, if none has that format, the file is damaged: delete it to start over"
    )]
    Version {
        /// The format's number.
        found: u32,
    },
    /// The session belongs to another model.
    #[error("the session is of another model; choose another name, or delete it to start over")]
    OtherModel,
    /// Keys and values are kept in another way.
    #[error(
        "the session keeps keys and values as {}, expected {}; open the model with {} keys and values, or delete the session to start over",
        found.name(),
        expected.name(),
        found.name()
    )]
    KvType {
        /// How the session keeps them.
        found: KvType,
        /// How the engine does.
        expected: KvType,
    },
    /// Keys were rotated with the factors of the other side of the original context.
    #[error(
        "the session was computed with a context of {} {original_context} tokens, expected one on the same side; choose a context of {}, or delete the session to start over",
        if *is_long { "more than" } else { "up to" },
        if *is_long { format!("{} or more", original_context + 1) } else { format!("{original_context} or less") }
    )]
    RotaryFactors {
        /// Whether the session was computed beyond the original context.
        is_long: bool,
        /// Positions that the model knew before it was stretched.
        original_context: usize,
    },
    /// The session is longer than the context.
    #[error("the session has {tokens} tokens and the context holds {context}; raise the context")]
    TooLong {
        /// Tokens of the session.
        tokens: u64,
        /// Tokens of the context.
        context: usize,
    },
    /// The file is cut off, or some of its bytes have changed.
    #[error("the session is damaged or cut off; delete it to start over")]
    Damaged,
    /// The model's own file cannot be read.
    #[error(transparent)]
    Model(#[from] ReadError),
}
