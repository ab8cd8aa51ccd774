//! The file's mapping, used in place: no copy, and the page cache is the memory.
//!
//! A read faults its pages in from a thread of the pool, so that the engine does not
//! stop at each; a release gives them back to the kernel, so that the slots bound
//! what is resident here as they do elsewhere. The kernel brings in and keeps more
//! than it is asked for: a fault maps the whole folio it falls into, and a large folio
//! is dropped only as a whole. A fault and a release therefore clean up on both sides,
//! up to what is still in use. Asking the kernel for pages and giving them back takes
//! as long as computing on them, so a thread does nothing else, in the order of the
//! calls: what is given back goes before what is asked for next comes.
//!
//! The kernel is asked for the pages by a call that answers (Linux 5.14), so a drive's error
//! while they are faulted in is an error of the read, as with the other readers. Pages that are
//! lost afterwards, because the file has shrunk or because they were reclaimed and cannot be
//! read again, raise SIGBUS when they are computed on, as with every mapping.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crossbeam::channel::{Receiver, Sender, bounded};
use memmap2::{Advice, Mmap, UncheckedAdvice};

use super::time_slice::run_at_once;
use super::{Backend, Description, ReadError, ReadLimits, ReadRequest, Reader};
use crate::aligned_range::AlignedRange;
use crate::arena::View;
use crate::files::OpenFiles;
use crate::gguf::Extent;
use crate::page::PageSize;

pub(super) const DESCRIPTION: Description = Description {
    backend: Backend::Mmap,
    name: "mmap",
    summary: "Map the file into memory",
    uses_io_uring: false,
    needs_buffers: false,
    remedy: |_| "raise the limit on address space (ulimit -v)".to_owned(),
    start: |files, _, limits| Ok(Box::new(MmapReader::start(files, limits)?)),
};

/// One thread faults pages in while another may wait for the drive.
const THREADS_MAX: usize = 2;

/// Bytes that the kernel reads for one advice at least, whatever is set for the
/// device; of a longer range it may leave out the rest.
const ADVICE_BYTES: usize = 128 << 10;

pub(super) struct MmapReader {
    calls: Option<Sender<Call>>,
    threads: Vec<JoinHandle<()>>,
}

/// What the advising thread is to do.
enum Call {
    /// Ask for the pages, then have them faulted in.
    Read(ReadRequest),
    /// Give the pages back.
    Release(Extent),
}

struct Maps {
    files: Arc<OpenFiles>,
    // `None` for an empty shard, which cannot be mapped and holds no tensor.
    maps: Vec<Option<Mmap>>,
    page: PageSize,
    // Without it nothing is released, and nothing is noted in `in_use`.
    streams: bool,
    in_use: Mutex<InUse>,
}

impl MmapReader {
    /// With an `in_use_max`, bytes will be released, so that the kernel should bring in
    /// no more than what is asked for.
    pub(super) fn start(files: Arc<OpenFiles>, limits: ReadLimits) -> io::Result<Self> {
        let streams = limits.in_use_max.is_some();
        let maps = files
            .iter()
            .map(|file| {
                if file.bytes() == 0 {
                    return Ok(None);
                }
                // SAFETY: the mapping is read-only and private to this reader. Another
                // process may still change the file; its bytes are then other numbers,
                // never a broken invariant, because weights are plain data.
                let map = unsafe { Mmap::map(file.file()) }?;
                if streams {
                    let _ = map.advise(Advice::Random);
                }
                Ok(Some(map))
            })
            .collect::<io::Result<_>>()?;
        let page = PageSize::of_system();
        // A read that nobody wants may be given back after its slot is free again.
        let in_use_max = limits.in_use_max.map_or(0, |count| count + THREADS_MAX);
        let maps = Arc::new(Maps {
            files,
            maps,
            page,
            streams,
            in_use: Mutex::new(InUse::with_capacity(in_use_max, page)),
        });
        // A slot may have its last bytes to give back and its next read to begin.
        let (calls, calls_made) = bounded(2 * limits.depth);
        let (requests, advised) = bounded(limits.depth);
        let start = |name: String, body: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name).spawn(body)
        };
        let mut threads = Vec::with_capacity(1 + THREADS_MAX);
        let advised_maps = Arc::clone(&maps);
        threads.push(start(
            "emel-mmap-advice".to_owned(),
            Box::new(move || advise(&advised_maps, &calls_made, &requests)),
        )?);
        for index in 0..THREADS_MAX {
            let (maps, advised) = (Arc::clone(&maps), advised.clone());
            threads.push(start(
                format!("emel-mmap-{index}"),
                Box::new(move || serve(&maps, &advised)),
            )?);
        }
        Ok(Self {
            calls: Some(calls),
            threads,
        })
    }

    fn call(&self, call: Call) {
        if let Some(calls) = &self.calls {
            // With the thread gone a read comes back and its drop reports it.
            let _ = calls.send(call);
        }
    }
}

