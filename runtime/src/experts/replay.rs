//! Replays a trace through a cache: what a policy and a predictor would have hit.
//!
//! Layer by layer: the experts that the layer chose are demanded; those without a slot are
//! misses and get one. Then the next layer's experts are guessed, and of the likeliest
//! those without a slot get one if that evicts nothing warmer. A demand for one of these is
//! a hit, resident or under way. Time is not modelled: how much of a guess is on time is
//! the drive's affair.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use serde::Serialize;

use super::MixtureShape;
use super::cache::ExpertCache;
use super::coactivation::Coactivation;
use super::heat::Heat;
use super::miss_curve::MissCurve;
use super::predictor::{Predictor, Source};
use super::trace::Trace;

/// Tokens after which a use counts half under [`Textbook::AgedLfu`].
const AGED_LFU_HALF_LIFE: f64 = 32.0;

/// Who has to go when a slot is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// What [`ExpertCache`] does.
    Learned,
    /// One to compare it with.
    Textbook(Textbook),
}

/// A policy as textbooks have it: demand by demand, whatever the layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Textbook {
    /// The expert not used for the longest time.
    Lru,
    /// The expert used least often.
    Lfu,
    /// The same, where every use counts half of what it did 32 tokens before (LRFU,
    /// Lee et al., 2001).
    AgedLfu,
    /// The expert whose next use comes last: no policy can do better (Bélády, 1966).
    Belady,
}

/// What is replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replay {
    /// Experts that fit in memory.
    pub slots: usize,
    /// Who has to go.
    pub policy: Policy,
    /// Whether each layer has an equal share of the slots, or all of them share all.
    pub per_layer: bool,
    /// Where guesses come from, and how many experts of the next layer are guessed.
    pub guesses: Option<(Source, usize)>,
}

/// What came of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Score {
    /// Experts demanded.
    pub demands: u64,
    /// Of these, those that were resident or under way.
    pub hits: u64,
    /// Experts read ahead of a demand.
    pub prefetched: u64,
    /// Of these, those that were demanded before they were evicted.
    pub prefetched_used: u64,
    /// Demands of layers that come after another one in the token.
    pub guessed_demands: u64,
    /// Of these, those that had been guessed one layer before.
    pub guessed_right: u64,
}

impl Score {
    /// Hits for each demand.
    pub fn hit_rate(&self) -> f64 {
        self.hits as f64 / self.demands as f64
    }

    /// Experts read for each demand.
    pub fn reads_per_demand(&self) -> f64 {
        (self.demands - self.hits + self.prefetched) as f64 / self.demands as f64
    }

    /// The share of the demanded experts that the guesses named.
    pub fn recall(&self) -> f64 {
        self.guessed_right as f64 / self.guessed_demands as f64
    }
}

impl Replay {
    /// Replays a trace. Guesses work with [`Policy::Learned`] and shared slots.
    ///
    /// # Panics
    /// When a cache has fewer slots than a token uses experts of a layer.
    pub fn run(&self, trace: &Trace) -> Score {
        let shape = trace.header().shape;
        if !self.per_layer {
            return self.run_layers(trace, 0..shape.layers, self.slots);
        }
        let mut score = Score::default();
        for layer in 0..shape.layers {
            let slots = self.slots / shape.layers;
            let of_layer = self.run_layers(trace, layer..layer + 1, slots);
            score.demands += of_layer.demands;
            score.hits += of_layer.hits;
        }
        score
    }

    /// As [`Replay::run`] with [`Policy::Learned`] and shared slots, from what was learnt
    /// before: the hottest experts are resident. Says what is known in the end.
    ///
    /// # Panics
    /// As [`Replay::run`], and when `start` is of another model.
    pub fn run_from(&self, trace: &Trace, start: Option<&Heat>) -> (Score, Heat) {
        let shape = trace.header().shape;
        let mut player = Player::new(self, trace, shape, self.slots);
        if let Some(heat) = start {
            player.warm(heat, self.slots);
        }
        player.play(trace, 0..shape.layers);
        (player.score, player.heat())
    }

