//! The bytes of a header, in order: a cursor that moves over the file, counts what is
//! kept, and puts file and place to what goes wrong.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use super::GgufError;
use super::error::quote;
use super::foreign::models_in;
use super::identity::FileIdentity;

/// One read of the header; a multiple of every page size in use, so that each read
/// can be given back to the system whole.
const WINDOW_BYTES: usize = 256 << 10;

/// Elements reserved for an array in one go; longer arrays grow as they are read.
const RESERVED_ELEMENTS: usize = 64 << 10;

/// Memory that what is kept of a header may take. The largest vocabularies in use, of
/// some 260,000 tokens with their merges, take less than a fifth of it.
const KEPT_BYTES_MAX: u64 = 64 << 20;

/// The longest key the format allows, and more than any tensor name in use.
const NAME_BYTES_MAX: u64 = 65_535;

/// What went wrong, before it is known in which part of the header.
pub(super) enum Flaw {
    Read { offset: u64, source: io::Error },
    Ends { offset: u64, wanted: u64 },
    Bad(String),
    TooLarge,
}

/// A cursor that moves over the file from front to back and leaves no page cache.
pub(super) struct Cursor {
    pub(super) path: PathBuf,
    file: File,
    pub(super) identity: FileIdentity,
    pub(super) file_bytes: u64,
    /// Where in the file the buffer begins.
    buffer_start: u64,
    buffer: Vec<u8>,
    pub(super) position: u64,
    /// Memory that what has been kept takes.
    kept_bytes: u64,
}

