//! The next layer's experts, guessed while the layer at hand is computed.

use std::fmt;

use super::MixtureShape;
use super::cache::ExpertCache;
use super::coactivation::Coactivation;

/// What guesses are made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// How often each expert is used.
    Frequency,
    /// The experts of the layer at hand, by the co-activation table.
    Coactivation,
    /// The next layer's router, applied one layer early; before the first layer of a
    /// token, where there is no such thing, the table.
    Router,
    /// Router and table together.
    Both,
}

impl fmt::Display for Source {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Frequency => "frequent",
            Self::Coactivation => "coact",
            Self::Router => "router",
            Self::Both => "both",
        })
    }
}

/// How far the chance of a rank of the router's guesses moves with every layer.
const RANK_RATE: f32 = 0.01;
/// The chance of a rank before anything is known.
const RANK_CHANCE: f32 = 0.5;
/// What the table's sign weighs beside the router's, from which it is not independent.
const TABLE_WEIGHT: f32 = 0.3;
/// Chances stay this far from never and always when they are combined.
const CHANCE_MARGIN: f32 = 0.001;

/// Guesses the experts of the layer after the one at hand.
#[derive(Debug)]
pub struct Predictor {
    shape: MixtureShape,
    source: Source,
    table: Coactivation,
    /// How often the router's guess of each rank has come true.
    rank_chances: Vec<f32>,
    /// The same for an expert that it does not guess.
    other_chance: f32,
    /// What was chosen in the layer before, and what its router guessed.
    chosen: Vec<usize>,
    ahead: Vec<usize>,
    /// Of the next layer's experts: their chances, and the experts in that order.
    chances: Vec<f32>,
    order: Vec<usize>,
}

impl Predictor {
    /// A predictor that has learnt nothing; look-ahead has up to `guesses` ranks.
    pub fn new(shape: MixtureShape, source: Source, guesses: usize) -> Self {
        Self {
            shape,
            source,
            table: Coactivation::new(shape),
            rank_chances: vec![RANK_CHANCE; guesses],
            other_chance: 0.0,
            chosen: Vec::with_capacity(shape.used),
            ahead: Vec::with_capacity(guesses),
            chances: vec![0.0; shape.experts],
            order: (0..shape.experts).collect(),
        }
    }

    /// The bytes that [`Predictor::new`] allocates, with up to `guesses` ranks.
    pub fn required_bytes(shape: MixtureShape, guesses: usize) -> usize {
        Coactivation::required_bytes(shape)
            + (shape.used + guesses) * size_of::<usize>()
            + guesses * size_of::<f32>()
            + shape.experts * (size_of::<f32>() + size_of::<usize>())
    }

    /// Begins with a table that an earlier run has learnt.
    pub fn set_table(&mut self, table: Coactivation) {
        self.table = table;
        self.table.fade();
    }

    /// What was learnt.
    pub fn table(&self) -> &Coactivation {
        &self.table
    }

    /// Forgets the last token, after which the next one does not come.
    pub fn restart(&mut self) {
        self.chosen.clear();
        self.ahead.clear();
    }

    /// The token at hand goes to `chosen` in `layer`, and the next layer's router would
    /// send it to `ahead`, the likeliest first. Learns from the first, and guesses from
    /// both; nothing in `ahead` is no guess. The cache has been told before.
    pub fn route(&mut self, cache: &ExpertCache, layer: usize, chosen: &[usize], ahead: &[usize]) {
        self.learn(layer, chosen);
        self.guess(cache, layer, ahead.iter().copied());
    }

    /// The first half of [`Predictor::route`]: learns from what was chosen.
    pub fn learn(&mut self, layer: usize, chosen: &[usize]) {
        let layers = self.shape.layers;
        let before = (layer + layers - 1) % layers;
        if !self.chosen.is_empty() {
            self.table.learn(before, &self.chosen, chosen);
        }
        self.judge_ranks(chosen);
        self.chosen.clear();
        self.chosen.extend_from_slice(chosen);
        self.ahead.clear();
    }

    /// The second half: guesses from `layer`, which was learnt from before.
    pub fn guess(&mut self, cache: &ExpertCache, layer: usize, ahead: impl Iterator<Item = usize>) {
        self.ahead.clear();
        self.ahead.extend(ahead.take(self.rank_chances.len()));
        self.predict(cache, layer);
        let chances = &self.chances;
        self.order
            .sort_unstable_by(|&a, &b| chances[b].total_cmp(&chances[a]).then_with(|| a.cmp(&b)));
    }

    /// Whether the layer at hand has been told since [`Predictor::restart`].
    pub fn has_guessed(&self) -> bool {
        !self.chosen.is_empty()
    }

    /// The next layer's experts, the likeliest first.
    pub fn guesses(&self) -> &[usize] {
        &self.order
    }

    /// The chance that the next layer chooses an expert.
    pub fn chance(&self, expert: usize) -> f32 {
        self.chances[expert]
    }

    fn judge_ranks(&mut self, chosen: &[usize]) {
        if self.ahead.is_empty() {
            return;
        }
        let mut found = 0;
        for (chance, expert) in self.rank_chances.iter_mut().zip(&self.ahead) {
            let is_right = chosen.contains(expert);
            found += usize::from(is_right);
            *chance += RANK_RATE * (f32::from(u8::from(is_right)) - *chance);
        }
        let others = self.shape.experts - self.ahead.len();
        if others > 0 {
            let share = (chosen.len() - found) as f32 / others as f32;
            self.other_chance += RANK_RATE * (share - self.other_chance);
        }
    }

    /// Corrects what the router guesses by how much likelier the table's chances are than
    /// those of just any expert.
    fn add_router(&mut self) {
        let usual = log_odds(self.shape.used as f32 / self.shape.experts as f32);
        for (expert, chance) in self.chances.iter_mut().enumerate() {
            let rank = self.ahead.iter().position(|&guess| guess == expert);
            let router = rank.map_or(self.other_chance, |rank| self.rank_chances[rank]);
            let sign = TABLE_WEIGHT * (log_odds(*chance) - usual);
            *chance = 1.0 / (1.0 + (-log_odds(router) - sign).exp());
        }
    }

    fn predict(&mut self, cache: &ExpertCache, layer: usize) {
        let next = (layer + 1) % self.shape.layers;
        for (expert, chance) in self.chances.iter_mut().enumerate() {
            *chance = cache.chance(next, expert);
        }
        let has_router = !self.ahead.is_empty();
        match self.source {
            Source::Frequency => {}
            Source::Router if has_router => {
                self.chances.fill(self.other_chance);
                for (&expert, &chance) in self.ahead.iter().zip(&self.rank_chances) {
                    self.chances[expert] = chance;
                }
            }
            Source::Both if has_router => {
                self.table.predict(layer, &self.chosen, &mut self.chances);
                self.add_router();
            }
            _ => self.table.predict(layer, &self.chosen, &mut self.chances),
        }
    }
}

/// As log-odds, which of independent signs add up.
fn log_odds(chance: f32) -> f32 {
    let chance = chance.clamp(CHANCE_MARGIN, 1.0 - CHANCE_MARGIN);
    (chance / (1.0 - chance)).ln()
}
