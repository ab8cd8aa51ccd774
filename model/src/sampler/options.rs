//! How tokens are drawn.

/// The settings of a sampler. The defaults are llama.cpp's, but for the seed, which
/// is fixed so that a run can be repeated.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplerOptions {
    /// Divides the logits before the draw: below 1 the likely tokens become more
    /// likely. 0 or less takes the likeliest token without a draw, after biases and
    /// penalties and nothing else.
    pub temperature: f32,
    /// Makes the temperature go from this much less to this much more, with the
    /// entropy of the tokens that are left; 0 leaves it alone.
    pub dynatemp_range: f32,
    /// The power of the normalised entropy that the temperature follows.
    pub dynatemp_exponent: f32,
    /// Draw from this many of the likeliest tokens only; 0 for all.
    pub top_k: usize,
    /// Draw from the likeliest tokens that together reach this probability; 1 for
    /// all.
    pub top_p: f32,
    /// Draw from tokens that are at least this many times as likely as the
    /// likeliest one; 0 for all.
    pub min_p: f32,
    /// Draw from the tokens whose surprise is nearest to the entropy and that together
    /// pass this probability; 1 for all.
    pub typical_p: f32,
    /// Draw from tokens at most this many standard deviations below the greatest
    /// logit; 0 or less for all.
    pub top_n_sigma: f32,
    /// How often the likeliest tokens are left out (XTC); 0 for never.
    pub xtc_probability: f32,
    /// All tokens at least this likely but the last of them are left out by XTC; above
    /// a half there are never two.
    pub xtc_threshold: f32,
    /// Positive logits of recent tokens are divided by this, others multiplied; 1
    /// leaves them alone.
    pub repeat_penalty: f32,
    /// Taken off the logits of recent tokens.
    pub presence_penalty: f32,
    /// Taken off the logits of recent tokens for each time that they occur.
    pub frequency_penalty: f32,
    /// How many tokens are recent: 0 turns these penalties off, `usize::MAX` counts
    /// all.
    pub repeat_last_n: usize,
    /// The penalty on a token that goes on with a repetition (DRY); 0 for none.
    pub dry_multiplier: f32,
    /// By how much that penalty grows with each token of the repetition.
    pub dry_base: f32,
    /// How long a repetition may be without a penalty.
    pub dry_allowed_length: usize,
    /// How far DRY looks back for repetitions: 0 turns it off, `usize::MAX` looks at
    /// all.
    pub dry_penalty_last_n: usize,
    /// Texts that repetitions do not reach across.
    pub dry_sequence_breakers: Vec<String>,
    /// Keeps the surprise of the tokens near a target instead of all stages but the
    /// temperature.
    pub mirostat: Option<Mirostat>,
    /// Added to the logits of tokens, before anything else.
    pub logit_bias: Vec<(u32, f32)>,
    /// Candidates that top-p, min-p, typical and XTC leave at least.
    pub min_keep: usize,
    /// The stages in their order; one that is missing is not applied.
    pub stages: Vec<Stage>,
    /// Equal seeds draw equal tokens from equal logits.
    pub seed: u64,
}

/// The settings of Mirostat 2.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mirostat {
    /// The surprise to keep to, in bits.
    pub target_surprise: f32,
    /// How fast the limit follows the surprise of the tokens drawn.
    pub learning_rate: f32,
}

impl Default for Mirostat {
    fn default() -> Self {
        Self {
            target_surprise: 5.0,
            learning_rate: 0.1,
        }
    }
}

/// A step between the logits and the draw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Repeat, presence and frequency penalty.
    Penalties,
    /// The penalty on going on with a repetition.
    Dry,
    /// Leaves logits near the greatest.
    TopNSigma,
    /// Leaves a number of tokens.
    TopK,
    /// Leaves tokens of typical surprise.
    TypicalP,
    /// Leaves tokens that reach a probability.
    TopP,
    /// Leaves tokens near the likeliest.
    MinP,
    /// Leaves out the likeliest.
    Xtc,
    /// Divides by the temperature.
    Temperature,
}

impl Stage {
    /// All stages in llama.cpp's order.
    pub const ALL: [Self; 9] = [
        Self::Penalties,
        Self::Dry,
        Self::TopNSigma,
        Self::TopK,
        Self::TypicalP,
        Self::TopP,
        Self::MinP,
        Self::Xtc,
        Self::Temperature,
    ];

    /// Its name, as users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Penalties => "penalties",
            Self::Dry => "dry",
            Self::TopNSigma => "top_n_sigma",
            Self::TopK => "top_k",
            Self::TypicalP => "typ_p",
            Self::TopP => "top_p",
            Self::MinP => "min_p",
            Self::Xtc => "xtc",
            Self::Temperature => "temperature",
        }
    }

    /// Its letter, as users write it.
    pub fn letter(self) -> char {
        match self {
            Self::Penalties => 'e',
            Self::Dry => 'd',
            Self::TopNSigma => 's',
            Self::TopK => 'k',
            Self::TypicalP => 'y',
            Self::TopP => 'p',
            Self::MinP => 'm',
            Self::Xtc => 'x',
            Self::Temperature => 't',
        }
    }
}

