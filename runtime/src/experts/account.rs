//! Whether guessing pays: tokens with it against tokens without.
//!
//! What a guess saves and what it costs (bytes that nobody used, demands that came while
//! they were read, experts that had to go, the time of the guesses themselves) all shows in
//! the time that a token takes. So time is what is compared: in rounds, some tokens as is
//! thought best, a few the other way, and as many as before, which cancels whatever becomes
//! faster or slower by itself. The more the other way has cost, the rarer it is tried.

/// Rounds in which both ways get as many tokens, because nothing is known.
const EVEN_ROUNDS: u32 = 8;
/// Tokens that are computed the other way in a round.
const OTHER_TOKENS: u32 = 2;
/// Tokens on each side of them as is thought best, at least and at most.
const SIDE_TOKENS: (u32, u32) = (6, 30);
/// The same for each part of a token's time that the other way has cost.
const SIDE_TOKENS_PER_LOSS: f32 = 300.0;
/// How far one round moves what is known, once enough is.
const RATE: f32 = 0.125;
/// A round says no more than this, as a logarithm: a drive may have had a hiccup.
const ROUND_MAX: f32 = 0.3;
/// What guessing has to save to be thought best, as a share of the time.
const GAIN_MIN: f32 = 0.005;

/// The account of guessing, in tokens of one after another.
#[derive(Debug, Clone)]
pub struct Account {
    /// What guessing has saved: the logarithm of a token's time without it over that with.
    gain: f32,
    /// Rounds that say so.
    rounds: u32,
    /// Whether guessing is thought best in this round.
    is_best: bool,
    /// Tokens on each side of the other way's in this round.
    side: u32,
    /// Tokens of this round so far, and the seconds that they took: as is thought best, and
    /// the other way.
    tokens: u32,
    seconds: [f32; 2],
}

impl Default for Account {
    fn default() -> Self {
        Self {
            gain: 0.0,
            rounds: 0,
            is_best: true,
            side: OTHER_TOKENS / 2,
            tokens: 0,
            seconds: [0.0; 2],
        }
    }
}

impl Account {
    /// Whether the next token is to be computed with guesses.
    pub fn guesses(&self) -> bool {
        self.is_best != self.is_other()
    }

    /// The next token has been computed, as [`Account::guesses`] said, in so many seconds.
    pub fn add(&mut self, seconds: f32) {
        self.seconds[usize::from(self.is_other())] += seconds;
        self.tokens += 1;
        if self.tokens == 2 * self.side + OTHER_TOKENS {
            self.close_round();
        }
    }

    fn is_other(&self) -> bool {
        (self.side..self.side + OTHER_TOKENS).contains(&self.tokens)
    }

    fn close_round(&mut self) {
        let [best, other] = self.seconds;
        let (best, other) = (best / (2 * self.side) as f32, other / OTHER_TOKENS as f32);
        let (with, without) = match self.is_best {
            true => (best, other),
            false => (other, best),
        };
        if with > 0.0 && without > 0.0 {
            self.rounds = self.rounds.saturating_add(1);
            let found = (without / with).ln().clamp(-ROUND_MAX, ROUND_MAX);
            let rate = RATE.max(1.0 / self.rounds as f32);
            self.gain += rate * (found - self.gain);
        }
        self.is_best = self.gain > GAIN_MIN;
        self.side = match self.rounds < EVEN_ROUNDS {
            true => OTHER_TOKENS / 2,
            false => {
                let wanted = (SIDE_TOKENS_PER_LOSS * self.gain.abs()) as u32;
                wanted.clamp(SIDE_TOKENS.0, SIDE_TOKENS.1)
            }
        };
        (self.tokens, self.seconds) = (0, [0.0; 2]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What guessing is thought to save of a token's time without it.
    fn saved(account: &Account) -> f32 {
        1.0 - (-account.gain).exp()
    }

    /// Tokens that were computed with guesses, of `tokens` that take these times.
    fn run(account: &mut Account, tokens: usize, with: f32, without: f32) -> usize {
        let mut guessed = 0;
        for index in 0..tokens {
            // Some tokens miss more than others, whichever way they are computed.
            let noise = [0.9, 1.2, 1.0, 0.8, 1.1, 1.0, 0.95][index * index % 7];
            let guesses = account.guesses();
            guessed += usize::from(guesses);
            account.add(noise * if guesses { with } else { without });
        }
        guessed
    }

    #[test]
    fn guessing_that_is_wasted_is_turned_off_and_tried_ever_more_rarely() {
        let mut account = Account::default();
        let guessed = run(&mut account, 64, 0.033, 0.030);
        assert!(guessed <= 24, "{guessed}");
        assert!(saved(&account) < 0.0);
        let guessed = run(&mut account, 1000, 0.033, 0.030);
        assert!((1..80).contains(&guessed), "{guessed}");
    }

    #[test]
    fn guessing_that_pays_is_turned_on_again() {
        let mut account = Account::default();
        run(&mut account, 500, 0.033, 0.030);
        run(&mut account, 1000, 0.025, 0.030);
        assert!(saved(&account) > 0.1, "{}", saved(&account));
        let guessed = run(&mut account, 1000, 0.025, 0.030);
        assert!(guessed > 900, "{guessed}");
        run(&mut account, 1000, 0.033, 0.030);
        let guessed = run(&mut account, 1000, 0.033, 0.030);
        assert!(guessed < 100, "{guessed}");
    }

    #[test]
    fn guessing_that_changes_nothing_is_off() {
        let mut account = Account::default();
        for _ in 0..1000 {
            account.add(0.030);
        }
        let guessed = run(&mut account, 1000, 0.030, 0.030);
        assert!(guessed < 500, "{guessed}");
    }

    #[test]
    fn what_becomes_faster_by_itself_is_not_put_down_to_guessing() {
        let mut account = Account::default();
        for token in 0..200 {
            account.add(0.100 - 0.0004 * token as f32);
        }
        assert!(saved(&account).abs() < 0.01, "{}", saved(&account));
    }

    #[test]
    fn a_hiccup_of_the_drive_does_not_turn_it_off() {
        let mut account = Account::default();
        run(&mut account, 200, 0.025, 0.030);
        while !account.guesses() {
            account.add(0.030);
        }
        account.add(5.0);
        run(&mut account, 200, 0.025, 0.030);
        assert!(run(&mut account, 200, 0.025, 0.030) > 150);
    }

    #[test]
    fn a_clock_that_stands_still_says_nothing() {
        let mut account = Account::default();
        (0..100).for_each(|_| account.add(0.0));
        assert!(saved(&account) == 0.0);
    }
}