impl Reader for MmapReader {
    fn backend(&self) -> Backend {
        Backend::Mmap
    }

    fn submit(&self, request: ReadRequest) {
        self.call(Call::Read(request));
    }

    fn release(&self, extent: &Extent) {
        self.call(Call::Release(*extent));
    }
}

impl Drop for MmapReader {
    fn drop(&mut self) {
        self.calls = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn advise(maps: &Maps, calls: &Receiver<Call>, requests: &Sender<ReadRequest>) {
    run_at_once();
    for call in calls {
        match call {
            Call::Read(request) => {
                maps.will_need(&request.extent);
                let _ = requests.send(request);
            }
            Call::Release(extent) => maps.do_not_need(&extent),
        }
    }
}

fn serve(maps: &Maps, requests: &Receiver<ReadRequest>) {
    run_at_once();
    for request in requests {
        match maps.fault_in(&request.extent) {
            Ok(view) => {
                let read_bytes = request.extent.bytes as usize;
                if !request.completion.succeed(view, read_bytes) {
                    maps.do_not_need(&request.extent);
                }
            }
            Err(error) => {
                maps.do_not_need(&request.extent);
                request.completion.fail(error);
            }
        }
    }
}

impl Maps {
    /// Rounded outward: a page that is half wanted is wanted.
    fn will_need(&self, extent: &Extent) {
        if self.streams {
            self.lock().insert(*extent);
        }
        let Some(map) = &self.maps[extent.file] else {
            return;
        };
        let pages = pages_of(extent, self.page);
        for start in pages.clone().step_by(ADVICE_BYTES) {
            let end = (start + ADVICE_BYTES).min(pages.end).min(map.len());
            if let Some(length) = end.checked_sub(start) {
                let _ = map.advise_range(Advice::WillNeed, start, length);
            }
        }
    }

    /// Gives the extent's pages back, and what lies next to them unused.
    fn do_not_need(&self, extent: &Extent) {
        let own = pages_of(extent, self.page);
        let mut in_use = self.lock();
        if !in_use.remove(extent) {
            return;
        }
        for pages in in_use.gaps(extent) {
            if pages.start > own.end || pages.end < own.start {
                continue;
            }
            self.unmap(extent.file, pages.clone());
            self.files.get(extent.file).drop_cached(AlignedRange {
                offset: pages.start as u64,
                bytes: pages.len(),
                skip: 0,
            });
        }
    }

    /// A fault has mapped the whole folio it fell into, and perhaps others.
    fn unmap_around(&self, extent: &Extent) {
        for pages in self.lock().gaps(extent) {
            self.unmap(extent.file, pages);
        }
    }

    fn unmap(&self, file: usize, pages: Range<usize>) {
        let Some(map) = &self.maps[file] else {
            return;
        };
        let pages = pages.start..pages.end.min(map.len());
        if pages.is_empty() {
            return;
        }
        // SAFETY: the advice drops clean pages of a read-only file mapping; they are
        // read from the file again when they are touched.
        let _ = unsafe {
            map.unchecked_advise_range(UncheckedAdvice::DontNeed, pages.start, pages.len())
        };
    }

    fn lock(&self) -> MutexGuard<'_, InUse> {
        // A poisoned list is still a list: every change is a single call.
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fault_in(&self, extent: &Extent) -> Result<View, ReadError> {
        let map = self.check_length(extent)?;
        let (start, wanted) = (extent.offset as usize, extent.bytes as usize);
        match map.advise_range(Advice::PopulateRead, start, wanted) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                touch(&map[start..start + wanted], self.page);
            }
            Err(error) => {
                self.check_length(extent)?;
                return Err(ReadError::Failed {
                    path: self.files.get(extent.file).path().to_owned(),
                    offset: extent.offset,
                    wanted,
                    got: 0,
                    message: cause(error),
                });
            }
        }
        if self.streams {
            self.unmap_around(extent);
        }
        Ok(View::of(&map[start..start + wanted]))
    }

