//! What tells a file from another that takes its place.

/// What tells a file from another that was put in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    /// The device's number.
    pub device: u64,
    /// The inode's number on that device.
    pub inode: u64,
    /// Last modification, in seconds since 1970.
    pub modified_s: i64,
    /// The nanoseconds of that second.
    pub modified_ns: i64,
}

impl FileIdentity {
    /// The identity of the file that `metadata` was taken from.
    pub fn of(metadata: &std::fs::Metadata) -> Self {
        use std::os::unix::fs::MetadataExt;
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            modified_s: metadata.mtime(),
            modified_ns: metadata.mtime_nsec(),
        }
    }
}
