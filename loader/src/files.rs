//! The model's files, opened for streaming.
//!
//! O_DIRECT keeps the page cache out of the budget. Where a filesystem refuses it
//! the file is read through the cache, and every reader then drops the pages it
//! has copied.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::statvfs::statvfs;
use nix::unistd::{Whence, lseek};

use crate::aligned_range::AlignedRange;
use crate::faults::Faults;
use crate::gguf::{FileIdentity, ModelFile};
use crate::page::PageSize;

/// What a read with O_DIRECT may have to be aligned to, in memory and in the file. Where a
/// filesystem asks for more, files are read through the page cache.
pub const DIRECT_ALIGNMENT_MAX: usize = 4096;

/// Why the model's files cannot be opened for streaming.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The system refuses a file.
    #[error("{}: cannot open for reading: {source}; check the path and its permissions", path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A file is not the one that was planned for.
    #[error(transparent)]
    Changed(#[from] FileChanged),
}

/// A file of the model is not what it was when its header was read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {change} since its header was read, expected an unchanged file; open the model again", path.display())]
pub struct FileChanged {
    /// The file.
    pub path: PathBuf,
    /// What has happened to it.
    pub change: String,
}

/// One open file of the model.
#[derive(Debug)]
pub struct OpenFile {
    file: File,
    path: PathBuf,
    bytes: u64,
    identity: FileIdentity,
    alignment: Option<usize>,
    // Calls for its bytes that were not the first for a read.
    retries: AtomicU64,
    faults: Option<Arc<dyn Faults>>,
}

/// All open files of the model, indexed as [`crate::gguf::Extent::file`] says.
#[derive(Debug, Default)]
pub struct OpenFiles {
    files: Vec<OpenFile>,
    faults: Option<Arc<dyn Faults>>,
}

impl OpenFile {
    /// Opens `path` with O_DIRECT if the filesystem takes it and `direct` asks for it.
    ///
    /// # Errors
    /// When the file cannot be opened at all.
    pub fn open(path: &Path, direct: bool) -> Result<Self, OpenError> {
        let failed = |source| OpenError::Refused {
            path: path.to_owned(),
            source,
        };
        let direct_file = direct.then(|| open_direct(path)).flatten();
        let (file, alignment) = match direct_file {
            Some((file, alignment)) => (file, Some(alignment)),
            None => (open_cached(path).map_err(failed)?, None),
        };
        let found = file.metadata().map_err(failed)?;
        Ok(Self {
            file,
            path: path.to_owned(),
            bytes: found.len(),
            identity: FileIdentity::of(&found),
            alignment,
            retries: AtomicU64::new(0),
            faults: None,
        })
    }

    /// Compares the file with what it was when its header was read.
    fn check_same(&self, planned: &ModelFile) -> Result<(), FileChanged> {
        let planned = (planned.bytes, &planned.identity);
        check_same(&self.path, planned, (self.bytes, &self.identity))
    }

    /// Compares the open file with what it was when it was opened.
    fn check_unchanged(&self) -> Result<(), FileChanged> {
        // What cannot be asked cannot be compared; reads will say what is wrong.
        let Ok(found) = self.file.metadata() else {
            return Ok(());
        };
        check_same(
            &self.path,
            (self.bytes, &self.identity),
            (found.len(), &FileIdentity::of(&found)),
        )
    }

    /// The file handle.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its length when it was opened.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether reads bypass the page cache.
    pub fn is_direct(&self) -> bool {
        self.alignment.is_some()
    }

    /// The alignment that reads of this file need, in bytes; 1 through the page cache.
    pub fn alignment(&self) -> usize {
        self.alignment.unwrap_or(1)
    }

    /// Calls for its bytes beyond the first of each read: after short reads, and after
    /// errors that may pass.
    pub fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }

    pub(crate) fn count_retry(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    /// What a reader hears of the system's answer to a read at `offset`.
    pub(crate) fn heard(&self, offset: u64, answer: io::Result<usize>) -> io::Result<usize> {
        match &self.faults {
            Some(faults) => faults.answer(&self.path, offset, answer),
            None => answer,
        }
    }

    /// The window to read for `bytes` at `offset`.
    pub fn window(&self, offset: u64, bytes: usize) -> AlignedRange {
        AlignedRange::around(offset, bytes, self.alignment())
    }

    /// Bytes that the file has no place on the drive for: they read as zeros, from nowhere. None
    /// on a filesystem that does not say.
    pub fn hole_bytes(&self) -> u64 {
        let end = self.file.metadata().map_or(0, |found| found.len());
        let seek = |from: u64, whence| {
            let found = lseek(&self.file, from as i64, whence);
            // There is nothing behind the last data; and all is data where it is not said.
            match found {
                Ok(at) => at as u64,
                Err(Errno::ENXIO) => end,
                Err(_) if matches!(whence, Whence::SeekData) => from,
                Err(_) => end,
            }
        };
        let (mut at, mut holes) = (0, 0);
        while at < end {
            let data = seek(at, Whence::SeekData).clamp(at, end);
            holes += data - at;
            at = seek(data, Whence::SeekHole).clamp(data + 1, end.max(data + 1));
        }
        holes
    }

    /// Drops what a read through the page cache has left there; nothing to do for
    /// a direct file. Advice only, so a refusal changes nothing but memory use.
    pub fn drop_cached(&self, window: AlignedRange) {
        if self.is_direct() {
            return;
        }
        // Outward, because the kernel drops whole pages only.
        let page = PageSize::of_system();
        let pages = AlignedRange::around(window.offset, window.bytes, page.bytes());
        let _ = posix_fadvise(
            &self.file,
            pages.offset as i64,
            pages.bytes as i64,
            PosixFadviseAdvice::POSIX_FADV_DONTNEED,
        );
    }
}

