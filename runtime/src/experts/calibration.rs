//! What a predictor's chance means for experts that are not in memory.
//!
//! The predictor counts how often its guesses come true among all experts. Those that are not
//! in memory are the ones that are rarely chosen, so a guess of one comes true less often: in
//! a mixture of which most is in memory, one in five of those that were given a half. Only
//! these are worth a read, so their outcomes are counted apart, by what was predicted.

/// Chances are told apart in so many equal steps.
const STEPS: usize = 10;
/// What is believed of a prediction before any guess has been seen, as a share of it, and the
/// guesses that this counts for. Outcomes are learnt from whether or not a guess is read, so
/// that doubt costs a few guesses, and trust would cost reads that nobody wants.
const PRIOR_SHARE: f32 = 0.5;
const PRIOR_GUESSES: f32 = 4.0;
/// Guesses after which older ones begin to fade.
const REMEMBERED_GUESSES: f32 = 64.0;

/// How often guesses of experts that were not in memory have come true.
#[derive(Debug, Clone)]
pub struct Calibration {
    steps: [Step; STEPS],
}

#[derive(Debug, Clone, Copy)]
struct Step {
    chance: f32,
    guesses: f32,
}

impl Default for Calibration {
    /// Nothing has been learnt.
    fn default() -> Self {
        let middle = |step: usize| (step as f32 + 0.5) / STEPS as f32;
        Self {
            steps: std::array::from_fn(|step| Step {
                chance: PRIOR_SHARE * middle(step),
                guesses: PRIOR_GUESSES,
            }),
        }
    }
}

impl Calibration {
    /// The chance that a guess comes true to which the predictor gives `predicted`.
    pub fn chance(&self, predicted: f32) -> f32 {
        self.steps[step_of(predicted)].chance
    }

    /// Such a guess came true, or did not.
    pub fn learn(&mut self, predicted: f32, is_right: bool) {
        let Step { chance, guesses } = &mut self.steps[step_of(predicted)];
        *guesses = (*guesses + 1.0).min(REMEMBERED_GUESSES);
        *chance += (f32::from(u8::from(is_right)) - *chance) / *guesses;
    }
}

fn step_of(predicted: f32) -> usize {
    ((predicted * STEPS as f32) as usize).min(STEPS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_likelier_than_not_until_a_few_guesses_have_come_true() {
        let mut calibration = Calibration::default();
        for predicted in [0.0, 0.05, 0.31, 0.5, 0.99, 1.0] {
            assert!(calibration.chance(predicted) < 0.5, "{predicted}");
        }
        (0..4).for_each(|_| calibration.learn(0.75, true));
        assert!(calibration.chance(0.75) > 0.6);
    }

    #[test]
    fn what_comes_true_less_often_than_predicted_is_believed_less() {
        let mut calibration = Calibration::default();
        for guess in 0..200 {
            calibration.learn(0.75, guess % 5 == 0);
        }
        assert!((calibration.chance(0.72) - 0.2).abs() < 0.05);
        let untried = Calibration::default().chance(0.9);
        assert!(calibration.chance(0.9) == untried, "another step");
    }

    #[test]
    fn what_was_true_long_ago_is_forgotten() {
        let mut calibration = Calibration::default();
        (0..1000).for_each(|_| calibration.learn(0.6, false));
        assert!(calibration.chance(0.6) < 0.05);
        (0..200).for_each(|_| calibration.learn(0.6, true));
        assert!(calibration.chance(0.6) > 0.9);
    }
}
