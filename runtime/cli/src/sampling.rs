//! Options of commands that draw tokens, with llama.cpp's names and defaults.

use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use emel_model::sampler::{Mirostat, SamplerOptions, Stage};
use emel_model::tokenizer::Tokenizer;
use serde::{Serialize, Serializer};

use super::escapes::Escapes;
use super::remedies::{OptionError, in_options};

/// How tokens are drawn.
#[derive(Debug, Clone, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
#[command(next_help_heading = "Sampling", allow_negative_numbers = true)]
pub struct SamplingOptions {
    /// Temperature; 0 always takes the most probable token
    #[arg(long, alias = "temperature", value_name = "X", default_value_t = 0.8)]
    pub temp: f32,

    /// Sample from the K most probable tokens; 0 or -1 for all
    #[arg(long, value_name = "K", default_value_t = 40)]
    pub top_k: i64,

    /// Sample from the fewest tokens whose probability sums to P; 1 for all
    #[arg(long, value_name = "P", default_value_t = 0.95)]
    pub top_p: f32,

    /// Sample from tokens at least P times as probable as the best; 0 for all
    #[arg(long, value_name = "P", default_value_t = 0.05)]
    pub min_p: f32,

    /// Sample from tokens of typical surprise whose probability sums to P; 1 for all
    #[arg(long, alias = "typical-p", value_name = "P", default_value_t = 1.0)]
    pub typical: f32,

    /// Sample from tokens within N standard deviations of the best; -1 for all
    #[arg(long, alias = "top-n-sigma", value_name = "N", default_value_t = -1.0)]
    pub top_nsigma: f32,

    /// How often the most probable tokens are left out (XTC)
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    pub xtc_probability: f32,

    /// XTC leaves out tokens that are at least this probable; above 0.5 none
    #[arg(long, value_name = "P", default_value_t = 0.1)]
    pub xtc_threshold: f32,

    /// Penalty for repeated tokens; 1 for none
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub repeat_penalty: f32,

    /// Penalty for tokens that have occurred; 0 for none
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    pub presence_penalty: f32,

    /// Penalty for each time that a token has occurred; 0 for none
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    pub frequency_penalty: f32,

    /// Tokens that these penalties look back on; -1 for all
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(i64).range(-1..))]
    pub repeat_last_n: i64,

    /// Penalty for going on with a repetition (DRY); 0 for none
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    pub dry_multiplier: f32,

    /// Growth of that penalty with each token of the repetition
    #[arg(long, value_name = "X", default_value_t = 1.75)]
    pub dry_base: f32,

    /// Length of a repetition without that penalty
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub dry_allowed_length: usize,

    /// Tokens that DRY looks back on; -1 for all
    #[arg(long, value_name = "N", default_value_t = -1, value_parser = clap::value_parser!(i64).range(-1..))]
    pub dry_penalty_last_n: i64,

    /// A text that interrupts a repetition for DRY, with \n and \t; "none" for none; may be
    /// given more than once [default: \n : " *]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub dry_sequence_breaker: Vec<String>,

    /// Width of a temperature that follows the entropy; 0 for none
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    pub dynatemp_range: f32,

    /// Power of the entropy that such a temperature follows
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub dynatemp_exp: f32,

    /// 2 keeps the surprise of tokens near a target (Mirostat 2) instead of other samplers
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub mirostat: u8,

    /// Learning rate of Mirostat
    #[arg(long, value_name = "X", default_value_t = 0.1)]
    pub mirostat_lr: f32,

    /// Surprise that Mirostat aims at, in bits
    #[arg(long, value_name = "X", default_value_t = 5.0)]
    pub mirostat_ent: f32,

    /// A number added to a token's logit, as 15043+1 or 15043-inf; may be given more than
    /// once
    #[arg(short, long, value_name = "ID±X", value_parser = logit_bias)]
    #[serde(serialize_with = "as_given")]
    pub logit_bias: Vec<(u32, f32)>,

    /// Fewest tokens that the samplers above may leave
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub min_keep: usize,

    /// The samplers in their order, separated by ;
    /// [default: penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature]
    #[arg(long, value_name = "NAMES", value_parser = stages_by_name, conflicts_with = "sampling_seq")]
    pub samplers: Option<Stages>,

    /// The samplers in their order, a letter each [default: edskypmxt]
    #[arg(long, alias = "sampler-seq", value_name = "LETTERS", value_parser = stages_by_letter)]
    pub sampling_seq: Option<Stages>,

    /// Seed of the random numbers; -1 for another each time
    #[arg(short, long, value_name = "S", default_value_t = -1, value_parser = seed)]
    pub seed: i128,

    /// Never draw an end-of-generation token
    #[arg(long)]
    pub ignore_eos: bool,
}