impl OpenFiles {
    /// Opens every file of a model.
    ///
    /// # Errors
    /// When one of them cannot be opened.
    pub fn open<'a>(
        paths: impl IntoIterator<Item = &'a Path>,
        direct: bool,
    ) -> Result<Self, OpenError> {
        let files = paths
            .into_iter()
            .map(|path| OpenFile::open(path, direct))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            files,
            faults: None,
        })
    }

    /// Has reads of all the files go wrong as `faults` say, for tests.
    #[must_use]
    pub fn with_faults(mut self, faults: Arc<dyn Faults>) -> Self {
        for file in &mut self.files {
            file.faults = Some(Arc::clone(&faults));
        }
        self.faults = Some(faults);
        self
    }

    pub(crate) fn faults(&self) -> Option<&Arc<dyn Faults>> {
        self.faults.as_ref()
    }

    /// Calls for bytes of the files that were not the first for their read.
    pub fn retries(&self) -> u64 {
        self.files.iter().map(OpenFile::retries).sum()
    }

    /// Opens the files of a catalog, which must be those whose headers were read.
    ///
    /// # Errors
    /// When one of them cannot be opened, or has been replaced or written to.
    pub fn open_model(files: &[ModelFile], direct: bool) -> Result<Self, OpenError> {
        let opened = Self::open(files.iter().map(|file| file.path.as_path()), direct)?;
        for (file, planned) in opened.files.iter().zip(files) {
            file.check_same(planned)?;
        }
        Ok(opened)
    }

    /// Compares the open files with what they were when they were opened: one call to
    /// the system for each. A file that has been put in a path's place does not
    /// matter, for the one that is open stays.
    ///
    /// # Errors
    /// When one of them has been written to.
    pub fn check_unchanged(&self) -> Result<(), FileChanged> {
        self.files.iter().try_for_each(OpenFile::check_unchanged)
    }

    /// The file at `index`.
    ///
    /// # Panics
    /// When the index is not one of the catalog's.
    pub fn get(&self, index: usize) -> &OpenFile {
        &self.files[index]
    }

    /// The files in order.
    pub fn iter(&self) -> impl Iterator<Item = &OpenFile> {
        self.files.iter()
    }

    /// Whether every file is read with O_DIRECT.
    pub fn all_direct(&self) -> bool {
        self.files.iter().all(OpenFile::is_direct)
    }
}

/// What tells the filesystem of a path from others: its own id, where it has one, and the
/// number of its device.
///
/// # Errors
/// When the path cannot be looked at.
pub fn filesystem_id(path: &Path) -> io::Result<String> {
    let id = statvfs(path)?.filesystem_id();
    let device = std::fs::metadata(path)?.dev();
    Ok(format!("{id:x}-{device:x}"))
}

/// Compares sizes and identities, the older first.
fn check_same(
    path: &Path,
    (bytes, identity): (u64, &FileIdentity),
    (bytes_now, identity_now): (u64, &FileIdentity),
) -> Result<(), FileChanged> {
    let place = |identity: &FileIdentity| (identity.device, identity.inode);
    let change = if place(identity) != place(identity_now) {
        "another file has been put in its place".to_owned()
    } else if bytes != bytes_now {
        format!("its size has changed from {bytes} to {bytes_now} bytes")
    } else if identity != identity_now {
        "it has been written to".to_owned()
    } else {
        return Ok(());
    };
    Err(FileChanged {
        path: path.to_owned(),
        change,
    })
}

/// Opens with O_DIRECT and finds the alignment, or `None` where the filesystem
/// refuses either.
fn open_direct(path: &Path) -> Option<(File, usize)> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .ok()?;
    let alignment = stated_alignment(&file).unwrap_or(DIRECT_ALIGNMENT_MAX);
    // Stated to be none: such a file takes the flag and is read through the cache.
    if alignment == 0 {
        return None;
    }
    // Some filesystems take the flag and refuse the reads.
    let mut probe = ProbeBuffer([0; DIRECT_ALIGNMENT_MAX]);
    let length = alignment.min(DIRECT_ALIGNMENT_MAX);
    file.read_at(&mut probe.0[..length], 0).ok()?;
    (alignment <= DIRECT_ALIGNMENT_MAX).then_some((file, alignment))
}

