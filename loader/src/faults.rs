//! Faults on purpose: what a drive, a kernel or a network filesystem may do to reads.
//!
//! Tests use them. They change the system's answers where every reader takes them
//! (`reader/progress.rs`), and delay requests (`reader/faults.rs`). Files without faults pay
//! one look at a `None`.

use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

use crate::gguf::Extent;

/// What goes wrong. Called from the readers' threads.
pub trait Faults: fmt::Debug + Send + Sync {
    /// What a reader hears instead of the system's answer to a read of `path` at
    /// `offset`. A count may become smaller, never larger.
    ///
    /// # Errors
    /// As the answer that is heard has it.
    fn answer(&self, path: &Path, offset: u64, answer: io::Result<usize>) -> io::Result<usize>;

    /// How long a request waits before the reader gets it.
    fn delay(&self, extent: &Extent) -> Duration;
}
