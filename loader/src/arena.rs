//! Anonymous memory for weights, cut into buffers that reads land in.
//!
//! One mapping, allocated once at its final size, so that the plan's figure is the
//! process's figure. A [`SlotBuffer`] keeps the arena alive, because the kernel may
//! write into it after whoever asked for the read has gone.

use std::io;
use std::sync::Arc;

use memmap2::{Advice, MmapMut, UncheckedAdvice};

use crate::files::DIRECT_ALIGNMENT_MAX;
use crate::page::PageSize;

/// A fixed block of page-aligned memory.
#[derive(Debug)]
pub struct Arena {
    start: *mut u8,
    bytes: usize,
    page: PageSize,
    // Dropped, and told what to give back; all access goes through `start`.
    mapping: Option<MmapMut>,
}

// SAFETY: the pointer is into memory that this value owns; who may touch which
// part of it is decided by the slot states, not by the arena.
unsafe impl Send for Arena {}
// SAFETY: as above; the arena itself is never read or written through a shared reference.
unsafe impl Sync for Arena {}

impl Arena {
    /// Maps `bytes` of zeroed memory, rounded up to pages; the pages count against
    /// the process once they are written. As much of it from the front as fills whole
    /// huge pages is in huge pages, where the kernel has any.
    ///
    /// # Errors
    /// When the kernel refuses the mapping.
    pub fn new(bytes: usize, page: PageSize) -> io::Result<Arc<Self>> {
        let bytes = bytes.next_multiple_of(page.bytes());
        if bytes == 0 {
            return Ok(Arc::new(Self {
                start: std::ptr::dangling_mut(),
                bytes: 0,
                page,
                mapping: None,
            }));
        }
        let huge_bytes = bytes - bytes % page.huge_bytes();
        // The kernel aligns to huge pages as it likes; what is over is never touched.
        let spare_bytes = if huge_bytes > 0 { page.huge_bytes() } else { 0 };
        let mut mapping = MmapMut::map_anon(bytes + spare_bytes)?;
        let skipped = match huge_bytes {
            0 => 0,
            _ => mapping.as_ptr().align_offset(page.huge_bytes()),
        };
        // Refused on some kernels, which is fine. The end gets small pages even where huge
        // ones are the rule, for a huge one would be more than was asked for.
        let _ = mapping.advise_range(Advice::HugePage, skipped, huge_bytes);
        let _ = mapping.advise_range(Advice::NoHugePage, skipped + huge_bytes, bytes - huge_bytes);
        Ok(Arc::new(Self {
            start: mapping.as_mut_ptr().wrapping_add(skipped),
            bytes,
            page,
            mapping: Some(mapping),
        }))
    }

    /// The size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Gives the memory of `bytes` at `offset` back to the kernel. The range is zeroed, and
    /// takes memory again once it is written.
    ///
    /// # Panics
    /// When the range is not inside the arena, or not whole pages.
    ///
    /// # Safety
    /// No slice of a [`View`] or [`SlotBuffer`] of the range is in use, no [`View`] of it is
    /// turned into a slice before the next read there, and no read into it is under way.
    pub(crate) unsafe fn give_back(&self, offset: usize, bytes: usize) {
        assert!(offset <= self.bytes && bytes <= self.bytes - offset);
        // The kernel would zero the whole of the pages at the ends.
        assert!((offset | bytes).is_multiple_of(self.page.bytes()));
        let Some(mapping) = self.mapping.as_ref().filter(|_| bytes > 0) else {
            return;
        };
        let skipped = self.start.addr() - mapping.as_ptr().addr();
        // SAFETY: the range is inside this private anonymous mapping, whose pages read as
        // zeroes afterwards: still initialised. Nothing borrows from `mapping` itself, and
        // the caller vouches that nobody reads or writes the range meanwhile.
        let advised = unsafe {
            mapping.unchecked_advise_range(UncheckedAdvice::DontNeed, skipped + offset, bytes)
        };
        // Only where pages are locked, and those were not to be given back.
        debug_assert!(advised.is_ok(), "{advised:?}");
    }

