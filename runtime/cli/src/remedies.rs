//! What the command says of the library's errors and notices: which of its options they are
//! about. The library knows nothing of options.

use std::error::Error as StdError;
use std::fmt::Display;

use emel_loader::weights::WeightsError;
use emel_model::chat::ChatError;
use emel_model::sampler::SamplerError;

use emel::internals::budget::{BudgetError, in_mebibytes};
use emel::{ContextRoom, Error, Instead, Notice, SessionError, Setting, TextLimit};

/// An option with a value that nothing works with.
#[derive(Debug, thiserror::Error)]
#[error("{option} is {found}, expected {expected}")]
pub struct OptionError {
    /// The option.
    pub option: &'static str,
    /// Its value.
    pub found: String,
    /// What would be right.
    pub expected: String,
}

/// Whether the command was called wrongly, so that no model would have helped.
pub fn is_usage_error(error: &anyhow::Error) -> bool {
    let is_setting = |error: &Error| matches!(error, Error::Setting { .. } | Error::Sampler(_));
    error.is::<OptionError>()
        || error.is::<SamplerError>()
        || error.downcast_ref().is_some_and(is_setting)
}

/// One error of a chain, with the options that it is about.
pub fn in_options(error: &(dyn StdError + 'static)) -> String {
    if let Some(error) = error.downcast_ref::<Error>() {
        return of_engine(error);
    }
    if let Some(error) = error.downcast_ref::<SamplerError>() {
        return of_sampler(error);
    }
    if error.is::<ChatError>() {
        return with_options(error, CHAT_TEMPLATE);
    }
    error.to_string()
}

/// A notice, with the options that it is about.
pub fn notice_in_options(notice: &Notice) -> String {
    let options = match notice {
        Notice::ContextShortened { context, held, .. } if held <= context => "--ram-budget",
        Notice::ContextShortened { .. } | Notice::LongRope { .. } => "-c",
        Notice::ScarceMemory { .. } => "--ram-budget",
        Notice::Lossy { lossy, .. } => match (lossy.cache_routing, lossy.expert_budget) {
            (Some(_), Some(_)) => "--lossy-cache-routing, --lossy-expert-budget",
            (Some(_), None) => "--lossy-cache-routing",
            (None, _) => "--lossy-expert-budget",
        },
        Notice::LearntNotKept { .. } => "--no-learn",
        Notice::Weights(change) if change.excess_bytes > 0 => "--ram-budget, -c",
        _ => return notice.to_string(),
    };
    with_options(notice, options)
}

/// Why a text is too long, with the option that allows a longer one.
pub fn limit_in_options(limit: &TextLimit) -> String {
    let options = match (limit.is_of_budget(), limit.is_of_context()) {
        (true, true) => "--ram-budget, -c",
        (true, false) => "--ram-budget",
        (false, _) => "-c",
    };
    with_options(limit, options)
}

/// Whether and how a context could be longer than it is.
pub fn longer_context(context: usize, room: &ContextRoom) -> String {
    let ContextRoom { held, longer, .. } = *room;
    if context >= room.trained {
        return "the model was trained for no more".to_owned();
    }
    if context < held {
        return format!("-c sets a longer one, up to {held}");
    }
    let budget = in_mebibytes(room.budget_bytes);
    let needed = room.longer_bytes.div_ceil(1 << 20);
    format!("a RAM budget of {budget} holds {held}, and -c {longer} needs --ram-budget {needed}M")
}

const CHAT_TEMPLATE: &str = "--chat-template";

fn of_engine(error: &Error) -> String {
    let options = match error {
        Error::Setting {
            setting,
            found,
            expected,
        } => return format!("{} is {found}, expected {expected}", option_of(*setting)),
        Error::Sampler(error) => return of_sampler(error),
        Error::PromptTooManyBytes { bytes, limit } => {
            return format!(
                "the prompt has {bytes} bytes and {}",
                limit_in_options(limit)
            );
        }
        Error::Fallback { source, notice } => {
            return format!("{}; before that: {notice}", of_engine(source));
        }
        Error::Budget(BudgetError::Unknown { .. }) => "--ram-budget",
        Error::BudgetTooSmall {
            instead,
            profile_bytes,
            ..
        } => match (instead, *profile_bytes > 0) {
            (Instead::SmallerModel | Instead::ShorterPrompt, true) => "--ram-budget, --profile",
            (Instead::SmallerModel | Instead::ShorterPrompt, false) => "--ram-budget",
            (_, true) => "--ram-budget, -c, --profile",
            (_, false) => "--ram-budget, -c",
        },
        Error::Memory { .. } => "-c, --ram-budget",
        Error::Weights { source, .. } => match source {
            WeightsError::Memory { .. } => "--ram-budget",
            WeightsError::Reader { .. } => "--io",
            _ => return error.to_string(),
        },
        Error::Chat(_) => CHAT_TEMPLATE,
        Error::PromptTooLong { context, held, .. } => match held {
            None => "-c",
            Some((_, held)) if held < context => "--ram-budget, -c",
            Some(_) => "--ram-budget",
        },
        Error::Session { source, .. } => match source {
            SessionError::KvType { found, .. } => {
                return with_options(error, &format!("--kv {}", found.name()));
            }
            SessionError::RotaryFactors { .. } | SessionError::TooLong { .. } => "-c",
            _ => return error.to_string(),
        },
        _ => return error.to_string(),
    };
    with_options(error, options)
}

fn of_sampler(error: &SamplerError) -> String {
    let SamplerError {
        option,
        found,
        expected,
    } = error;
    let option = match *option {
        "temperature" => "--temp",
        "dynatemp_range" => "--dynatemp-range",
        "dynatemp_exponent" => "--dynatemp-exp",
        "top_p" => "--top-p",
        "min_p" => "--min-p",
        "typical_p" => "--typical",
        "top_n_sigma" => "--top-nsigma",
        "xtc_probability" => "--xtc-probability",
        "xtc_threshold" => "--xtc-threshold",
        "repeat_penalty" => "--repeat-penalty",
        "presence_penalty" => "--presence-penalty",
        "frequency_penalty" => "--frequency-penalty",
        "dry_multiplier" => "--dry-multiplier",
        "dry_base" => "--dry-base",
        "mirostat_target" => "--mirostat-ent",
        "mirostat_rate" => "--mirostat-lr",
        "logit_bias" => "--logit-bias",
        other => other,
    };
    format!("{option} is {found}, expected {expected}")
}

fn option_of(setting: Setting) -> String {
    let option = match setting {
        Setting::Threads => "-t",
        Setting::Context => "-c",
        Setting::Prefetch => "--prefetch",
        Setting::CacheRouting => "--lossy-cache-routing",
        Setting::ExpertBudget => "--lossy-expert-budget",
        Setting::LogitBias => "--logit-bias (-l)",
        other => return other.to_string(),
    };
    option.to_owned()
}

/// What is said, with the options to change behind it.
fn with_options(said: &(impl Display + ?Sized), options: &str) -> String {
    format!("{said} ({options})")
}

#[cfg(test)]
mod tests {
    use super::*;
    use emel::{KvType, LossyEffect, LossyRouting};

    #[test]
    fn an_error_names_the_options_that_it_is_about_also_behind_a_context() {
        let setting = Error::Setting {
            setting: Setting::Threads,
            found: "0".to_owned(),
            expected: "1 to 1024 threads".to_owned(),
        };
        assert_eq!(in_options(&setting), "-t is 0, expected 1 to 1024 threads");
        let session = Error::Session {
            path: "a.session".into(),
            source: SessionError::KvType {
                found: KvType::F16,
                expected: KvType::F32,
            },
        };
        let said = in_options(&session);
        assert!(said.starts_with("a.session: ") && said.ends_with(" (--kv f16)"));
        let chat = ChatError::TooMuchWork { line: 3 };
        let chat = anyhow::Error::new(chat).context("model.gguf");
        let said: Vec<String> = chat.chain().map(in_options).collect();
        assert!(said[0] == "model.gguf" && said[1].ends_with("(--chat-template)"));
    }

    #[test]
    fn what_was_called_wrongly_is_told_from_what_failed() {
        let sampler = SamplerError {
            option: "temperature",
            found: f32::NAN,
            expected: "a finite number",
        };
        let wrong = anyhow::Error::new(Error::Sampler(sampler));
        assert!(is_usage_error(&wrong) && is_usage_error(&sampler.into()));
        assert!(!is_usage_error(&Error::PromptEmpty.into()));
        let said = in_options(&sampler);
        assert_eq!(said, "--temp is NaN, expected a finite number");
    }

    #[test]
    fn a_notice_names_the_options_that_it_is_about() {
        let shortened = |context, held| {
            notice_in_options(&Notice::ContextShortened {
                context,
                wished: 4096,
                held,
                needed_bytes: (108 << 20) - 1,
            })
        };
        let to_keep = ", to keep more weights in memory: the budget holds up to";
        for (held, reason) in [
            (
                616,
                ": the budget holds no more, and 4096 need 108M (--ram-budget)".to_owned(),
            ),
            (993, format!("{to_keep} 993, and 4096 need 108M (-c)")),
            (5000, format!("{to_keep} 5000 (-c)")),
        ] {
            let expected = format!("context of 616 tokens instead of 4096{reason}");
            assert_eq!(shortened(616, held), expected);
        }
        let lossy = LossyRouting {
            cache_routing: None,
            expert_budget: Some(1),
        };
        let effect = LossyEffect::None;
        assert_eq!(
            notice_in_options(&Notice::Lossy { lossy, effect }),
            "LOSSY: expert budget 1 changes nothing here, because all experts stay in memory \
             (--lossy-expert-budget)"
        );
    }
}
