//! Options that say how an answer is made; `/set` changes them in a conversation.

use std::num::ParseFloatError;

use anyhow::{anyhow, bail};
use clap::{Arg, Args, CommandFactory, FromArgMatches, Parser};
use emel_model::tokenizer::Tokenizer;
use serde::Serialize;
use serde_json::{Map, Value};

use super::escapes::Escapes;
use super::message;
use super::sampling::SamplingOptions;
use crate::{Request, SamplerOptions, StopTexts};

/// How answers are made, by llama.cpp's names.
#[derive(Debug, Clone, Args, Serialize)]
pub struct AnswerOptions {
    /// Tokens to generate; -1 or -2 goes on until the model ends or the context is full
    /// [default: 128, in a conversation -1]
    #[arg(short = 'n', long, alias = "n-predict", value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-2..))]
    pub predict: Option<i64>,

    /// A text that ends an answer and is left out of it, with \n and \t; may be given more
    /// than once [also: --reverse-prompt]
    #[arg(
        short = 'r',
        long = "stop",
        alias = "reverse-prompt",
        value_name = "TEXT",
        allow_hyphen_values = true
    )]
    pub stop: Vec<String>,

    /// How tokens are drawn.
    #[command(flatten)]
    #[serde(flatten)]
    pub sampling: SamplingOptions,
}

/// The same as a command of its own, for `/set`.
#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct Setting {
    #[command(flatten)]
    answers: AnswerOptions,
}

impl AnswerOptions {
    /// A request of no text yet, for a model with this vocabulary; `sampler` is that of
    /// [`SamplingOptions::sampler`].
    pub fn request(
        &self,
        mut sampler: SamplerOptions,
        tokenizer: &Tokenizer,
        predict_default: i64,
    ) -> Request {
        self.sampling.rule_out_ends(&mut sampler, tokenizer);
        let mut request = Request::new(Vec::new()).sampler(sampler);
        let predict = self.predict.unwrap_or(predict_default);
        request.max_tokens = usize::try_from(predict).unwrap_or(usize::MAX);
        request.ignore_eos = self.sampling.ignore_eos;
        request
    }

    /// What ends an answer besides the model.
    ///
    /// # Errors
    /// When the escapes of a text make no characters.
    pub fn stop_texts(&self, escapes: &Escapes) -> anyhow::Result<StopTexts> {
        let texts: Result<Vec<String>, _> =
            self.stop.iter().map(|text| escapes.replace(text)).collect();
        Ok(StopTexts::new(texts?))
    }

    /// The options with another value for one of them, by its name on the command line,
    /// with or without the dashes, and that name as it is usual. What may be given more than
    /// once is taken away by no value.
    ///
    /// # Errors
    /// When there is no such option, or it does not take the value.
    pub fn with(
        &self,
        name: &str,
        value: &str,
        escapes: &Escapes,
    ) -> anyhow::Result<(Self, String)> {
        // Only what is given changes.
        let command = Setting::command().mut_args(|option| option.default_value(None));
        let name = name.trim_start_matches('-');
        let Some(option) = command
            .get_arguments()
            .find(|option| is_named(option, name))
        else {
            let names = command.get_arguments().filter_map(Arg::get_long);
            let names: Vec<&str> = names.collect();
            bail!(
                "there is no setting {name:?}, expected one of {}",
                names.join(", ")
            );
        };
        let long = option.get_long().unwrap_or(name).to_owned();
        let mut answers = self.clone();
        match long.as_str() {
            "ignore-eos" => answers.sampling.ignore_eos = switch(value)?,
            "stop" if value.is_empty() => answers.stop.clear(),
            "dry-sequence-breaker" if value.is_empty() => {
                answers.sampling.dry_sequence_breaker.clear();
            }
            "logit-bias" if value.is_empty() => answers.sampling.logit_bias.clear(),
            _ => answers = answers.updated(command, &long, value)?,
        }
        // The later order of samplers counts.
        match long.as_str() {
            "samplers" => answers.sampling.sampling_seq = None,
            "sampling-seq" => answers.sampling.samplers = None,
            _ => {}
        }
        let mut checked = answers.sampling.clone();
        if long.starts_with("mirostat-") {
            // What Mirostat would refuse is refused before it is turned on.
            checked.mirostat = 2;
        }
        let checked = checked.sampler(escapes);
        checked.map_err(|error| unexpected(&long, &message(&error)))?;
        answers.stop_texts(escapes)?;
        Ok((answers, long))
    }

    /// The options with what clap makes of a value.
    fn updated(&self, command: clap::Command, long: &str, value: &str) -> anyhow::Result<Self> {
        let mut setting = Setting {
            answers: self.clone(),
        };
        let matches = command.try_get_matches_from([format!("--{long}={value}")]);
        let changed = matches.and_then(|matches| setting.update_from_arg_matches(&matches));
        // A flag that is not given is not set to false either.
        setting.answers.sampling.ignore_eos = self.sampling.ignore_eos;
        match changed {
            Ok(()) => Ok(setting.answers),
            Err(error) => {
                let cause = std::error::Error::source(&error);
                // Every number is checked, and NaN is none of them.
                let is_number = cause.is_some_and(|cause| cause.is::<ParseFloatError>());
                if is_number && value != "nan" {
                    let escapes = Escapes::default();
                    return self.with(long, "nan", &escapes).map(|(answers, _)| answers);
                }
                Err(unexpected(
                    long,
                    &cause.map(ToString::to_string).unwrap_or_default(),
                ))
            }
        }
    }

