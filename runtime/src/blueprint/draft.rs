//! A plan in the making: the shape, what it takes, and what that leaves to weights.

use emel_loader::gguf::Catalog;
use emel_loader::page::PageSize;
use emel_loader::plan::{Plan, PlanError, PlanInputs};
use emel_model::program::Program;
use emel_model::sampler::{Breakers, SamplerOptions};

use super::settings::Settings;
use super::shape::{ContextRange, Shape};
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
    /// The least that weights take, whatever the context is.
    pub(super) weight_bytes_min: u64,
    pub(super) context: ContextRange,
}

/// No plan fits the budget.
#[derive(Debug, Clone, Copy)]
pub(super) struct TooSmall {
    /// The smallest budget that works.
    pub(super) needed_bytes: u64,
    /// The context that it works with.
    pub(super) context: usize,
    /// The longest context that the budget holds; 0 if it holds none.
    pub(super) context_held: usize,
}

impl Draft<'_> {
    /// The best plan. A context that the user did not choose is shortened to `held` tokens, the
    /// longest that the budget holds, if it would be longer.
    pub(super) fn plan(&mut self, held: usize) -> Result<(Plan, Shape), TooSmall> {
        let ContextRange { floor, .. } = self.context;
        if let Ok(found) = self.plan_in_range() {
            return Ok(found);
        }
        self.context = ContextRange::exactly(held.max(floor));
        self.plan_in_range().map_err(|needed_bytes| TooSmall {
            needed_bytes,
            context: floor,
            context_held: held,
        })
    }

    /// The best plan whose context is in the range, or the bytes of the smallest one that would
    /// work.
    fn plan_in_range(&self) -> Result<(Plan, Shape), u64> {
        let (plan, shape) = self.plan_for_weights()?;
        if plan.streams() {
            return Ok((plan, shape));
        }
        // What is left then is of no use to weights.
        let longer = self.lengthened(shape, self.budget_bytes - plan.total_bytes());
        match self.plan_for(longer) {
            Ok(plan) if !plan.streams() => Ok((plan, longer)),
            _ => Ok((plan, shape)),
        }
    }

    /// As [`Draft::plan_in_range`], leaving as much to weights as is of use to them.
    fn plan_for_weights(&self) -> Result<(Plan, Shape), u64> {
        let frugal = self.frugal_shape();
        let needed_bytes = self.needed_bytes(frugal.context);
        let Some(spare_bytes) = self.budget_bytes.checked_sub(needed_bytes) else {
            return Err(needed_bytes);
        };
        let generous = self.generous_shape(spare_bytes);
        let largest = match self.plan_for(generous) {
            Ok(plan) if !plan.streams() => return Ok((plan, generous)),
            Ok(plan) => (plan, generous),
            Err(_) => match self.plan_for(frugal) {
                Ok(plan) => (plan, frugal),
                Err(error) => return Err(error.needed_bytes),
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

    pub(super) fn plan_for(&self, shape: Shape) -> Result<Plan, PlanError> {
        let inputs = PlanInputs {
            budget_bytes: self.budget_bytes,
            items: self.items(shape),
            uses: &self.program.uses,
            experts: &self.program.expert_uses,
            embedding: self.program.embedding,
            may_map: self.settings.io.may_map(),
            drive: self.settings.drive.as_ref(),
            page: PageSize::of_system(),
        };
        Plan::new(self.catalog, inputs)
    }

    /// What the user should know of the choice; `wanted` is the range before the budget was
    /// found to be too small for it, and `held` the longest context that the budget holds.
    pub(super) fn notices(&self, shape: &Shape, wanted: ContextRange, held: usize) -> Vec<Notice> {
        let mut notices = Vec::new();
        let trained = self.program.hyperparameters.context_length;
        let wished = wanted.expected();
        if shape.context < wished {
            notices.push(Notice::ContextShortened {
                context: shape.context,
                wished,
                held,
                needed_bytes: self.needed_bytes(wished),
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
