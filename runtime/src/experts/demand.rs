//! The experts that a layer's routing names, computed as they come.
//!
//! As soon as the routing is known, those that are not in memory are asked for. Those that
//! are in memory are computed at once, while all others are being read; these follow as they
//! land. With fewer slots than experts, as a chunk of a prompt may need them,
//! a slot is given on as soon as its expert has been computed. So each is read at most once
//! for a layer and a chunk, and the wait is only for what is left.

use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use emel_loader::expert_slots::ExpertId;
use emel_loader::plan::{ExpertSlotsPlan, Plan};
use emel_loader::reader::ReadError;
use emel_loader::weights::{EXPERTS_MAX, PlacedExpert, Weights};
use emel_model::forward::Forward;
use emel_model::program::Program;
use emel_model::routing::LossyRouting;

use super::MixtureShape;
use super::cache::ExpertCache;

/// What experts have cost so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExpertStatistics {
    /// Experts that were in memory when a layer's routing named them.
    pub hits: u64,
    /// Experts that had to be asked for.
    pub misses: u64,
    /// The bytes of these, without what alignment adds.
    pub missed_bytes: u64,
    /// Time that layers waited for them.
    pub wait: Duration,
    /// Experts that lossy routing put in the place of a router's choice.
    pub substituted: u64,
    /// Experts that it left out.
    pub dropped: u64,
}

impl ExpertStatistics {
    /// What has been added since `before`.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            hits: self.hits - before.hits,
            misses: self.misses - before.misses,
            missed_bytes: self.missed_bytes - before.missed_bytes,
            wait: self.wait - before.wait,
            substituted: self.substituted - before.substituted,
            dropped: self.dropped - before.dropped,
        }
    }
}

/// An expert that a layer needs and that has not been computed yet.
#[derive(Debug, Clone, Copy)]
struct Needed {
    expert: usize,
    /// None while other experts of the layer have all of them.
    slot: Option<usize>,
}

/// The experts of the layer being computed, and the cache that finds slots for them.
pub struct ExpertDemand {
    /// Where experts have slots.
    slots: Option<Slots>,
    /// Where none have, but all may be given back for fewer.
    spare_slots: Option<Slots>,
    /// In rising order.
    needed: Vec<Needed>,
    /// How the choices of tokens that are decoded may be changed.
    lossy: LossyRouting,
    statistics: ExpertStatistics,
}

struct Slots {
    cache: ExpertCache,
    /// Bytes of an expert, for each mixture.
    expert_bytes: Vec<u64>,
    /// What was chosen, for the cache.
    chosen: Vec<usize>,
}

impl ExpertDemand {
    /// Nothing is in the slots of `plan` yet; [`ExpertDemand::relax`] goes by `lossy`.
    pub fn new(program: &Program, plan: &Plan, lossy: LossyRouting) -> Self {
        let shape = mixture_shape(program);
        let with_slots = |planned: &ExpertSlotsPlan, slots| Slots {
            cache: ExpertCache::new(shape, slots),
            expert_bytes: (0..shape.layers)
                .map(|mixture| planned.layout.expert_bytes(mixture))
                .collect(),
            chosen: Vec::with_capacity(shape.experts),
        };
        Self {
            slots: (plan.expert_slots.as_ref()).map(|planned| with_slots(planned, planned.slots)),
            spare_slots: (plan.spare_expert_slots.as_ref())
                .map(|planned| with_slots(planned, shape.all())),
            needed: Vec::with_capacity(shape.experts),
            lossy,
            statistics: ExpertStatistics::default(),
        }
    }

    /// The bytes that [`ExpertDemand::new`] allocates, with up to a slot for each expert.
    pub fn required_bytes(program: &Program) -> u64 {
        let shape = mixture_shape(program);
        let lists = shape.experts * (size_of::<Needed>() + size_of::<usize>());
        let of_mixtures = shape.layers * size_of::<u64>();
        (ExpertCache::required_bytes(shape, shape.all()) + lists + of_mixtures) as u64
    }

    /// Goes by the slots that `weights` has for experts now. Called between passes.
    pub fn follow_slots(&mut self, weights: &Weights) {
        let Some(slots) = weights.expert_slots() else {
            return;
        };
        if self.slots.is_none() {
            self.slots = self.spare_slots.take();
        }
        if let Some(Slots { cache, .. }) = &mut self.slots {
            cache.set_slots(slots);
        }
    }

    /// What experts have cost so far.
    pub fn statistics(&self) -> ExpertStatistics {
        self.statistics
    }

    /// A mixture has been routed for a token that is decoded: changes its choice, if lossy
    /// routing is on, by which of the experts are in memory.
    pub fn relax(&mut self, mixture: usize, weights: &Weights, forward: &mut Forward) {
        let Some(Slots { cache, .. }) = self.slots.as_ref().filter(|_| self.lossy.is_on()) else {
            return;
        };
        let loss = forward.relax_routing(mixture, &self.lossy, |expert| {
            let id = ExpertId { mixture, expert };
            let slot = cache.slot(mixture, expert);
            slot.is_some_and(|slot| weights.has_expert(slot, id))
        });
        self.statistics.substituted += loss.substituted as u64;
        self.statistics.dropped += loss.dropped as u64;
    }

