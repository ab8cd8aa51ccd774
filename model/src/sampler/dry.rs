//! DRY, "don't repeat yourself": a penalty on the token that would go on with a
//! repetition, growing with the length of what is repeated.
//!
//! Where the latest tokens also stand earlier in the text, the token that came next
//! there is penalised by multiplier · base^(length − allowed length), by the longest
//! such match. Matches do not reach across sequence breakers, and a token that holds a
//! whole breaker is never penalised. By p-e-w,
//! <https://github.com/oobabooga/text-generation-webui/pull/5677>; lengths come from
//! the Z algorithm on the reversed text, in linear time.

use std::sync::Arc;

use super::history::History;
use super::options::{SamplerOptions, Stage};
use crate::tokenizer::{EncodeOptions, Tokenizer};

/// A breaker is known by as many bytes.
const BREAKER_BYTES_MAX: usize = 40;
/// The greatest penalty: the token is then as good as ruled out, but goes before those
/// that are.
const PENALTY_MAX: f32 = 1e30;

/// The tokens that end repetitions.
#[derive(Debug, Clone, Default)]
pub struct Breakers {
    /// One bit for each token whose text has a whole breaker in it.
    whole: Vec<u64>,
    /// Tokens whose text ends with the beginning of a breaker, by id, and the index of
    /// the tokens that complete it.
    heads: Vec<(u32, u32)>,
    tails: Vec<Vec<u32>>,
}

impl Breakers {
    /// Finds the tokens of the breakers that `options` name, if DRY is on; empty ones are
    /// ignored.
    pub fn new(options: &SamplerOptions, tokenizer: &Tokenizer) -> Self {
        if !options.is_active(Stage::Dry) {
            return Self::default();
        }
        let texts = &options.dry_sequence_breakers;
        let mut breakers = Self {
            whole: vec![0; tokenizer.vocabulary_size().div_ceil(64)],
            ..Self::default()
        };
        for text in texts.iter().filter(|text| !text.is_empty()) {
            let text = &text.as_bytes()[..text.len().min(BREAKER_BYTES_MAX)];
            breakers.add(text, tokenizer);
        }
        breakers.heads.sort_unstable();
        breakers.heads.dedup();
        breakers.heads.shrink_to_fit();
        breakers
    }

    fn add(&mut self, text: &[u8], tokenizer: &Tokenizer) {
        const PLAIN: EncodeOptions = EncodeOptions {
            add_special: false,
            parse_special: false,
        };
        // What completes the breaker after its first byte, its first two, and so on.
        let first_tail = self.tails.len() as u32;
        let tails = (1..text.len()).map(|start| tokenizer.encode_bytes(&text[start..], PLAIN));
        self.tails.extend(tails);
        let mut word = Vec::new();
        for id in 0..tokenizer.vocabulary_size() as u32 {
            word.clear();
            tokenizer.append_token_bytes(id, true, &mut word);
            if word.windows(text.len()).any(|part| part == text) {
                self.whole[id as usize / 64] |= 1 << (id % 64);
                continue;
            }
            for length in 1..text.len() {
                if word.ends_with(&text[..length]) {
                    self.heads.push((id, first_tail + length as u32 - 1));
                }
            }
        }
    }

    /// How many tokens back the latest breaker ends, of the latest `length`.
    fn latest(&self, history: &History, length: usize) -> Option<usize> {
        (0..length).find_map(|back| {
            let id = history.back(back);
            let tail = self.longest_tail(history, id, back);
            let tail = tail.or(self.is_whole(id).then_some(0));
            tail.map(|tail| back - tail)
        })
    }

    /// Whether the text of `id` has a whole breaker in it.
    fn is_whole(&self, id: u32) -> bool {
        let word = self.whole.get(id as usize / 64);
        word.is_some_and(|word| word >> (id % 64) & 1 == 1)
    }

