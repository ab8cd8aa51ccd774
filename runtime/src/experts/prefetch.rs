//! Experts that a layer ahead may need, read while the drive would be idle.
//!
//! Once a layer is routed and what it misses is asked for, the next layer's experts are
//! guessed ([`predictor`](super::predictor)). Those that are likely and not in memory are
//! candidates. One after another gets a slot as soon as the drive has nothing to do that a
//! layer waits for, if no warmer expert has to go for it. When the next layer is routed, the
//! candidates that are left are forgotten, and so is what was not begun of a guess that was
//! wrong. A layer that needs a guess which is still under way waits for the rest of it
//! ("late"). A reader that reads ([`Backend::Ring`] and others)
//! reads a guess into its slot; that of a mapping asks the kernel for its pages
//! (`MADV_WILLNEED`), touches them, and gives those of the expert that had to go back
//! (`MADV_DONTNEED`).
//!
//! [`Backend::Ring`]: emel_loader::reader::Backend::Ring

use emel_loader::expert_layout::ExpertId;
use emel_loader::weights::Weights;
use serde::Serialize;

use super::MixtureShape;
use super::account::Account;
use super::cache::ExpertCache;
use super::calibration::Calibration;
use super::coactivation::Coactivation;
use super::heat::Heat;
use super::miss_curve::MissCurve;
use super::predictor::{Predictor, Source};

/// Experts of the next layer that are candidates at most.
const CANDIDATES_MAX: usize = 8;
/// Those less likely to be needed are none.
const CANDIDATE_CHANCE_MIN: f32 = 0.5;
/// Guesses of experts that are not in memory whose outcome is learnt from, the likeliest.
const JUDGED_MAX: usize = 2 * CANDIDATES_MAX;
/// A layer that will miss fewer than this on average is not worth a guess.
const EXPECTED_MISSES_MIN: f32 = 0.5;
/// Guesses under way at a time: there is time for little more before the layer comes.
const UNDER_WAY_MAX: usize = 1;
/// Experts that a router which is asked early names, for each that a token uses.
pub(crate) const GUESSES_PER_USED: usize = 2;
/// Tokens after which what was learnt is worth keeping.
const LEARNT_TOKENS_MIN: u64 = 32;

/// Whether experts are read before they are needed. What is computed does not depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Prefetch {
    /// While it makes tokens faster, by the next layer's router and the co-activation table.
    #[default]
    Auto,
    /// Never.
    Off,
    /// Always, by the next layer's router; after the last layer, by the table.
    Router,
    /// Always, by the co-activation table.
    Coactivation,
    /// Always, by both.
    Both,
}

impl Prefetch {
    /// Its name, as users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Off => "off",
            Self::Router => "router",
            Self::Coactivation => "coact",
            Self::Both => "both",
        }
    }

    /// Whether routers are asked one layer early.
    pub(crate) fn asks_routers(self) -> bool {
        matches!(self, Self::Auto | Self::Router | Self::Both)
    }

    fn source(self) -> Source {
        match self {
            Self::Router => Source::Router,
            Self::Coactivation => Source::Coactivation,
            Self::Auto | Self::Both | Self::Off => Source::Both,
        }
    }
}

/// What became of guesses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct PrefetchStatistics {
    /// Tokens computed with guesses; with [`Prefetch::Auto`] those that it was thought to pay
    /// for, or tried with.
    pub tokens: u64,
    /// Experts that were read before a layer needed them.
    pub issued: u64,
    /// Their bytes, without what alignment adds.
    pub issued_bytes: u64,
    /// Of these, those that were in memory when a layer needed them.
    pub useful: u64,
    /// Those that were on their way then.
    pub late: u64,
    /// Those that had to go before a layer needed them.
    pub wasted: u64,
    /// Experts read into empty slots because an earlier run has used them a lot.
    pub filled: u64,
}