    /// A mixture has been routed: notes which experts it needs, and has those read that are
    /// not in memory.
    pub fn begin(&mut self, mixture: usize, weights: &mut Weights, forward: &Forward) {
        let routing = forward.routing();
        let is_needed = |expert: &usize| !routing.rows_of_expert(*expert).is_empty();
        let chosen = (0..routing.experts()).filter(is_needed);
        self.needed.clear();
        self.needed
            .extend(chosen.map(|expert| Needed { expert, slot: None }));
        let Some(Slots {
            cache,
            expert_bytes,
            chosen,
        }) = &mut self.slots
        else {
            return;
        };
        chosen.clear();
        chosen.extend(self.needed.iter().map(|needed| needed.expert));
        cache.route(mixture, chosen);
        for needed in &mut self.needed {
            needed.slot = cache.slot(mixture, needed.expert);
            if let Some(slot) = needed.slot {
                let expert = needed.expert;
                // It may have been on its way when a pass was cancelled.
                let id = ExpertId { mixture, expert };
                if weights.has_expert(slot, id) {
                    self.statistics.hits += 1;
                } else if weights.want_expert(slot, id) {
                    self.statistics.misses += 1;
                    self.statistics.missed_bytes += expert_bytes[mixture];
                }
            }
        }
        self.find_slots(mixture, weights);
    }

    /// Computes the experts of a mixture that was begun. `computed` is told when each step
    /// of this began, as soon as it has ended.
    ///
    /// # Errors
    /// When a read fails; the pass is then over.
    pub async fn run(
        &mut self,
        mixture: usize,
        weights: &mut Weights,
        forward: &mut Forward,
        computed: &mut impl FnMut(Option<usize>, Instant),
    ) -> Result<(), ReadError> {
        loop {
            if self.slots.is_some() {
                weights.take_landed_experts()?;
            }
            let ready = self.take_ready(mixture, weights);
            if !ready.is_empty() {
                let started = Instant::now();
                weights.with_experts(mixture, &ready, |experts| {
                    forward.run_experts(mixture, experts);
                });
                computed(None, started);
                self.finish(&ready);
                // Who is evicted depends on who has been computed by then, and that on the
                // drive. Lossy routing goes by what is in memory, so that it must not.
                let all_slots_are_done = || self.needed.iter().all(|left| left.slot.is_none());
                if !self.lossy.is_on() || all_slots_are_done() {
                    self.find_slots(mixture, weights);
                }
            } else if self.needed.is_empty() {
                return Ok(());
            } else {
                let started = Instant::now();
                let outcome = weights.next_expert().await;
                self.statistics.wait += started.elapsed();
                outcome?;
            }
        }
    }

    /// Has the experts that have no slot read into what slots there are.
    fn find_slots(&mut self, mixture: usize, weights: &mut Weights) {
        let Some(slots) = &mut self.slots else {
            return;
        };
        for needed in self
            .needed
            .iter_mut()
            .filter(|needed| needed.slot.is_none())
        {
            let expert = needed.expert;
            let Some(admission) = slots.cache.admit(mixture, expert) else {
                return;
            };
            needed.slot = Some(admission.slot);
            weights.want_expert(admission.slot, ExpertId { mixture, expert });
            self.statistics.misses += 1;
            self.statistics.missed_bytes += slots.expert_bytes[mixture];
        }
    }

    /// Takes some of the needed experts that are in memory.
    fn take_ready(
        &mut self,
        mixture: usize,
        weights: &Weights,
    ) -> ArrayVec<PlacedExpert, EXPERTS_MAX> {
        let mut ready = ArrayVec::new();
        let has_slots = self.slots.is_some();
        self.needed.retain(|needed| {
            let expert = needed.expert;
            let slot = match needed.slot {
                _ if ready.is_full() => None,
                Some(slot) if weights.has_expert(slot, ExpertId { mixture, expert }) => Some(slot),
                // Where there are no slots, all experts are in memory.
                None if !has_slots => Some(0),
                _ => None,
            };
            ready.extend(slot.map(|slot| PlacedExpert { expert, slot }));
            slot.is_none()
        });
        ready
    }

    /// These experts have been computed, so that their slots may be given to others.
    fn finish(&mut self, computed: &[PlacedExpert]) {
        if let Some(Slots { cache, .. }) = &mut self.slots {
            for placed in computed {
                cache.finish(placed.expert);
            }
        }
    }
}

fn mixture_shape(program: &Program) -> MixtureShape {
    let (experts, used) = program.routing_max();
    MixtureShape {
        layers: program.expert_groups.len(),
        experts,
        used,
    }
}