/// Opens without O_DIRECT and without readahead: what the kernel reads beyond a
/// window would stay in the page cache, where nothing drops it.
fn open_cached(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    let _ = posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_RANDOM);
    Ok(file)
}

#[repr(align(4096))]
struct ProbeBuffer([u8; DIRECT_ALIGNMENT_MAX]);

/// The larger of the memory and the offset alignment that `statx` states for
/// direct I/O (Linux 6.1 and later), if it states any; 0 for a file that cannot be
/// read directly.
fn stated_alignment(file: &File) -> Option<usize> {
    // SAFETY: `statx` is plain old data, for which all zeroes is a value.
    let mut status: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open for the whole call, the path is an empty C
    // string as AT_EMPTY_PATH asks for, and `status` is writable and of the right type.
    let code = unsafe {
        libc::statx(
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_DIOALIGN,
            &raw mut status,
        )
    };
    (code == 0).then(|| alignment_in(&status)).flatten()
}

fn alignment_in(status: &libc::statx) -> Option<usize> {
    let stated = status.stx_mask & libc::STATX_DIOALIGN != 0;
    let alignment = status.stx_dio_mem_align.max(status.stx_dio_offset_align) as usize;
    (stated && (alignment == 0 || alignment.is_power_of_two())).then_some(alignment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_covers_the_wanted_bytes_and_starts_aligned() {
        let window = AlignedRange::around(5000, 100, 4096);
        assert_eq!(
            window,
            AlignedRange {
                offset: 4096,
                bytes: 4096,
                skip: 904
            }
        );
        let straddling = AlignedRange::around(8191, 2, 4096);
        assert_eq!((straddling.offset, straddling.bytes), (4096, 8192));
        let exact = AlignedRange::around(7, 9, 1);
        assert_eq!((exact.offset, exact.bytes, exact.skip), (7, 9, 0));
    }

    #[test]
    fn an_alignment_is_taken_as_stated_and_none_means_no_direct_reads() {
        let stated = |mask, memory, offset| {
            // SAFETY: `statx` is plain old data, for which all zeroes is a value.
            let mut status: libc::statx = unsafe { std::mem::zeroed() };
            status.stx_mask = mask;
            status.stx_dio_mem_align = memory;
            status.stx_dio_offset_align = offset;
            alignment_in(&status)
        };
        let told = libc::STATX_DIOALIGN;
        assert_eq!(stated(told, 4, 512), Some(512));
        assert_eq!(stated(told, 4096, 512), Some(4096));
        assert_eq!(stated(told, 0, 0), Some(0));
        assert_eq!(stated(told, 3, 0), None);
        assert_eq!(stated(0, 512, 512), None);
    }

    #[test]
    fn a_file_that_is_replaced_or_written_to_is_an_error_that_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        std::fs::write(&path, [1; 5000]).unwrap();
        let planned = |path: &Path| {
            let found = std::fs::metadata(path).unwrap();
            ModelFile {
                path: path.to_owned(),
                bytes: found.len(),
                identity: FileIdentity::of(&found),
            }
        };
        let before = planned(&path);
        let files = OpenFiles::open_model(std::slice::from_ref(&before), true).unwrap();
        files.check_unchanged().unwrap();
        let refused = |expected: &str| {
            let opening = OpenFiles::open_model(std::slice::from_ref(&before), true);
            let message = opening.unwrap_err().to_string();
            assert!(message.contains("model.gguf: "), "{message}");
            assert!(message.contains(expected), "{message}");
        };
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(4000).unwrap();
        let shorter = "its size has changed from 5000 to 4000 bytes";
        refused(shorter);
        assert_eq!(files.check_unchanged().unwrap_err().change, shorter);

        file.set_len(5000).unwrap();
        let later = std::time::SystemTime::now() + std::time::Duration::from_secs(5);
        file.set_modified(later).unwrap();
        refused("it has been written to");
        assert!(files.check_unchanged().is_err());

        let files = OpenFiles::open_model(&[planned(&path)], true).unwrap();
        std::fs::write(folder.path().join("other"), [2; 5000]).unwrap();
        std::fs::rename(folder.path().join("other"), &path).unwrap();
        refused("another file has been put in its place");
        files.check_unchanged().unwrap();
    }

    #[test]
    fn a_missing_file_is_an_error_that_names_it() {
        let error = OpenFile::open(Path::new("no/such.gguf"), true).unwrap_err();
        assert!(error.to_string().starts_with("no/such.gguf: "), "{error}");
    }
}
