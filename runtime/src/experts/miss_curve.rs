//! The miss-ratio curve: which share of a token's experts a cache of so many slots would miss.
//!
//! The [`cache`](super::cache) keeps the experts that are likeliest to be chosen when their
//! layer comes next. So an expert that is demanded is a hit wherever there are more slots than
//! experts likelier than it was, its rank. Counting ranks gives the hits of all sizes in one
//! run, as stack distances do for LRU (Mattson et al., 1970), and unlike counts of how often
//! each expert is used it has what a text uses for a while in it. The ranks of one layer are
//! looked up for each token, of all layers in turn: a sample that costs next to nothing.

use super::cache::ExpertCache;

/// Counts, for equal parts of all experts.
const BINS: usize = 64;
/// The bytes of the counts in a file.
pub(super) const CURVE_BYTES: usize = BINS * size_of::<f32>();
/// Tokens after which a rank counts half.
const HALF_LIFE: f32 = 512.0;
/// Tokens that a cache which began with nothing has to see before ranks mean something.
const LEARNING_TOKENS: u32 = 32;
/// Fewer ranks than this tell nothing.
const RANKS_MIN: f64 = 256.0;

/// How often experts of each rank were demanded, in decode.
#[derive(Debug, Clone, PartialEq)]
pub struct MissCurve {
    ranks: [f32; BINS],
    /// Tokens that were decoded; stops at the most there is.
    tokens: u32,
    /// What is kept of a count for each token.
    kept: f32,
}

impl Default for MissCurve {
    fn default() -> Self {
        Self {
            ranks: [0.0; BINS],
            tokens: 0,
            kept: 0.5_f32.powf(1.0 / HALF_LIFE),
        }
    }
}

impl MissCurve {
    /// Goes on from what another run has counted, with a cache that is warm.
    pub fn warm(&mut self, before: &Self) {
        self.ranks = before.ranks;
        self.tokens = LEARNING_TOKENS;
    }

    /// A token is decoded.
    pub fn begin_token(&mut self) {
        self.tokens = self.tokens.saturating_add(1);
        for rank in &mut self.ranks {
            *rank *= self.kept;
        }
    }

    /// The token goes to `chosen` in a layer of which the cache has not heard yet.
    pub fn route(&mut self, cache: &ExpertCache, layer: usize, chosen: &[usize]) {
        let layers = cache.shape().layers;
        if self.tokens <= LEARNING_TOKENS || self.tokens as usize % layers != layer {
            return;
        }
        for &expert in chosen {
            let bin = (cache.rank(layer, expert) * BINS as f32) as usize;
            self.ranks[bin.min(BINS - 1)] += 1.0;
        }
    }

    /// The share of demands that slots for this part of all experts would miss. Nothing if
    /// too little was counted to tell.
    pub fn miss_share(&self, resident_share: f64) -> Option<f64> {
        let all: f64 = self.ranks.iter().copied().map(f64::from).sum();
        if all < RANKS_MIN {
            return None;
        }
        let resident_bins = resident_share * BINS as f64;
        let missed = self.ranks.iter().enumerate().map(|(bin, &count)| {
            let resident = (resident_bins - bin as f64).clamp(0.0, 1.0);
            f64::from(count) * (1.0 - resident)
        });
        Some(missed.sum::<f64>() / all)
    }

    /// Its numbers, for a file.
    pub(super) fn to_bytes(&self) -> [u8; CURVE_BYTES] {
        let mut bytes = [0; CURVE_BYTES];
        for (place, rank) in bytes.chunks_exact_mut(4).zip(self.ranks) {
            place.copy_from_slice(&rank.to_le_bytes());
        }
        bytes
    }

    /// The curve of these numbers, if it can have come about.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut curve = Self::default();
        for (rank, place) in curve.ranks.iter_mut().zip(bytes.chunks_exact(4)) {
            *rank = f32::from_le_bytes([place[0], place[1], place[2], place[3]]);
        }
        let is_sane = |&rank: &f32| rank.is_finite() && rank >= 0.0;
        let all: f32 = curve.ranks.iter().sum();
        (curve.ranks.iter().all(is_sane) && all.is_finite()).then_some(curve)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experts::MixtureShape;

    const SHAPE: MixtureShape = MixtureShape {
        layers: 2,
        experts: 64,
        used: 2,
    };

    /// Goes to these experts in both layers, token after token.
    fn counted(tokens: usize, chosen: impl Fn(usize) -> [usize; 2]) -> MissCurve {
        let mut cache = ExpertCache::new(SHAPE, 8);
        let mut curve = MissCurve::default();
        for token in 0..tokens {
            curve.begin_token();
            for layer in 0..SHAPE.layers {
                curve.route(&cache, layer, &chosen(token));
                cache.route(layer, &chosen(token));
            }
        }
        curve
    }

    #[test]
    fn what_is_always_used_hits_in_few_slots_and_what_is_drawn_evenly_by_their_share() {
        let always = counted(400, |_| [3, 40]);
        let misses = |curve: &MissCurve, share| curve.miss_share(share).expect("much counted");
        assert!(misses(&always, 1.0 / 16.0) < 0.01);
        assert!((misses(&always, 0.0) - 1.0).abs() < 1e-6);
        assert!(misses(&always, 1.0) < 1e-6);
        // No expert of these is likelier than another.
        let any = counted(4000, |token| {
            let drawn = twox_hash::XxHash64::oneshot(0, &token.to_le_bytes()) as usize;
            [drawn % 64, (drawn + 17) % 64]
        });
        for share in [0.25, 0.5, 0.75] {
            assert!((misses(&any, share) - (1.0 - share)).abs() < 0.1);
        }
    }

    #[test]
    fn little_tells_nothing_and_more_slots_never_miss_more() {
        assert_eq!(counted(100, |_| [3, 40]).miss_share(0.5), None);
        let curve = counted(400, |token| [token * token % 64, (14 * token + 3) % 64]);
        let shares = (0..=100).map(|part| curve.miss_share(f64::from(part) / 100.0));
        let shares: Vec<f64> = shares.map(|share| share.expect("much counted")).collect();
        assert!(
            shares.is_sorted_by(|before, after| before >= after),
            "{shares:?}"
        );
    }

    #[test]
    fn a_curve_comes_back_from_its_bytes_and_nonsense_does_not() {
        let curve = counted(400, |token| [token % 5, 40]);
        let found = MissCurve::from_bytes(&curve.to_bytes()).expect("good bytes");
        assert_eq!(found.ranks, curve.ranks);
        for bad in [f32::NAN, f32::INFINITY, -1.0] {
            let mut bytes = curve.to_bytes();
            bytes[8..12].copy_from_slice(&bad.to_le_bytes());
            assert_eq!(MissCurve::from_bytes(&bytes), None);
        }
    }
}
