//! The recent tokens, and the penalties on using them again.

/// The latest tokens of a sequence.
#[derive(Debug)]
pub(super) struct History {
    recent: Vec<u32>,
    length_max: usize,
    oldest: usize,
}

impl History {
    /// An empty history of up to `length_max` tokens.
    pub(super) fn new(length_max: usize) -> Self {
        Self {
            recent: Vec::with_capacity(length_max),
            length_max,
            oldest: 0,
        }
    }

    /// Adds a token; the oldest one is forgotten.
    pub(super) fn push(&mut self, id: u32) {
        if self.recent.len() < self.length_max {
            self.recent.push(id);
        } else if self.length_max > 0 {
            self.recent[self.oldest] = id;
            self.oldest = (self.oldest + 1) % self.length_max;
        }
    }

    /// The number of tokens.
    pub(super) fn len(&self) -> usize {
        self.recent.len()
    }

    /// The token `back` places before the latest, which must exist.
    pub(super) fn back(&self, back: usize) -> u32 {
        let length = self.recent.len();
        self.recent[(self.oldest + length - 1 - back) % length]
    }

    /// Heap bytes held.
    pub(super) fn heap_bytes(&self) -> usize {
        self.recent.capacity() * size_of::<u32>()
    }
}

/// How often each recent token occurs, and what that costs: the repetition penalty of
/// CTRL (arXiv:1909.05858), and the presence and frequency penalties as OpenAI's API
/// defines them. In llama.cpp's order the first one is applied first.
#[derive(Debug)]
pub(super) struct Penalties {
    /// By id; no count is 0.
    counts: Vec<(u32, u32)>,
    last_n: usize,
    repeat: f32,
    presence: f32,
    frequency: f32,
}

impl Penalties {
    /// No tokens yet; the latest `last_n` will count.
    pub(super) fn new(last_n: usize, repeat: f32, presence: f32, frequency: f32) -> Self {
        Self {
            // One more, for the moment between a new token and an old one.
            counts: Vec::with_capacity(if last_n > 0 { last_n + 1 } else { 0 }),
            last_n,
            repeat,
            presence,
            frequency,
        }
    }

    /// Heap bytes that [`Penalties::new`] takes for the latest `last_n` tokens.
    pub(super) fn required_bytes(last_n: usize) -> usize {
        let counts = if last_n > 0 {
            last_n.saturating_add(1)
        } else {
            0
        };
        counts.saturating_mul(size_of::<(u32, u32)>())
    }

    /// Counts a token that is about to enter `history`, and forgets the one that is
    /// then too old.
    pub(super) fn push(&mut self, id: u32, history: &History) {
        if self.last_n == 0 {
            return;
        }
        match self.place(id) {
            Ok(index) => self.counts[index].1 += 1,
            Err(index) => self.counts.insert(index, (id, 1)),
        }
        if history.len() < self.last_n {
            return;
        }
        if let Ok(index) = self.place(history.back(self.last_n - 1)) {
            self.counts[index].1 -= 1;
            if self.counts[index].1 == 0 {
                self.counts.remove(index);
            }
        }
    }

    fn place(&self, id: u32) -> Result<usize, usize> {
        self.counts.binary_search_by_key(&id, |count| count.0)
    }

    /// The tokens that the penalties concern.
    pub(super) fn ids(&self) -> impl Iterator<Item = u32> {
        self.counts.iter().map(|count| count.0)
    }

    /// The logit of a token after the penalties.
    pub(super) fn penalised(&self, id: u32, logit: f32) -> f32 {
        let Ok(index) = self.place(id) else {
            return logit;
        };
        let repeated = if logit <= 0.0 {
            logit * self.repeat
        } else {
            logit / self.repeat
        };
        repeated - self.counts[index].1 as f32 * self.frequency - self.presence
    }

    /// Heap bytes held.
    pub(super) fn heap_bytes(&self) -> usize {
        self.counts.capacity() * size_of::<(u32, u32)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(ids: &[u32], mut penalties: Penalties) -> Penalties {
        let mut history = History::new(penalties.last_n);
        for &id in ids {
            penalties.push(id, &history);
            history.push(id);
        }
        penalties
    }

    #[test]
    fn recent_tokens_lose_likelihood_whatever_the_sign() {
        let penalties = after(&[3], Penalties::new(4, 2.0, 0.0, 0.0));
        assert_eq!(penalties.penalised(3, 4.0), 2.0);
        assert_eq!(penalties.penalised(3, -4.0), -8.0);
        assert_eq!(penalties.penalised(4, 4.0), 4.0);
    }

    #[test]
    fn presence_counts_once_and_frequency_each_time() {
        let penalties = after(&[3, 5, 3, 3], Penalties::new(8, 2.0, 0.25, 0.5));
        assert_eq!(penalties.penalised(3, 4.0), 2.0 - 3.0 * 0.5 - 0.25);
        assert_eq!(penalties.penalised(5, -1.0), -2.0 - 0.5 - 0.25);
    }

    #[test]
    fn a_token_is_forgotten_when_its_last_occurrence_is() {
        let penalties = |ids| after(ids, Penalties::new(2, 2.0, 0.0, 0.0));
        assert_eq!(penalties(&[1, 1, 2]).penalised(1, 4.0), 2.0);
        assert_eq!(penalties(&[1, 1, 2, 3]).penalised(1, 4.0), 4.0);
        assert_eq!(penalties(&[1, 1, 2, 3]).penalised(2, 4.0), 2.0);
    }

    #[test]
    fn the_history_counts_back_from_the_latest() {
        let mut history = History::new(3);
        for id in 0..8 {
            history.push(id);
        }
        assert_eq!([0, 1, 2].map(|back| history.back(back)), [7, 6, 5]);
        let mut none = History::new(0);
        none.push(1);
        assert_eq!(none.len(), 0);
    }
}