/// An order of stages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stages(Vec<Stage>);

impl Serialize for Stages {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let names: Vec<&str> = self.0.iter().map(|stage| stage.name()).collect();
        serializer.serialize_str(&names.join(";"))
    }
}

/// Biases as `--logit-bias` takes them.
fn as_given<S: Serializer>(biases: &[(u32, f32)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(biases.iter().map(|(id, bias)| format!("{id}{bias:+}")))
}

impl SamplingOptions {
    /// The sampler's options, checked; a seed is chosen where none is given. `escapes` are
    /// those of texts.
    ///
    /// # Errors
    /// When an option is outside of its range, by its name on the command line, or a text's
    /// escapes make no characters.
    pub fn sampler(&self, escapes: &Escapes) -> anyhow::Result<SamplerOptions> {
        let sampler = SamplerOptions {
            dry_sequence_breakers: match self.dry_sequence_breaker.as_slice() {
                [] => SamplerOptions::default().dry_sequence_breakers,
                texts => {
                    let given = texts.iter().filter(|text| *text != "none");
                    given
                        .map(|text| escapes.replace(text))
                        .collect::<Result<_, _>>()?
                }
            },
            mirostat: self.mirostat()?,
            ..self.numbers()
        };
        sampler.check()?;
        Ok(sampler)
    }

    /// What is outside of its range, by its name on the command line.
    pub fn faults(&self) -> Vec<String> {
        let (mirostat, wrong) = match self.mirostat() {
            Ok(mirostat) => (mirostat, None),
            Err(error) => (None, Some(error.to_string())),
        };
        let sampler = SamplerOptions {
            mirostat,
            ..self.numbers()
        };
        let faults = sampler.faults().map(|error| in_options(&error));
        faults.chain(wrong).collect()
    }

    /// The options that are numbers, unchecked.
    fn numbers(&self) -> SamplerOptions {
        let default = SamplerOptions::default();
        let stages = self.samplers.as_ref().or(self.sampling_seq.as_ref());
        SamplerOptions {
            temperature: self.temp,
            dynatemp_range: self.dynatemp_range,
            dynatemp_exponent: self.dynatemp_exp,
            // 0 is all of them.
            top_k: usize::try_from(self.top_k).unwrap_or(0),
            top_p: self.top_p,
            min_p: self.min_p,
            typical_p: self.typical,
            top_n_sigma: self.top_nsigma,
            xtc_probability: self.xtc_probability,
            xtc_threshold: self.xtc_threshold,
            repeat_penalty: self.repeat_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            repeat_last_n: usize::try_from(self.repeat_last_n).unwrap_or(usize::MAX),
            dry_multiplier: self.dry_multiplier,
            dry_base: self.dry_base,
            dry_allowed_length: self.dry_allowed_length,
            dry_penalty_last_n: usize::try_from(self.dry_penalty_last_n).unwrap_or(usize::MAX),
            logit_bias: self.logit_bias.clone(),
            min_keep: self.min_keep,
            stages: stages.map_or_else(|| default.stages.clone(), |stages| stages.0.clone()),
            seed: u64::try_from(self.seed).unwrap_or_else(|_| seed_from_clock()),
            ..default
        }
    }

    fn mirostat(&self) -> Result<Option<Mirostat>, OptionError> {
        match self.mirostat {
            0 => Ok(None),
            2 => Ok(Some(Mirostat {
                target_surprise: self.mirostat_ent,
                learning_rate: self.mirostat_lr,
            })),
            other => Err(OptionError {
                option: "--mirostat",
                found: other.to_string(),
                expected: "0 or 2".to_owned(),
            }),
        }
    }

    /// Adds what `--ignore-eos` asks for, once the vocabulary is known.
    pub fn rule_out_ends(&self, sampler: &mut SamplerOptions, tokenizer: &Tokenizer) {
        if self.ignore_eos {
            let ends = tokenizer.end_of_generation().iter();
            let ruled_out = ends.map(|&id| (id, f32::NEG_INFINITY));
            sampler.logit_bias.extend(ruled_out);
        }
    }
}

fn seed_from_clock() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_nanos() as u64)
}

