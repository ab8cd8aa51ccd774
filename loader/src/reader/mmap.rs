//! The file's mapping, used in place: no copy, and the page cache is the memory.
//!
//! A read faults its pages in from a thread of the pool, so that the engine does not
//! stop at each; a release gives them back to the kernel, so that the slots bound
//! what is resident here as they do elsewhere. A file that shrinks while it is mapped
//! raises SIGBUS on access, as with every mapping: `--io uring` and `--io pread`
//! report an error instead.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam::channel::{Receiver, Sender, bounded};
use memmap2::{Advice, Mmap, UncheckedAdvice};

use super::{Backend, ReadError, ReadRequest, Reader};
use crate::arena::{PAGE_BYTES, View};
use crate::files::{OpenFiles, Window};
use crate::gguf::Extent;

/// One thread faults pages in while another may wait for the drive.
const THREADS_MAX: usize = 2;

pub(super) struct MmapReader {
    maps: Arc<Maps>,
    requests: Option<Sender<ReadRequest>>,
    threads: Vec<JoinHandle<()>>,
}

struct Maps {
    files: Arc<OpenFiles>,
    // `None` for an empty shard, which cannot be mapped and holds no tensor.
    maps: Vec<Option<Mmap>>,
}

impl MmapReader {
    pub(super) fn start(files: Arc<OpenFiles>, depth: usize) -> io::Result<Self> {
        let maps = files
            .iter()
            .map(|file| {
                if file.bytes() == 0 {
                    return Ok(None);
                }
                // SAFETY: the mapping is read-only and private to this reader. Another
                // process may still change the file; its bytes are then other numbers,
                // never a broken invariant, because weights are plain data.
                unsafe { Mmap::map(file.file()) }.map(Some)
            })
            .collect::<io::Result<_>>()?;
        let maps = Arc::new(Maps { files, maps });
        let (sender, receiver) = bounded(depth.max(1));
        let threads = (0..THREADS_MAX)
            .map(|index| {
                let maps = Arc::clone(&maps);
                let receiver = receiver.clone();
                std::thread::Builder::new()
                    .name(format!("emel-mmap-{index}"))
                    .spawn(move || serve(&maps, &receiver))
            })
            .collect::<io::Result<_>>()?;
        Ok(Self {
            maps,
            requests: Some(sender),
            threads,
        })
    }
}

impl Reader for MmapReader {
    fn backend(&self) -> Backend {
        Backend::Mmap
    }

    fn submit(&self, request: ReadRequest) {
        self.maps.will_need(&request.extent);
        if let Some(requests) = &self.requests {
            let _ = requests.send(request);
        }
    }

    fn release(&self, extent: &Extent) {
        self.maps.do_not_need(extent);
    }
}

impl Drop for MmapReader {
    fn drop(&mut self) {
        self.requests = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn serve(maps: &Maps, requests: &Receiver<ReadRequest>) {
    for request in requests {
        match maps.fault_in(&request.extent) {
            Ok(view) => request
                .completion
                .succeed(view, request.extent.bytes as usize),
            Err(error) => request.completion.fail(error),
        }
    }
}

impl Maps {
    /// Rounded outward: a page that is half wanted is wanted.
    fn will_need(&self, extent: &Extent) {
        let Some(map) = &self.maps[extent.file] else {
            return;
        };
        let pages = Window::around(extent.offset, extent.bytes as usize, PAGE_BYTES);
        let end = (pages.offset as usize + pages.bytes).min(map.len());
        if let Some(length) = end.checked_sub(pages.offset as usize) {
            let _ = map.advise_range(Advice::WillNeed, pages.offset as usize, length);
        }
    }

    /// Rounded inward: a page that is shared with a neighbour stays.
    fn do_not_need(&self, extent: &Extent) {
        let Some(map) = &self.maps[extent.file] else {
            return;
        };
        let start = (extent.offset as usize).next_multiple_of(PAGE_BYTES);
        let end = ((extent.offset + extent.bytes) as usize).min(map.len());
        let end = end - end % PAGE_BYTES;
        if start >= end {
            return;
        }
        // SAFETY: the advice drops clean pages of a read-only file mapping; they are
        // read from the file again when they are touched.
        let _ =
            unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, start, end - start) };
        self.files.get(extent.file).drop_cached(Window {
            offset: start as u64,
            bytes: end - start,
            skip: 0,
        });
    }

    fn fault_in(&self, extent: &Extent) -> Result<View, ReadError> {
        let wanted = extent.bytes as usize;
        let file = self.files.get(extent.file);
        let failed = |got: usize| ReadError::Short {
            path: file.path().to_owned(),
            offset: extent.offset,
            wanted,
            got,
        };
        let map = self.maps[extent.file].as_ref().ok_or_else(|| failed(0))?;
        // The length now, not when it was mapped: past it, access is a SIGBUS.
        let file_bytes = file.file().metadata().map_or(0, |status| status.len());
        let start = extent.offset as usize;
        let available = (file_bytes.min(map.len() as u64) as usize).saturating_sub(start);
        if available < wanted {
            return Err(failed(available));
        }
        let bytes = &map[start..start + wanted];
        for page in bytes.chunks(PAGE_BYTES) {
            std::hint::black_box(page[0]);
        }
        // Chunks that straddle pages do not begin on the last one.
        std::hint::black_box(bytes.last().copied());
        Ok(View::of(bytes))
    }
}
