//! What the page cache holds of a file, and putting it out: a benchmark that starts warm
//! measures memory and not the drive.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use memmap2::MmapOptions;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::unistd::{AccessFlags, access, geteuid};

use crate::page::PageSize;

/// Bytes of a file that are asked about at once, so that the answer, a byte for each
/// page, stays small.
const WINDOW_BYTES: u64 = 1 << 30;

/// Pages of a file, and how many of them are in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CachedPages {
    /// Pages of the file.
    pub pages: u64,
    /// Those in the page cache.
    pub resident: u64,
    /// Whether the kernel tells. To those who neither own a file nor may write to it, it
    /// says that all pages are resident.
    pub is_told: bool,
}

/// Puts a file out of the page cache: writes back what is dirty, then drops what nobody
/// has mapped.
///
/// # Errors
/// When the file cannot be opened or written back, or the kernel refuses the advice.
pub fn evict(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    file.sync_all()?;
    posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
    Ok(())
}

/// Asks what the page cache holds of a file, without reading any of it.
///
/// # Errors
/// When the file cannot be opened or mapped.
pub fn cached_pages(path: &Path) -> io::Result<CachedPages> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    let bytes = metadata.len();
    let is_owner = metadata.uid() == geteuid().as_raw();
    let mut found = CachedPages {
        is_told: is_owner || access(path, AccessFlags::W_OK).is_ok(),
        ..CachedPages::default()
    };
    let mut offset = 0;
    while offset < bytes {
        let window_bytes = (bytes - offset).min(WINDOW_BYTES);
        let pages = resident_in(&file, offset, window_bytes as usize)?;
        found.pages += pages.len() as u64;
        found.resident += pages.iter().filter(|&&page| page & 1 == 1).count() as u64;
        offset += window_bytes;
    }
    Ok(found)
}

/// A byte for each page of the window, of which the lowest bit says whether it is resident.
fn resident_in(file: &File, offset: u64, bytes: usize) -> io::Result<Vec<u8>> {
    let mut options = MmapOptions::new();
    // SAFETY: nothing reads the mapping, so it does not matter who writes to the file.
    let map = unsafe { options.offset(offset).len(bytes).map(file) }?;
    let mut pages = vec![0_u8; bytes.div_ceil(PageSize::of_system().bytes())];
    // SAFETY: the range is the whole mapping, which begins on a page, and `pages` has a
    // byte for each of its pages.
    let code = unsafe {
        libc::mincore(
            map.as_ptr().cast_mut().cast(),
            map.len(),
            pages.as_mut_ptr().cast(),
        )
    };
    match code {
        0 => Ok(pages),
        _ => Err(io::Error::last_os_error()),
    }
}