impl Default for SamplerOptions {
    fn default() -> Self {
        Self {
            temperature: 0.8,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            typical_p: 1.0,
            top_n_sigma: -1.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            repeat_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repeat_last_n: 64,
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            dry_penalty_last_n: usize::MAX,
            dry_sequence_breakers: ["\n", ":", "\"", "*"].map(str::to_owned).to_vec(),
            mirostat: None,
            logit_bias: Vec::new(),
            min_keep: 0,
            stages: Stage::ALL.to_vec(),
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
    /// Options that need as much memory as any that a request may sensibly have: all
    /// tokens are candidates, all of the context is looked back on, and a thousand
    /// tokens are biased.
    pub fn most_demanding() -> Self {
        Self {
            top_k: 0,
            repeat_penalty: 1.1,
            repeat_last_n: usize::MAX,
            dry_multiplier: 1.0,
            logit_bias: vec![(0, 0.0); 1024],
            ..Self::default()
        }
    }

    /// The options for a sequence of up to `tokens` tokens, which has no more to look
    /// back on.
    pub(super) fn within(mut self, tokens: usize) -> Self {
        self.repeat_last_n = self.repeat_last_n.min(tokens);
        self.dry_penalty_last_n = self.dry_penalty_last_n.min(tokens);
        self
    }

    /// Checks that every setting makes sense.
    ///
    /// # Errors
    /// Names the first one that does not.
    pub fn check(&self) -> Result<(), SamplerError> {
        self.faults().next().map_or(Ok(()), Err)
    }

    /// The settings that make no sense.
    pub fn faults(&self) -> impl Iterator<Item = SamplerError> {
        const NUMBER: &str = "a finite number";
        const POSITIVE: &str = "a finite number above 0";
        const NOT_NEGATIVE: &str = "a finite number from 0 on";
        const PROBABILITY: &str = "0 to 1";
        let holds = |value: f32, expected| match expected {
            PROBABILITY => (0.0..=1.0).contains(&value),
            POSITIVE => value.is_finite() && value > 0.0,
            NOT_NEGATIVE => value.is_finite() && value >= 0.0,
            _ => value.is_finite(),
        };
        let mirostat = self.mirostat.unwrap_or_default();
        let checks = [
            ("temperature", self.temperature, NUMBER),
            ("dynatemp_range", self.dynatemp_range, NOT_NEGATIVE),
            ("dynatemp_exponent", self.dynatemp_exponent, NOT_NEGATIVE),
            ("top_p", self.top_p, PROBABILITY),
            ("min_p", self.min_p, PROBABILITY),
            ("typical_p", self.typical_p, PROBABILITY),
            ("top_n_sigma", self.top_n_sigma, NUMBER),
            ("xtc_probability", self.xtc_probability, PROBABILITY),
            ("xtc_threshold", self.xtc_threshold, PROBABILITY),
            ("repeat_penalty", self.repeat_penalty, POSITIVE),
            ("presence_penalty", self.presence_penalty, NUMBER),
            ("frequency_penalty", self.frequency_penalty, NUMBER),
            ("dry_multiplier", self.dry_multiplier, NOT_NEGATIVE),
            ("dry_base", self.dry_base, NOT_NEGATIVE),
            ("mirostat_target", mirostat.target_surprise, NOT_NEGATIVE),
            ("mirostat_rate", mirostat.learning_rate, NOT_NEGATIVE),
        ];
        let bias = self.logit_bias.iter().find(|(_, bias)| bias.is_nan());
        let bias = bias.map(|&(_, bias)| ("logit_bias", bias, "a number"));
        let wrong = checks
            .into_iter()
            .filter(move |&(_, found, expected)| !holds(found, expected));
        wrong
            .chain(bias)
            .map(|(option, found, expected)| SamplerError {
                option,
                found,
                expected,
            })
    }

    /// Whether a stage changes anything.
    pub fn is_active(&self, stage: Stage) -> bool {
        match stage {
            Stage::Penalties => {
                let plain = self.repeat_penalty == 1.0
                    && self.presence_penalty == 0.0
                    && self.frequency_penalty == 0.0;
                !plain && self.repeat_last_n > 0
            }
            Stage::Dry => {
                let penalises = self.dry_multiplier > 0.0 && self.dry_base >= 1.0;
                penalises && self.dry_penalty_last_n > 0
            }
            Stage::TopNSigma => self.top_n_sigma > 0.0,
            Stage::TopK => self.top_k > 0,
            Stage::TypicalP => self.typical_p < 1.0,
            Stage::TopP => self.top_p < 1.0,
            Stage::MinP => self.min_p > 0.0,
            Stage::Xtc => self.xtc_probability > 0.0 && self.xtc_threshold <= 0.5,
            Stage::Temperature => true,
        }
    }
}