    /// The length of the longest tail that completes a breaker `id` begins.
    fn longest_tail(&self, history: &History, id: u32, back: usize) -> Option<usize> {
        let first = self.heads.partition_point(|head| head.0 < id);
        let heads = self.heads[first..].iter().take_while(|head| head.0 == id);
        let follows = |tail: &[u32]| {
            let mut places = tail.iter().zip(1..);
            tail.len() <= back && places.all(|(&token, place)| history.back(back - place) == token)
        };
        heads
            .map(|head| self.tails[head.1 as usize].as_slice())
            .filter(|tail| follows(tail))
            .map(<[u32]>::len)
            .max()
    }

    fn heap_bytes(&self) -> usize {
        let tails: usize = self
            .tails
            .iter()
            .map(|tail| size_of_val(tail) + tail.capacity() * size_of::<u32>())
            .sum();
        self.whole.capacity() * size_of::<u64>()
            + self.heads.capacity() * size_of::<(u32, u32)>()
            + tails
    }
}

/// The penalties at one place in the text.
#[derive(Debug)]
pub(super) struct Dry {
    multiplier: f32,
    base: f32,
    allowed_length: usize,
    last_n: usize,
    breakers: Arc<Breakers>,
    /// How many tokens before each place are also the latest ones.
    repeats: Vec<u32>,
    /// The tokens that would go on with a repetition, by id, and its length.
    lengths: Vec<(u32, u32)>,
}

impl Dry {
    /// The penalties that `options` ask for.
    pub(super) fn new(options: &SamplerOptions, breakers: Arc<Breakers>) -> Self {
        let last_n = options.dry_penalty_last_n;
        Self {
            multiplier: options.dry_multiplier,
            base: options.dry_base,
            allowed_length: options.dry_allowed_length,
            last_n,
            breakers,
            repeats: Vec::with_capacity(last_n),
            lengths: Vec::with_capacity(last_n),
        }
    }

    /// Heap bytes that [`Dry::new`] takes for the latest `last_n` tokens.
    pub(super) fn required_bytes(last_n: usize, breakers: &Breakers) -> usize {
        let lengths = last_n.saturating_mul(size_of::<u32>() + size_of::<(u32, u32)>());
        breakers.heap_bytes().saturating_add(lengths)
    }

    /// Finds the repetitions at the end of `history`.
    pub(super) fn update(&mut self, history: &History) {
        self.lengths.clear();
        let length = history.len().min(self.last_n);
        let limit = self.breakers.latest(history, length).unwrap_or(length);
        if length <= self.allowed_length || limit < self.allowed_length {
            return;
        }
        self.count_repeats(history, length);
        for back in 1..length {
            let repeat = (self.repeats[back] as usize).min(limit);
            let next = history.back(back - 1);
            if repeat >= self.allowed_length && !self.breakers.is_whole(next) {
                self.lengths.push((next, repeat as u32));
            }
        }
        // The longest of a token comes first and stays.
        self.lengths
            .sort_unstable_by_key(|&(id, length)| (id, !length));
        self.lengths.dedup_by_key(|length| length.0);
    }

    /// The Z algorithm over the latest `length` tokens, from the latest back.
    fn count_repeats(&mut self, history: &History, length: usize) {
        self.repeats.clear();
        self.repeats.push(0);
        // The match that reaches furthest back, from `start` to before `end`.
        let (mut start, mut end) = (0, 0);
        for back in 1..length {
            let mut repeat = 0;
            if back < end {
                repeat = (self.repeats[back - start] as usize).min(end - back);
            }
            while back + repeat < length && history.back(repeat) == history.back(back + repeat) {
                repeat += 1;
            }
            if back + repeat > end {
                (start, end) = (back, back + repeat);
            }
            self.repeats.push(repeat as u32);
        }
    }

    /// The tokens that the penalty concerns.
    pub(super) fn ids(&self) -> impl Iterator<Item = u32> {
        self.lengths.iter().map(|length| length.0)
    }