    /// The file's mapping, if the file has the whole extent now, whatever it had when it was
    /// mapped.
    fn check_length(&self, extent: &Extent) -> Result<&Mmap, ReadError> {
        let file = self.files.get(extent.file);
        let mapped = self.maps[extent.file].as_ref();
        let file_bytes = file.file().metadata().map_or(0, |status| status.len());
        let file_bytes = file_bytes.min(mapped.map_or(0, |map| map.len() as u64));
        let got = file_bytes.saturating_sub(extent.offset).min(extent.bytes);
        match mapped {
            Some(map) if got == extent.bytes => Ok(map),
            _ => Err(ReadError::Short {
                path: file.path().to_owned(),
                offset: extent.offset,
                wanted: extent.bytes as usize,
                got: got as usize,
            }),
        }
    }
}

/// Reads a byte of each page, where the kernel has no call that does: an error of the drive
/// raises SIGBUS then.
fn touch(bytes: &[u8], page: PageSize) {
    for page in bytes.chunks(page.bytes()) {
        std::hint::black_box(page[0]);
    }
    // Chunks that straddle pages do not begin on the last one.
    std::hint::black_box(bytes.last().copied());
}

/// What kept pages from being faulted in. Where touching one would raise SIGBUS the kernel
/// speaks of a bad address, whatever the drive has said.
fn cause(error: io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EFAULT) => io::Error::from_raw_os_error(libc::EIO),
        _ => error,
    }
    .to_string()
}

/// The pages that hold an extent.
fn pages_of(extent: &Extent, page: PageSize) -> Range<usize> {
    let pages = page.window(extent);
    let start = pages.offset as usize;
    start..start + pages.bytes
}

/// The extents that were asked for and not given back, in the order of the files:
/// those of the slots, of experts in theirs, and the pinned units.
struct InUse {
    extents: Vec<Extent>,
    page: PageSize,
    /// Bytes of the longest that there has been.
    longest: u64,
}

impl InUse {
    fn with_capacity(count: usize, page: PageSize) -> Self {
        Self {
            extents: Vec::with_capacity(count),
            page,
            longest: 0,
        }
    }

    fn insert(&mut self, extent: Extent) {
        debug_assert!(
            self.extents.len() < self.extents.capacity(),
            "more extents in use than the list has been made for"
        );
        self.longest = self.longest.max(extent.bytes);
        let place = self.place_of(extent.file, extent.offset);
        self.extents.insert(place, extent);
    }

    /// Returns whether it was there.
    fn remove(&mut self, extent: &Extent) -> bool {
        let place = self.place_of(extent.file, extent.offset);
        let found = self.extents[place..].iter().position(|it| it == extent);
        found.is_some_and(|after| {
            self.extents.remove(place + after);
            true
        })
    }

