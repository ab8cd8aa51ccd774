//! The experts that a layer's routing names, computed as they come.
//!
//! As soon as the routing is known, those that are not in memory are asked for. Those that
//! are in memory are computed at once, while all others are being read; these follow as they
//! land. With fewer slots than experts, as a chunk of a prompt may need them,
//! a slot is given on as soon as its expert has been computed. So each is read at most once
//! for a layer and a chunk, and the wait is only for what is left.
//!
//! The next layer's experts are guessed when there is nothing else to do: at once if all that
//! the layer needs is in memory, else before waiting for what is not.

use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use emel_loader::expert_layout::{EXPERTS_MAX, ExpertId};
use emel_loader::plan::{ExpertSlotsPlan, Plan};
use emel_loader::reader::ReadError;
use emel_loader::trace::Subject;
use emel_loader::unit::Part;
use emel_loader::weights::{PlacedExpert, Weights};
use emel_model::forward::Forward;
use emel_model::program::Program;
use emel_model::routing::LossyRouting;

use super::MixtureShape;
use super::cache::ExpertCache;
use super::heat::Heat;
use super::miss_curve::MissCurve;
use super::prefetch::{Prefetch, PrefetchStatistics, Prefetcher};

/// Bytes of a part of a router, or more but for its last one.
const ROUTER_PART_BYTES: usize = 64 << 10;

/// What experts have cost so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ExpertStatistics {
    /// Experts that were in memory when a layer's routing named them.
    pub hits: u64,
    /// Experts that were on their way then.
    pub late: u64,
    /// Experts that had to be asked for.
    pub misses: u64,
    /// The bytes of these, without what alignment adds.
    pub missed_bytes: u64,
    /// Experts that lossy routing put in the place of a router's choice.
    pub substituted: u64,
    /// Experts that it left out.
    pub dropped: u64,
    /// Time that layers waited for experts.
    pub wait: Duration,
    /// The part of it in which the drive had been asked for nothing more.
    pub idle_wait: Duration,
    /// Reads under way while layers waited, times the seconds of that.
    pub wait_reads: f64,
    /// Bytes that were read while layers waited.
    pub wait_bytes: u64,
    /// What became of guesses.
    pub prefetch: PrefetchStatistics,
}

impl ExpertStatistics {
    /// What has been added since `before`.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            hits: self.hits - before.hits,
            late: self.late - before.late,
            misses: self.misses - before.misses,
            missed_bytes: self.missed_bytes - before.missed_bytes,
            substituted: self.substituted - before.substituted,
            dropped: self.dropped - before.dropped,
            wait: self.wait - before.wait,
            idle_wait: self.idle_wait - before.idle_wait,
            wait_reads: self.wait_reads - before.wait_reads,
            wait_bytes: self.wait_bytes - before.wait_bytes,
            prefetch: self.prefetch.since(&before.prefetch),
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
    misses: MissCurve,
    /// Whether the pass at hand is one token's.
    is_decoding: bool,
    /// Bytes of an expert, for each mixture.
    expert_bytes: Vec<u64>,
    /// What was chosen, for the cache.
    chosen: Vec<usize>,
    prefetcher: Prefetcher,
    /// Where the router of each mixture is, if it can be asked early.
    routers: Vec<RouterParts>,
}

/// The units that a router's matrix is in, and its parts in each.
type RouterParts = Vec<(usize, Part)>;

