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
use emel::{Request, SamplerOptions, StopTexts};

/// How answers are made, by llama.cpp's names.
#[derive(Debug, Clone, Args, Serialize)]
pub struct AnswerOptions {
    /// Tokens to generate; -1 or -2: until the model ends or the context is full [default: 128;
    /// in a conversation -1]
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
        let name = name.trim_start_matches('-').replace('_', "-");
        let name = name.as_str();
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
    use super::*;

    fn options(line: &str) -> AnswerOptions {
        let words = line.split(' ').filter(|word| !word.is_empty());
        Setting::try_parse_from(words).unwrap().answers
    }

    fn changed(before: &AnswerOptions, name: &str, value: &str) -> AnswerOptions {
        before.with(name, value, &Escapes::default()).unwrap().0
    }

    #[test]
    fn one_option_is_changed_and_the_others_stay() {
        let before = options("--temp 0.5 --top-k 7 -n 3 --ignore-eos -l 5-inf");
        let after = changed(&before, "top-p", "0.5");
        assert_eq!(after.sampling.top_p, 0.5);
        assert_eq!((after.sampling.temp, after.sampling.top_k), (0.5, 7));
        assert_eq!(after.predict, Some(3));
        assert!(after.sampling.ignore_eos);
        assert_eq!(after.sampling.logit_bias, before.sampling.logit_bias);
        for name in ["n", "--predict", "n-predict"] {
            assert_eq!(changed(&before, name, "-1").predict, Some(-1));
        }
        let plain = options("");
        assert_eq!(changed(&plain, "temperature", "1.5").sampling.temp, 1.5);
        assert_eq!(changed(&plain, "s", "4").sampling.seed, 4);
        assert_eq!(changed(&plain, "stop", "-a b").stop, ["-a b"]);
    }

    #[test]
    fn what_was_set_can_be_taken_away() {
        let plain = options("");
        for value in ["", "on", "true"] {
            let on = changed(&plain, "ignore-eos", value);
            assert!(on.sampling.ignore_eos);
            assert!(!changed(&on, "ignore-eos", "off").sampling.ignore_eos);
        }
        let given = options("-r a -r b -l 5-inf --dry-sequence-breaker c");
        assert!(changed(&given, "stop", "").stop.is_empty());
        let sampling = changed(&given, "logit-bias", "").sampling;
        assert!(sampling.logit_bias.is_empty());
        let sampling = changed(&given, "dry-sequence-breaker", "").sampling;
        assert!(sampling.dry_sequence_breaker.is_empty());
        // The later order counts.
        let by_letter = changed(&options("--samplers top_k"), "sampling-seq", "t");
        assert_eq!(by_letter.sampling.samplers, None);
        let by_name = changed(&by_letter, "samplers", "top_k");
        assert_eq!(by_name.sampling.sampling_seq, None);
    }

    #[test]
    fn every_setting_that_has_a_value_is_listed_as_it_was_given() {
        let given = options("--temp 0.7 -r User: -l 5-inf -l 6+1.5 --samplers top_k;temperature");
        let values = given.values(-1, u64::MAX);
        let value = |name: &str| {
            let found = values.iter().find(|(found, _)| found == name);
            found.map(|(_, value)| value.as_str())
        };
        for (name, expected) in [
            ("predict", Some("-1")),
            ("seed", Some("18446744073709551615")),
            ("temp", Some("0.7")),
            ("typical", Some("1")),
            ("ignore-eos", Some("off")),
            ("stop", Some("\"User:\"")),
            ("logit-bias", Some("\"5-inf\" \"6+1.5\"")),
            ("samplers", Some("top_k;temperature")),
            ("sampling-seq", None),
        ] {
            assert_eq!(value(name), expected, "{name}");
        }
    }

    #[test]
    fn a_setting_that_does_not_take_a_value_says_what_it_takes() {
        let command = Setting::command();
        for option in command.get_arguments().filter_map(Arg::get_long) {
            let refused = options("").with(option, "hot", &Escapes::default());
            let is_text = ["stop", "dry-sequence-breaker"].contains(&option);
            assert_eq!(refused.is_ok(), is_text, "{option}");
            if let Err(error) = refused {
                let error = error.to_string();
                let is_plain = error.starts_with("expected ") && !error.contains("invalid");
                assert!(is_plain, "{option}: {error}");
            }
        }
        for (name, value, expected) in [
            (
                "tempo",
                "1",
                "there is no setting \"tempo\", expected one of predict, stop, temp,",
            ),
            ("", "1", "there is no setting \"\""),
            ("temp", "", "expected a finite number"),
            ("top-p", "1.5", "expected a number from 0 to 1"),
            ("repeat-penalty", "-1", "expected a finite number above 0"),
            ("mirostat-ent", "-1", "expected a finite number from 0 on"),
            ("mirostat", "1", "expected 0 or 2"),
            ("n", "-3", "expected a whole number from -2 on"),
            (
                "n",
                "99999999999999999999",
                "expected a whole number from -2 on",
            ),
            ("top-k", "1.5", "expected a whole number"),
            ("seed", "-2", "expected -1 or 0 to 18446744073709551615"),
            ("samplers", "top_q", "expected penalties;dry"),
            ("sampling-seq", "kz", "expected letters of edskypmxt"),
            ("ignore-eos", "maybe", "expected on or off"),
        ] {
            let error = options("").with(name, value, &Escapes::default());
            let error = error.unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
