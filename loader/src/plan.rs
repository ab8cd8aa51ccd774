//! The plan: what the budget is spent on, decided before anything is allocated.
//!
//! Everything that is not a weight comes first. If all weights fit into the rest, they
//! stay in memory and nothing streams. Otherwise a ring of slots is cut off, as many
//! units as possible are pinned, and the others are read again in every pass: pinning
//! C of N bytes is the best that can be done for a cyclic scan. Pinned units are spread
//! evenly over the pass, so that the drive reads while they compute.
//!
//! A token goes to few of a mixture's experts, so these are no units: what every token
//! goes through is pinned first, and the rest of the budget becomes slots for experts.

mod ring;

use crate::expert_layout::{EXPERT_PARTS, ExpertLayout, ExpertUse};
use crate::files::DIRECT_ALIGNMENT_MAX;
use crate::gguf::{Catalog, Extent};
use crate::page::PageSize;
use crate::probe::Curve;
use crate::unit::{Section, Unit, WeightUse, partition};
use ring::RingRoom;

/// Reads of 1 MiB and more reach a drive's bandwidth with four under way. Every read costs
/// the processor tens of microseconds, so they are of this size where there is room: the
/// choice for a drive that nobody has measured.
const SLOT_BYTES_MAX: u64 = 2 << 20;
/// The smallest unit worth a read has, with its alignment, a slot of this size.
const SLOT_BYTES_MIN: u64 = 256 << 10;
/// All weights are cut into as many units at least, so that there is something to pin.
const UNITS_MIN: u64 = 16;
/// The part of a ring that may be added to fill its last huge page, as a divisor.
const RING_WASTE: usize = 8;
/// Embedding rows that are looked up at a time.
pub const ROW_SLOTS: usize = 16;

/// A line of the plan that is not a weight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// What it is.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
}

/// What a plan is made from.
#[derive(Debug, Clone)]
pub struct PlanInputs<'a> {
    /// All the memory there is.
    pub budget_bytes: u64,
    /// What the process needs besides weights.
    pub items: Vec<Item>,
    /// The matrices of a pass, in compute order.
    pub uses: &'a [WeightUse],
    /// The mixtures of experts of a pass, in compute order.
    pub experts: &'a [ExpertUse],
    /// Tensor that token ids are looked up in.
    pub embedding: usize,
    /// Whether weights that all fit are used from the mapping, without a ring.
    pub may_map: bool,
    /// What the drive gives, if it has been measured.
    pub drive: Option<&'a Curve>,
    /// The pages that memory comes in.
    pub page: PageSize,
}

/// Where a unit's bytes are during a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Residency {
    /// In memory for good.
    Pinned,
    /// Read into a slot in every pass.
    Streamed,
}

/// Experts that lie together and stay in memory for good: their rows of one matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertRun {
    /// Where they lie.
    pub extent: Extent,
    /// The mixture, counted from the first in a pass.
    pub mixture: usize,
    /// Which of its matrices: gate, up or down.
    pub part: usize,
    /// The first of them.
    pub first: usize,
    /// How many there are.
    pub count: usize,
}

/// Slots for experts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpertSlotsPlan {
    /// How an expert lies in a slot.
    pub layout: ExpertLayout,
    /// The number of slots.
    pub slots: usize,
    /// The most experts of a mixture that a token goes to.
    pub used: usize,
}

impl ExpertSlotsPlan {
    /// Bytes of all slots.
    pub fn bytes(&self) -> u64 {
        (self.slots as u64).saturating_mul(self.layout.slot_bytes as u64)
    }

    /// Bytes that a token needs of experts, resident or not.
    pub fn bytes_per_token(&self) -> u64 {
        let of_mixture = |mixture| self.layout.expert_bytes(mixture) * self.used as u64;
        (0..self.layout.mixtures()).map(of_mixture).sum()
    }