    /// The pages that nobody uses in an extent and as far around it as cleaning reaches: the
    /// largest folio that a file's pages come in.
    fn gaps(&self, extent: &Extent) -> impl Iterator<Item = Range<usize>> {
        let own = pages_of(extent, self.page);
        let (page, reach_bytes) = (self.page, self.page.huge_bytes());
        let mut start = own.start.saturating_sub(reach_bytes);
        let end = own.end + reach_bytes;
        let first = self.place_of(
            extent.file,
            (start as u64).saturating_sub(self.longest + page.bytes() as u64),
        );
        let used = self.extents[first..]
            .iter()
            .take_while(move |it| it.file == extent.file && (it.offset as usize) < end)
            .map(move |extent| pages_of(extent, page));
        used.chain(std::iter::once(end..end))
            .filter_map(move |pages| {
                let gap = start..pages.start;
                start = start.max(pages.end);
                (!gap.is_empty()).then_some(gap)
            })
    }

    /// Where an extent at this offset is, or belongs.
    fn place_of(&self, file: usize, offset: u64) -> usize {
        self.extents
            .partition_point(|it| (it.file, it.offset) < (file, offset))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::path::Path;

    use super::*;
    use crate::page_cache::{cached_pages, evict};

    const PAGE: u64 = 4096;
    const REACH: u64 = 512;

    fn extent(offset: u64, bytes: u64) -> Extent {
        Extent {
            file: 0,
            offset,
            bytes,
        }
    }

    /// The gaps, in pages of 4 KiB, around an extent that is given back while others are in use.
    fn gaps(others: &[Extent], own: Extent) -> Vec<(u64, u64)> {
        gaps_of(4, others, own)
    }

    /// The gaps in pages of so many KiB.
    fn gaps_of(page_kib: usize, others: &[Extent], own: Extent) -> Vec<(u64, u64)> {
        let size = PageSize::new(page_kib << 10);
        let mut in_use = InUse::with_capacity(4, size);
        in_use.insert(own);
        for other in others {
            in_use.insert(*other);
        }
        assert!(in_use.remove(&own));
        assert_eq!(in_use.extents.len(), others.len());
        let page = |bytes: usize| (bytes / size.bytes()) as u64;
        let in_pages = |gap: Range<usize>| (page(gap.start), page(gap.end));
        in_use.gaps(&own).map(in_pages).collect()
    }

    #[test]
    fn a_page_that_two_units_share_goes_with_the_second_of_them() {
        let first = extent(1000 * PAGE, 2 * PAGE + 100);
        let second = extent(1002 * PAGE + 100, 2 * PAGE);
        assert_eq!(
            gaps(&[second], first),
            [(1000 - REACH, 1002), (1005, 1003 + REACH)]
        );
        assert_eq!(
            gaps(&[first], second),
            [(1002 - REACH, 1000), (1003, 1005 + REACH)]
        );
        assert_eq!(gaps(&[], second), [(1002 - REACH, 1005 + REACH)]);
    }

    #[test]
    fn what_is_between_extents_in_use_is_unused_and_other_files_are_others() {
        let others = [
            extent(0, 10),
            extent(9 * PAGE, PAGE),
            extent(8 * PAGE, PAGE + 1),
        ];
        let own = extent(4 * PAGE, 10);
        assert_eq!(gaps(&others, own), [(1, 8), (10, 5 + REACH)]);
        let elsewhere = Extent { file: 1, ..own };
        assert_eq!(gaps(&[elsewhere], own), [(0, 5 + REACH)]);
        assert_eq!(gaps(&[own], elsewhere), [(0, 5 + REACH)]);
    }

    #[test]
    fn what_is_inside_an_extent_in_use_or_in_use_twice_stays() {
        let unit = extent(PAGE, 5000 * PAGE);
        assert_eq!(gaps(&[unit], extent(2000 * PAGE, 10)), []);
        let small = extent(PAGE, PAGE);
        assert_eq!(gaps(&[small], small), [(0, 1), (2, 2 + REACH)]);
    }

    #[test]
    fn a_row_in_use_keeps_its_own_page_and_not_the_unit_around_it() {
        let row = extent(5 * PAGE + 7, 100);
        assert_eq!(
            gaps(&[row], extent(PAGE, 8 * PAGE)),
            [(0, 5), (6, 9 + REACH)]
        );
    }

    #[test]
    fn larger_pages_are_shared_by_more_extents_and_cleaned_further_around() {
        let (first, second) = (
            extent(1 << 30, 100),
            extent((1 << 30) + (15 << 10), 2 << 10),
        );
        let start = (1 << 30) / (16 << 10);
        assert_eq!(
            gaps_of(16, &[second], first),
            [(start - 2048, start), (start + 2, start + 1 + 2048)]
        );
        assert_eq!(
            gaps_of(16, &[first], second),
            [(start - 2048, start), (start + 1, start + 2 + 2048)]
        );
        let start = (1 << 30) / (64 << 10);
        assert_eq!(
            gaps_of(64, &[first], second),
            [(start - 8192, start), (start + 1, start + 1 + 8192)]
        );
    }

    /// The mapping of one file, though the other is the one that is open.
    fn maps(folder: &Path, mapped: &str, opened: &str) -> Maps {
        let file = File::open(folder.join(mapped)).unwrap();
        // SAFETY: bytes behind the file's end are never looked at.
        let map = unsafe { Mmap::map(&file) }.unwrap();
        let path = folder.join(opened);
        Maps {
            files: Arc::new(OpenFiles::open([path.as_path()], false).unwrap()),
            maps: vec![Some(map)],
            page: PageSize::of_system(),
            streams: false,
            in_use: Mutex::new(InUse::with_capacity(1, PageSize::of_system())),
        }
    }

    #[test]
    fn a_page_that_cannot_be_read_is_an_error_and_no_signal() {
        let page = PageSize::of_system().bytes();
        let folder = tempfile::tempdir().unwrap();
        for name in ["shrinks", "stays"] {
            std::fs::write(folder.path().join(name), vec![7; 9 * page]).unwrap();
        }
        let deceived = maps(folder.path(), "shrinks", "stays");
        let honest = maps(folder.path(), "shrinks", "shrinks");
        let all = extent(page as u64 + 5, 7 * page as u64);
        assert_eq!(deceived.fault_in(&all).unwrap().bytes(), 7 * page);
        let path = folder.path().join("shrinks");
        let file = File::options().write(true).open(path).unwrap();
        file.set_len(3 * page as u64).unwrap();
        let found = honest.fault_in(&all);
        let got = 2 * page - 5;
        assert!(matches!(found, Err(ReadError::Short { got: found, .. }) if found == got));
        let map = deceived.maps[0].as_ref().unwrap();
        let refused = map.advise_range(Advice::PopulateRead, 0, map.len());
        if refused.unwrap_err().raw_os_error() == Some(libc::EINVAL) {
            return eprintln!("skipped: the kernel has no call that faults pages in");
        }
        let error = deceived.fault_in(&all).unwrap_err().to_string();
        let wanted = format!(
            "read 0 of {} bytes at offset {}: Input/output",
            7 * page,
            page + 5
        );
        assert!(error.contains(&wanted), "{error}");
        assert!(error.contains("check the drive"), "{error}");
        assert!(deceived.fault_in(&extent(page as u64, 100)).is_ok());
    }

    #[test]
    fn where_the_kernel_has_no_call_that_faults_pages_in_they_are_touched() {
        let page = PageSize::of_system();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bytes");
        std::fs::write(&path, vec![7; 301 * page.bytes()]).unwrap();
        let maps = maps(folder.path(), "bytes", "bytes");
        evict(&path).unwrap();
        touch(
            &maps.maps[0].as_ref().unwrap()[10..300 * page.bytes() + 1],
            page,
        );
        assert_eq!(cached_pages(&path).unwrap().resident, 301);
    }

    #[test]
    fn an_extent_that_nobody_asked_for_is_not_given_back() {
        assert!(!InUse::with_capacity(0, PageSize::new(4096)).remove(&extent(0, 1)));
    }
}
