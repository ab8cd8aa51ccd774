//! An allocator that counts, for tests that prove what allocates and what does not.
//!
//! ```no_run
//! #[global_allocator]
//! static ALLOCATOR: emel_loader::counting_allocator::CountingAllocator =
//!     emel_loader::counting_allocator::CountingAllocator::new();
//! ```

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The system's allocator with counters of all threads' calls.
#[derive(Debug, Default)]
pub struct CountingAllocator {
    calls: AtomicUsize,
    held_bytes: AtomicUsize,
    held_bytes_max: AtomicUsize,
}

impl CountingAllocator {
    /// Counters at zero.
    pub const fn new() -> Self {
        Self {
            calls: AtomicUsize::new(0),
            held_bytes: AtomicUsize::new(0),
            held_bytes_max: AtomicUsize::new(0),
        }
    }

    /// Allocations and reallocations so far.
    pub fn calls(&self) -> usize {
        self.calls.load(Relaxed)
    }

    /// Bytes allocated and not yet freed.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes.load(Relaxed)
    }

    /// The most bytes held at a time since the last [`CountingAllocator::reset_max`].
    pub fn held_bytes_max(&self) -> usize {
        self.held_bytes_max.load(Relaxed)
    }

    /// Starts [`CountingAllocator::held_bytes_max`] over from what is held now.
    pub fn reset_max(&self) {
        self.held_bytes_max.store(self.held_bytes(), Relaxed);
    }
}

// SAFETY: every call is passed on to the system's allocator as it is; counting changes
// neither its arguments nor its result.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.calls.fetch_add(1, Relaxed);
        let held = self.held_bytes.fetch_add(layout.size(), Relaxed) + layout.size();
        self.held_bytes_max.fetch_max(held, Relaxed);
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        self.held_bytes.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as in `alloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}
