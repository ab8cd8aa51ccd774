//! Which experts are kept in memory: the policy of the expert cache.
//!
//! For every expert, resident or not, the cache remembers how often it was chosen lately,
//! as averages over four spans of time. A logistic regression over them, which learns with
//! every layer that is routed, gives the chance that the expert is chosen when its layer
//! comes next. The victim of an eviction is the resident expert whose next use is farthest
//! away on average, layers that still come in this token being nearer than those just
//! passed. Bélády's algorithm does this with what really comes; `bench/moe-replay.md`
//! compares them.
//!
//! Nothing is allocated after construction. Routing a layer costs a few operations for
//! each of its experts, an eviction as many and one for each layer.

use super::MixtureShape;

/// Tokens after which a use counts half, for each average.
const HALF_LIVES: [f32; 4] = [2.0, 8.0, 32.0, 128.0];
/// What the averages weigh in the beginning, and the constant: frequency with ageing.
const WEIGHTS: [f32; 5] = [0.0, 0.0, 0.5, 0.5, 0.0];
/// How far a prediction that fails moves the weights.
const LEARNING_RATE: f32 = 0.001;
/// Averages count as no nearer than this to never and always.
const AVERAGE_MIN: f32 = 0.001;
/// Tokens after which a use counts half for the heat of an expert, which outlasts a replay.
const HEAT_HALF_LIFE: f32 = 4096.0;
/// No expert is rarer than this, so that a wait is finite.
const CHANCE_MIN: f32 = 0.0001;
/// What a whole token's distance between layers counts, in tokens of waiting. More than
/// one, because the experts just passed are also those whose chance is known best.
const DISTANCE_WEIGHT: f32 = 2.0;

/// No slot.
const NONE: u32 = u32::MAX;

/// What is known about an expert's use.
#[derive(Debug, Clone)]
struct Uses {
    /// How often it was chosen, over each span.
    averages: [f32; HALF_LIVES.len()],
    /// The same over a long time.
    heat: f32,
    /// The chance that it is chosen when its layer comes, by the averages.
    chance: f32,
    /// The same for the next time alone, by whoever knows better.
    next: f32,
}

/// An expert that has been given a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    /// The slot it is to be read into.
    pub slot: usize,
    /// The layer and expert that were there before.
    pub evicted: Option<(usize, usize)>,
}

/// The coldest resident expert of a layer that may be evicted.
#[derive(Debug, Clone, Copy)]
enum Coldest {
    Unknown,
    Known(Option<usize>),
}

/// Slots for experts of all layers, and who is in them.
#[derive(Debug)]
pub struct ExpertCache {
    shape: MixtureShape,
    /// The slot of each expert, `[layers, experts]`.
    slots: Vec<u32>,
    free: Vec<u32>,
    /// How many slots there are now.
    open: u32,
    uses: Vec<Uses>,
    weights: [f32; WEIGHTS.len()],
    /// The share of each average that a token leaves.
    kept: [f32; HALF_LIVES.len()],
    heat_kept: f32,
    /// The layer being computed, and which of its experts are needed for it.
    layer: usize,
    needed: Vec<bool>,
    coldest: Vec<Coldest>,
}

impl ExpertCache {
    /// A cache of `slots` experts, with nothing in it.
    ///
    /// # Panics
    /// When there are fewer slots than experts that a token uses in a layer, or 2³² or more.
    pub fn new(shape: MixtureShape, slots: usize) -> Self {
        assert!(slots >= shape.used, "too few slots for a layer");
        let slots = u32::try_from(slots).expect("less than 2^32 slots");
        let mean = shape.used as f32 / shape.experts as f32;
        let uses = Uses {
            averages: [mean; HALF_LIVES.len()],
            heat: mean,
            chance: mean.max(CHANCE_MIN),
            next: mean.max(CHANCE_MIN),
        };
        Self {
            shape,
            slots: vec![NONE; shape.all()],
            free: (0..slots).rev().collect(),
            open: slots,
            uses: vec![uses; shape.all()],
            weights: WEIGHTS,
            kept: HALF_LIVES.map(|tokens| 0.5_f32.powf(1.0 / tokens)),
            heat_kept: 0.5_f32.powf(1.0 / HEAT_HALF_LIFE),
            layer: 0,
            needed: vec![false; shape.experts],
            coldest: vec![Coldest::Known(None); shape.layers],
        }
    }

