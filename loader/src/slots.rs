//! The life of a slot: Free → Reading → Ready → Held → Free.
//!
//! The table is the only thing that a reader's thread and the engine's thread share.
//! A reader completes slots in any order; the engine takes them in its own. A slot
//! whose reader no longer matters is `Abandoned` until its read has landed, so that
//! nothing else is given a buffer that the kernel may still write to.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use crate::arena::View;
use crate::read_error::ReadError;
use crate::sync::{AtomicU64, Mutex, MutexGuard};
use crate::trace::{Activity, Subject, Trace};

#[derive(Debug)]
enum SlotState {
    Free,
    Reading,
    Abandoned,
    Ready(View),
    Failed(ReadError),
    Held,
}

/// The states of all slots, and who waits for them.
#[derive(Debug)]
pub struct SlotTable {
    slots: Box<[Mutex<SlotState>]>,
    waker: Mutex<Option<Waker>>,
    bytes_read: AtomicU64,
    reads: AtomicU64,
    made: Instant,
    /// Nanoseconds from then to the end of the last read.
    last_landed: AtomicU64,
}

/// The duty to report how a slot's read ended. Dropped unreported, it reports that
/// the reader stopped, so that nobody waits for ever.
#[derive(Debug)]
pub struct Completion {
    table: Arc<SlotTable>,
    slot: usize,
    reported: bool,
    traced: Option<TracedRead>,
}

/// What a trace is told of a read when it ends.
#[derive(Debug)]
pub(crate) struct TracedRead {
    pub(crate) trace: Arc<Trace>,
    pub(crate) subject: Subject,
    pub(crate) submitted: Instant,
}

impl SlotTable {
    /// A table of `count` free slots.
    pub fn new(count: usize) -> Arc<Self> {
        Arc::new(Self {
            slots: (0..count).map(|_| Mutex::new(SlotState::Free)).collect(),
            waker: Mutex::new(None),
            bytes_read: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            made: Instant::now(),
            last_landed: AtomicU64::new(0),
        })
    }

    /// The number of slots.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether the table has no slots.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Bytes that reads have brought in, alignment included.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Ordering::Relaxed)
    }

    /// Finished reads.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// When the last successful read ended; when the table was made, if there was none.
    pub fn last_landed(&self) -> Instant {
        self.made + Duration::from_nanos(self.last_landed.load(Ordering::Relaxed))
    }

    /// Free → Reading.
    ///
    /// # Panics
    /// When the slot is not free.
    pub fn begin(self: &Arc<Self>, slot: usize) -> Completion {
        let mut state = self.lock(slot);
        assert!(
            matches!(*state, SlotState::Free),
            "slot {slot} is given a read while it is {state:?}"
        );
        *state = SlotState::Reading;
        Completion {
            table: Arc::clone(self),
            slot,
            reported: false,
            traced: None,
        }
    }

    /// Whether a read may be given to the slot.
    pub fn is_free(&self, slot: usize) -> bool {
        matches!(*self.lock(slot), SlotState::Free)
    }

    /// Ready → Held, with the bytes; Failed → Free, with the error.
    ///
    /// # Panics
    /// When no read was begun on the slot.
    pub fn poll_take(&self, slot: usize) -> Poll<Result<View, ReadError>> {
        let mut state = self.lock(slot);
        let outcome = match &*state {
            SlotState::Reading => return Poll::Pending,
            SlotState::Ready(view) => Ok(*view),
            SlotState::Failed(error) => Err(error.clone()),
            other => panic!("slot {slot} is waited for while it is {other:?}"),
        };
        *state = match outcome {
            Ok(_) => SlotState::Held,
            Err(_) => SlotState::Free,
        };
        Poll::Ready(outcome)
    }

    /// Held → Free.
    ///
    /// # Panics
    /// When the slot is not held.
    pub fn give_back(&self, slot: usize) {
        let mut state = self.lock(slot);
        assert!(
            matches!(*state, SlotState::Held),
            "slot {slot} is given back while it is {state:?}"
        );
        *state = SlotState::Free;
    }

    /// Any state → Free, at once or when the read that is under way has landed.
    /// Returns whether the slot has bytes that are to be released now.
    pub fn abandon(&self, slot: usize) -> bool {
        let mut state = self.lock(slot);
        let has_bytes = matches!(*state, SlotState::Ready(_) | SlotState::Held);
        *state = match *state {
            SlotState::Reading | SlotState::Abandoned => SlotState::Abandoned,
            _ => SlotState::Free,
        };
        has_bytes
    }

    /// Has `waker` called at every completion from now on. Register before looking
    /// at a slot: a completion in between is then not lost.
    pub fn register(&self, waker: &Waker) {
        let mut registered = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        if !registered.as_ref().is_some_and(|old| old.will_wake(waker)) {
            *registered = Some(waker.clone());
        }
    }

    /// Returns whether somebody still waits for the read.
    fn complete(&self, slot: usize, result: Result<View, ReadError>) -> bool {
        let mut state = self.lock(slot);
        let is_wanted = !matches!(*state, SlotState::Abandoned);
        *state = match (&*state, result) {
            (SlotState::Abandoned, _) => SlotState::Free,
            (SlotState::Reading, Ok(view)) => SlotState::Ready(view),
            (SlotState::Reading, Err(error)) => SlotState::Failed(error),
            (other, _) => panic!("a read of slot {slot} ends while it is {other:?}"),
        };
        drop(state);
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waker) = waker.as_ref() {
            waker.wake_by_ref();
        }
        is_wanted
    }

    // A poisoned state is still a state: every transition is a single assignment.
    fn lock(&self, slot: usize) -> MutexGuard<'_, SlotState> {
        self.slots[slot]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Completion {
    /// Has the read's success recorded.
    pub(crate) fn traced(mut self, read: Option<TracedRead>) -> Self {
        self.traced = read;
        self
    }

    /// The read has brought the viewed bytes, and `bytes_read` in all. Returns whether
    /// somebody still waits for them.
    pub fn succeed(mut self, view: View, bytes_read: usize) -> bool {
        if let Some(read) = self.traced.take() {
            let (slot, bytes) = (self.slot, bytes_read as u64);
            let length = read.submitted.elapsed();
            read.trace.record(
                Activity::Read { slot, bytes },
                read.subject,
                read.submitted,
                length,
            );
        }
        let table = &self.table;
        table
            .bytes_read
            .fetch_add(bytes_read as u64, Ordering::Relaxed);
        table.reads.fetch_add(1, Ordering::Relaxed);
        let now = table.made.elapsed().as_nanos() as u64;
        table.last_landed.fetch_max(now, Ordering::Relaxed);
        self.reported = true;
        self.table.complete(self.slot, Ok(view))
    }

    /// The read has failed.
    pub fn fail(mut self, error: ReadError) {
        self.reported = true;
        self.table.complete(self.slot, Err(error));
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        if !self.reported {
            self.table.complete(self.slot, Err(ReadError::Stopped));
        }
    }
}