impl PrefetchStatistics {
    /// What has been added since `before`.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            tokens: self.tokens - before.tokens,
            issued: self.issued - before.issued,
            issued_bytes: self.issued_bytes - before.issued_bytes,
            useful: self.useful - before.useful,
            late: self.late - before.late,
            wasted: self.wasted - before.wasted,
            filled: self.filled - before.filled,
        }
    }
}

/// Guesses, and reads them.
#[derive(Debug)]
pub(super) struct Prefetcher {
    shape: MixtureShape,
    setting: Prefetch,
    predictor: Predictor,
    account: Account,
    /// Whether the pass at hand is one token's, and whether it is computed with guesses.
    is_decoding: bool,
    is_on: bool,
    /// The layer that was routed last, and whether the one after it has been guessed.
    layer: usize,
    has_guessed: bool,
    /// Of the next layer, the likeliest last.
    candidates: Vec<usize>,
    /// Of the next layer's experts that are not in memory, the likeliest, with the
    /// predictor's chances; and what these have turned out to mean.
    judged: Vec<(usize, f32)>,
    calibration: Calibration,
    /// Experts to fill empty slots with, the hottest last.
    hottest: Vec<(usize, usize)>,
    /// Guesses that were given a slot since a layer was routed last.
    under_way: Vec<(usize, ExpertId)>,
    /// Of each expert: it was read before it was needed, and has not been needed yet.
    is_early: Vec<bool>,
    /// Tokens that something was learnt from.
    learnt_tokens: u64,
    statistics: PrefetchStatistics,
}

impl Prefetcher {
    /// A prefetcher that has learnt nothing; routers guess up to `guesses` experts.
    pub(super) fn new(shape: MixtureShape, setting: Prefetch, guesses: usize) -> Self {
        Self {
            shape,
            setting,
            predictor: Predictor::new(shape, setting.source(), guesses),
            account: Account::default(),
            is_decoding: false,
            is_on: false,
            layer: 0,
            has_guessed: false,
            candidates: Vec::with_capacity(CANDIDATES_MAX),
            judged: Vec::with_capacity(JUDGED_MAX),
            calibration: Calibration::default(),
            hottest: Vec::new(),
            under_way: Vec::with_capacity(UNDER_WAY_MAX),
            is_early: vec![false; shape.all()],
            learnt_tokens: 0,
            statistics: PrefetchStatistics::default(),
        }
    }

    /// The bytes that [`Prefetcher::new`] and [`Prefetcher::warm`] allocate.
    pub(super) fn required_bytes(shape: MixtureShape) -> usize {
        Predictor::required_bytes(shape, shape.experts)
            + CANDIDATES_MAX * size_of::<usize>()
            + JUDGED_MAX * size_of::<(usize, f32)>()
            + UNDER_WAY_MAX * size_of::<(usize, ExpertId)>()
            + shape.all() * (size_of::<bool>() + size_of::<(usize, usize)>())
    }

    pub(super) fn statistics(&self) -> PrefetchStatistics {
        self.statistics
    }

    /// Begins with what an earlier run has learnt.
    pub(super) fn warm(&mut self, heat: Heat) {
        self.hottest = heat.hottest();
        self.hottest.reverse();
        self.predictor.set_table(heat.table);
    }

    /// What was learnt about experts of these heats, if it is worth keeping.
    pub(super) fn learnt(&self, heats: Vec<f32>) -> Option<Heat> {
        (self.learnt_tokens >= LEARNT_TOKENS_MIN).then(|| Heat {
            shape: self.shape,
            heats,
            table: Coactivation::clone(self.predictor.table()),
            misses: MissCurve::default(),
        })
    }

    /// A pass over so many tokens begins.
    pub(super) fn begin_pass(&mut self, tokens: usize) {
        self.is_decoding = tokens == 1;
        self.is_on = self.is_decoding
            && match self.setting {
                Prefetch::Off => false,
                Prefetch::Auto => self.account.guesses(),
                Prefetch::Router | Prefetch::Coactivation | Prefetch::Both => true,
            };
        if self.is_decoding {
            self.learnt_tokens += 1;
            self.statistics.tokens += u64::from(self.is_on);
        } else {
            self.predictor.restart();
        }
        if !self.is_on {
            self.candidates.clear();
            self.judged.clear();
        }
    }

