//! A trace: what was read, waited for and computed, event by event.
//!
//! Its memory is allocated once. When it is full the oldest events make room and are counted
//! as dropped, so that the end of a long run is always there. Readers' threads and the
//! engine's record through one lock, some thousands of times a second.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What an event was spent on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// A read, from its submission to its completion, into a slot.
    Read {
        /// The slot.
        slot: usize,
        /// Bytes read, alignment included.
        bytes: u64,
    },
    /// A step waited for its unit, or for the row of an embedding.
    Wait,
    /// A step computed, or embedding rows were looked up.
    Compute,
    /// A token was chosen.
    Sample,
    /// A whole pass, its waits and its computing included.
    Pass {
        /// Its tokens.
        tokens: usize,
    },
}

/// What an event was about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// Nothing in particular, such as a whole pass.
    Nothing,
    /// A unit, by its index in the plan.
    Unit(usize),
    /// Units that are computed together, the last included.
    Units {
        /// The first.
        first: u32,
        /// The last.
        last: u32,
    },
    /// Rows of the embedding.
    Embedding,
    /// Experts of a mixture, by its index in a pass.
    Mixture(usize),
    /// A tensor of one expert.
    Expert {
        /// The mixture, by its index in a pass.
        mixture: u32,
        /// Which of its experts.
        expert: u32,
        /// Its gate, up or down tensor: an index into [`ExpertUse::parts`].
        ///
        /// [`ExpertUse::parts`]: crate::expert_layout::ExpertUse::parts
        part: u8,
    },
}

/// Something that took time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// What it was.
    pub activity: Activity,
    /// What it was about.
    pub subject: Subject,
    /// When it began, since the trace did.
    pub start: Duration,
    /// How long it took.
    pub length: Duration,
}

/// The latest events of a run.
#[derive(Debug)]
pub struct Trace {
    started: Instant,
    capacity: usize,
    events: Mutex<Events>,
}

#[derive(Debug)]
struct Events {
    /// In the order in which they ended, from `oldest` on and around.
    kept: Vec<Event>,
    oldest: usize,
    dropped: u64,
}

impl Trace {
    /// A trace that keeps `capacity` events.
    pub fn new(capacity: usize) -> Self {
        Self {
            started: Instant::now(),
            capacity,
            events: Mutex::new(Events {
                kept: Vec::with_capacity(capacity),
                oldest: 0,
                dropped: 0,
            }),
        }
    }

    /// Bytes that a trace of `capacity` events takes.
    pub fn required_bytes(capacity: usize) -> usize {
        capacity.saturating_mul(size_of::<Event>())
    }

    /// Records what began at `started` and lasted for `length`.
    pub fn record(&self, activity: Activity, subject: Subject, started: Instant, length: Duration) {
        let event = Event {
            activity,
            subject,
            start: started.saturating_duration_since(self.started),
            length,
        };
        let mut events = self.lock();
        if events.kept.len() < self.capacity {
            events.kept.push(event);
            return;
        }
        events.dropped += 1;
        let oldest = events.oldest;
        if let Some(place) = events.kept.get_mut(oldest) {
            *place = event;
            events.oldest = (oldest + 1) % self.capacity;
        }
    }

    /// The events that are kept, in the order in which they ended.
    pub fn events(&self) -> Vec<Event> {
        let events = self.lock();
        let (newer, older) = events.kept.split_at(events.oldest);
        [older, newer].concat()
    }

    /// How many have made room for others.
    pub fn dropped(&self) -> u64 {
        self.lock().dropped
    }

    // A poisoned trace is still one: an event is a single assignment.
    fn lock(&self) -> MutexGuard<'_, Events> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_events_are_kept_in_order_and_the_others_counted() {
        let trace = Trace::new(3);
        let start = Instant::now();
        for unit in 0..8 {
            trace.record(Activity::Wait, Subject::Unit(unit), start, Duration::ZERO);
        }
        let subjects: Vec<_> = trace.events().iter().map(|event| event.subject).collect();
        assert_eq!(subjects, [5, 6, 7].map(Subject::Unit));
        assert_eq!(trace.dropped(), 5);
    }

    #[test]
    fn a_trace_without_room_only_counts() {
        let trace = Trace::new(0);
        let started = Instant::now();
        trace.record(Activity::Sample, Subject::Nothing, started, Duration::ZERO);
        assert_eq!((trace.events().len(), trace.dropped()), (0, 1));
    }
}
