//! A read that the caller waits for, on its own thread.

use std::os::unix::fs::FileExt;

use super::{Progress, ReadError};
use crate::arena::Arena;
use crate::files::OpenFiles;
use crate::gguf::Extent;
use crate::page::PageSize;

/// The bytes of a small extent, kept out of the page cache.
///
/// # Errors
/// When the read fails or the file has become shorter.
pub fn read_blocking(files: &OpenFiles, extent: &Extent) -> Result<Vec<u8>, ReadError> {
    let file = files.get(extent.file);
    let window = file.window(extent.offset, extent.bytes as usize);
    let failed = |message: String| ReadError::Failed {
        path: file.path().to_owned(),
        offset: extent.offset,
        wanted: extent.bytes as usize,
        got: 0,
        message,
    };
    let arena = Arena::new(window.bytes, PageSize::of_system())
        .map_err(|error| failed(error.to_string()))?;
    // SAFETY: nobody else has the arena.
    let mut buffer = unsafe { arena.buffer(0, window.bytes, None) };
    let mut progress = Progress::new(file, extent);
    loop {
        let (range, offset) = progress.remaining();
        let outcome = file
            .file()
            .read_at(&mut buffer.as_mut_slice()[range], offset);
        if progress.record(file, outcome)? {
            file.drop_cached(window);
            let bytes = &buffer.as_mut_slice()[window.skip..][..extent.bytes as usize];
            return Ok(bytes.to_vec());
        }
    }
}
