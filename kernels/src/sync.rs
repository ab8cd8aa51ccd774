//! What the pool's threads meet by: the standard library, or loom in its place, which
//! runs a model in every order that the threads' steps can come in (`make loom`).

#[cfg(not(all(emel_loom, test)))]
mod imp {
    use std::time::{Duration, Instant};

    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence};
    pub(crate) use std::sync::{Condvar, Mutex};

    /// Looks between two readings of the clock while spinning.
    const LOOKS_PER_CLOCK: u32 = 64;

    /// Looks whether something has happened, for `time` at most.
    pub(crate) fn spin_until(happened: impl Fn() -> bool, time: Duration) -> bool {
        let mut start = None;
        loop {
            for _ in 0..LOOKS_PER_CLOCK {
                if happened() {
                    return true;
                }
                std::hint::spin_loop();
            }
            if start.get_or_insert_with(Instant::now).elapsed() > time {
                return false;
            }
        }
    }

    /// As the standard library's, with loom's way to its contents.
    #[derive(Debug)]
    pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
            read(self.0.get())
        }

        pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
            write(self.0.get())
        }
    }
}

#[cfg(all(emel_loom, test))]
mod imp {
    use std::time::Duration;

    pub(crate) use loom::cell::UnsafeCell;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence};
    pub(crate) use loom::sync::{Condvar, Mutex};

    /// One look: a model has no clock, and further looks would only repeat it.
    pub(crate) fn spin_until(happened: impl Fn() -> bool, _time: Duration) -> bool {
        happened()
    }
}

pub(crate) use imp::*;
