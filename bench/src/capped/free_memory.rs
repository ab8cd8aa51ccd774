//! Free memory that a run finds as a machine of its own would have it.
//!
//! The host of a virtual machine may take back what is free in it (free page reporting, some
//! seconds after it was freed) and give it again page by page: 2 GB took 3 to 7 seconds, and
//! 0.1 when they had been in use just before. Whichever contender comes first would pay for that.

use std::hint::black_box;

use emel::internals::budget::available_bytes;
use emel_systemd::Memory;

/// Uses `bytes` of free memory once, or what others do not need of it if that is less. Nothing
/// where the kernel does not say how much is free.
pub(super) fn touch(bytes: u64) {
    let free = Memory::default().free().unwrap_or(0);
    let spare = spare_bytes(free, available_bytes().unwrap_or(0));
    let mut memory: Vec<u8> = Vec::new();
    let bytes = usize::try_from(bytes.min(spare)).unwrap_or(0);
    if memory.try_reserve_exact(bytes).is_ok() {
        // Zeroes would be asked of the kernel, which has them without a page.
        memory.resize(bytes, 1);
        black_box(&memory);
    }
}

/// What of the free memory can be used for a moment: within what the cgroup leaves, which may be
/// far less than the machine has, and with room for what others take meanwhile.
fn spare_bytes(free: u64, available: u64) -> u64 {
    let most = free.min(available);
    most - most / 8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_touched_than_the_cgroup_leaves_nor_all_that_is_free() {
        assert_eq!(spare_bytes(64 << 30, 1 << 30), 7 << 27);
        assert_eq!(spare_bytes(1 << 30, 64 << 30), 7 << 27);
        assert_eq!(spare_bytes(0, 1 << 30), 0);
    }
}
