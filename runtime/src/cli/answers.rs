//! Options that say how an answer is made; `/set` changes them in a conversation.

use clap::{Args, CommandFactory, FromArgMatches, Parser};
use emel_model::tokenizer::Tokenizer;

use super::arguments::clap_message;
use super::escapes::Escapes;
use super::sampling::SamplingOptions;
use crate::{Request, SamplerOptions, StopTexts};

/// How answers are made, by llama.cpp's names.
#[derive(Debug, Clone, Args)]
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
    /// with or without the dashes. An option that takes no value may have none.
    ///
    /// # Errors
    /// When there is no such option, or it does not take the value.
    pub fn with(&self, name: &str, value: &str, escapes: &Escapes) -> anyhow::Result<Self> {
        // Only what is given changes.
        let command = Setting::command().mut_args(|option| option.default_value(None));
        let name = name.trim_start_matches('-');
        let is_named = |option: &clap::Arg| {
            let names = option.get_all_aliases().unwrap_or_default();
            let short = option.get_short().map(String::from);
            option.get_long() == Some(name)
                || names.contains(&name)
                || short.as_deref() == Some(name)
        };
        let Some(option) = command.get_arguments().find(|option| is_named(option)) else {
            let names = command.get_arguments().filter_map(clap::Arg::get_long);
            let names: Vec<&str> = names.collect();
            anyhow::bail!(
                "there is no setting {name:?}, expected one of {}",
                names.join(", ")
            );
        };
        let long = option.get_long().unwrap_or(name);
        let takes_value = option.get_action().takes_values();
        let argument = match takes_value {
            true => format!("--{long}={value}"),
            false => format!("--{long}"),
        };
        let mut setting = Setting {
            answers: self.clone(),
        };
        let matches = command.try_get_matches_from([argument]);
        let changed = matches.and_then(|matches| setting.update_from_arg_matches(&matches));
        changed.map_err(|error| anyhow::anyhow!("{}", clap_message(&error)))?;
        // A flag that is not given is not set to false either.
        setting.answers.sampling.ignore_eos |= self.sampling.ignore_eos;
        setting.answers.sampling.sampler(escapes)?;
        setting.answers.stop_texts(escapes)?;
        Ok(setting.answers)
    }

    /// The settings that are changed most, as `/set` shows them.
    pub fn summary(&self, seed: u64) -> String {
        let sampling = &self.sampling;
        format!(
            "temp {}, top-k {}, top-p {}, min-p {}, repeat-penalty {}, seed {seed}, predict {}",
            sampling.temp,
            sampling.top_k,
            sampling.top_p,
            sampling.min_p,
            sampling.repeat_penalty,
            self.predict.unwrap_or(-1),
        )
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