    /// The settings that have a value, in the order of the help; `predict` and `seed` are what
    /// counts if they were not given.
    pub fn values(&self, predict: i64, seed: u64) -> Vec<(String, String)> {
        // By way of text, in which 0.8 is 0.8.
        let text = serde_json::to_string(self).unwrap_or_default();
        let mut values: Map<String, Value> = serde_json::from_str(&text).unwrap_or_default();
        let predict = self.predict.unwrap_or(predict);
        values.insert("predict".to_owned(), predict.into());
        values.insert("seed".to_owned(), seed.into());
        let command = Setting::command();
        let names = command.get_arguments().filter_map(Arg::get_long);
        let value = |name: &str| Some((name.to_owned(), shown(values.get(name)?)?));
        names.filter_map(value).collect()
    }
}

fn is_named(option: &Arg, name: &str) -> bool {
    let names = option.get_all_aliases().unwrap_or_default();
    let short = option.get_short().map(String::from);
    option.get_long() == Some(name) || names.contains(&name) || short.as_deref() == Some(name)
}

fn switch(value: &str) -> anyhow::Result<bool> {
    match value {
        "" | "on" | "true" | "1" | "yes" => Ok(true),
        "off" | "false" | "0" | "no" => Ok(false),
        _ => bail!("expected on or off"),
    }
}

/// What a setting takes, from what was said of a value that it does not take.
fn unexpected(long: &str, said: &str) -> anyhow::Error {
    let expected = match long {
        "predict" => "a whole number from -2 on",
        "top-k" => "a whole number (0 or -1 for all tokens)",
        "repeat-last-n" | "dry-penalty-last-n" => "a whole number from -1 on (-1 for all tokens)",
        "dry-allowed-length" | "min-keep" => "a whole number from 0 on",
        "mirostat" => "0 or 2",
        _ => said
            .split_once("expected ")
            .map_or(said, |(_, expected)| expected),
    };
    match expected.starts_with("0 to ") {
        true => anyhow!("expected a number from {expected}"),
        false => anyhow!("expected {expected}"),
    }
}

/// A value for people; none for what is not set.
fn shown(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::Bool(is_on) => Some(if *is_on { "on" } else { "off" }.to_owned()),
        Value::Array(values) if values.is_empty() => None,
        Value::Array(values) => {
            let values: Vec<String> = values.iter().map(Value::to_string).collect();
            Some(values.join(" "))
        }
        Value::String(text) => Some(text.clone()),
        other => {
            let text = other.to_string();
            Some(text.strip_suffix(".0").unwrap_or(&text).to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::message;
    use super::*;

    fn options(line: &str) -> AnswerOptions {
        let words = line.split(' ').filter(|word| !word.is_empty());
        Setting::try_parse_from(words).unwrap().answers
    }

    #[test]
    fn one_option_is_changed_and_the_others_stay() {
        let before = options("--temp 0.5 --top-k 7 -n 3 --ignore-eos -l 5-inf");
        let after = before.with("top-p", "0.5", &Escapes::default()).unwrap();
        assert_eq!(after.sampling.top_p, 0.5);
        assert_eq!((after.sampling.temp, after.sampling.top_k), (0.5, 7));
        assert_eq!(after.predict, Some(3));
        assert!(after.sampling.ignore_eos);
        assert_eq!(after.sampling.logit_bias, before.sampling.logit_bias);
        for (name, value) in [("n", "-1"), ("--predict", "-1"), ("n-predict", "-1")] {
            assert_eq!(
                before
                    .with(name, value, &Escapes::default())
                    .unwrap()
                    .predict,
                Some(-1)
            );
        }
        let warm = options("")
            .with("temperature", "1.5", &Escapes::default())
            .unwrap();
        assert_eq!(warm.sampling.temp, 1.5);
        assert_eq!(
            options("")
                .with("s", "4", &Escapes::default())
                .unwrap()
                .sampling
                .seed,
            4
        );
        let plain = options("");
        assert!(
            plain
                .with("ignore-eos", "", &Escapes::default())
                .unwrap()
                .sampling
                .ignore_eos
        );
        assert_eq!(
            plain
                .with("stop", "-a b", &Escapes::default())
                .unwrap()
                .stop,
            ["-a b"]
        );
    }

    #[test]
    fn what_is_no_setting_or_no_value_of_it_is_refused_by_its_name() {
        for (name, value, expected) in [
            (
                "tempo",
                "1",
                "there is no setting \"tempo\", expected one of predict, stop, temp,",
            ),
            ("", "1", "there is no setting \"\""),
            ("temp", "hot", "invalid value 'hot' for '--temp <X>'"),
            ("temp", "", "invalid value '' for '--temp <X>'"),
            ("top-p", "1.5", "--top-p is 1.5, expected 0 to 1"),
            ("n", "-3", "-3 is not in -2.."),
            ("samplers", "top_q", "top_q is no sampler"),
        ] {
            let error = options("").with(name, value, &Escapes::default());
            let error = message(&error.unwrap_err());
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains("--help"), "{error}");
            assert!(!error.starts_with("error"), "{error}");
        }
    }
}
