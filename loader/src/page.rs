//! The pages that memory, and what the page cache holds of a file, come in.

use std::sync::OnceLock;

use nix::unistd::{SysconfVar, sysconf};

use crate::aligned_range::AlignedRange;
use crate::gguf::Extent;

/// Bytes of a page: 4 KiB on x86-64, and on AArch64 4, 16 or 64 KiB, as the kernel was built.
///
/// Memory is counted, locked and given back in whole pages. What reads with O_DIRECT have to be
/// aligned to is another thing: [`crate::files::DIRECT_ALIGNMENT_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageSize(usize);

impl PageSize {
    /// The smallest that a Linux system has.
    const BYTES_MIN: usize = 4096;

    /// That of the system, asked for once.
    pub fn of_system() -> Self {
        static FOUND: OnceLock<PageSize> = OnceLock::new();
        *FOUND.get_or_init(|| {
            let found = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
            let found = found.and_then(|bytes| usize::try_from(bytes).ok());
            Self::new(found.unwrap_or(Self::BYTES_MIN))
        })
    }

    /// Pages of `bytes`, for plans for another system.
    ///
    /// # Panics
    /// When that is no power of two, or less than 4 KiB.
    pub fn new(bytes: usize) -> Self {
        assert!(
            bytes.is_power_of_two() && bytes >= Self::BYTES_MIN,
            "a page of {bytes} bytes, expected a power of two from 4096 on"
        );
        Self(bytes)
    }

    /// Bytes of a page.
    pub fn bytes(self) -> usize {
        self.0
    }

    /// Bytes of a huge page: as many pages as a page of the page table has entries of eight
    /// bytes, 2 MiB where pages are of 4 KiB. A drive may read into these several times as fast
    /// as into scattered pages, each of which is a piece of its own in a request.
    pub fn huge_bytes(self) -> usize {
        self.0 / 8 * self.0
    }

    /// The pages that hold an extent, as a window of its file.
    pub(crate) fn window(self, extent: &Extent) -> AlignedRange {
        AlignedRange::around(extent.offset, extent.bytes as usize, self.0)
    }

    /// Bytes of the pages that hold an extent.
    pub fn held_bytes(self, extent: &Extent) -> u64 {
        self.window(extent).bytes as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_huge_page_is_what_a_page_of_the_page_table_maps() {
        let huge_bytes = |kib: usize| PageSize::new(kib << 10).huge_bytes() >> 20;
        assert_eq!([4, 16, 64].map(huge_bytes), [2, 32, 512]);
    }

    #[test]
    fn an_extent_is_held_in_whole_pages_of_any_size() {
        let extent = Extent {
            file: 0,
            offset: (16 << 10) - 1,
            bytes: 2,
        };
        let held_bytes = |kib: usize| PageSize::new(kib << 10).held_bytes(&extent) >> 10;
        assert_eq!([4, 16, 64].map(held_bytes), [8, 32, 64]);
    }

    #[test]
    fn the_system_has_a_page_size_that_its_mappings_are_aligned_to() {
        let page = PageSize::of_system();
        assert_eq!(page, PageSize::of_system());
        let map = memmap2::MmapMut::map_anon(1).unwrap();
        assert_eq!(map.as_ptr().align_offset(page.bytes()), 0);
    }
}