fn seed(text: &str) -> Result<i128, String> {
    let found = text.parse().ok();
    let found = found.filter(|seed| (-1..=i128::from(u64::MAX)).contains(seed));
    found.ok_or_else(|| format!("expected -1 or 0 to {}", u64::MAX))
}

/// `ID+X` or `ID-X`.
fn logit_bias(text: &str) -> Result<(u32, f32), String> {
    let parse = || {
        let (id, bias) = text.split_at(text.find(['+', '-'])?);
        let bias: f32 = bias.parse().ok()?;
        Some((id.parse().ok()?, bias)).filter(|_| !bias.is_nan())
    };
    parse().ok_or_else(|| "expected a token id, a sign and a number, as 15043-1.5".to_owned())
}

fn stages_by_name(text: &str) -> Result<Stages, String> {
    let stage = |name: &str| {
        let name = name.trim().replace('-', "_");
        let known = match name.as_str() {
            "typical" | "typical_p" | "typ" => "typ_p",
            "nucleus" => "top_p",
            "temp" => "temperature",
            "top_nsigma" => "top_n_sigma",
            other => other,
        };
        let mut all = Stage::ALL.into_iter();
        all.find(|stage| stage.name() == known)
            .ok_or_else(|| format!("{name} is no sampler, expected {}", names()))
    };
    let given = text.split(';').filter(|name| !name.trim().is_empty());
    given.map(stage).collect::<Result<_, _>>().map(Stages)
}

fn stages_by_letter(text: &str) -> Result<Stages, String> {
    let stage = |letter| {
        let mut all = Stage::ALL.into_iter();
        all.find(|stage| stage.letter() == letter)
            .ok_or_else(|| format!("{letter} is no sampler, expected letters of edskypmxt"))
    };
    text.chars()
        .map(stage)
        .collect::<Result<_, _>>()
        .map(Stages)
}

fn names() -> String {
    Stage::ALL.map(Stage::name).join(";")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bias_is_an_id_and_a_signed_number() {
        assert_eq!(logit_bias("15043+1.5"), Ok((15043, 1.5)));
        assert_eq!(logit_bias("7-inf"), Ok((7, f32::NEG_INFINITY)));
        for wrong in ["", "7", "+1", "7+", "7-nan", "x+1", "7 +1"] {
            assert!(logit_bias(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn stages_are_known_by_name_and_letter() {
        let all = names();
        assert_eq!(stages_by_name(&all), Ok(Stages(Stage::ALL.to_vec())));
        assert_eq!(stages_by_letter("edskypmxt"), stages_by_name(&all));
        let expected = Ok(Stages(vec![Stage::TopK, Stage::Temperature]));
        assert_eq!(stages_by_name("top-k; temp"), expected);
        assert!(stages_by_name("top_k,temp").is_err());
        assert!(stages_by_letter("kz").is_err());
    }

    #[test]
    fn a_seed_is_a_number_or_minus_one() {
        assert_eq!(seed("-1"), Ok(-1));
        assert_eq!(seed("18446744073709551615"), Ok(u64::MAX.into()));
        for wrong in ["-2", "18446744073709551616", "x", ""] {
            assert!(seed(wrong).is_err(), "{wrong:?}");
        }
    }
}