    /// How large a share of the calls of [`ExpertCache::route`] have named each expert, over
    /// a long time, `[layers, experts]`: of the tokens, where each has calls of its own.
    pub fn heats(&self) -> impl Iterator<Item = f32> {
        self.uses.iter().map(|uses| uses.heat)
    }

    /// Begins with the heats that another run has ended with, `[layers, experts]`.
    pub fn warm(&mut self, heats: &[f32]) {
        for (uses, &heat) in self.uses.iter_mut().zip(heats) {
            uses.heat = heat;
            uses.averages.fill(heat);
            uses.chance = uses.chance(&self.weights);
            uses.next = uses.chance;
        }
        self.coldest.fill(Coldest::Unknown);
    }

    /// Has the first `slots` slots from now on, of those that it was made with. Experts in
    /// others are forgotten. Called between passes.
    ///
    /// # Panics
    /// When there are fewer than a token uses in a layer, or more than at first.
    pub fn set_slots(&mut self, slots: usize) {
        assert!(slots >= self.shape.used, "too few slots for a layer");
        assert!(slots <= self.free.capacity(), "more slots than at first");
        let (before, slots) = (self.open, slots as u32);
        for slot in &mut self.slots {
            if *slot >= slots {
                *slot = NONE;
            }
        }
        self.free.retain(|&slot| slot < slots);
        self.free.extend((before..slots).rev());
        self.open = slots;
        self.coldest.fill(Coldest::Unknown);
    }

    /// The bytes that [`ExpertCache::new`] allocates.
    pub fn required_bytes(shape: MixtureShape, slots: usize) -> usize {
        shape.all() * (size_of::<u32>() + size_of::<Uses>())
            + slots * size_of::<u32>()
            + shape.experts
            + shape.layers * size_of::<Coldest>()
    }

    /// A layer has been routed to `chosen`, in decode by one token, else by several, which
    /// count as one in all averages. Until the next call none of these is evicted.
    pub fn route(&mut self, layer: usize, chosen: &[usize]) {
        self.coldest[self.layer] = Coldest::Unknown;
        self.coldest[layer] = Coldest::Unknown;
        self.layer = layer;
        self.needed.fill(false);
        for &expert in chosen {
            self.needed[expert] = true;
        }
        let first = layer * self.shape.experts;
        for (uses, &is_used) in self.uses[first..].iter_mut().zip(&self.needed) {
            uses.learn(&mut self.weights, is_used);
            uses.count(&self.kept, self.heat_kept, is_used);
            uses.chance = uses.chance(&self.weights);
            uses.next = uses.chance;
        }
    }

    /// An expert of the layer being computed is not needed for it any more.
    pub fn finish(&mut self, expert: usize) {
        self.needed[expert] = false;
        self.coldest[self.layer] = Coldest::Unknown;
    }

    /// The slot of an expert, if it is resident or on its way.
    pub fn slot(&self, layer: usize, expert: usize) -> Option<usize> {
        let slot = self.slots[self.shape.index(layer, expert)];
        (slot != NONE).then_some(slot as usize)
    }

    /// The experts that are kept.
    pub fn shape(&self) -> MixtureShape {
        self.shape
    }

    /// Experts of all layers that were likelier to be chosen than this one, of equals half of
    /// them, as a share of all: it is kept where there are slots for more than that.
    pub fn rank(&self, layer: usize, expert: usize) -> f32 {
        let chance = self.uses[self.shape.index(layer, expert)].chance;
        let (mut likelier, mut less_likely) = (0_usize, 0_usize);
        for uses in &self.uses {
            likelier += usize::from(uses.chance > chance);
            less_likely += usize::from(uses.chance < chance);
        }
        let equals = self.uses.len() - likelier - less_likely;
        (likelier as f32 + (equals - 1) as f32 / 2.0) / self.uses.len() as f32
    }

    /// Takes the slot of an expert from it, for the next that needs one.
    pub fn release(&mut self, layer: usize, expert: usize) {
        let index = self.shape.index(layer, expert);
        let slot = std::mem::replace(&mut self.slots[index], NONE);
        if slot != NONE {
            self.free.push(slot);
            self.coldest[layer] = Coldest::Unknown;
        }
    }

