//! How tokens are drawn.

/// The settings of a sampler. The defaults are llama.cpp's, but for the seed, which
/// is fixed so that a run can be repeated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplerOptions {
    /// Divides the logits before the draw: below 1 the likely tokens become more
    /// likely. 0 or less takes the likeliest token without a draw.
    pub temperature: f32,
    /// Draw from this many of the likeliest tokens only; 0 for all.
    pub top_k: usize,
    /// Draw from the likeliest tokens that together reach this probability; 1 for
    /// all.
    pub top_p: f32,
    /// Draw from tokens that are at least this many times as likely as the
    /// likeliest one; 0 for all.
    pub min_p: f32,
    /// Positive logits of recent tokens are divided by this, others multiplied; 1
    /// leaves them alone.
    pub repeat_penalty: f32,
    /// How many tokens are recent; 0 turns the penalty off.
    pub repeat_last_n: usize,
    /// Equal seeds draw equal tokens from equal logits.
    pub seed: u64,
}

impl Default for SamplerOptions {
    fn default() -> Self {
        Self {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            seed: 0,
        }
    }
}

/// A setting that makes no sense.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("{option} is {found}, expected {expected}")]
pub struct SamplerError {
    /// The name of the setting.
    pub option: &'static str,
    /// Its value.
    pub found: f32,
    /// The values that are allowed.
    pub expected: &'static str,
}

impl SamplerOptions {
    /// Checks that every setting makes sense.
    ///
    /// # Errors
    /// Names the first one that does not.
    pub fn check(&self) -> Result<(), SamplerError> {
        let is_probability = |value: f32| (0.0..=1.0).contains(&value);
        let penalty = self.repeat_penalty;
        let checks = [
            (
                "temperature",
                self.temperature,
                "a finite number",
                self.temperature.is_finite(),
            ),
            ("top_p", self.top_p, "0 to 1", is_probability(self.top_p)),
            ("min_p", self.min_p, "0 to 1", is_probability(self.min_p)),
            (
                "repeat_penalty",
                penalty,
                "a finite number above 0",
                penalty.is_finite() && penalty > 0.0,
            ),
        ];
        for (option, found, expected, holds) in checks {
            if !holds {
                return Err(SamplerError {
                    option,
                    found,
                    expected,
                });
            }
        }
        Ok(())
    }
}
