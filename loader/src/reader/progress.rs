//! How a read gets from the first call to its last byte: short reads go on, errors that
//! may pass are asked again a few times, and what then remains is an error.
//!
//! Every reader that calls the system for bytes goes by this, so that all of them retry
//! alike. A mapping cannot: there an error of the drive is a signal.

use std::io::{self, ErrorKind};
use std::ops::Range;

use super::ReadError;
use crate::aligned_range::AlignedRange;
use crate::files::OpenFile;
use crate::gguf::Extent;

/// Calls in a row that bring nothing before a read is given up.
const FRUITLESS_CALLS_MAX: u32 = 100;

/// EIO among them: a drive has tried for long before it says so.
const DEVICE_ERRORS_MAX: u32 = 3;

/// How far a read into a buffer has come.
#[derive(Debug)]
pub(crate) struct Progress {
    pub(super) window: AlignedRange,
    alignment: usize,
    wanted: usize,
    filled: usize,
    /// Calls since the last one that brought bytes.
    fruitless_calls: u32,
    /// Those of them that ended with EIO.
    device_errors: u32,
}

impl Progress {
    pub(crate) fn new(file: &OpenFile, extent: &Extent) -> Self {
        Self {
            window: file.window(extent.offset, extent.bytes as usize),
            alignment: file.alignment(),
            wanted: extent.bytes as usize,
            filled: 0,
            fruitless_calls: 0,
            device_errors: 0,
        }
    }

    /// The bytes of the window that are there.
    pub(super) fn filled(&self) -> usize {
        self.filled
    }

    /// The part of the buffer still to be read into, and its place in the file.
    pub(crate) fn remaining(&self) -> (Range<usize>, u64) {
        // A direct read must go on from an aligned place; the bytes after it come again.
        let start = self.filled - self.filled % self.alignment;
        (start..self.window.bytes, self.window.offset + start as u64)
    }

    /// Takes the system's answer to reading [`Progress::remaining`]; `true` when the
    /// wanted bytes are there, `false` when it is to be called again.
    pub(crate) fn record(
        &mut self,
        file: &OpenFile,
        answer: io::Result<usize>,
    ) -> Result<bool, ReadError> {
        let (range, offset) = self.remaining();
        let cause = match file.heard(offset, answer) {
            Ok(count) => {
                let before = self.filled;
                self.filled = before.max(range.start + count);
                if self.filled >= self.window.skip + self.wanted {
                    return Ok(true);
                }
                if self.filled > before {
                    (self.fruitless_calls, self.device_errors) = (0, 0);
                    file.count_retry();
                    return Ok(false);
                }
                if self.is_at_end(file) {
                    return Err(self.short(file));
                }
                io::Error::new(ErrorKind::UnexpectedEof, "no bytes, before the file's end")
            }
            Err(error) => error,
        };
        self.fruitless_calls += 1;
        self.device_errors += u32::from(is_device_error(&cause));
        let is_over = !may_pass(&cause)
            || self.device_errors > DEVICE_ERRORS_MAX
            || self.fruitless_calls > FRUITLESS_CALLS_MAX;
        if is_over {
            return Err(self.failed(file, &cause));
        }
        file.count_retry();
        Ok(false)
    }

    /// Whether the file has nothing after what is there: it has become shorter.
    fn is_at_end(&self, file: &OpenFile) -> bool {
        let end = self.window.offset + self.filled as u64;
        let length = file.file().metadata().map(|status| status.len());
        length.is_ok_and(|length| end >= length)
    }

    /// Wanted bytes that are there.
    fn got(&self) -> usize {
        self.filled.saturating_sub(self.window.skip)
    }

    fn short(&self, file: &OpenFile) -> ReadError {
        ReadError::Short {
            path: file.path().to_owned(),
            offset: self.window.offset + self.window.skip as u64,
            wanted: self.wanted,
            got: self.got(),
        }
    }

    fn failed(&self, file: &OpenFile, cause: &io::Error) -> ReadError {
        let message = match self.fruitless_calls {
            0 | 1 => cause.to_string(),
            calls => format!("{cause}, {calls} times"),
        };
        ReadError::Failed {
            path: file.path().to_owned(),
            offset: self.window.offset + self.window.skip as u64,
            wanted: self.wanted,
            got: self.got(),
            message,
        }
    }
}

