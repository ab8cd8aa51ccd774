//! Slots in every order that the steps of engine and readers can come in: `make loom`.

use std::sync::Arc;
use std::task::{Poll, Wake, Waker};

use loom::cell::UnsafeCell;
use loom::sync::{Condvar, Mutex};
use loom::thread;

use super::SlotTable;
use crate::arena::View;
use crate::read_error::ReadError;

/// Switches from a thread that could go on. Bugs of this kind need two.
const PREEMPTIONS: usize = 3;

fn model(check: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(check);
}

/// An executor of one task: it parks until it is woken, and a wake that comes first is
/// kept. A wake that is lost is a deadlock, which loom reports.
struct Engine {
    is_woken: Mutex<bool>,
    condition: Condvar,
}

impl Wake for Engine {
    fn wake(self: Arc<Self>) {
        *self.is_woken.lock().unwrap() = true;
        self.condition.notify_one();
    }
}

/// Polls as the weights do: registers first, then looks, then parks.
fn wait<T>(table: &SlotTable, mut look: impl FnMut() -> Poll<T>) -> T {
    let engine = Arc::new(Engine {
        is_woken: Mutex::new(false),
        condition: Condvar::new(),
    });
    let waker = Waker::from(Arc::clone(&engine));
    loop {
        table.register(&waker);
        if let Poll::Ready(found) = look() {
            return found;
        }
        let mut is_woken = engine.is_woken.lock().unwrap();
        while !*is_woken {
            is_woken = engine.condition.wait(is_woken).unwrap();
        }
        *is_woken = false;
    }
}

fn until_free(table: &SlotTable, slot: usize) {
    wait(table, || match table.is_free(slot) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    });
}

/// The bytes of a slot, without any synchronisation of their own: loom fails a model in
/// which a reader and the engine come to them unordered.
struct Buffer(UnsafeCell<u64>);

// SAFETY: whether one thread at a time comes to the cell is what loom checks here.
unsafe impl Sync for Buffer {}
// SAFETY: as above; the contents are a number.
unsafe impl Send for Buffer {}

impl Buffer {
    fn new() -> Arc<Self> {
        Arc::new(Self(UnsafeCell::new(0)))
    }

    fn fill(&self, number: u64) {
        self.0.with_mut(|bytes| {
            // SAFETY: loom has just checked that nobody else is here.
            unsafe { *bytes = number }
        });
    }

    fn read(&self) -> u64 {
        self.0.with(|bytes| {
            // SAFETY: loom has just checked that nobody writes.
            unsafe { *bytes }
        })
    }
}

/// A reader's thread: one read of the slot, which writes `number`. Tells whether
/// somebody still waited for it.
fn read(
    table: &Arc<SlotTable>,
    slot: usize,
    buffer: &Arc<Buffer>,
    number: u64,
) -> thread::JoinHandle<bool> {
    let completion = table.begin(slot);
    let buffer = Arc::clone(buffer);
    thread::spawn(move || {
        buffer.fill(number);
        completion.succeed(View::of(b"abc"), 3)
    })
}

#[test]
fn a_read_that_ends_wakes_whoever_waits_and_its_bytes_are_seen() {
    model(|| {
        let table = SlotTable::new(1);
        let buffer = Buffer::new();
        for number in [1, 2] {
            let reader = read(&table, 0, &buffer, number);
            assert!(wait(&table, || table.poll_take(0)).is_ok());
            assert_eq!(buffer.read(), number);
            table.give_back(0);
            assert!(reader.join().unwrap());
        }
    });
}

#[test]
fn reads_that_end_in_another_order_wake_whoever_waits_for_one_of_them() {
    model(|| {
        let table = SlotTable::new(2);
        let buffers = [Buffer::new(), Buffer::new()];
        let readers = [0, 1].map(|slot| read(&table, slot, &buffers[slot], slot as u64 + 7));
        for slot in [1, 0] {
            assert!(wait(&table, || table.poll_take(slot)).is_ok());
            assert_eq!(buffers[slot].read(), slot as u64 + 7);
            table.give_back(slot);
        }
        for reader in readers {
            assert!(reader.join().unwrap());
        }
        assert_eq!((table.bytes_read(), table.reads()), (6, 2));
    });
}

#[test]
fn an_abandoned_slot_is_given_another_read_only_when_the_first_has_landed() {
    model(|| {
        let table = SlotTable::new(1);
        let buffer = Buffer::new();
        let first = read(&table, 0, &buffer, 1);
        let has_bytes = table.abandon(0);
        until_free(&table, 0);
        let second = read(&table, 0, &buffer, 2);
        assert!(wait(&table, || table.poll_take(0)).is_ok());
        assert_eq!(buffer.read(), 2, "the first read has written later");
        table.give_back(0);
        // The bytes are released by the engine or by the reader, never by both.
        assert_eq!(first.join().unwrap(), has_bytes);
        assert!(second.join().unwrap());
    });
}

#[test]
fn a_step_that_is_dropped_at_any_time_loses_neither_slot_nor_wake() {
    model(|| {
        let table = SlotTable::new(1);
        let buffer = Buffer::new();
        let first = read(&table, 0, &buffer, 1);
        // One poll, and the future is dropped.
        table.register(Waker::noop());
        let is_held = table.poll_take(0).is_ready();
        let has_bytes = table.abandon(0);
        assert!(has_bytes || !is_held);
        until_free(&table, 0);
        assert_eq!(first.join().unwrap(), has_bytes);
    });
}

#[test]
fn a_reader_that_stops_wakes_whoever_waits() {
    model(|| {
        let table = SlotTable::new(1);
        let completion = table.begin(0);
        let reader = thread::spawn(move || drop(completion));
        let taken = wait(&table, || table.poll_take(0));
        assert_eq!(taken, Err(ReadError::Stopped));
        assert!(table.is_free(0));
        reader.join().unwrap();
    });
}

#[test]
fn two_readers_one_of_which_is_abandoned_leave_the_other_to_be_taken() {
    model(|| {
        let table = SlotTable::new(2);
        let buffers = [Buffer::new(), Buffer::new()];
        let readers = [0, 1].map(|slot| read(&table, slot, &buffers[slot], 5));
        let has_bytes = table.abandon(0);
        assert!(wait(&table, || table.poll_take(1)).is_ok());
        assert_eq!(buffers[1].read(), 5);
        until_free(&table, 0);
        let [first, second] = readers.map(|reader| reader.join().unwrap());
        assert_eq!(first, has_bytes);
        assert!(second);
    });
}