    /// Whether there are slots that nobody has been given.
    pub fn has_free_slots(&self) -> bool {
        !self.free.is_empty()
    }

    /// Gives a slot to an expert that has none. Nothing if every slot is taken by an
    /// expert that the layer being computed needs.
    pub fn admit(&mut self, layer: usize, expert: usize) -> Option<Admission> {
        let victim = self.victim_if_full()?;
        Some(self.replace(victim, layer, expert))
    }

    /// Gives a slot to an expert that is not needed yet, but only if that evicts nothing
    /// warmer.
    pub fn prefetch(&mut self, layer: usize, expert: usize) -> Option<Admission> {
        let victim = self.victim_if_full()?;
        let is_colder =
            |index: usize| self.wait(index) > self.wait(self.shape.index(layer, expert));
        if victim.is_some_and(|victim| !is_colder(victim)) {
            return None;
        }
        Some(self.replace(victim, layer, expert))
    }

    /// Experts without a slot that a layer will choose when it comes next, on average.
    pub fn expected_misses(&self, layer: usize) -> f32 {
        let experts = layer * self.shape.experts..(layer + 1) * self.shape.experts;
        let missing = experts.filter(|&index| self.slots[index] == NONE);
        missing.map(|index| self.uses[index].chance).sum()
    }

    /// A predictor's chance that an expert is chosen when its layer comes next; until then
    /// it stands in for the cache's own.
    pub fn expect(&mut self, layer: usize, expert: usize, chance: f32) {
        let index = self.shape.index(layer, expert);
        self.uses[index].next = chance.clamp(CHANCE_MIN, 1.0);
        self.coldest[layer] = Coldest::Unknown;
    }

    /// The chance that an expert is chosen when its layer comes next.
    pub fn chance(&self, layer: usize, expert: usize) -> f32 {
        self.uses[self.shape.index(layer, expert)].next
    }

    fn replace(&mut self, victim: Option<usize>, layer: usize, expert: usize) -> Admission {
        let index = self.shape.index(layer, expert);
        debug_assert_eq!(self.slots[index], NONE, "admitted twice");
        let (slot, evicted) = match victim {
            Some(victim) => {
                let slot = std::mem::replace(&mut self.slots[victim], NONE);
                let place = (victim / self.shape.experts, victim % self.shape.experts);
                self.coldest[place.0] = Coldest::Unknown;
                (slot, Some(place))
            }
            None => (self.free.pop().expect("a free slot without a victim"), None),
        };
        self.slots[index] = slot;
        self.coldest[layer] = Coldest::Unknown;
        Admission {
            slot: slot as usize,
            evicted,
        }
    }

    /// Who has to go for another: nobody while slots are free. Nothing if nobody may.
    fn victim_if_full(&mut self) -> Option<Option<usize>> {
        if self.free.is_empty() {
            self.victim().map(Some)
        } else {
            Some(None)
        }
    }

    /// The resident expert whose next use is farthest away; of several the first.
    fn victim(&mut self) -> Option<usize> {
        let mut victim: Option<(usize, f32)> = None;
        for layer in 0..self.shape.layers {
            if let Some(index) = self.coldest_of(layer) {
                let wait = self.wait(index);
                if victim.is_none_or(|(_, longest)| wait > longest) {
                    victim = Some((index, wait));
                }
            }
        }
        victim.map(|(index, _)| index)
    }

    fn coldest_of(&mut self, layer: usize) -> Option<usize> {
        if let Coldest::Known(coldest) = self.coldest[layer] {
            return coldest;
        }
        let first = layer * self.shape.experts;
        let mut coldest: Option<(usize, f32)> = None;
        for index in first..first + self.shape.experts {
            let is_needed = layer == self.layer && self.needed[index - first];
            if self.slots[index] == NONE || is_needed {
                continue;
            }
            let wait = self.uses[index].wait();
            if coldest.is_none_or(|(_, longest)| wait > longest) {
                coldest = Some((index, wait));
            }
        }
        let coldest = coldest.map(|(index, _)| index);
        self.coldest[layer] = Coldest::Known(coldest);
        coldest
    }

    /// Tokens until an expert's next use, on average.
    fn wait(&self, index: usize) -> f32 {
        let (layer, layers) = (index / self.shape.experts, self.shape.layers);
        // The layer being computed comes again after a whole token.
        let distance = match layer > self.layer {
            true => layer - self.layer,
            false => layer + layers - self.layer,
        };
        DISTANCE_WEIGHT * distance as f32 / layers as f32 + self.uses[index].wait()
    }
}