    /// Bytes of them that a token reads if all experts are as likely to be chosen. Where
    /// some are chosen more often than others, it is less.
    pub fn expected_bytes_per_token(&self) -> u64 {
        let experts = self.layout.experts();
        let missing = u128::from(self.bytes_per_token()) * (experts - self.slots) as u128;
        (missing / experts.max(1) as u128) as u64
    }
}

/// What the budget is spent on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The budget it was made for.
    pub budget_bytes: u64,
    /// The bytes of the model's files.
    pub file_bytes: u64,
    /// Everything but weights.
    pub items: Vec<Item>,
    /// The pieces of the weights, in compute order.
    pub units: Vec<Unit>,
    /// Where each unit's bytes are.
    pub residency: Vec<Residency>,
    /// The experts of all mixtures, where they are in memory for good.
    pub expert_runs: Vec<ExpertRun>,
    /// Where they are not: the slots that they are read into.
    pub expert_slots: Option<ExpertSlotsPlan>,
    /// The slots that experts which stay in buffers are left with when memory becomes scarce.
    pub spare_expert_slots: Option<ExpertSlotsPlan>,
    /// Slots of the ring; none when nothing streams.
    pub slots: usize,
    /// Bytes of a slot, alignment included.
    pub slot_bytes: usize,
    /// Bytes of a buffer for one embedding row, alignment included; there are
    /// [`ROW_SLOTS`] of them unless the file is mapped.
    pub row_slot_bytes: usize,
    /// Whether the weights are used from a mapping of the file.
    pub is_mapped: bool,
    /// The pages that memory comes in.
    pub page: PageSize,
}

/// The budget cannot hold the model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a budget of {budget_bytes} bytes is too small, {needed_bytes} bytes are needed")]
pub struct PlanError {
    /// The budget asked for.
    pub budget_bytes: u64,
    /// The smallest budget that works for the same settings.
    pub needed_bytes: u64,
}

impl Plan {
    /// Makes the plan for `catalog`.
    ///
    /// # Errors
    /// When the budget is too small, with the smallest one that works.
    pub fn new(catalog: &Catalog, inputs: PlanInputs<'_>) -> Result<Self, PlanError> {
        let items_bytes = sum(&inputs.items);
        let for_weights = inputs.budget_bytes.saturating_sub(items_bytes);
        // A mapping counts as the whole file, loaded weights as what of it is computed on.
        let mut needed_bytes = u64::MAX;
        for is_mapped in [true, false] {
            if is_mapped && !inputs.may_map {
                continue;
            }
            let resident = Self::resident(catalog, &inputs, is_mapped);
            needed_bytes = needed_bytes.min(resident.total_bytes());
            if resident.total_bytes() <= inputs.budget_bytes {
                return Ok(resident);
            }
        }
        let expert_slots = least_expert_slots(catalog, &inputs);
        if expert_slots.is_some() {
            let mut plan = Self::with_slots_for_experts_only(catalog, &inputs, &expert_slots);
            needed_bytes = needed_bytes.min(plan.total_bytes());
            if needed_bytes <= inputs.budget_bytes {
                plan.grow_expert_slots();
                return Ok(plan);
            }
        }
        let for_slots = expert_slots.as_ref().map_or(0, ExpertSlotsPlan::bytes);
        let room = RingRoom {
            for_weights: for_weights.saturating_sub(for_slots),
            unit_bytes_min: smallest_unit(catalog, &inputs),
            page: inputs.page,
        };
        let weight_bytes = weight_bytes(catalog, inputs.uses);
        let measured = inputs
            .drive
            .and_then(|curve| room.measured(curve, weight_bytes));
        let shape = measured.unwrap_or_else(|| room.unmeasured());
        let mut plan = Self::streamed(catalog, &inputs, shape, &expert_slots);
        if plan.total_bytes() > inputs.budget_bytes {
            // Whole pages and the embedding's rows can leave less than the ring's share.
            let shape = (ring::SLOTS_MIN, room.unit_bytes_min);
            plan = Self::streamed(catalog, &inputs, shape, &expert_slots);
        }
        let fixed_bytes = plan.total_bytes();
        if fixed_bytes > inputs.budget_bytes {
            return Err(PlanError {
                budget_bytes: inputs.budget_bytes,
                needed_bytes: needed_bytes.min(fixed_bytes),
            });
        }
        plan.residency = pin(&plan.units, inputs.budget_bytes - fixed_bytes, plan.page);
        Ok(plan)
    }

