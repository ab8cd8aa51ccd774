//! A checksum of what is read or written.

use std::hash::Hasher;
use std::io::{self, Read, Write};

use twox_hash::XxHash64;

/// Hashes what passes through.
#[derive(Debug)]
pub(crate) struct Hashing<T> {
    pub(crate) inner: T,
    pub(crate) hasher: XxHash64,
}

impl<T> Hashing<T> {
    pub(crate) fn new(inner: T) -> Self {
        Self {
            inner,
            hasher: XxHash64::with_seed(0),
        }
    }
}

impl<T: Read> Read for Hashing<T> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(bytes)?;
        self.hasher.write(&bytes[..count]);
        Ok(count)
    }
}

impl<T: Write> Write for Hashing<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.hasher.write(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
