//! Lossy routing as a setting: what a model allows, and what the user is told of it.

use emel_loader::plan::Plan;
use emel_model::program::Program;
use emel_model::routing::{CacheRouting, LossyRouting};

use crate::blueprint::Settings;
use crate::error::Error;
use crate::experts::heat::Learning;
use crate::experts::prefetch::Prefetch;

const CACHE_ROUTING: &str = "--lossy-cache-routing";
const EXPERT_BUDGET: &str = "--lossy-expert-budget";

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
            Some(_) => CACHE_ROUTING,
            None => EXPERT_BUDGET,
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
        return refuse(CACHE_ROUTING, format!("{kept},{among}"), expected);
    }
    let Some(budget) = lossy.expert_budget else {
        return Ok(());
    };
    if !(1..=used).contains(&budget) {
        let expected = format!("1 to the {used} experts that a token goes to");
        return refuse(EXPERT_BUDGET, budget.to_string(), expected);
    }
    match lossy.cache_routing {
        Some(CacheRouting { kept, .. }) if kept > budget => refuse(
            EXPERT_BUDGET,
            budget.to_string(),
            format!("at least the {kept} experts that {CACHE_ROUTING} keeps, wherever they are"),
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
            setting: "--prefetch",
            found: settings.prefetch.name().to_owned(),
            expected:
                "off or auto with a lossy option: the answer would depend on the drive's speed"
                    .to_owned(),
        });
    }
    settings.prefetch = Prefetch::Off;
    settings.learning = Learning::Off;
    Ok(())
}

/// What the user is told when a model starts with such rules.
pub(crate) fn notice(lossy: &LossyRouting, plan: &Plan) -> Option<String> {
    let rules = rules(lossy)?;
    let effect = if plan.expert_slots.is_some() {
        "changes the answers of the model while it decodes, and by how much depends on the budget"
    } else if plan.spare_expert_slots.is_some() {
        "changes nothing here as long as all experts stay in memory, as they do until it becomes scarce"
    } else {
        "changes nothing here, because all experts stay in memory"
    };
    Some(format!("LOSSY: {rules} {effect}"))
}

/// The rules as the command spells them, if any is on.
fn rules(lossy: &LossyRouting) -> Option<String> {
    let cache_routing = lossy
        .cache_routing
        .map(|rule| format!("{CACHE_ROUTING} {},{}", rule.kept, rule.among));
    let budget = lossy
        .expert_budget
        .map(|experts| format!("{EXPERT_BUDGET} {experts}"));
    match (cache_routing, budget) {
        (Some(first), Some(second)) => Some(format!("{first} with {second}")),
        (first, second) => first.or(second),
    }
}