    fn run_layers(&self, trace: &Trace, layers: Range<usize>, slots: usize) -> Score {
        match self.policy {
            Policy::Learned => {
                let shape = MixtureShape {
                    layers: layers.len(),
                    ..trace.header().shape
                };
                let mut player = Player::new(self, trace, shape, slots);
                player.play(trace, layers);
                player.score
            }
            Policy::Textbook(policy) => run_textbook(policy, &demands(trace, layers), slots),
        }
    }
}

/// A cache and a predictor at work.
struct Player {
    shape: MixtureShape,
    cache: ExpertCache,
    misses: MissCurve,
    guessing: Option<(Predictor, usize)>,
    /// Of each expert: it has been read ahead and not been demanded yet.
    is_early: Vec<bool>,
    score: Score,
}

impl Player {
    fn new(replay: &Replay, trace: &Trace, shape: MixtureShape, slots: usize) -> Self {
        let ranks = trace.header().guesses;
        Self {
            shape,
            cache: ExpertCache::new(shape, slots),
            misses: MissCurve::default(),
            guessing: replay
                .guesses
                .map(|(source, count)| (Predictor::new(shape, source, ranks), count)),
            is_early: vec![false; shape.all()],
            score: Score::default(),
        }
    }

    /// Begins with what was learnt before.
    fn warm(&mut self, heat: &Heat, slots: usize) {
        assert_eq!(self.shape, heat.shape, "of another model");
        self.cache.warm(&heat.heats);
        self.misses.warm(&heat.misses);
        for (layer, expert) in heat.hottest().into_iter().take(slots) {
            self.cache.admit(layer, expert);
        }
        if let Some((predictor, _)) = &mut self.guessing {
            predictor.set_table(heat.table.clone());
        }
    }

    /// What has been learnt.
    fn heat(&self) -> Heat {
        let table = match &self.guessing {
            Some((predictor, _)) => predictor.table().clone(),
            None => Coactivation::new(self.shape),
        };
        Heat {
            shape: self.shape,
            heats: self.cache.heats().collect(),
            table,
            misses: self.misses.clone(),
        }
    }

    /// Goes through the trace's positions, and these of its layers.
    fn play(&mut self, trace: &Trace, layers: Range<usize>) {
        let (mut chosen, mut ahead) = (Vec::new(), Vec::new());
        let ids = |ids: &[u16], out: &mut Vec<usize>| {
            out.clear();
            out.extend(ids.iter().map(|&id| usize::from(id)));
        };
        for index in 0..trace.len() {
            if !trace.follows(index)
                && let Some((predictor, _)) = &mut self.guessing
            {
                predictor.restart();
            }
            self.misses.begin_token();
            for (layer, of_trace) in layers.clone().enumerate() {
                ids(trace.experts(index, of_trace), &mut chosen);
                ids(&[], &mut ahead);
                if of_trace + 1 < layers.end {
                    ids(trace.guesses(index, of_trace + 1), &mut ahead);
                }
                self.route(layer, &chosen, &ahead);
            }
        }
    }

    fn route(&mut self, layer: usize, chosen: &[usize], ahead: &[usize]) {
        if layer > 0 {
            self.judge_guesses(chosen);
        }
        self.misses.route(&self.cache, layer, chosen);
        self.cache.route(layer, chosen);
        for &expert in chosen {
            let index = self.shape.index(layer, expert);
            self.score.demands += 1;
            if self.cache.slot(layer, expert).is_some() {
                self.score.hits += 1;
                self.score.prefetched_used += u64::from(self.is_early[index]);
            } else if let Some(admission) = self.cache.admit(layer, expert) {
                self.forget(admission.evicted);
            }
            self.is_early[index] = false;
        }
        self.guess(layer, chosen, ahead);
    }