impl Uses {
    /// Features of the regression: the averages as log-odds, and a constant.
    fn features(&self) -> [f32; WEIGHTS.len()] {
        let mut features = [1.0; WEIGHTS.len()];
        for (feature, average) in features.iter_mut().zip(self.averages) {
            let average = average.clamp(AVERAGE_MIN, 1.0 - AVERAGE_MIN);
            *feature = (average / (1.0 - average)).ln();
        }
        features
    }

    fn chance(&self, weights: &[f32; WEIGHTS.len()]) -> f32 {
        let products = weights.iter().zip(self.features());
        let log_odds: f32 = products.map(|(weight, feature)| weight * feature).sum();
        (1.0 / (1.0 + (-log_odds).exp())).max(CHANCE_MIN)
    }

    /// A step of gradient descent on the logarithmic loss of `chance`.
    fn learn(&self, weights: &mut [f32; WEIGHTS.len()], is_used: bool) {
        let error = f32::from(u8::from(is_used)) - self.chance;
        for (weight, feature) in weights.iter_mut().zip(self.features()) {
            *weight += LEARNING_RATE * error * feature;
        }
    }

    fn count(&mut self, kept: &[f32; HALF_LIVES.len()], heat_kept: f32, is_used: bool) {
        let used = f32::from(u8::from(is_used));
        self.heat = self.heat * heat_kept + used * (1.0 - heat_kept);
        for (average, kept) in self.averages.iter_mut().zip(kept) {
            *average = *average * kept + used * (1.0 - kept);
        }
    }