    /// Takes the memory of `bytes` at `offset` now, as a first write to it would. What is
    /// there stays as it is, so others may read and write meanwhile.
    ///
    /// # Errors
    /// When the kernel has no such call, or no memory.
    ///
    /// # Panics
    /// When the range is not inside the arena.
    pub(crate) fn populate(&self, offset: usize, bytes: usize) -> io::Result<()> {
        assert!(offset <= self.bytes && bytes <= self.bytes - offset);
        let Some(mapping) = self.mapping.as_ref().filter(|_| bytes > 0) else {
            return Ok(());
        };
        let skipped = self.start.addr() - mapping.as_ptr().addr();
        mapping.advise_range(Advice::PopulateWrite, skipped + offset, bytes)
    }

    /// A buffer of `bytes` at `offset`; `registered` is its index among the buffers
    /// that the ring registers with the kernel.
    ///
    /// # Panics
    /// When the range is not inside the arena or a direct read could not land in it.
    ///
    /// # Safety
    /// From the first use of the buffer to the last, no other buffer that overlaps it is used
    /// and no slice of a [`View`] into the range is: that is what the slot states are for. A
    /// buffer that only names the range to the kernel, as the ring's registry does, is not used.
    pub(crate) unsafe fn buffer(
        self: &Arc<Self>,
        offset: usize,
        bytes: usize,
        registered: Option<u16>,
    ) -> SlotBuffer {
        assert!(
            offset.is_multiple_of(DIRECT_ALIGNMENT_MAX),
            "buffer is not aligned"
        );
        assert!(
            offset <= self.bytes && bytes <= self.bytes - offset,
            "buffer of {bytes} at {offset} is outside the arena of {}",
            self.bytes
        );
        SlotBuffer {
            start: self.start.wrapping_add(offset),
            bytes,
            registered,
            _arena: Arc::clone(self),
        }
    }
}

/// Exclusive access to one range of an [`Arena`], for a read to land in.
#[derive(Debug)]
pub struct SlotBuffer {
    start: *mut u8,
    bytes: usize,
    registered: Option<u16>,
    // Keeps the memory mapped until the kernel has finished with it.
    _arena: Arc<Arena>,
}

// SAFETY: whoever made the buffer vouches that of the buffers and views of its range one at
// a time is used, and the range lives as long as the arena that the buffer holds.
unsafe impl Send for SlotBuffer {}

impl SlotBuffer {
    /// The capacity in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The index under which the kernel may know this buffer.
    pub fn registered(&self) -> Option<u16> {
        self.registered
    }

    /// The whole buffer.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the range is inside the arena, which is alive and zero-initialised
        // by the kernel, and whoever made the buffer has left the range to it.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }

    /// Gives up write access and leaves the `bytes` at `skip` to be read.
    ///
    /// # Panics
    /// When the range is not inside the buffer.
    pub fn into_view(self, skip: usize, bytes: usize) -> View {
        assert!(skip <= self.bytes && bytes <= self.bytes - skip);
        View {
            start: self.start.wrapping_add(skip),
            bytes,
        }
    }
}

// SAFETY: the pointer is into a mapping that never moves and lives at least as long
// as the buffer; every byte of it is initialised.
unsafe impl tokio_uring::buf::IoBuf for SlotBuffer {
    fn stable_ptr(&self) -> *const u8 {
        self.start
    }

    fn bytes_init(&self) -> usize {
        self.bytes
    }

    fn bytes_total(&self) -> usize {
        self.bytes
    }
}

// SAFETY: as for `IoBuf`; whoever made the buffer has left the range to the read that it
// was made for, so the kernel may write there.
unsafe impl tokio_uring::buf::IoBufMut for SlotBuffer {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.start
    }

    // Every byte is initialised from the start.
    unsafe fn set_init(&mut self, _position: usize) {}
}

/// Bytes that a finished read has left in memory, in an arena or a mapping.
///
/// A view is an address and a length; whoever owns the memory turns it into a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    start: *const u8,
    bytes: usize,
}

