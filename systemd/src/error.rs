//! What can go wrong when asking the system.

use std::io;
use std::path::{Path, PathBuf};

/// Why the system's answer is not known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SystemError {
    /// A file of the kernel's cannot be read.
    #[error("{path}: cannot read: {source}; check that /proc and /sys/fs/cgroup are mounted and readable", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
    /// A file of the kernel's does not hold what it should.
    #[error("{path}: found {found:?}, expected {expected}", path = path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The start of what it holds.
        found: String,
        /// What was looked for.
        expected: &'static str,
    },
    /// No cgroup accounts for this process's memory.
    #[error(
        "no cgroup accounts for this process's memory; mount cgroup2 with the memory controller, or set a RAM budget"
    )]
    NoMemoryCgroup,
}

/// Reads a small file of the kernel's.
pub(crate) fn read(path: &Path) -> Result<String, SystemError> {
    std::fs::read_to_string(path).map_err(|source| SystemError::Read {
        path: path.to_owned(),
        source,
    })
}

/// The error for a file that holds something else.
pub(crate) fn unexpected(path: &Path, found: &str, expected: &'static str) -> SystemError {
    SystemError::Format {
        path: path.to_owned(),
        found: found.chars().take(60).collect(),
        expected,
    }
}