    /// The pass has ended, after so many seconds.
    pub(super) fn end_pass(&mut self, seconds: f32) {
        if self.is_decoding && self.setting == Prefetch::Auto {
            self.account.add(seconds);
        }
    }

    /// The pass has failed or nobody wants it any more.
    pub(super) fn abandon(&mut self) {
        self.candidates.clear();
        self.judged.clear();
        self.predictor.restart();
    }

    /// A layer goes to `chosen`. The cache has been told before, so it knows what the next
    /// layer is likely to miss.
    pub(super) fn route(&mut self, cache: &ExpertCache, layer: usize, chosen: &[usize]) {
        self.candidates.clear();
        for (expert, predicted) in self.judged.drain(..) {
            self.calibration.learn(predicted, chosen.contains(&expert));
        }
        self.layer = layer;
        let expected = cache.expected_misses(self.next_layer());
        self.has_guessed = !self.is_on || expected < EXPECTED_MISSES_MIN;
        if self.is_decoding {
            self.predictor.learn(layer, chosen);
        }
    }

    /// What is under way and was not chosen goes no further. The layer has been told before,
    /// and what it needs has been asked for.
    pub(super) fn forget_wrong(
        &mut self,
        cache: &mut ExpertCache,
        weights: &mut Weights,
        chosen: &[usize],
    ) {
        while let Some((slot, id)) = self.under_way.pop() {
            let ExpertId { mixture, expert } = id;
            let is_wrong = mixture == self.layer && !chosen.contains(&expert);
            if is_wrong && weights.forget_guess(slot, id) {
                cache.release(mixture, expert);
                self.missed(mixture, expert);
            }
        }
    }

    /// Slots have been closed: guesses that were in them will not be there.
    pub(super) fn follow_slots(&mut self, cache: &ExpertCache) {
        for layer in 0..self.shape.layers {
            for expert in 0..self.shape.experts {
                if cache.slot(layer, expert).is_none() {
                    self.statistics.wasted += self.take_early(layer, expert);
                }
            }
        }
    }

    /// The layer after the one that was routed last.
    pub(super) fn next_layer(&self) -> usize {
        (self.layer + 1) % self.shape.layers
    }

    /// Whether the layer after the one that was routed last is to be guessed.
    pub(super) fn wants_guess(&self) -> bool {
        !self.has_guessed
    }

    /// The next layer's router would choose `ahead`, the likeliest first; it may not have
    /// been asked.
    pub(super) fn guess(&mut self, cache: &mut ExpertCache, ahead: impl Iterator<Item = usize>) {
        self.has_guessed = true;
        let next = self.next_layer();
        self.predictor.guess(cache, self.layer, ahead);
        for expert in 0..self.shape.experts {
            cache.expect(next, expert, self.predictor.chance(expert));
        }
        let guesses = self.predictor.guesses().iter();
        let missing = guesses.filter(|&&expert| cache.slot(next, expert).is_none());
        let judged = missing.map(|&expert| (expert, self.predictor.chance(expert)));
        self.judged.extend(judged.take(JUDGED_MAX));
        for &(expert, predicted) in &self.judged {
            cache.expect(next, expert, self.calibration.chance(predicted));
        }
        let is_likely =
            |(_, predicted): &&_| self.calibration.chance(*predicted) >= CANDIDATE_CHANCE_MIN;
        let likely = self.judged.iter().filter(is_likely);
        self.candidates
            .extend(likely.map(|&(expert, _)| expert).take(CANDIDATES_MAX));
        self.candidates.reverse();
    }