    fn guess(&mut self, layer: usize, chosen: &[usize], ahead: &[usize]) {
        let Some((predictor, count)) = &mut self.guessing else {
            return;
        };
        let (count, next) = (*count, (layer + 1) % self.shape.layers);
        predictor.route(&self.cache, layer, chosen, ahead);
        for expert in 0..self.shape.experts {
            self.cache.expect(next, expert, predictor.chance(expert));
        }
        for rank in 0..count.min(self.shape.experts) {
            let Some((predictor, _)) = &self.guessing else {
                return;
            };
            let expert = predictor.guesses()[rank];
            if self.cache.slot(next, expert).is_none()
                && let Some(admission) = self.cache.prefetch(next, expert)
            {
                self.score.prefetched += 1;
                self.is_early[self.shape.index(next, expert)] = true;
                self.forget(admission.evicted);
            }
        }
    }

    fn judge_guesses(&mut self, chosen: &[usize]) {
        let Some((predictor, count)) = &self.guessing else {
            return;
        };
        if !predictor.has_guessed() {
            return;
        }
        let guesses = &predictor.guesses()[..(*count).min(self.shape.experts)];
        let right = chosen.iter().filter(|expert| guesses.contains(expert));
        self.score.guessed_right += right.count() as u64;
        self.score.guessed_demands += chosen.len() as u64;
    }

    fn forget(&mut self, evicted: Option<(usize, usize)>) {
        if let Some((layer, expert)) = evicted {
            self.is_early[self.shape.index(layer, expert)] = false;
        }
    }
}

/// The experts that a trace demands of some layers, one after the other, and the token of
/// each.
fn demands(trace: &Trace, layers: Range<usize>) -> Vec<(u32, u32)> {
    let shape = trace.header().shape;
    let of_token = |index: usize| {
        layers.clone().flat_map(move |layer| {
            let place = move |&expert: &u16| shape.index(layer, usize::from(expert)) as u32;
            let experts = trace.experts(index, layer).iter().map(place);
            experts.map(move |expert| (index as u32, expert))
        })
    };
    let mut demands = Vec::with_capacity(trace.len() * layers.len() * shape.used);
    demands.extend((0..trace.len()).flat_map(of_token));
    demands
}

/// Every expert has a worth, which changes only when it is used, and the least worthy
/// resident one is evicted.
fn run_textbook(policy: Textbook, demands: &[(u32, u32)], slots: usize) -> Score {
    let next_uses = match policy {
        Textbook::Belady => next_uses(demands),
        _ => Vec::new(),
    };
    // Of every expert that has ever been used.
    let mut worths: HashMap<u32, f64> = HashMap::new();
    let mut resident: BTreeSet<(u64, u32)> = BTreeSet::new();
    let mut score = Score::default();
    for (index, &(token, expert)) in demands.iter().enumerate() {
        let before = worths.get(&expert).copied();
        let worth = match policy {
            Textbook::Lru => index as f64,
            Textbook::Lfu => before.unwrap_or(0.0) + 1.0,
            Textbook::AgedLfu => aged(before, f64::from(token) / AGED_LFU_HALF_LIFE),
            Textbook::Belady => (demands.len() - next_uses[index] as usize) as f64,
        };
        worths.insert(expert, worth);
        score.demands += 1;
        if before.is_some_and(|before| resident.remove(&(before.to_bits(), expert))) {
            score.hits += 1;
        } else if resident.len() == slots {
            resident.pop_first();
        }
        // Numbers that are not negative are in the order of their bits.
        resident.insert((worth.to_bits(), expert));
    }
    score
}

/// log₂ of a sum of uses, each of which counts twice as much as one half-life before.
fn aged(before: Option<f64>, time: f64) -> f64 {
    match before {
        Some(before) => {
            let most = before.max(time);
            most + ((before - most).exp2() + (time - most).exp2()).log2()
        }
        None => time,
    }
}

/// The index of the next demand for the same expert, or the number of demands. A trace's
/// length bounds both to less than 2³².
fn next_uses(demands: &[(u32, u32)]) -> Vec<u32> {
    let mut next: HashMap<u32, u32> = HashMap::new();
    let end = demands.len() as u32;
    let mut uses = vec![end; demands.len()];
    for (index, (_, expert)) in demands.iter().enumerate().rev() {
        uses[index] = next.insert(*expert, index as u32).unwrap_or(end);
    }
    uses
}