// SAFETY: a view is inert; reading through it is the unsafe act of `View::slice`.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl View {
    /// A view of a slice whose owner outlives the view's use.
    pub(crate) fn of(slice: &[u8]) -> Self {
        Self {
            start: slice.as_ptr(),
            bytes: slice.len(),
        }
    }

    /// The length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The `bytes` at `start` of this view.
    ///
    /// # Panics
    /// When the range is not inside the view.
    pub(crate) fn part(self, start: usize, bytes: usize) -> Self {
        assert!(start <= self.bytes && bytes <= self.bytes - start);
        Self {
            start: self.start.wrapping_add(start),
            bytes,
        }
    }

    /// The viewed bytes.
    ///
    /// # Safety
    /// The memory must be alive and unwritten for as long as the slice is used.
    pub(crate) unsafe fn slice<'a>(self) -> &'a [u8] {
        // SAFETY: the caller vouches for the memory; it was initialised by a read or the kernel.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    fn page() -> PageSize {
        PageSize::of_system()
    }

    fn buffer(arena: &Arc<Arena>, offset: usize, bytes: usize) -> SlotBuffer {
        // SAFETY: the tests use buffers that overlap one after the other.
        unsafe { arena.buffer(offset, bytes, None) }
    }

    #[test]
    fn buffers_of_an_arena_are_page_aligned_and_disjoint() {
        let arena = Arena::new(3 * page().bytes(), page()).unwrap();
        let mut first = buffer(&arena, 0, page().bytes());
        let mut second = buffer(&arena, page().bytes(), 2 * page().bytes());
        first.as_mut_slice().fill(1);
        second.as_mut_slice().fill(2);
        assert!(first.as_mut_slice().iter().all(|&byte| byte == 1));
        assert_eq!(second.as_mut_slice().as_ptr() as usize % page().bytes(), 0);
    }

    #[test]
    fn what_is_given_back_is_zeroed_and_can_be_used_again() {
        let arena = Arena::new(3 * page().bytes(), page()).unwrap();
        let middle = || buffer(&arena, page().bytes(), page().bytes());
        buffer(&arena, 0, 3 * page().bytes()).as_mut_slice().fill(7);
        // SAFETY: what was made before is not used any more.
        unsafe {
            arena.give_back(page().bytes(), page().bytes());
            arena.give_back(3 * page().bytes(), 0);
        }
        assert!(middle().as_mut_slice().iter().all(|&byte| byte == 0));
        middle().as_mut_slice().fill(8);
        let mut whole = buffer(&arena, 0, 3 * page().bytes());
        let sum: usize = whole.as_mut_slice().iter().map(|&it| usize::from(it)).sum();
        assert_eq!(sum, (7 + 8 + 7) * page().bytes());
    }

    #[test]
    fn an_arena_that_holds_huge_pages_starts_on_one_and_is_usable_to_its_end() {
        let bytes = 2 * page().huge_bytes() + page().bytes();
        let arena = Arena::new(bytes, page()).unwrap();
        let mut whole = buffer(&arena, 0, bytes);
        assert_eq!(
            whole.as_mut_slice().as_ptr() as usize % page().huge_bytes(),
            0
        );
        whole.as_mut_slice().fill(3);
        assert_eq!(whole.as_mut_slice()[bytes - 1], 3);
    }

    #[test]
    fn less_than_a_whole_page_is_not_given_back() {
        let page = PageSize::new(64 << 10);
        let arena = Arena::new(2 * page.bytes() - 1, page).unwrap();
        assert_eq!(arena.bytes(), 2 * page.bytes());
        buffer(&arena, 0, arena.bytes()).as_mut_slice().fill(7);
        for (offset, bytes) in [(16 << 10, 64 << 10), (0, 80 << 10)] {
            // SAFETY: what was made before is not used any more.
            let given_back = || unsafe { arena.give_back(offset, bytes) };
            assert!(catch_unwind(AssertUnwindSafe(given_back)).is_err());
        }
        // SAFETY: as above.
        unsafe { arena.give_back(page.bytes(), page.bytes()) };
        let mut whole = buffer(&arena, 0, arena.bytes());
        let (first, second) = whole.as_mut_slice().split_at(page.bytes());
        assert!(first.iter().all(|&byte| byte == 7) && second.iter().all(|&byte| byte == 0));
    }

    #[test]
    #[should_panic(expected = "outside the arena")]
    fn a_buffer_past_the_end_is_refused() {
        let _ = buffer(
            &Arena::new(page().bytes(), page()).unwrap(),
            0,
            page().bytes() + 1,
        );
    }

    #[test]
    fn a_buffer_outlives_the_handle_to_its_arena() {
        let arena = Arena::new(page().bytes(), page()).unwrap();
        let mut buffer = buffer(&arena, 0, page().bytes());
        drop(arena);
        buffer.as_mut_slice()[0] = 7;
        assert_eq!(buffer.as_mut_slice()[0], 7);
    }
}
