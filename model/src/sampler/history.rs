//! The recent tokens, and the penalty on their repetition.

/// A ring of recent tokens with one bit per token of the vocabulary, so that asking
/// whether a token is recent costs nothing.
#[derive(Debug)]
pub(super) struct History {
    recent: Vec<u32>,
    length_max: usize,
    oldest: usize,
    bits: Vec<u64>,
    penalty: f32,
}

impl History {
    /// An empty history. Without a penalty it stays empty.
    pub(super) fn new(penalty: f32, length_max: usize, vocabulary_size: usize) -> Self {
        let is_used = penalty != 1.0 && length_max > 0;
        let length_max = if is_used { length_max } else { 0 };
        let words = if is_used {
            vocabulary_size.div_ceil(64)
        } else {
            0
        };
        Self {
            recent: Vec::with_capacity(length_max),
            length_max,
            oldest: 0,
            bits: vec![0; words],
            penalty,
        }
    }

    /// Adds a token; the oldest one is forgotten.
    pub(super) fn push(&mut self, id: u32) {
        if self.length_max == 0 {
            return;
        }
        if self.recent.len() < self.length_max {
            self.recent.push(id);
        } else {
            let forgotten = std::mem::replace(&mut self.recent[self.oldest], id);
            self.oldest = (self.oldest + 1) % self.length_max;
            if !self.recent.contains(&forgotten) {
                self.set_bit(forgotten, false);
            }
        }
        self.set_bit(id, true);
    }

    fn set_bit(&mut self, id: u32, value: bool) {
        if let Some(word) = self.bits.get_mut(id as usize / 64) {
            let mask = 1 << (id % 64);
            *word = if value { *word | mask } else { *word & !mask };
        }
    }

    /// The logit of a token after the penalty.
    #[inline]
    pub(super) fn penalised(&self, id: u32, logit: f32) -> f32 {
        let word = self.bits.get(id as usize / 64).copied().unwrap_or(0);
        if word >> (id % 64) & 1 == 0 {
            logit
        } else if logit <= 0.0 {
            logit * self.penalty
        } else {
            logit / self.penalty
        }
    }

    /// Heap bytes held.
    pub(super) fn heap_bytes(&self) -> usize {
        self.recent.capacity() * size_of::<u32>() + self.bits.capacity() * size_of::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recent_tokens_lose_likelihood_whatever_the_sign() {
        let mut history = History::new(2.0, 4, 10);
        history.push(3);
        assert_eq!(history.penalised(3, 4.0), 2.0);
        assert_eq!(history.penalised(3, -4.0), -8.0);
        assert_eq!(history.penalised(4, 4.0), 4.0);
    }

    #[test]
    fn a_token_is_forgotten_when_its_last_occurrence_is() {
        let mut history = History::new(2.0, 2, 10);
        for id in [1, 1, 2] {
            history.push(id);
        }
        assert_eq!(history.penalised(1, 4.0), 2.0);
        history.push(3);
        assert_eq!(history.penalised(1, 4.0), 4.0);
        assert_eq!(history.penalised(2, 4.0), 2.0);
    }

    #[test]
    fn ids_outside_the_vocabulary_are_ignored() {
        let mut history = History::new(2.0, 2, 10);
        history.push(u32::MAX);
        assert_eq!(history.penalised(u32::MAX, 4.0), 4.0);
    }
}
