//! Lossy routing as a setting: what a model allows, and what the user is told of it.

use emel_loader::plan::Plan;
use emel_model::program::Program;
use emel_model::routing::{CacheRouting, LossyRouting};

use crate::blueprint::Settings;
use crate::error::{Error, Setting};
use crate::experts::heat::Learning;
use crate::experts::prefetch::Prefetch;
use crate::notice::{LossyEffect, Notice};

/// Whether the model can do what the rules say.
///
/// # Errors
/// When it has no experts, or not as many, or the rules contradict each other.
pub(crate) fn check(lossy: &LossyRouting, program: &Program) -> Result<(), Error> {
    let refuse = |setting, found: String, expected: String| {
        Err(Error::Setting {
            setting,
            found,
            expected,
        })
    };
    let (experts, used) = program.routing_max();
    if program.routers.is_empty() && lossy.is_on() {
        let setting = match lossy.cache_routing {
            Some(_) => Setting::CacheRouting,
            None => Setting::ExpertBudget,
        };
        return refuse(
            setting,
            "given for a model without experts".to_owned(),
            "a mixture of experts; leave it out, or choose another model".to_owned(),
        );
    }
    if let Some(CacheRouting { kept, among }) = lossy.cache_routing
        && !((1..=used).contains(&kept) && (used..=experts).contains(&among))
    {
        let expected = format!(
            "1 to {used} kept, as a token goes to {used} experts, and {used} to {experts} to choose from"
        );
        return refuse(Setting::CacheRouting, format!("{kept},{among}"), expected);
    }
    let Some(budget) = lossy.expert_budget else {
        return Ok(());
    };
    if !(1..=used).contains(&budget) {
        let expected = format!("1 to the {used} experts that a token goes to");
        return refuse(Setting::ExpertBudget, budget.to_string(), expected);
    }
    match lossy.cache_routing {
        Some(CacheRouting { kept, .. }) if kept > budget => refuse(
            Setting::ExpertBudget,
            budget.to_string(),
            format!("at least the {kept} experts that cache routing keeps, wherever they are"),
        ),
        _ => Ok(()),
    }
}

/// Turns off what makes it depend on the drive's speed, or on earlier runs, which experts are
/// in memory: with such rules the answer would too.
///
/// # Errors
/// When guesses were asked for by name.
pub(crate) fn settle(settings: &mut Settings) -> Result<(), Error> {
    if !settings.lossy.is_on() {
        return Ok(());
    }
    if !matches!(settings.prefetch, Prefetch::Auto | Prefetch::Off) {
        return Err(Error::Setting {
            setting: Setting::Prefetch,
            found: settings.prefetch.name().to_owned(),
            expected:
                "off or auto with lossy routing: the answer would depend on the drive's speed"
                    .to_owned(),
        });
    }
    settings.prefetch = Prefetch::Off;
    settings.learning = Learning::Off;
    Ok(())
}

/// What the user should know when a model starts with such rules.
pub(crate) fn notice(lossy: LossyRouting, plan: &Plan) -> Option<Notice> {
    let effect = if plan.expert_slots.is_some() {
        LossyEffect::ChangesAnswers
    } else if plan.spare_expert_slots.is_some() {
        LossyEffect::NoneYet
    } else {
        LossyEffect::None
    };
    lossy.is_on().then_some(Notice::Lossy { lossy, effect })
}