    /// The plan in which nothing streams.
    fn resident(catalog: &Catalog, inputs: &PlanInputs<'_>, is_mapped: bool) -> Self {
        let mut plan = Self::without_residency(catalog, inputs, SLOT_BYTES_MAX);
        plan.is_mapped = is_mapped;
        plan.residency.fill(Residency::Pinned);
        plan.expert_runs = expert_runs(catalog, inputs.experts, SLOT_BYTES_MAX);
        if !plan.is_mapped {
            plan.spare_expert_slots = least_expert_slots(catalog, inputs);
        }
        plan
    }

    /// The plan in which everything but experts stays, and these have as few slots as can be.
    fn with_slots_for_experts_only(
        catalog: &Catalog,
        inputs: &PlanInputs<'_>,
        expert_slots: &Option<ExpertSlotsPlan>,
    ) -> Self {
        let mut plan = Self::without_residency(catalog, inputs, SLOT_BYTES_MAX);
        plan.residency.fill(Residency::Pinned);
        plan.expert_slots.clone_from(expert_slots);
        plan
    }

    /// Turns what is left of the budget into slots, up to one for each expert.
    fn grow_expert_slots(&mut self) {
        let left = self.budget_bytes.saturating_sub(self.total_bytes());
        if let Some(experts) = &mut self.expert_slots {
            let more = left / (experts.layout.slot_bytes as u64).max(1);
            let more = usize::try_from(more).unwrap_or(usize::MAX);
            let most = experts.layout.experts();
            experts.slots = experts.slots.saturating_add(more).min(most);
        }
    }

    /// The plan in which everything streams, through a ring of these slots and units and
    /// these slots for experts.
    fn streamed(
        catalog: &Catalog,
        inputs: &PlanInputs<'_>,
        (slots, unit_bytes): (usize, u64),
        expert_slots: &Option<ExpertSlotsPlan>,
    ) -> Self {
        let mut plan = Self::without_residency(catalog, inputs, unit_bytes);
        plan.slots = slots;
        plan.slot_bytes = slot_bytes(&plan.units, plan.page);
        plan.expert_slots.clone_from(expert_slots);
        plan
    }

    fn without_residency(catalog: &Catalog, inputs: &PlanInputs<'_>, unit_bytes: u64) -> Self {
        let units = partition(catalog, inputs.uses, unit_bytes);
        let row_bytes = catalog.tensors()[inputs.embedding].row_bytes();
        Self {
            budget_bytes: inputs.budget_bytes,
            file_bytes: catalog.file_bytes(),
            items: inputs.items.clone(),
            residency: vec![Residency::Streamed; units.len()],
            units,
            expert_runs: Vec::new(),
            expert_slots: None,
            spare_expert_slots: None,
            slots: 0,
            slot_bytes: 0,
            row_slot_bytes: widest_window(row_bytes),
            is_mapped: false,
            page: inputs.page,
        }
    }

    /// Bytes of weights in memory for good, as they are held: whole pages.
    pub fn pinned_bytes(&self) -> u64 {
        let held_bytes = |unit: &Unit| self.page.held_bytes(&unit.extent);
        let units: u64 = self.units_with(Residency::Pinned).map(held_bytes).sum();
        units + self.expert_run_bytes()
    }

