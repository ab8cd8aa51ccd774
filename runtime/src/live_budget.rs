//! The budget while the engine runs: weights are given back when the memory they take is
//! no longer ours, and taken again when it is.
//!
//! A limit of the cgroup, or of one above it, is kept to whatever the budget was. Pressure
//! is obeyed only where nobody chose the budget: who did has said what may be used.

use std::time::{Duration, Instant};

use emel_loader::plan::Plan;
use emel_loader::weights::Weights;
use emel_systemd::MemoryWatch;

use crate::notice::{Notice, NoticeListener};
use crate::weights_change::WeightsChange;

/// Between two looks at the limits.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Between taking memory again and the change before: a limit that is being moved is
/// not to have units loaded for nothing.
const TAKE_INTERVAL: Duration = Duration::from_secs(2);

/// Between two steps for pressure, whose average is over ten seconds.
const PRESSURE_INTERVAL: Duration = Duration::from_secs(10);

/// Time lost by all tasks, in percent: weights are given back above the first, and
/// taken again below the second.
const PRESSURE_HIGH: f32 = 10.0;
const PRESSURE_LOW: f32 = 1.0;

/// Steps in which weights go for pressure.
const PRESSURE_STEPS: u64 = 8;

/// Decides how much of the planned memory weights may take now.
pub(crate) struct LiveBudget {
    watch: MemoryWatch,
    listener: NoticeListener,
    policy: Policy,
    polled: Instant,
}

impl LiveBudget {
    /// For a plan whose weights are `weights`. Those used from a mapping of which nothing is
    /// released are page cache, which the kernel takes by itself.
    pub(crate) fn new(
        plan: &Plan,
        weights: &Weights,
        watch: MemoryWatch,
        obeys_pressure: bool,
        listener: NoticeListener,
    ) -> Self {
        let now = Instant::now();
        let planned_bytes = plan
            .total_bytes()
            .saturating_sub(weights.reclaimable_bytes());
        let releasable_bytes = weights.releasable_bytes();
        Self {
            watch,
            listener,
            policy: Policy::new(planned_bytes, releasable_bytes, obeys_pressure, now),
            polled: now,
        }
    }

    /// The bytes that weights may keep from now on, of those that can be given back, if that
    /// has changed.
    pub(crate) fn poll(&mut self) -> Option<u64> {
        let now = Instant::now();
        if now < self.polled + POLL_INTERVAL {
            return None;
        }
        self.polled = now;
        let pressure = self.policy.obeys_pressure.then(|| self.watch.pressure());
        let lost_percent = pressure.flatten().map(|pressure| pressure.full_percent);
        let before = self.policy.kept_bytes;
        let decision = self.policy.decide(self.watch.limit(), lost_percent, now)?;
        let change = self.policy.change(before);
        self.listener.tell(&Notice::Weights(change));
        decision.kept_bytes
    }
}

/// The decision, apart from what it is made from.
struct Policy {
    /// What the plan takes, but for what the kernel can take by itself.
    planned_bytes: u64,
    releasable_bytes: u64,
    obeys_pressure: bool,
    /// What may be kept now of what is releasable.
    kept_bytes: u64,
    /// The limit that this is due to.
    limit: Option<u64>,
    /// Bytes above the limit that cannot be given back.
    excess_bytes: u64,
    /// Parts of [`PRESSURE_STEPS`] that have gone for pressure.
    pressure_steps: u64,
    pressure_changed: Instant,
    changed: Instant,
}

/// Something to say, and to do if what may be kept has changed.
#[derive(Debug, PartialEq)]
struct Decision {
    kept_bytes: Option<u64>,
}

impl Policy {
    fn new(planned_bytes: u64, releasable_bytes: u64, obeys_pressure: bool, now: Instant) -> Self {
        Self {
            planned_bytes,
            releasable_bytes,
            obeys_pressure,
            kept_bytes: releasable_bytes,
            limit: None,
            excess_bytes: 0,
            pressure_steps: 0,
            pressure_changed: now,
            changed: now,
        }
    }

    fn decide(
        &mut self,
        limit: Option<u64>,
        lost_percent: Option<f32>,
        now: Instant,
    ) -> Option<Decision> {
        self.follow_pressure(lost_percent.unwrap_or(0.0), now);
        let over = self.planned_bytes.saturating_sub(limit.unwrap_or(u64::MAX));
        let by_limit = self.releasable_bytes.saturating_sub(over);
        let by_pressure =
            self.releasable_bytes / PRESSURE_STEPS * (PRESSURE_STEPS - self.pressure_steps);
        let wanted = match self.pressure_steps {
            0 => by_limit,
            _ => by_limit.min(by_pressure),
        };
        let excess_bytes = over.saturating_sub(self.releasable_bytes);
        let exceeds_more = excess_bytes > self.excess_bytes;
        self.excess_bytes = excess_bytes;
        let takes = wanted > self.kept_bytes;
        let waits = takes && now < self.changed + TAKE_INTERVAL;
        let changes = wanted != self.kept_bytes && !waits;
        if !changes && !exceeds_more {
            return None;
        }
        self.limit = limit.filter(|_| over > 0 && wanted == by_limit);
        if changes {
            self.kept_bytes = wanted;
            self.changed = now;
        }
        Some(Decision {
            kept_bytes: changes.then_some(wanted),
        })
    }

