//! Free memory that a run finds as a machine of its own would have it.
//!
//! The host of a virtual machine may take back what is free in it (free page reporting, some
//! seconds after it was freed) and give it again page by page: 2 GB took 3 to 7 seconds, and
//! 0.1 when they had been in use just before. Whichever lane comes first would pay for that.

use std::hint::black_box;

use emel_systemd::Memory;

/// Uses `bytes` of free memory once, or all that is free if that is less. Nothing where the
/// kernel does not say how much is.
pub(super) fn touch(bytes: u64) {
    let free = Memory::default().free().unwrap_or(0);
    let mut memory: Vec<u8> = Vec::new();
    let bytes = usize::try_from(bytes.min(free)).unwrap_or(0);
    if memory.try_reserve_exact(bytes).is_ok() {
        // Zeroes would be asked of the kernel, which has them without a page.
        memory.resize(bytes, 1);
        black_box(&memory);
    }
}
