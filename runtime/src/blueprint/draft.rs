//! A plan in the making: the shape, what it takes, and what that leaves to weights.

use emel_loader::gguf::Catalog;
use emel_loader::plan::{Plan, PlanError, PlanInputs};
use emel_model::program::Program;
use emel_model::sampler::{Breakers, SamplerOptions};

use super::settings::Settings;
use super::shape::Shape;
use crate::notice::Notice;

/// A plan in the making.
pub(super) struct Draft<'a> {
    pub(super) catalog: &'a Catalog,
    pub(super) program: &'a Program,
    pub(super) settings: &'a Settings,
    pub(super) tokenizer_bytes: u64,
    pub(super) sampler: SamplerOptions,
    pub(super) breakers: Breakers,
    pub(super) budget_bytes: u64,
}

impl Draft<'_> {
    /// The best plan, or the bytes and context of the smallest one that would work.
    pub(super) fn plan(&self) -> Result<(Plan, Shape), (u64, usize)> {
        let frugal = self.frugal_shape();
        let needed_bytes = match self.plan_within(0, frugal) {
            Ok(_) => 0,
            Err(error) => error.needed_bytes,
        };
        let Some(spare_bytes) = self.budget_bytes.checked_sub(needed_bytes) else {
            return Err((needed_bytes, frugal.context));
        };
        let generous = self.generous_shape(spare_bytes);
        let largest = match self.plan_for(generous) {
            Ok(plan) if !plan.streams() => return Ok((plan, generous)),
            Ok(plan) => (plan, generous),
            Err(_) => match self.plan_for(frugal) {
                Ok(plan) => (plan, frugal),
                Err(error) => return Err((error.needed_bytes, frugal.context)),
            },
        };
        // Weights that all stay are worth more than what displaces them.
        let resident = |shape| self.plan_for(shape).ok().filter(|plan| !plan.streams());
        if resident(frugal).is_some() {
            let shape = self.largest_shape(spare_bytes, |shape| resident(shape).is_some());
            if let Some(plan) = resident(shape) {
                return Ok((plan, shape));
            }
        }
        Ok(largest)
    }

    fn plan_for(&self, shape: Shape) -> Result<Plan, PlanError> {
        self.plan_within(self.budget_bytes, shape)
    }

    fn plan_within(&self, budget_bytes: u64, shape: Shape) -> Result<Plan, PlanError> {
        let inputs = PlanInputs {
            budget_bytes,
            items: self.items(shape),
            uses: &self.program.uses,
            experts: &self.program.expert_uses,
            embedding: self.program.embedding,
            may_map: self.settings.io.may_map(),
            drive: self.settings.drive.as_ref(),
        };
        Plan::new(self.catalog, inputs)
    }

    /// What the user should know of the choice.
    pub(super) fn notices(&self, shape: &Shape) -> Vec<Notice> {
        let mut notices = Vec::new();
        let trained = self.program.hyperparameters.context_length;
        if shape.context < self.context_wished() {
            notices.push(Notice::ContextShortened {
                context: shape.context,
                wished: self.context_wished(),
            });
        }
        if shape.context > trained {
            notices.push(Notice::ContextUntrained {
                context: shape.context,
                trained,
            });
        }
        notices
    }
}