    /// Those of them that are experts.
    pub(crate) fn expert_run_bytes(&self) -> u64 {
        let runs = self.expert_runs.iter();
        runs.map(|run| self.page.held_bytes(&run.extent)).sum()
    }

    /// Bytes of the slots for experts.
    pub fn expert_slot_bytes(&self) -> u64 {
        self.expert_slots.as_ref().map_or(0, ExpertSlotsPlan::bytes)
    }

    /// Bytes of weights that every pass reads, whichever experts it goes to.
    pub fn streamed_bytes(&self) -> u64 {
        self.units_with(Residency::Streamed)
            .map(|unit| unit.extent.bytes)
            .sum()
    }

    /// Bytes of the ring: whole huge pages, unless that wastes much.
    pub fn ring_bytes(&self) -> u64 {
        let bytes = self.slots * self.slot_bytes;
        let huge_bytes = bytes.next_multiple_of(self.page.huge_bytes());
        let is_little = huge_bytes - bytes <= bytes / RING_WASTE;
        (if is_little { huge_bytes } else { bytes }) as u64
    }

    /// Bytes of the buffers for embedding rows.
    pub fn row_bytes(&self) -> u64 {
        if self.is_mapped {
            0
        } else {
            (ROW_SLOTS * self.row_slot_bytes).next_multiple_of(self.page.bytes()) as u64
        }
    }

    /// All bytes that the plan spends.
    pub fn total_bytes(&self) -> u64 {
        let weights = if self.is_mapped {
            self.file_bytes
        } else {
            self.pinned_bytes()
        };
        sum(&self.items)
            .saturating_add(self.expert_slot_bytes())
            .saturating_add(self.ring_bytes() + self.row_bytes() + weights)
    }

    /// Whether weights are read while the model runs.
    pub fn streams(&self) -> bool {
        self.slots > 0 || self.expert_slots.is_some()
    }

    /// The first unit of the head.
    pub fn head_start(&self) -> usize {
        self.units
            .iter()
            .position(|unit| unit.section == Section::Head)
            .unwrap_or(self.units.len())
    }

    fn units_with(&self, residency: Residency) -> impl Iterator<Item = &Unit> {
        self.units
            .iter()
            .zip(&self.residency)
            .filter(move |(_, found)| **found == residency)
            .map(|(unit, _)| unit)
    }
}

/// Bytes of all items; absurd sizes are to be refused, not to overflow.
fn sum(items: &[Item]) -> u64 {
    items
        .iter()
        .fold(0, |bytes, item| bytes.saturating_add(item.bytes))
}

/// Slots for the experts that a token goes to in a mixture: less serves nobody.
fn least_expert_slots(catalog: &Catalog, inputs: &PlanInputs<'_>) -> Option<ExpertSlotsPlan> {
    let used = inputs.experts.iter().map(|mixture| mixture.used).max()?;
    Some(ExpertSlotsPlan {
        layout: ExpertLayout::new(catalog, inputs.experts, inputs.page),
        slots: used,
        used,
    })
}

/// All experts, in runs of at most `run_bytes`, but of one expert at least.
fn expert_runs(catalog: &Catalog, uses: &[ExpertUse], run_bytes: u64) -> Vec<ExpertRun> {
    let mut runs = Vec::new();
    for (mixture, weights) in uses.iter().enumerate() {
        for part in 0..EXPERT_PARTS {
            let one = weights.extent(catalog, part, 0);
            let most = match weights.parts[part].is_contiguous() {
                true => (run_bytes / one.bytes.max(1)).max(1) as usize,
                false => 1,
            };
            for first in (0..weights.experts).step_by(most) {
                let count = most.min(weights.experts - first);
                runs.push(ExpertRun {
                    extent: Extent {
                        bytes: one.bytes * count as u64,
                        ..weights.extent(catalog, part, first)
                    },
                    mixture,
                    part,
                    first,
                    count,
                });
            }
        }
    }
    runs
}