    /// The logit of a token after the penalty.
    pub(super) fn penalised(&self, id: u32, logit: f32) -> f32 {
        let Ok(index) = self.lengths.binary_search_by_key(&id, |length| length.0) else {
            return logit;
        };
        let beyond = self.lengths[index].1 as usize - self.allowed_length;
        let penalty = self.multiplier * self.base.powf(beyond as f32);
        logit - penalty.min(PENALTY_MAX)
    }

    /// Heap bytes held.
    pub(super) fn heap_bytes(&self) -> usize {
        self.breakers.heap_bytes()
            + self.repeats.capacity() * size_of::<u32>()
            + self.lengths.capacity() * size_of::<(u32, u32)>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn dry(breakers: Breakers) -> Dry {
        let options = SamplerOptions {
            dry_multiplier: 0.5,
            dry_base: 2.0,
            dry_allowed_length: 2,
            dry_penalty_last_n: 16,
            ..SamplerOptions::default()
        };
        Dry::new(&options, Arc::new(breakers))
    }

    fn lengths(ids: &[u32], breakers: Breakers) -> Vec<(u32, u32)> {
        let mut history = History::new(16);
        ids.iter().for_each(|&id| history.push(id));
        let mut dry = dry(breakers);
        dry.update(&history);
        dry.lengths
    }

    fn whole(ids: &[u32]) -> Breakers {
        let bits = ids.iter().fold(0, |bits, id| bits | 1 << id);
        Breakers {
            whole: vec![bits],
            ..Breakers::default()
        }
    }

    #[test]
    fn the_token_after_an_earlier_match_is_penalised_by_its_length() {
        // 1 2 3 came before, followed by 4; 2 3 also, followed by 5.
        let ids = [1, 2, 3, 4, 2, 3, 5, 1, 2, 3];
        assert_eq!(lengths(&ids, Breakers::default()), [(4, 3), (5, 2)]);
        let mut history = History::new(16);
        ids.iter().for_each(|&id| history.push(id));
        let mut dry = dry(Breakers::default());
        dry.update(&history);
        assert_eq!(dry.penalised(4, 3.0), 3.0 - 0.5 * 2.0);
        assert_eq!(dry.penalised(5, 3.0), 3.0 - 0.5);
        assert_eq!(dry.penalised(1, 3.0), 3.0);
    }

    #[test]
    fn matches_do_not_reach_across_breakers() {
        let ids = [1, 2, 3, 4, 1, 2, 3];
        assert_eq!(lengths(&ids, whole(&[1])), [(4, 2)]);
        assert_eq!(lengths(&ids, whole(&[2])), []);
        let sequence = Breakers {
            whole: vec![0],
            heads: vec![(1, 0)],
            tails: vec![vec![2]],
        };
        assert_eq!(lengths(&ids, sequence), []);
    }

    #[test]
    fn a_long_repetition_has_a_finite_penalty() {
        let options = SamplerOptions {
            dry_multiplier: 1.0,
            dry_base: 4.0,
            dry_penalty_last_n: 400,
            ..SamplerOptions::default()
        };
        let mut dry = Dry::new(&options, Arc::default());
        let mut history = History::new(400);
        (0..400).for_each(|_| history.push(7));
        dry.update(&history);
        assert_eq!(dry.lengths, [(7, 399)]);
        assert!(dry.penalised(7, 1.0).is_finite());
    }

    proptest! {
        #[test]
        fn lengths_are_those_of_comparing_every_place(ids in prop::collection::vec(0u32..3, 0..16)) {
            let mut expected: Vec<(u32, u32)> = Vec::new();
            for end in 1..ids.len() {
                let length = (1..=end)
                    .take_while(|&length| ids[..end].ends_with(&ids[ids.len() - length..]))
                    .last();
                if let Some(length) = length.filter(|&length| length >= 2) {
                    let next = ids[end];
                    match expected.iter_mut().find(|entry| entry.0 == next) {
                        Some(entry) => entry.1 = entry.1.max(length as u32),
                        None => expected.push((next, length as u32)),
                    }
                }
            }
            expected.sort_unstable();
            prop_assert_eq!(lengths(&ids, Breakers::default()), expected);
        }
    }
}
