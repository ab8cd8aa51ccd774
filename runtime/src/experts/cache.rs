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
/// Tokens after which a use counts half for the heat of an expert, which outlasts a run.
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
            uses: vec![uses; shape.all()],
            weights: WEIGHTS,
            kept: HALF_LIVES.map(|tokens| 0.5_f32.powf(1.0 / tokens)),
            heat_kept: 0.5_f32.powf(1.0 / HEAT_HALF_LIFE),
            layer: 0,
            needed: vec![false; shape.experts],
            coldest: vec![Coldest::Known(None); shape.layers],
        }
    }

    /// How large a share of the tokens each expert has been used for, over a long time,
    /// `[layers, experts]`.
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

    /// The bytes that [`ExpertCache::new`] allocates.
    pub fn required_bytes(shape: MixtureShape, slots: usize) -> usize {
        shape.all() * (size_of::<u32>() + size_of::<Uses>())
            + slots * size_of::<u32>()
            + shape.experts
            + shape.layers * size_of::<Coldest>()
    }

    /// A layer has been routed to `chosen`, in decode by one token, else by several. Until
    /// the next call none of these is evicted.
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

    /// Gives a slot to an expert that has none. Nothing if every slot is taken by an
    /// expert that the layer being computed needs.
    pub fn admit(&mut self, layer: usize, expert: usize) -> Option<Admission> {
        let victim = match self.free.is_empty() {
            true => Some(self.victim()?),
            false => None,
        };
        Some(self.replace(victim, layer, expert))
    }

    /// Gives a slot to an expert that is not needed yet, but only if that evicts nothing
    /// warmer.
    pub fn prefetch(&mut self, layer: usize, expert: usize) -> Option<Admission> {
        let victim = match self.free.is_empty() {
            true => Some(self.victim()?),
            false => None,
        };
        let is_colder =
            |index: usize| self.wait(index) > self.wait(self.shape.index(layer, expert));
        if victim.is_some_and(|victim| !is_colder(victim)) {
            return None;
        }
        Some(self.replace(victim, layer, expert))
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
