//! A plan in the making: the shape, what it takes, and what that leaves to weights.

use emel_loader::gguf::Catalog;
use emel_loader::plan::{Plan, PlanError, PlanInputs};
use emel_model::program::Program;
use emel_model::sampler::{Breakers, SamplerOptions};

use super::settings::Settings;
use super::shape::{CHUNK_MIN, Shape};

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
        let generous = self.shape();
        if let Ok(plan) = self.plan_for(generous) {
            return Ok((plan, generous));
        }
        let frugal = self.with_chunk(self.context_min(), CHUNK_MIN);
        match self.plan_for(frugal) {
            Ok(plan) => Ok((plan, frugal)),
            Err(error) => Err((error.needed_bytes, frugal.context)),
        }
    }

    fn plan_for(&self, shape: Shape) -> Result<Plan, PlanError> {
        let inputs = PlanInputs {
            budget_bytes: self.budget_bytes,
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
    pub(super) fn notices(&self, shape: &Shape) -> Vec<String> {
        let mut notices = Vec::new();
        let trained = self.program.hyperparameters.context_length;
        if shape.context < self.context_wished() {
            notices.push(format!(
                "context of {} tokens, shortened from {} to fit the budget; -c sets it",
                shape.context,
                self.context_wished()
            ));
        }
        if shape.context > trained {
            notices.push(format!(
                "a context of {} tokens is longer than the {trained} the model was trained for",
                shape.context
            ));
        }
        notices
    }
}