impl Cursor {
    pub(super) fn open(path: &Path) -> Result<Self, GgufError> {
        let open_error = |source| GgufError::Open {
            path: path.to_owned(),
            source,
        };
        // Without O_NONBLOCK, opening a FIFO waits for a writer that may never come.
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(path)
            .map_err(open_error)?;
        let found = file.metadata().map_err(open_error)?;
        if found.is_dir() {
            return Err(GgufError::Directory {
                path: path.to_owned(),
                models: models_in(path),
            });
        }
        if let Some(kind) = irregular(found.file_type()) {
            return Err(GgufError::NotAFile {
                path: path.to_owned(),
                found: kind,
            });
        }
        if found.len() == 0 {
            return Err(GgufError::Empty {
                path: path.to_owned(),
            });
        }
        // Advice only: the windows are sized by us, and readahead past the header
        // would fill page cache that counts against the budget.
        let _ = posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_RANDOM);
        Ok(Self {
            path: path.to_owned(),
            file,
            identity: FileIdentity::of(&found),
            file_bytes: found.len(),
            buffer_start: 0,
            buffer: Vec::new(),
            position: 0,
            kept_bytes: 0,
        })
    }

    /// Runs `read` and puts file and place to what goes wrong in it.
    pub(super) fn at<T>(
        &mut self,
        place: &str,
        read: impl FnOnce(&mut Self) -> Result<T, Flaw>,
    ) -> Result<T, GgufError> {
        read(self).map_err(|flaw| self.error(flaw, place))
    }

    pub(super) fn error(&self, flaw: Flaw, place: &str) -> GgufError {
        let path = self.path.clone();
        match flaw {
            Flaw::Read { offset, source } => GgufError::Read {
                path,
                offset,
                source,
            },
            Flaw::Ends { offset, wanted } => GgufError::Truncated {
                path,
                file_bytes: self.file_bytes,
                inside: place.to_owned(),
                offset,
                wanted,
            },
            Flaw::Bad(problem) => GgufError::Damaged {
                path,
                place: place.to_owned(),
                problem,
            },
            Flaw::TooLarge => GgufError::HeaderTooLarge {
                path,
                place: place.to_owned(),
                limit_bytes: KEPT_BYTES_MAX,
            },
        }
    }

    /// Counts memory that is about to be kept: `count` items of `bytes_each`.
    pub(super) fn keep(&mut self, count: u64, bytes_each: usize) -> Result<(), Flaw> {
        let bytes = count.saturating_mul(bytes_each as u64);
        self.kept_bytes = self.kept_bytes.saturating_add(bytes);
        if self.kept_bytes > KEPT_BYTES_MAX {
            return Err(Flaw::TooLarge);
        }
        Ok(())
    }

    /// Checks that `bytes` more bytes are in the file.
    fn expect(&self, bytes: u64) -> Result<(), Flaw> {
        if bytes > self.file_bytes - self.position {
            return Err(Flaw::Ends {
                offset: self.position,
                wanted: bytes,
            });
        }
        Ok(())
    }

    /// Checks that `count` items of at least `bytes_each` can follow; returns the
    /// bytes they take at least.
    pub(super) fn expect_items(&self, count: u64, bytes_each: u64) -> Result<u64, Flaw> {
        let bytes = count.saturating_mul(bytes_each);
        self.expect(bytes)?;
        Ok(bytes)
    }

    pub(super) fn skip(&mut self, bytes: u64) -> Result<(), Flaw> {
        self.expect(bytes)?;
        self.position += bytes;
        Ok(())
    }

    pub(super) fn fill(&mut self, mut target: &mut [u8]) -> Result<(), Flaw> {
        self.expect(target.len() as u64)?;
        while !target.is_empty() {
            let available = self.available()?;
            let taken = available.len().min(target.len());
            target[..taken].copy_from_slice(&available[..taken]);
            target = &mut target[taken..];
            self.position += taken as u64;
        }
        Ok(())
    }

    /// Appends `bytes` bytes of the file to `target`.
    fn append(&mut self, bytes: u64, target: &mut Vec<u8>) -> Result<(), Flaw> {
        self.expect(bytes)?;
        let end = self.position + bytes;
        while self.position < end {
            let left = end - self.position;
            let available = self.available()?;
            let taken = available.len().min(left as usize);
            target.extend_from_slice(&available[..taken]);
            self.position += taken as u64;
        }
        Ok(())
    }

    /// The buffered bytes at the position, at least one.
    fn available(&mut self) -> Result<&[u8], Flaw> {
        let buffered = self.buffer_start..self.buffer_start + self.buffer.len() as u64;
        if !buffered.contains(&self.position) {
            self.move_buffer()?;
        }
        Ok(&self.buffer[(self.position - self.buffer_start) as usize..])
    }

    fn move_buffer(&mut self) -> Result<(), Flaw> {
        let start = self.position - self.position % WINDOW_BYTES as u64;
        let wanted = (self.file_bytes - start).min(WINDOW_BYTES as u64) as usize;
        self.buffer.resize(wanted, 0);
        self.buffer_start = start;
        let result = self.file.read_exact_at(&mut self.buffer, start);
        let _ = posix_fadvise(
            &self.file,
            start as libc::off_t,
            WINDOW_BYTES as libc::off_t,
            PosixFadviseAdvice::POSIX_FADV_DONTNEED,
        );
        result.map_err(|source| {
            self.buffer.clear();
            Flaw::Read {
                offset: start,
                source,
            }
        })
    }

    pub(super) fn u8(&mut self) -> Result<u8, Flaw> {
        self.number().map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self) -> Result<u16, Flaw> {
        self.number().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Flaw> {
        self.number().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Flaw> {
        self.number().map(u64::from_le_bytes)
    }

    fn number<const BYTES: usize>(&mut self) -> Result<[u8; BYTES], Flaw> {
        let mut bytes = [0; BYTES];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn bool(&mut self) -> Result<bool, Flaw> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            found => Err(Flaw::Bad(format!("boolean {found}, expected 0 or 1"))),
        }
    }

    /// Reads a string into `target`, replacing what it holds.
    pub(super) fn string(&mut self, target: &mut Vec<u8>) -> Result<(), Flaw> {
        target.clear();
        let bytes = self.u64()?;
        self.expect(bytes)?;
        self.keep(bytes, 1)?;
        self.append(bytes, target)
    }

    /// Reads the name of a key or tensor.
    pub(super) fn name(&mut self) -> Result<String, Flaw> {
        let bytes = self.u64()?;
        if !(1..=NAME_BYTES_MAX).contains(&bytes) {
            self.expect(bytes)?;
            return Err(Flaw::Bad(format!(
                "a name of {bytes} bytes, expected 1 to {NAME_BYTES_MAX}"
            )));
        }
        self.keep(bytes, 1)?;
        let mut name = Vec::new();
        self.append(bytes, &mut name)?;
        name.shrink_to_fit();
        String::from_utf8(name)
            .map_err(|error| Flaw::Bad(format!("name {} is not UTF-8", quote(error.as_bytes()))))
    }

    pub(super) fn list<T>(
        &mut self,
        count: u64,
        mut read: impl FnMut(&mut Self) -> Result<T, Flaw>,
    ) -> Result<Vec<T>, Flaw> {
        self.keep(count, size_of::<T>())?;
        let mut list = Vec::with_capacity(reserved(count));
        for _ in 0..count {
            list.push(read(self)?);
        }
        list.shrink_to_fit();
        Ok(list)
    }
}

/// Elements to reserve for a checked count.
pub(super) fn reserved(count: u64) -> usize {
    count.min(RESERVED_ELEMENTS as u64) as usize
}

fn irregular(file_type: std::fs::FileType) -> Option<&'static str> {
    if file_type.is_file() {
        return None;
    }
    Some(if file_type.is_fifo() {
        "a FIFO"
    } else if file_type.is_socket() {
        "a socket"
    } else {
        "a device"
    })
}
