//! The likeliest tokens of a row of logits.

use std::cmp::Ordering;

/// A token and its logit, which is finite.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Candidate {
    pub(super) logit: f32,
    pub(super) id: u32,
}

impl Candidate {
    /// A candidate from whatever a model computes. What is not a number counts as
    /// the least of all, as does −∞, which is how tokens are ruled out.
    pub(super) fn new(id: u32, logit: f32) -> Self {
        let logit = if logit.is_nan() { f32::MIN } else { logit };
        Self {
            // Adding 0 makes −0 equal to 0 in the total order.
            logit: logit.clamp(f32::MIN, f32::MAX) + 0.0,
            id,
        }
    }

    /// Likeliest first; among equals, the lowest id.
    fn order(&self, other: &Self) -> Ordering {
        self.rank().cmp(&other.rank())
    }

    /// Lower for what comes first. One integer is sorted several times as fast as two keys in
    /// turn.
    fn rank(&self) -> u64 {
        // Positive floats ascend as integers do, negative ones descend.
        let bits = self.logit.to_bits();
        let ascending = bits ^ ((bits.cast_signed() >> 31).cast_unsigned() | 1 << 31);
        u64::from(!ascending) << 32 | u64::from(self.id)
    }
}

/// The likeliest candidates. Some of the vocabulary are sorted, likeliest first; all of it
/// comes in the order of ids, and is sorted only if a stage cannot do without. The buffer is
/// made once.
#[derive(Debug)]
pub(super) struct Candidates {
    buffer: Vec<Candidate>,
    is_sorted: bool,
    keep: usize,
    limit: usize,
}

impl Candidates {
    /// Room for the `keep` likeliest of up to `vocabulary_size` tokens.
    pub(super) fn new(keep: usize, vocabulary_size: usize) -> Self {
        let keep = keep.clamp(1, vocabulary_size.max(1));
        let limit = Self::limit(keep, vocabulary_size);
        Self {
            buffer: Vec::with_capacity(limit),
            is_sorted: false,
            keep,
            limit,
        }
    }

    /// How many candidates the buffer has room for.
    fn limit(keep: usize, vocabulary_size: usize) -> usize {
        let keep = keep.clamp(1, vocabulary_size.max(1));
        // With room for twice as many, the buffer is cut back only after as many
        // again have passed, so a selection is linear in the vocabulary without a
        // copy of all logits.
        keep.saturating_mul(2).min(vocabulary_size.max(1))
    }

    /// Heap bytes that [`Candidates::new`] takes.
    pub(super) fn required_bytes(keep: usize, vocabulary_size: usize) -> usize {
        Self::limit(keep, vocabulary_size).saturating_mul(size_of::<Candidate>())
    }

    /// Selects the likeliest of `candidates`.
    pub(super) fn select(&mut self, candidates: impl Iterator<Item = Candidate>) {
        self.buffer.clear();
        self.is_sorted = false;
        if self.keep == self.limit {
            self.buffer.extend(candidates.take(self.limit));
            return;
        }
        let mut last: Option<Candidate> = None;
        for candidate in candidates {
            if last.is_some_and(|last| candidate.order(&last).is_gt()) {
                continue;
            }
            if self.buffer.len() == self.limit {
                self.cut_back();
                last = self.buffer.last().copied();
            }
            self.buffer.push(candidate);
        }
        if self.buffer.len() > self.keep {
            self.cut_back();
        }
        self.sort();
    }

    /// Whether the likeliest come first.
    pub(super) fn is_sorted(&self) -> bool {
        self.is_sorted
    }

    /// Sorts the candidates, likeliest first.
    pub(super) fn sort(&mut self) {
        if !self.is_sorted {
            self.buffer.sort_unstable_by_key(Candidate::rank);
            self.is_sorted = true;
        }
    }

    /// The greatest logit; 0 if there are no candidates.
    pub(super) fn greatest(&self) -> f64 {
        let first = if self.is_sorted {
            self.buffer.first()
        } else {
            self.buffer.iter().min_by_key(|one| one.rank())
        };
        first.map_or(0.0, |one| one.logit.into())
    }

    /// Keeps the candidates that are likely, but at least the likeliest `min_keep`, and one.
    /// Whoever is likelier than a likely one has to be likely, too.
    pub(super) fn keep_likely(&mut self, min_keep: usize, is_likely: impl Fn(&Candidate) -> bool) {
        if self.is_sorted {
            let count = self.buffer.iter().take_while(|one| is_likely(one)).count();
            return self.truncate(count.max(min_keep));
        }
        let count = self.buffer.iter().filter(|one| is_likely(one)).count();
        if count < min_keep.max(1) {
            self.sort();
            return self.truncate(min_keep);
        }
        self.buffer.retain(is_likely);
    }

    /// Drops all that are likely but the last of them, if that leaves `min_keep` candidates.
    pub(super) fn drop_likely(&mut self, min_keep: usize, is_likely: impl Fn(&Candidate) -> bool) {
        let likely = || self.buffer.iter().filter(|one| is_likely(one));
        let dropped = likely().count().saturating_sub(1);
        let Some(last) = likely().map(Candidate::rank).max() else {
            return;
        };
        if self.buffer.len() - dropped >= min_keep {
            self.buffer
                .retain(|one| !is_likely(one) || one.rank() == last);
        }
    }