    fn follow_pressure(&mut self, lost_percent: f32, now: Instant) {
        if now < self.pressure_changed + PRESSURE_INTERVAL {
            return;
        }
        let steps = if lost_percent >= PRESSURE_HIGH {
            (self.pressure_steps + 1).min(PRESSURE_STEPS)
        } else if lost_percent < PRESSURE_LOW {
            self.pressure_steps.saturating_sub(1)
        } else {
            self.pressure_steps
        };
        if steps != self.pressure_steps {
            self.pressure_steps = steps;
            self.pressure_changed = now;
        }
    }

    /// What has changed.
    fn change(&self, before_bytes: u64) -> WeightsChange {
        WeightsChange {
            before_bytes,
            kept_bytes: self.kept_bytes,
            limit_bytes: self.limit,
            excess_bytes: self.excess_bytes,
            fixed_bytes: self.planned_bytes.saturating_sub(self.releasable_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn policy(obeys_pressure: bool) -> (Policy, Instant) {
        let now = Instant::now();
        (Policy::new(100 * MIB, 80 * MIB, obeys_pressure, now), now)
    }

    /// The bytes that may be kept, if that has changed.
    fn kept(decision: Option<Decision>) -> Option<u64> {
        decision.and_then(|decision| decision.kept_bytes)
    }

    #[test]
    fn a_limit_below_the_plan_takes_from_what_is_pinned_at_once() {
        let (mut policy, now) = policy(false);
        assert_eq!(kept(policy.decide(None, None, now)), None);
        assert_eq!(kept(policy.decide(Some(100 * MIB), None, now)), None);
        assert_eq!(
            kept(policy.decide(Some(70 * MIB), None, now)),
            Some(50 * MIB)
        );
        assert_eq!(
            policy.change(80 * MIB).to_string(),
            "gave back 30.0 MiB of weights, 50.0 MiB more can be: the memory limit is now 70.0 MiB"
        );
        assert_eq!(kept(policy.decide(Some(70 * MIB), None, now)), None);
        assert_eq!(
            kept(policy.decide(Some(60 * MIB), None, now)),
            Some(40 * MIB)
        );
        // Less than everything else needs: nothing more can be given.
        assert_eq!(kept(policy.decide(Some(MIB), None, now)), Some(0));
        assert_eq!(
            policy.change(40 * MIB).to_string(),
            "gave back 40.0 MiB of weights, all that can be: the memory limit is now 1.0 MiB, \
             19.0 MiB too little for what is left: set it to 20.0 MiB at least, or start again \
             with a smaller budget or context"
        );
    }

    #[test]
    fn a_limit_below_what_can_be_given_back_is_told_again_only_when_it_gets_worse() {
        let (mut policy, now) = policy(false);
        assert_eq!(kept(policy.decide(Some(20 * MIB), None, now)), Some(0));
        assert_eq!(
            policy.change(80 * MIB).to_string(),
            "gave back 80.0 MiB of weights, all that can be: the memory limit is now 20.0 MiB"
        );
        let decision = policy.decide(Some(15 * MIB), None, now);
        assert_eq!(decision, Some(Decision { kept_bytes: None }));
        assert_eq!(
            policy.change(0).to_string(),
            "the memory limit is now 15.0 MiB, 5.0 MiB too little for what is left: set it to \
             20.0 MiB at least, or start again with a smaller budget or context"
        );
        assert_eq!(policy.decide(Some(15 * MIB), None, now), None);
        assert_eq!(policy.decide(Some(18 * MIB), None, now), None);
    }

    #[test]
    fn a_limit_that_rises_is_used_after_a_moment() {
        let (mut policy, now) = policy(false);
        assert_eq!(
            kept(policy.decide(Some(50 * MIB), None, now)),
            Some(30 * MIB)
        );
        assert_eq!(kept(policy.decide(Some(90 * MIB), None, now)), None);
        let later = now + TAKE_INTERVAL;
        assert_eq!(
            kept(policy.decide(Some(90 * MIB), None, later)),
            Some(70 * MIB)
        );
        assert_eq!(
            policy.change(30 * MIB).to_string(),
            "takes again 40.0 MiB of weights: memory allows it"
        );
        let later = later + TAKE_INTERVAL;
        assert_eq!(kept(policy.decide(None, None, later)), Some(80 * MIB));
    }

    #[test]
    fn pressure_takes_a_part_at_a_time_and_calm_gives_it_back() {
        let (mut policy, mut now) = policy(true);
        assert_eq!(
            kept(policy.decide(None, Some(50.0), now)),
            None,
            "not at the start"
        );
        for left in (0..PRESSURE_STEPS).rev() {
            now += PRESSURE_INTERVAL;
            assert_eq!(
                kept(policy.decide(None, Some(50.0), now)),
                Some(10 * left * MIB)
            );
            assert!(
                policy
                    .change(80 * MIB)
                    .to_string()
                    .ends_with("memory is under pressure")
            );
            assert_eq!(kept(policy.decide(None, Some(50.0), now)), None);
        }
        now += PRESSURE_INTERVAL;
        assert_eq!(kept(policy.decide(None, Some(50.0), now)), None);
        assert_eq!(
            kept(policy.decide(None, Some(5.0), now)),
            None,
            "neither high nor low"
        );
        for left in 1..=PRESSURE_STEPS {
            now += PRESSURE_INTERVAL;
            assert_eq!(
                kept(policy.decide(None, Some(0.0), now)),
                Some(10 * left * MIB)
            );
        }
    }
}