impl ExpertDemand {
    /// Nothing is in the slots of `plan` yet; [`ExpertDemand::relax`] goes by `lossy`.
    pub fn new(program: &Program, plan: &Plan, prefetch: Prefetch, lossy: LossyRouting) -> Self {
        let shape = MixtureShape::of(program);
        let look_ahead = program.look_ahead.as_ref();
        let guesses = look_ahead.map_or(0, |look_ahead| look_ahead.guesses);
        let with_slots = |planned: &ExpertSlotsPlan, slots| Slots {
            cache: ExpertCache::new(shape, slots),
            misses: MissCurve::default(),
            is_decoding: false,
            expert_bytes: (0..shape.layers)
                .map(|mixture| planned.layout.expert_bytes(mixture))
                .collect(),
            chosen: Vec::with_capacity(shape.experts),
            prefetcher: Prefetcher::new(shape, prefetch, guesses),
            routers: look_ahead.map_or_else(Vec::new, |look_ahead| {
                let paths = look_ahead.paths.iter();
                paths.map(|path| parts_of(plan, path.matrix)).collect()
            }),
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
        let shape = MixtureShape::of(program);
        let lists = shape.experts * (size_of::<Needed>() + size_of::<usize>());
        let routers = program.look_ahead.iter().flat_map(|it| &it.paths);
        let router_parts = routers.map(|path| {
            let matrix = program.matrices[path.matrix];
            1 + matrix.rows * matrix.columns * size_of::<f32>() / ROUTER_PART_BYTES
        });
        let of_routers = router_parts.sum::<usize>() * size_of::<(usize, Part)>()
            + shape.layers * size_of::<RouterParts>();
        let of_mixtures = shape.layers * size_of::<u64>();
        let prefetcher = Prefetcher::required_bytes(shape);
        let cache = ExpertCache::required_bytes(shape, shape.all());
        (cache + lists + of_routers + of_mixtures + prefetcher) as u64
    }

    /// Goes by the slots that `weights` has for experts now. Called between passes.
    pub fn follow_slots(&mut self, weights: &Weights) {
        let Some(slots) = weights.expert_slots() else {
            return;
        };
        if self.slots.is_none() {
            self.slots = self.spare_slots.take();
        }
        if let Some(Slots {
            cache, prefetcher, ..
        }) = &mut self.slots
        {
            cache.set_slots(slots);
            prefetcher.follow_slots(cache);
        }
    }

    /// What experts have cost so far.
    pub fn statistics(&self) -> ExpertStatistics {
        let prefetcher = self.slots.as_ref().map(|slots| &slots.prefetcher);
        ExpertStatistics {
            prefetch: prefetcher.map(Prefetcher::statistics).unwrap_or_default(),
            ..self.statistics
        }
    }

    /// Begins with what an earlier run has learnt, where experts have slots.
    pub fn warm(&mut self, heat: Heat) {
        if let Some(slots) = &mut self.slots {
            slots.cache.warm(&heat.heats);
            slots.misses.warm(&heat.misses);
            slots.prefetcher.warm(heat);
        }
    }

    /// What was learnt, if that is worth keeping.
    pub fn learnt(&self) -> Option<Heat> {
        let slots = self.slots.as_ref()?;
        let learnt = slots.prefetcher.learnt(slots.cache.heats().collect())?;
        let misses = slots.misses.clone();
        Some(Heat { misses, ..learnt })
    }

    /// A pass over so many tokens begins.
    pub fn begin_pass(&mut self, tokens: usize) {
        if let Some(slots) = &mut self.slots {
            slots.is_decoding = tokens == 1;
            if slots.is_decoding {
                slots.misses.begin_token();
            }
            slots.prefetcher.begin_pass(tokens);
        }
    }

    /// The pass has ended after this time; nothing if it failed or was cancelled.
    pub fn end_pass(&mut self, length: Option<Duration>) {
        if let Some(Slots { prefetcher, .. }) = &mut self.slots {
            match length {
                Some(length) => prefetcher.end_pass(length.as_secs_f32()),
                None => prefetcher.abandon(),
            }
        }
    }

    /// Goes on reading what may be needed, between two steps.
    ///
    /// # Errors
    /// When the read of an expert that a layer needs has failed; the pass is then over.
    pub fn read_ahead(&mut self, weights: &mut Weights) -> Result<(), ReadError> {
        let Some(slots) = &mut self.slots else {
            return Ok(());
        };
        if slots.prefetcher.has_reads() || weights.experts_under_way().guessed > 0 {
            weights.take_landed_experts()?;
            slots.read_ahead(weights);
        }
        Ok(())
    }

    /// Reads what may be needed while there is nothing else to do. Never ends; may be
    /// dropped at any time.
    pub async fn read_ahead_idle(&mut self, weights: &mut Weights) {
        // What fails will be read again, and heard of, when it is needed.
        while let Ok(()) = self.read_ahead(weights) {
            let under_way = self.slots.is_some() && weights.experts_under_way().guessed > 0;
            if !under_way || weights.next_guess().await.is_err() {
                break;
            }
        }
        std::future::pending().await
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
    pub fn begin(
        &mut self,
        mixture: usize,
        weights: &mut Weights,
        forward: &mut Forward,
        computed: &mut impl FnMut(Subject, Instant),
    ) {
        let routing = forward.routing();
        let is_needed = |expert: &usize| !routing.rows_of_expert(*expert).is_empty();
        let chosen = (0..routing.experts()).filter(is_needed);
        self.needed.clear();
        self.needed
            .extend(chosen.map(|expert| Needed { expert, slot: None }));
        let Some(Slots {
            cache,
            misses,
            is_decoding,
            expert_bytes,
            chosen,
            prefetcher,
            ..
        }) = &mut self.slots
        else {
            return;
        };
        chosen.clear();
        chosen.extend(self.needed.iter().map(|needed| needed.expert));
        if *is_decoding {
            misses.route(cache, mixture, chosen);
        }
        cache.route(mixture, chosen);
        for needed in &mut self.needed {
            needed.slot = cache.slot(mixture, needed.expert);
            if let Some(slot) = needed.slot {
                let expert = needed.expert;
                // It may have been on its way when a pass was cancelled.
                let id = ExpertId { mixture, expert };
                if weights.has_expert(slot, id) {
                    self.statistics.hits += 1;
                    prefetcher.hit(mixture, expert);
                } else if weights.want_expert(slot, id) {
                    self.statistics.misses += 1;
                    self.statistics.missed_bytes += expert_bytes[mixture];
                    prefetcher.missed(mixture, expert);
                } else {
                    self.statistics.late += 1;
                    prefetcher.late(mixture, expert);
                }
            }
        }
        prefetcher.route(cache, mixture, chosen);
        self.find_slots(mixture, weights);
        if let Some(slots) = &mut self.slots {
            slots
                .prefetcher
                .forget_wrong(&mut slots.cache, weights, &slots.chosen);
        }
        if weights.experts_under_way().demanded == 0 {
            self.guess(weights, forward, computed);
        }
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
        computed: &mut impl FnMut(Subject, Instant),
    ) -> Result<(), ReadError> {
        loop {
            if let Some(slots) = &mut self.slots {
                weights.take_landed_experts()?;
                slots.read_ahead(weights);
            }
            let ready = self.take_ready(mixture, weights);
            if !ready.is_empty() {
                let started = Instant::now();
                weights.with_experts(mixture, &ready, |experts| {
                    forward.run_experts(mixture, experts);
                });
                computed(Subject::Mixture(mixture), started);
                self.finish(&ready);
                // Who is evicted depends on who has been computed by then, and that on the
                // drive. Lossy routing goes by what is in memory, so that it must not.
                let all_slots_are_done = || self.needed.iter().all(|left| left.slot.is_none());
                if !self.lossy.is_on() || all_slots_are_done() {
                    self.find_slots(mixture, weights);
                }
            } else if self.has_slots_and(|slots| slots.prefetcher.wants_guess()) {
                self.guess(weights, forward, computed);
            } else if self.needed.is_empty() {
                return Ok(());
            } else {
                self.wait(mixture, weights).await?;
            }
        }
    }

    async fn wait(&mut self, mixture: usize, weights: &mut Weights) -> Result<(), ReadError> {
        let (started, before) = (Instant::now(), weights.statistics().bytes_read);
        let reads = weights.expert_reads();
        let outcome = weights.next_expert(mixture).await;
        let (ended, statistics) = (Instant::now(), &mut self.statistics);
        let length = ended - started;
        statistics.wait += length;
        statistics.wait_reads += reads as f64 * length.as_secs_f64();
        statistics.wait_bytes += weights.statistics().bytes_read - before;
        if weights.expert_reads() == 0 {
            statistics.idle_wait += ended
                .saturating_duration_since(weights.last_landed())
                .min(length);
        }
        outcome
    }

    fn has_slots_and(&self, test: impl FnOnce(&Slots) -> bool) -> bool {
        self.slots.as_ref().is_some_and(test)
    }

    /// Guesses the next layer's experts, and has some of them read if the drive is idle.
    fn guess(
        &mut self,
        weights: &mut Weights,
        forward: &mut Forward,
        computed: &mut impl FnMut(Subject, Instant),
    ) {
        let Some(slots) = self.slots.as_mut().filter(|it| it.prefetcher.wants_guess()) else {
            return;
        };
        let started = Instant::now();
        slots.guess(weights, forward);
        computed(Subject::Nothing, started);
        slots.read_ahead(weights);
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
            slots.prefetcher.evicted(admission.evicted);
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

impl Slots {
    fn guess(&mut self, weights: &Weights, forward: &mut Forward) {
        let router = self.prefetcher.next_layer();
        let is_in_memory = |parts: &&RouterParts| {
            let mut units = parts.iter().map(|&(unit, _)| weights.pinned_unit(unit));
            units.all(|bytes| bytes.is_some())
        };
        // The first layer's router waits for the next token.
        let parts = self.routers.get(router).filter(|_| router > 0);
        let ahead = match parts.filter(is_in_memory) {
            Some(parts) => {
                let of_unit = |&(unit, part)| Some((part, weights.pinned_unit(unit)?));
                forward.guess_experts(router, parts.iter().filter_map(of_unit))
            }
            None => &[],
        };
        let ahead = ahead.iter().map(|choice| choice.expert);
        self.prefetcher.guess(&mut self.cache, ahead);
    }

    fn read_ahead(&mut self, weights: &mut Weights) {
        self.prefetcher
            .read_ahead(&mut self.cache, weights, &self.expert_bytes);
    }
}

/// The parts of a matrix, and the units that they are in.
fn parts_of(plan: &Plan, matrix: usize) -> RouterParts {
    let mut found = Vec::new();
    for (index, unit) in plan.units.iter().enumerate() {
        let parts = unit.parts.iter().filter(|part| part.weight == matrix);
        found.extend(parts.map(|&part| (index, part)));
    }
    found
}