    /// Drops all but the likeliest, of which the least likely ends up last.
    fn cut_back(&mut self) {
        let last = self.keep - 1;
        self.buffer
            .select_nth_unstable_by_key(last, Candidate::rank);
        self.buffer.truncate(self.keep);
    }

    /// Keeps the likeliest `count` candidates, but at least one.
    pub(super) fn truncate(&mut self, count: usize) {
        if count < self.buffer.len() {
            self.sort();
            self.buffer.truncate(count.max(1));
        }
    }

    /// Keeps the first of the candidates in the order of `key`, as many as `count` says
    /// of them in that order; at least one.
    pub(super) fn keep_by(
        &mut self,
        key: impl Fn(Candidate) -> f64,
        count: impl FnOnce(&[Candidate]) -> usize,
    ) {
        self.buffer.sort_unstable_by(|left, right| {
            let by_key = key(*left).total_cmp(&key(*right));
            by_key.then(left.order(right))
        });
        let count = count(&self.buffer);
        self.buffer.truncate(count.max(1));
        self.is_sorted = false;
        self.sort();
    }

    /// Replaces every logit.
    pub(super) fn map(&mut self, logit: impl Fn(Candidate) -> f32) {
        for candidate in &mut self.buffer {
            *candidate = Candidate::new(candidate.id, logit(*candidate));
        }
        if self.is_sorted && !self.buffer.is_sorted_by_key(Candidate::rank) {
            self.is_sorted = false;
            self.sort();
        }
    }

    /// The candidates, likeliest first or in the order of ids.
    pub(super) fn as_slice(&self) -> &[Candidate] {
        &self.buffer
    }

    /// Heap bytes held.
    pub(super) fn heap_bytes(&self) -> usize {
        self.buffer.capacity() * size_of::<Candidate>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(keep: usize, logits: &[f32]) -> Vec<u32> {
        let mut candidates = Candidates::new(keep, logits.len());
        let all = (0..)
            .zip(logits)
            .map(|(id, &logit)| Candidate::new(id, logit));
        candidates.select(all);
        candidates.sort();
        candidates.as_slice().iter().map(|one| one.id).collect()
    }

    #[test]
    fn the_likeliest_come_first_and_equals_by_id() {
        assert_eq!(ids(3, &[1.0, 4.0, 2.0, 4.0, 3.0]), [1, 3, 4]);
        assert_eq!(ids(2, &[0.0, -0.0, 0.0]), [0, 1]);
        assert_eq!(ids(9, &[1.0, 2.0]), [1, 0]);
        assert_eq!(ids(1, &[5.0, 5.0, 5.0, 5.0]), [0]);
    }

    #[test]
    fn a_selection_is_the_beginning_of_the_whole_order() {
        // A multiplicative walk visits each of 0..1009 once, in a mixed order.
        let logits: Vec<f32> = (1..1010).map(|n| (n * 331 % 1009 / 3) as f32).collect();
        let whole = ids(logits.len(), &logits);
        for keep in [1, 2, 7, 40, 500, 505, 1008] {
            assert_eq!(ids(keep, &logits), whole[..keep], "{keep}");
        }
    }

    #[test]
    fn what_is_kept_does_not_depend_on_whether_it_was_sorted() {
        let logits: Vec<f32> = (1..1010).map(|n| (n * 331 % 1009 / 3) as f32).collect();
        let all = || {
            let logits = (0..).zip(&logits);
            logits.map(|(id, &logit)| Candidate::new(id, logit))
        };
        let kept = |sorts: bool, stage: &dyn Fn(&mut Candidates)| {
            let mut candidates = Candidates::new(logits.len(), logits.len());
            candidates.select(all());
            assert!(!candidates.is_sorted);
            if sorts {
                candidates.sort();
            }
            assert_eq!(candidates.greatest(), 336.0);
            stage(&mut candidates);
            candidates.sort();
            candidates.buffer
        };
        for least in [0.0, 100.0, 335.0, 336.0, 400.0] {
            for min_keep in [0, 1, 5, 2000] {
                let keeps = |candidates: &mut Candidates| {
                    candidates.keep_likely(min_keep, |one| one.logit >= least);
                };
                let drops = |candidates: &mut Candidates| {
                    candidates.drop_likely(min_keep, |one| one.logit >= least);
                };
                assert_eq!(
                    kept(false, &keeps),
                    kept(true, &keeps),
                    "{least}, {min_keep}"
                );
                assert_eq!(
                    kept(false, &drops),
                    kept(true, &drops),
                    "{least}, {min_keep}"
                );
                assert!(!kept(false, &keeps).is_empty());
            }
        }
    }

    #[test]
    fn ranks_are_in_the_order_of_logits_and_then_of_ids() {
        let logits = [f32::MAX, 1.0, 1e-40, 0.0, -1e-40, -1.0, f32::MIN];
        let candidates = logits.map(|logit| [0, 1, u32::MAX].map(|id| Candidate::new(id, logit)));
        let ranks: Vec<u64> = candidates
            .as_flattened()
            .iter()
            .map(Candidate::rank)
            .collect();
        assert!(ranks.is_sorted_by(|a, b| a < b), "{ranks:?}");
    }

    #[test]
    fn what_is_not_a_number_is_least_likely() {
        let logits = [f32::NAN, f32::NEG_INFINITY, -1.0, f32::INFINITY];
        assert_eq!(ids(4, &logits), [3, 2, 0, 1]);
    }
}