fn is_device_error(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EIO)
}

/// Whether the same call may go well a moment later.
fn may_pass(error: &io::Error) -> bool {
    let passing = [
        ErrorKind::Interrupted,
        ErrorKind::WouldBlock,
        ErrorKind::UnexpectedEof,
    ];
    passing.contains(&error.kind()) || is_device_error(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 10_000;

    fn file(folder: &tempfile::TempDir) -> OpenFile {
        let path = folder.path().join("model.gguf");
        std::fs::write(&path, vec![1; BYTES as usize]).unwrap();
        OpenFile::open(&path, false).unwrap()
    }

    fn progress(file: &OpenFile) -> Progress {
        let extent = Extent {
            file: 0,
            offset: 1000,
            bytes: 5000,
        };
        Progress::new(file, &extent)
    }

    fn error(code: i32) -> io::Result<usize> {
        Err(io::Error::from_raw_os_error(code))
    }

    #[test]
    fn a_short_read_goes_on_where_it_ended_and_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let file = file(&folder);
        let mut progress = progress(&file);
        assert_eq!(progress.record(&file, Ok(2000)), Ok(false));
        assert_eq!(progress.remaining(), (2000..5000, 3000));
        assert_eq!(progress.record(&file, Ok(3000)), Ok(true));
        assert_eq!((progress.filled(), file.retries()), (5000, 1));
    }

    #[test]
    fn a_direct_read_goes_on_from_an_aligned_place() {
        let folder = tempfile::tempdir().unwrap();
        let file = file(&folder);
        let mut progress = progress(&file);
        progress.alignment = 512;
        progress.window = AlignedRange::around(1000, 5000, 512);
        assert_eq!(progress.record(&file, Ok(600)), Ok(false));
        assert_eq!(progress.remaining().0.start, 512);
        // The same bytes again are no progress, and no end of the file either.
        assert_eq!(progress.record(&file, Ok(88)), Ok(false));
        assert_eq!(progress.remaining().0.start, 512);
        assert_eq!(file.retries(), 2);
    }

    #[test]
    fn what_passes_is_asked_again_and_counted() {
        let folder = tempfile::tempdir().unwrap();
        let file = file(&folder);
        let mut progress = progress(&file);
        for code in [libc::EINTR, libc::EAGAIN, libc::EIO] {
            assert_eq!(progress.record(&file, error(code)), Ok(false));
        }
        assert_eq!(progress.record(&file, Ok(0)), Ok(false));
        assert_eq!(progress.record(&file, Ok(5000)), Ok(true));
        assert_eq!(file.retries(), 4);
    }

    #[test]
    fn what_does_not_pass_is_given_up_after_a_bound_with_all_there_is_to_know() {
        let folder = tempfile::tempdir().unwrap();
        let file = file(&folder);
        for (code, calls) in [
            (libc::EIO, DEVICE_ERRORS_MAX + 1),
            (libc::EAGAIN, FRUITLESS_CALLS_MAX + 1),
            (libc::EINTR, FRUITLESS_CALLS_MAX + 1),
            (libc::EBADF, 1),
        ] {
            let mut progress = progress(&file);
            assert_eq!(progress.record(&file, Ok(700)), Ok(false));
            let mut asked = 1;
            let failure = loop {
                match progress.record(&file, error(code)) {
                    Ok(is_there) => assert!(!is_there),
                    Err(failure) => break failure,
                }
                asked += 1;
            };
            assert_eq!(asked, calls);
            let message = failure.to_string();
            for part in [
                "model.gguf: read 700 of 5000 bytes at offset 1000",
                "os error",
            ] {
                assert!(message.contains(part), "no `{part}` in: {message}");
            }
            assert_eq!(message.contains("times"), calls > 1, "{message}");
        }
    }

    #[test]
    fn a_read_past_the_end_of_a_file_is_no_matter_of_asking_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = file(&folder);
        let writer = std::fs::File::options().write(true).open(file.path());
        writer.unwrap().set_len(3000).unwrap();
        let mut progress = progress(&file);
        assert_eq!(progress.record(&file, Ok(2000)), Ok(false));
        let failure = progress.record(&file, Ok(0)).unwrap_err();
        assert!(matches!(failure, ReadError::Short { got: 2000, .. }));
    }
}
