//! Faults for readers, from a seed.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use emel_loader::gguf::Extent;
use emel_loader::reader::Faults;

use crate::random::SplitMix64;

/// How often what goes wrong: one call in so many; 0 for never.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rates {
    /// A part of the bytes that could have been had.
    pub short: u64,
    /// EINTR.
    pub interrupted: u64,
    /// EAGAIN.
    pub try_again: u64,
    /// EIO, and not again at the next calls for the same place.
    pub device_error_once: u64,
    /// A request waits for up to [`Rates::delay_max`].
    pub delay: u64,
    /// The longest delay.
    pub delay_max: Duration,
}

impl Rates {
    /// Everything that passes, often.
    pub const ALL: Self = Self {
        short: 3,
        interrupted: 5,
        try_again: 7,
        device_error_once: 11,
        delay: 3,
        delay_max: Duration::from_micros(300),
    };
}

/// Faults that a seed chooses. Threads ask in an order of their own, so that a seed says
/// what goes wrong, and only with a single thread also where.
#[derive(Debug)]
pub struct SeededFaults {
    rates: Rates,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    random: SplitMix64,
    /// Calls for a place that has failed with EIO which are answered truly: another read of the
    /// same place may come before the one that failed is tried again.
    spared: HashMap<u64, u8>,
    /// From here on every read fails for ever, with this error.
    broken: Option<(u64, i32)>,
    counts: Counts,
}

/// How often what has gone wrong.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Short reads.
    pub short: u64,
    /// Errors that pass.
    pub passing: u64,
    /// Errors that stay.
    pub permanent: u64,
    /// Requests that waited.
    pub delays: u64,
}

impl SeededFaults {
    /// Faults at these rates. A failing test shows the seed.
    pub fn new(seed: u64, rates: Rates) -> Arc<Self> {
        println!("faults of seed {seed:#x}");
        Arc::new(Self {
            rates,
            state: Mutex::new(State {
                random: SplitMix64(seed),
                spared: HashMap::new(),
                broken: None,
                counts: Counts::default(),
            }),
        })
    }

    /// Reads at `offset` of a file and beyond fail with the system's error `code`.
    pub fn break_from(&self, offset: u64, code: i32) {
        self.lock().broken = Some((offset, code));
    }

    /// What was broken is whole again.
    pub fn mend(&self) {
        self.lock().broken = None;
    }

    /// How often what has gone wrong so far.
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn one_in(&mut self, rate: u64) -> bool {
        rate > 0 && self.random.draw().is_multiple_of(rate)
    }

    fn passing(&mut self, code: i32) -> io::Result<usize> {
        self.counts.passing += 1;
        Err(io::Error::from_raw_os_error(code))
    }
}

impl Faults for SeededFaults {
    fn answer(&self, _path: &Path, offset: u64, answer: io::Result<usize>) -> io::Result<usize> {
        /// The numbers that Linux gives them.
        const EINTR: i32 = 4;
        const EIO: i32 = 5;
        const EAGAIN: i32 = 11;
        const SPARED_CALLS: u8 = 3;
        let mut state = self.lock();
        if let Some((_, code)) = state.broken.filter(|(start, _)| offset >= *start) {
            state.counts.permanent += 1;
            return Err(io::Error::from_raw_os_error(code));
        }
        if let Some(calls) = state.spared.get_mut(&offset).filter(|calls| **calls > 0) {
            *calls -= 1;
            return answer;
        }
        if state.one_in(self.rates.device_error_once) {
            state.spared.insert(offset, SPARED_CALLS);
            return state.passing(EIO);
        }
        if state.one_in(self.rates.interrupted) {
            return state.passing(EINTR);
        }
        if state.one_in(self.rates.try_again) {
            return state.passing(EAGAIN);
        }
        let count = answer?;
        if count > 1 && state.one_in(self.rates.short) {
            state.counts.short += 1;
            return Ok(1 + state.random.draw() as usize % (count - 1));
        }
        Ok(count)
    }

    fn delay(&self, _extent: &Extent) -> Duration {
        let mut state = self.lock();
        if !state.one_in(self.rates.delay) {
            return Duration::ZERO;
        }
        state.counts.delays += 1;
        let nanoseconds = self.rates.delay_max.as_nanos() as u64;
        Duration::from_nanos(state.random.draw() % nanoseconds.max(1))
    }
}
