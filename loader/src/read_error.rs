//! Why bytes did not arrive.

use std::path::PathBuf;

use crate::files::FileChanged;

/// Why a read failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file ended before the wanted bytes.
    #[error(
        "{}: read {got} of {wanted} bytes at offset {offset}: the file has been truncated since it was opened; restore it and run again",
        path.display()
    )]
    Short {
        /// The file.
        path: PathBuf,
        /// File offset of the wanted bytes.
        offset: u64,
        /// Bytes wanted.
        wanted: usize,
        /// Bytes of them that the file still has.
        got: usize,
    },
    /// The kernel reported an error.
    #[error(
        "{}: read {got} of {wanted} bytes at offset {offset}: {message}; check the drive and the file",
        path.display()
    )]
    Failed {
        /// The file.
        path: PathBuf,
        /// File offset of the wanted bytes.
        offset: u64,
        /// Bytes wanted.
        wanted: usize,
        /// Bytes of them that were read before.
        got: usize,
        /// What the kernel said.
        message: String,
    },
    /// The file is not the one that was opened any more.
    #[error(transparent)]
    Changed(#[from] FileChanged),
    /// The reader's thread ended before the read did.
    #[error("the reader has stopped; open the model again")]
    Stopped,
}
