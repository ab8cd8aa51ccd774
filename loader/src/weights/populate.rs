//! Memory of slots made ready before reads land in it.
//!
//! The first write to a huge page has the kernel find and zero it. Where that is a read, it
//! happens on the reader's thread, one page after another, while the drive waits. That costs
//! little on a machine of its own (16 GB/s), and more than the reading on a virtual one whose
//! host has taken back what was free (0.3 to 0.6 GB/s). A thread that only runs when a
//! processor has nothing else to do keeps some memory ready beyond the slots that have been
//! used, so that no more is taken than will be soon.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, Thread};

use crate::arena::Arena;

/// Memory that is kept ready.
const AHEAD_BYTES: usize = 256 << 20;
/// Memory that is made ready in one call: whole pages of any size, and two huge ones where
/// these have 2 MiB.
const STEP_BYTES: usize = 4 << 20;

/// The thread; it ends soon after this is dropped, or when all memory is ready. It is not
/// waited for, because on a busy machine its turn may be a while away; until then it keeps
/// the arena.
pub(super) struct Populate {
    wanted: Arc<Wanted>,
    used_bytes: usize,
    limit_bytes: usize,
    thread: Option<Thread>,
}

struct Wanted {
    bytes: AtomicUsize,
    is_over: AtomicBool,
}

impl Populate {
    /// Begins at the front of the arena. Where the system refuses a thread, reads do it.
    pub(super) fn start(arena: &Arc<Arena>) -> Self {
        let wanted = Arc::new(Wanted {
            bytes: AtomicUsize::new(AHEAD_BYTES),
            is_over: AtomicBool::new(false),
        });
        let (arena, told) = (Arc::clone(arena), Arc::clone(&wanted));
        let thread = thread::Builder::new()
            .name("emel-populate".to_owned())
            .spawn(move || told.serve(&arena));
        Self {
            wanted,
            used_bytes: 0,
            limit_bytes: usize::MAX,
            thread: thread.ok().map(|handle| handle.thread().clone()),
        }
    }

    /// The arena is used up to here.
    pub(super) fn used(&mut self, bytes: usize) {
        let Some(thread) = self.thread.as_ref().filter(|_| bytes > self.used_bytes) else {
            return;
        };
        self.used_bytes = bytes;
        let wanted = bytes.saturating_add(AHEAD_BYTES).min(self.limit_bytes);
        self.wanted.bytes.store(wanted, Ordering::Release);
        thread.unpark();
    }

    /// Nothing is made ready beyond here from now on; a call under way ends.
    pub(super) fn limit(&mut self, bytes: usize) {
        self.limit_bytes = bytes;
        self.wanted.bytes.fetch_min(bytes, Ordering::Release);
    }
}

impl Drop for Populate {
    fn drop(&mut self) {
        self.wanted.is_over.store(true, Ordering::Release);
        if let Some(thread) = &self.thread {
            thread.unpark();
        }
    }
}

impl Wanted {
    fn serve(&self, arena: &Arena) {
        run_when_idle();
        let mut ready = 0;
        while ready < arena.bytes() && !self.is_over.load(Ordering::Acquire) {
            let bytes = self.step_bytes(ready, arena);
            if bytes == 0 {
                thread::park();
                continue;
            }
            // Kernels before 5.14 know no such call.
            if arena.populate(ready, bytes).is_err() {
                return;
            }
            ready += bytes;
        }
    }

    /// What to make ready now beyond the `ready` bytes: nothing where no more is wanted.
    fn step_bytes(&self, ready: usize, arena: &Arena) -> usize {
        let wanted = self.bytes.load(Ordering::Acquire).min(arena.bytes());
        STEP_BYTES.min(wanted.saturating_sub(ready))
    }
}

/// Has the calling thread run only where a processor has nothing else to do. Advice only.
fn run_when_idle() {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameters are readable; thread 0 is the calling one, and the kernel keeps
    // no pointer to them.
    let outcome = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) };
    if outcome != 0 {
        let error = io::Error::last_os_error();
        debug_assert!(error.raw_os_error() != Some(libc::EINVAL), "{error}");
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::page::PageSize;

    #[test]
    fn what_is_in_memory_stays_as_it_is_and_the_rest_is_zero() {
        let arena = Arena::new(3 * STEP_BYTES + 4096, PageSize::of_system()).unwrap();
        // SAFETY: the two buffers of this test do not overlap.
        let mut buffer = unsafe { arena.buffer(STEP_BYTES, 4096, None) };
        buffer.as_mut_slice().fill(7);
        let wanted = Wanted {
            bytes: AtomicUsize::new(usize::MAX),
            is_over: AtomicBool::new(false),
        };
        std::thread::scope(|scope| scope.spawn(|| wanted.serve(&arena)).join().unwrap());
        assert!(buffer.as_mut_slice().iter().all(|&byte| byte == 7));
        // SAFETY: as above.
        let mut end = unsafe { arena.buffer(3 * STEP_BYTES, 4096, None) };
        assert!(end.as_mut_slice().iter().all(|&byte| byte == 0));
    }

    #[test]
    fn nothing_is_made_ready_beyond_the_limit() {
        let arena = Arena::new(3 * STEP_BYTES, PageSize::of_system()).unwrap();
        let wanted = Arc::new(Wanted {
            bytes: AtomicUsize::new(usize::MAX),
            is_over: AtomicBool::new(false),
        });
        let mut populate = Populate {
            wanted: Arc::clone(&wanted),
            used_bytes: 0,
            limit_bytes: usize::MAX,
            thread: Some(thread::current()),
        };
        assert_eq!(wanted.step_bytes(2 * STEP_BYTES, &arena), STEP_BYTES);
        populate.limit(STEP_BYTES + 4096);
        populate.used(STEP_BYTES);
        assert_eq!(wanted.step_bytes(0, &arena), STEP_BYTES);
        assert_eq!(wanted.step_bytes(STEP_BYTES, &arena), 4096);
        assert_eq!(wanted.step_bytes(2 * STEP_BYTES, &arena), 0);
    }

    #[test]
    fn it_ends_with_its_owner_wherever_it_is() {
        let arena = Arena::new(2 * AHEAD_BYTES, PageSize::of_system()).unwrap();
        let mut populate = Populate::start(&arena);
        populate.used(STEP_BYTES);
        populate.used(4096);
        assert_eq!(populate.used_bytes, STEP_BYTES);
        drop(populate);
        let ended = || Arc::strong_count(&arena) == 1;
        for _ in 0..10_000 {
            if ended() {
                break;
            }
            thread::sleep(Duration::from_millis(5));
        }
        assert!(ended());
    }
}