/// What `bytes` at any offset may be widened to for a direct read.
fn widest_window(bytes: u64) -> usize {
    (bytes as usize).next_multiple_of(DIRECT_ALIGNMENT_MAX) + DIRECT_ALIGNMENT_MAX
}

/// Bytes of the largest unit where memory is scarcest: one worth a read, but a row at
/// least, and a small part of a small model.
fn smallest_unit(catalog: &Catalog, inputs: &PlanInputs<'_>) -> u64 {
    let tensors = inputs.uses.iter().map(|weight| weight.tensor);
    let rows = tensors.map(|tensor| catalog.tensors()[tensor].row_bytes());
    SLOT_BYTES_MIN
        .saturating_sub(inputs.page.bytes() as u64)
        .min(weight_bytes(catalog, inputs.uses) / UNITS_MIN)
        .max(rows.max().unwrap_or(1))
}

fn weight_bytes(catalog: &Catalog, uses: &[WeightUse]) -> u64 {
    uses.iter()
        .map(|weight| catalog.tensors()[weight.tensor].extent.bytes)
        .sum()
}

/// A slot holds any unit, wherever in a page it starts.
fn slot_bytes(units: &[Unit], page: PageSize) -> usize {
    let held_bytes = units.iter().map(|unit| page.held_bytes(&unit.extent));
    held_bytes.max().unwrap_or(0) as usize
}

/// Pins units worth up to `bytes`, evenly over the pass.
fn pin(units: &[Unit], bytes: u64, page: PageSize) -> Vec<Residency> {
    let held_bytes = |unit: &Unit| page.held_bytes(&unit.extent);
    let total: u64 = units.iter().map(held_bytes).sum();
    let mut residency = vec![Residency::Streamed; units.len()];
    let mut passed: u64 = 0;
    let mut pinned: u64 = 0;
    for (unit, place) in units.iter().zip(&mut residency) {
        passed += held_bytes(unit);
        // The share of the bytes so far that should be pinned.
        let due = (u128::from(passed) * u128::from(bytes) / u128::from(total.max(1))) as u64;
        if pinned + held_bytes(unit) <= due.min(bytes) {
            *place = Residency::Pinned;
            pinned += held_bytes(unit);
        }
    }
    // What rounding left over.
    for (unit, place) in units.iter().zip(&mut residency).rev() {
        if *place == Residency::Streamed && pinned + held_bytes(unit) <= bytes {
            *place = Residency::Pinned;
            pinned += held_bytes(unit);
        }
    }
    residency
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::Extent;

    const PAGE_BYTES: usize = 4096;

    fn page() -> PageSize {
        PageSize::new(PAGE_BYTES)
    }

    fn units(count: usize) -> Vec<Unit> {
        (0..count)
            .map(|index| Unit {
                extent: Extent {
                    file: 0,
                    offset: (index * 2 * PAGE_BYTES) as u64,
                    bytes: 2 * PAGE_BYTES as u64,
                },
                section: Section::Body,
                parts: Vec::new(),
            })
            .collect()
    }

    #[test]
    fn pinned_units_are_spread_over_the_pass_and_stay_within_the_bytes() {
        let units = units(100);
        let residency = pin(&units, 51 * PAGE_BYTES as u64, page());
        let pinned: Vec<usize> = (0..100)
            .filter(|&index| residency[index] == Residency::Pinned)
            .collect();
        assert_eq!(pinned.len(), 25);
        for quarter in 0..4 {
            let inside = pinned
                .iter()
                .filter(|&&index| index / 25 == quarter)
                .count();
            assert!(
                (5..=8).contains(&inside),
                "{inside} pinned in quarter {quarter}"
            );
        }
    }

    #[test]
    fn nothing_is_pinned_for_nothing() {
        assert!(
            pin(&units(3), 0, page())
                .iter()
                .all(|&place| place == Residency::Streamed)
        );
    }
}