    /// Times that its layer comes in vain, on average, before the expert is chosen.
    fn wait(&self) -> f32 {
        (1.0 - self.next) / self.chance
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: MixtureShape = MixtureShape {
        layers: 3,
        experts: 8,
        used: 2,
    };

    /// Routes a layer and gives its experts slots; says how many had one.
    fn step(cache: &mut ExpertCache, layer: usize, chosen: &[usize]) -> usize {
        cache.route(layer, chosen);
        let missing = |cache: &ExpertCache, expert| cache.slot(layer, expert).is_none();
        let mut hits = chosen.len();
        for &expert in chosen {
            if missing(cache, expert) {
                cache
                    .admit(layer, expert)
                    .expect("a slot for all of a layer");
                hits -= 1;
            }
        }
        assert!(chosen.iter().all(|&expert| !missing(cache, expert)));
        hits
    }

    /// Every slot has one expert, and every resident expert one slot.
    fn assert_consistent(cache: &ExpertCache, slots: usize) {
        let mut taken: Vec<usize> = (0..SHAPE.all())
            .filter_map(|index| cache.slot(index / SHAPE.experts, index % SHAPE.experts))
            .chain(cache.free.iter().map(|&slot| slot as usize))
            .collect();
        taken.sort_unstable();
        assert_eq!(taken, (0..slots).collect::<Vec<_>>());
    }

    /// Two experts out of eight, whichever.
    fn any_two(seed: &mut u32) -> [usize; 2] {
        *seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let first = (*seed >> 29) as usize;
        [first, (first + 1 + (*seed >> 20) as usize % 7) % 8]
    }

    #[test]
    fn experts_of_the_layer_at_hand_are_never_evicted() {
        let mut seed = 7;
        for slots in 2..SHAPE.all() {
            let mut cache = ExpertCache::new(SHAPE, slots);
            for round in 0..300 {
                step(&mut cache, round % SHAPE.layers, &any_two(&mut seed));
                assert_consistent(&cache, slots);
            }
        }
    }

    #[test]
    fn a_cache_that_shrinks_and_grows_forgets_who_has_no_slot() {
        let mut seed = 11;
        let most = SHAPE.all();
        let mut cache = ExpertCache::new(SHAPE, most);
        for round in 0..500 {
            step(&mut cache, round % SHAPE.layers, &any_two(&mut seed));
            let slots = 2 + (seed >> 16) as usize % (most - 1);
            if round % 3 == 0 {
                cache.set_slots(slots);
                assert_consistent(&cache, slots);
            }
        }
        cache.set_slots(most);
        assert_consistent(&cache, most);
    }

    #[test]
    fn a_full_cache_of_needed_experts_admits_nothing() {
        let mut cache = ExpertCache::new(SHAPE, 2);
        assert_eq!(step(&mut cache, 0, &[3, 4]), 0);
        assert_eq!(cache.admit(0, 5), None);
        assert_eq!(cache.prefetch(1, 5), None);
        cache.route(1, &[0, 1]);
        let admission = cache
            .admit(1, 0)
            .expect("nothing of this layer is resident");
        assert_eq!(admission.evicted, Some((0, 3)));
    }

    #[test]
    fn an_expert_that_is_finished_makes_room_for_others_of_its_layer() {
        let mut cache = ExpertCache::new(SHAPE, 2);
        step(&mut cache, 0, &[3, 4]);
        assert_eq!(cache.admit(0, 5), None);
        cache.finish(4);
        let admission = cache.admit(0, 5).expect("the finished one's slot");
        assert_eq!(admission.evicted, Some((0, 4)));
    }

    #[test]
    fn what_is_used_always_stays_and_what_was_used_once_goes() {
        let mut cache = ExpertCache::new(SHAPE, 7);
        let mut seed = 1;
        let mut hits = 0;
        for _ in 0..200 {
            for layer in 0..SHAPE.layers {
                let [other, _] = any_two(&mut seed);
                hits += step(&mut cache, layer, &[0, other.max(1)]);
            }
        }
        // The expert that is in all layers always hits, but for the first time.
        assert!(hits > 3 * 199, "{hits}");
        assert!(cache.chance(0, 0) > 0.9 && cache.chance(0, 2) < 0.3);
    }

    #[test]
    fn of_equal_experts_those_go_first_whose_layer_comes_last() {
        let mut cache = ExpertCache::new(SHAPE, 6);
        for layer in 0..SHAPE.layers {
            step(&mut cache, layer, &[0, 1]);
        }
        cache.route(0, &[0, 1]);
        let admission = cache.admit(1, 5).expect("a slot");
        assert_eq!(admission.evicted, Some((2, 0)));
    }

    #[test]
    fn a_prefetch_evicts_nothing_warmer_than_the_guess() {
        let mut cache = ExpertCache::new(SHAPE, 6);
        for _ in 0..20 {
            for layer in 0..SHAPE.layers {
                step(&mut cache, layer, &[0, 1]);
            }
        }
        cache.route(0, &[0, 1]);
        cache.expect(1, 5, 0.05);
        assert_eq!(cache.prefetch(1, 5), None);
        cache.expect(1, 0, 0.0);
        cache.expect(1, 5, 0.99);
        let admission = cache.prefetch(1, 5).expect("colder than that");
        assert!(admission.evicted.is_some_and(|evicted| evicted != (0, 0)));
    }

    #[test]
    fn a_slot_that_is_released_is_the_next_to_be_given() {
        let mut cache = ExpertCache::new(SHAPE, 2);
        step(&mut cache, 0, &[3, 4]);
        let slot = cache.slot(0, 3);
        cache.route(1, &[0, 1]);
        cache.release(0, 3);
        cache.release(0, 3);
        assert_consistent(&cache, 2);
        let admission = cache.admit(1, 0).expect("a free slot");
        assert_eq!((Some(admission.slot), admission.evicted), (slot, None));
        assert_consistent(&cache, 2);
    }

    #[test]
    fn a_cache_takes_the_bytes_that_are_planned() {
        let cache = ExpertCache::new(SHAPE, 5);
        let found = size_of_val(&*cache.slots)
            + size_of_val(&*cache.free)
            + size_of_val(&*cache.uses)
            + size_of_val(&*cache.needed)
            + size_of_val(&*cache.coldest);
        assert_eq!(found, ExpertCache::required_bytes(SHAPE, 5));
    }

    #[test]
    fn a_warmed_cache_begins_with_what_was_hot() {
        let mut cache = ExpertCache::new(SHAPE, 4);
        let mut heats = vec![0.1; SHAPE.all()];
        heats[SHAPE.index(1, 6)] = 0.8;
        cache.warm(&heats);
        assert!(cache.chance(1, 6) > 0.5 && cache.chance(1, 5) < 0.2);
        assert_eq!(cache.heats().collect::<Vec<_>>(), heats);
    }
}