    /// Has candidates read, as far as the drive is idle.
    pub(super) fn read_ahead(
        &mut self,
        cache: &mut ExpertCache,
        weights: &mut Weights,
        expert_bytes: &[u64],
    ) {
        while self.has_reads() && is_idle(weights) {
            let next = self.next_layer();
            let (id, admission) = if let Some(expert) = self.candidates.pop() {
                let id = ExpertId {
                    mixture: next,
                    expert,
                };
                let admission = match cache.slot(next, expert) {
                    None => cache.prefetch(next, expert),
                    Some(_) => None,
                };
                let Some(admission) = admission else { continue };
                self.is_early[self.shape.index(next, expert)] = true;
                self.statistics.issued += 1;
                self.statistics.issued_bytes += expert_bytes[next];
                // The one before has landed, or the drive would not be idle.
                if self.under_way.len() == UNDER_WAY_MAX {
                    self.under_way.remove(0);
                }
                self.under_way.push((admission.slot, id));
                (id, admission)
            } else {
                let Some((mixture, expert)) = self.next_hottest(cache) else {
                    return;
                };
                let Some(admission) = cache.admit(mixture, expert) else {
                    return;
                };
                self.statistics.filled += 1;
                (ExpertId { mixture, expert }, admission)
            };
            self.evicted(admission.evicted);
            weights.guess_expert(admission.slot, id);
        }
    }

    /// Whether there is something to read ahead.
    pub(super) fn has_reads(&self) -> bool {
        !self.candidates.is_empty() || !self.hottest.is_empty()
    }

    /// The hottest expert that an empty slot can be filled with, if there is one left.
    fn next_hottest(&mut self, cache: &ExpertCache) -> Option<(usize, usize)> {
        if !cache.has_free_slots() {
            self.hottest.clear();
        }
        while let Some((layer, expert)) = self.hottest.pop() {
            if cache.slot(layer, expert).is_none() {
                return Some((layer, expert));
            }
        }
        None
    }

    /// An expert was in memory when a layer needed it.
    pub(super) fn hit(&mut self, layer: usize, expert: usize) {
        self.statistics.useful += self.take_early(layer, expert);
    }

    /// An expert was on its way when a layer needed it.
    pub(super) fn late(&mut self, layer: usize, expert: usize) {
        self.statistics.late += self.take_early(layer, expert);
    }

    /// An expert was not there when a layer needed it.
    pub(super) fn missed(&mut self, layer: usize, expert: usize) {
        self.statistics.wasted += self.take_early(layer, expert);
    }

    /// An expert had to go for another.
    pub(super) fn evicted(&mut self, evicted: Option<(usize, usize)>) {
        if let Some((layer, expert)) = evicted {
            self.statistics.wasted += self.take_early(layer, expert);
        }
    }

    fn take_early(&mut self, layer: usize, expert: usize) -> u64 {
        let index = self.shape.index(layer, expert);
        u64::from(std::mem::take(&mut self.is_early[index]))
    }
}

/// Whether the drive has nothing to do that somebody waits for, and not enough else.
fn is_idle(weights: &Weights) -> bool {
    let under_way = weights.experts_under_way();
    under_way.demanded == 0 && under_way.guessed < UNDER_WAY_MAX && !weights.streams_units()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: MixtureShape = MixtureShape {
        layers: 2,
        experts: 4,
        used: 2,
    };

    #[test]
    fn a_guess_whose_slot_is_closed_was_wasted_and_is_no_use_later() {
        let mut cache = ExpertCache::new(SHAPE, 4);
        let mut prefetcher = Prefetcher::new(SHAPE, Prefetch::Both, 4);
        for expert in 0..4 {
            cache.prefetch(1, expert).expect("a free slot");
            prefetcher.is_early[SHAPE.index(1, expert)] = true;
        }
        cache.set_slots(3);
        prefetcher.follow_slots(&cache);
        prefetcher.follow_slots(&cache);
        assert_eq!(prefetcher.statistics().wasted, 1);
        (0..4).for_each(|expert| prefetcher.hit(1, expert));
        assert_eq!(prefetcher.statistics().useful, 3);
    }
}