#[cfg(all(emel_loom, test))]
mod interleavings;

#[cfg(all(test, not(emel_loom)))]
mod tests {
    use super::*;

    fn view() -> View {
        View::of(b"abc")
    }

    #[test]
    fn a_slot_goes_once_around() {
        let table = SlotTable::new(1);
        let completion = table.begin(0);
        assert!(table.poll_take(0).is_pending());
        completion.succeed(view(), 3);
        assert_eq!(table.poll_take(0), Poll::Ready(Ok(view())));
        assert!(!table.is_free(0));
        table.give_back(0);
        assert!(table.is_free(0));
        assert_eq!((table.bytes_read(), table.reads()), (3, 1));
    }

    #[test]
    fn an_abandoned_slot_is_free_only_when_its_read_has_landed() {
        let table = SlotTable::new(1);
        let completion = table.begin(0);
        assert!(!table.abandon(0));
        assert!(!table.is_free(0));
        assert!(!completion.succeed(view(), 3));
        assert!(table.is_free(0));
    }

    #[test]
    fn bytes_are_released_by_who_abandons_them_or_by_their_read_and_never_by_both() {
        let table = SlotTable::new(1);
        assert!(table.begin(0).succeed(view(), 3));
        assert!(table.abandon(0));
        assert!(!table.abandon(0));
        assert!(table.begin(0).succeed(view(), 3));
        assert!(table.poll_take(0).is_ready());
        assert!(table.abandon(0), "a step that has panicked leaves it held");
        table.begin(0).fail(ReadError::Stopped);
        assert!(!table.abandon(0));
    }

    #[test]
    fn a_completion_dropped_unreported_is_an_error_not_a_hang() {
        let table = SlotTable::new(1);
        drop(table.begin(0));
        assert_eq!(table.poll_take(0), Poll::Ready(Err(ReadError::Stopped)));
        assert!(table.is_free(0));
    }

    #[test]
    fn waiting_for_an_abandoned_slot_panics_and_leaves_it_to_its_read() {
        let table = SlotTable::new(1);
        let completion = table.begin(0);
        table.abandon(0);
        let waiting = std::panic::AssertUnwindSafe(|| table.poll_take(0));
        assert!(std::panic::catch_unwind(waiting).is_err());
        table.abandon(0);
        assert!(!table.is_free(0));
        completion.succeed(view(), 3);
        assert!(table.is_free(0));
    }

    #[test]
    #[should_panic(expected = "given a read while")]
    fn a_slot_in_use_is_not_given_a_second_read() {
        let table = SlotTable::new(1);
        let _first = table.begin(0);
        let _second = table.begin(0);
    }
}
