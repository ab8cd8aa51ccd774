//! The plan: what the budget is spent on, decided before anything is allocated.
//!
//! Everything that is not a weight comes first. If all weights fit into the rest, they
//! stay in memory and nothing streams. Otherwise a ring of slots is cut off, as many
//! units as possible are pinned, and the others are read again in every pass: pinning
//! C of N bytes is the best that can be done for a cyclic scan. Pinned units are spread
//! evenly over the pass, so that the drive reads while they compute.

use crate::arena::PAGE_BYTES;
use crate::files::Window;
use crate::gguf::Catalog;
use crate::probe::Curve;
use crate::unit::{Stage, Unit, WeightUse, partition};

/// Reads of 0.5–4 MiB with 4–32 under way saturate NVMe drives: the choice for a drive
/// that nobody has measured.
const SLOT_BYTES_MAX: u64 = 4 << 20;
/// The smallest slot worth a read.
const SLOT_BYTES_MIN: u64 = 256 << 10;
/// A ring deeper than this hides no more latency.
const SLOTS_MAX: u64 = 16;
/// One slot is read while the other is computed on.
const SLOTS_MIN: u64 = 2;
/// The part of the weights' budget that a ring may take, as a divisor.
const RING_SHARE: u64 = 8;
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
    /// Tensor that token ids are looked up in.
    pub embedding: usize,
    /// Whether weights that all fit are used from the mapping, without a ring.
    pub may_map: bool,
    /// What the drive gives, if it has been measured.
    pub drive: Option<&'a Curve>,
}

/// Where a unit's bytes are during a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Residency {
    /// In memory for good.
    Pinned,
    /// Read into a slot in every pass.
    Streamed,
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
    /// Slots of the ring; none when nothing streams.
    pub slots: usize,
    /// Bytes of a slot, alignment included.
    pub slot_bytes: usize,
    /// Bytes of a buffer for one embedding row, alignment included; there are
    /// [`ROW_SLOTS`] of them unless the file is mapped.
    pub row_slot_bytes: usize,
    /// Whether the weights are used from a mapping of the file.
    pub is_mapped: bool,
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
        let resident = Self::resident(catalog, &inputs);
        let resident_bytes = resident.total_bytes();
        if resident_bytes <= inputs.budget_bytes {
            return Ok(resident);
        }
        let unit_bytes_min = smallest_unit(catalog, inputs.uses);
        let measured = inputs.drive.and_then(|curve| {
            let weight_bytes = weight_bytes(catalog, inputs.uses);
            measured_shape(curve, for_weights, weight_bytes, unit_bytes_min)
        });
        let shape = measured.unwrap_or_else(|| ring_shape(for_weights, unit_bytes_min));
        let mut plan = Self::streamed(catalog, &inputs, shape);
        if plan.total_bytes() > inputs.budget_bytes {
            // Whole pages and the embedding's rows can leave less than the ring's share.
            plan = Self::streamed(catalog, &inputs, (SLOTS_MIN as usize, unit_bytes_min));
        }
        let fixed_bytes = plan.total_bytes();
        if fixed_bytes > inputs.budget_bytes {
            return Err(PlanError {
                budget_bytes: inputs.budget_bytes,
                needed_bytes: fixed_bytes.min(resident_bytes),
            });
        }
        plan.residency = pin(&plan.units, inputs.budget_bytes - fixed_bytes);
        Ok(plan)
    }

    /// The plan in which nothing streams.
    fn resident(catalog: &Catalog, inputs: &PlanInputs<'_>) -> Self {
        let mut plan = Self::without_residency(catalog, inputs, SLOT_BYTES_MAX);
        plan.is_mapped = inputs.may_map;
        plan.residency.fill(Residency::Pinned);
        plan
    }

    /// The plan in which everything streams, through a ring of these slots and units.
    fn streamed(
        catalog: &Catalog,
        inputs: &PlanInputs<'_>,
        (slots, unit_bytes): (usize, u64),
    ) -> Self {
        let mut plan = Self::without_residency(catalog, inputs, unit_bytes);
        plan.slots = slots;
        plan.slot_bytes = slot_bytes(&plan.units);
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
            slots: 0,
            slot_bytes: 0,
            row_slot_bytes: widest_window(row_bytes),
            is_mapped: false,
        }
    }

    /// Bytes of weights in memory for good, as they are held: whole pages.
    pub fn pinned_bytes(&self) -> u64 {
        self.units_with(Residency::Pinned).map(held_bytes).sum()
    }

    /// Bytes of weights that a pass reads.
    pub fn streamed_bytes(&self) -> u64 {
        self.units_with(Residency::Streamed)
            .map(|unit| unit.extent.bytes)
            .sum()
    }

    /// Bytes of the ring.
    pub fn ring_bytes(&self) -> u64 {
        (self.slots * self.slot_bytes) as u64
    }

    /// Bytes of the buffers for embedding rows.
    pub fn row_bytes(&self) -> u64 {
        if self.is_mapped {
            0
        } else {
            (ROW_SLOTS * self.row_slot_bytes) as u64
        }
    }

    /// All bytes that the plan spends.
    pub fn total_bytes(&self) -> u64 {
        let weights = if self.is_mapped {
            self.file_bytes
        } else {
            self.pinned_bytes()
        };
        sum(&self.items).saturating_add(self.ring_bytes() + self.row_bytes() + weights)
    }

    /// Whether weights are read in every pass.
    pub fn streams(&self) -> bool {
        self.slots > 0
    }

    /// The first unit of the head.
    pub fn head_start(&self) -> usize {
        self.units
            .iter()
            .position(|unit| unit.stage == Stage::Head)
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

/// Memory that a pinned unit takes: its extent, widened to whole pages.
pub fn held_bytes(unit: &Unit) -> u64 {
    Window::around(unit.extent.offset, unit.extent.bytes as usize, PAGE_BYTES).bytes as u64
}

/// Memory that `bytes` at any offset may need once they are widened to whole pages.
fn widest_window(bytes: u64) -> usize {
    (bytes as usize).next_multiple_of(PAGE_BYTES) + PAGE_BYTES
}

/// Bytes of the largest unit where memory is scarcest: one worth a read, but a row at
/// least, and a small part of a small model.
fn smallest_unit(catalog: &Catalog, uses: &[WeightUse]) -> u64 {
    let rows = uses
        .iter()
        .map(|weight| catalog.tensors()[weight.tensor].row_bytes());
    SLOT_BYTES_MIN
        .min(weight_bytes(catalog, uses) / SLOTS_MAX)
        .max(rows.max().unwrap_or(1))
}

fn weight_bytes(catalog: &Catalog, uses: &[WeightUse]) -> u64 {
    uses.iter()
        .map(|weight| catalog.tensors()[weight.tensor].extent.bytes)
        .sum()
}

/// The ring with which a pass is read in the least time from a drive that has been
/// measured: slots, and the bytes of the largest unit. `None` where no measured one is
/// small enough.
fn measured_shape(
    curve: &Curve,
    for_weights: u64,
    weight_bytes: u64,
    unit_bytes_min: u64,
) -> Option<(usize, u64)> {
    let ring_bytes_max = for_weights / RING_SHARE;
    let rest_bytes = weight_bytes.saturating_sub(for_weights);
    let point = curve.fastest_for(rest_bytes, ring_bytes_max)?;
    let unit_bytes = point.block_bytes.max(unit_bytes_min);
    let slots = point.depth.max(SLOTS_MIN as usize);
    (slots as u64 * unit_bytes <= ring_bytes_max).then_some((slots, unit_bytes))
}

/// The ring for a drive of which nothing is known: slots, and the bytes of the largest
/// unit.
fn ring_shape(for_weights: u64, unit_bytes_min: u64) -> (usize, u64) {
    let ring_bytes = for_weights / RING_SHARE;
    let mut unit_bytes = SLOT_BYTES_MAX;
    // Eight reads under way before reads grow.
    while unit_bytes > unit_bytes_min && unit_bytes * SLOTS_MAX / 2 > ring_bytes {
        unit_bytes /= 2;
    }
    let unit_bytes = unit_bytes.max(unit_bytes_min);
    let slots = (ring_bytes / unit_bytes).clamp(SLOTS_MIN, SLOTS_MAX);
    (slots as usize, unit_bytes)
}

/// A slot holds any unit, wherever in a page it starts.
fn slot_bytes(units: &[Unit]) -> usize {
    units
        .iter()
        .map(|unit| held_bytes(unit) as usize)
        .max()
        .unwrap_or(0)
}

/// Pins units worth up to `bytes`, evenly over the pass.
fn pin(units: &[Unit], bytes: u64) -> Vec<Residency> {
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
    use crate::probe::Point;

    fn units(count: usize) -> Vec<Unit> {
        (0..count)
            .map(|index| Unit {
                extent: Extent {
                    file: 0,
                    offset: (index * 2 * PAGE_BYTES) as u64,
                    bytes: 2 * PAGE_BYTES as u64,
                },
                stage: Stage::Body,
                parts: Vec::new(),
            })
            .collect()
    }

    #[test]
    fn pinned_units_are_spread_over_the_pass_and_stay_within_the_bytes() {
        let units = units(100);
        let residency = pin(&units, 51 * PAGE_BYTES as u64);
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
            pin(&units(3), 0)
                .iter()
                .all(|&place| place == Residency::Streamed)
        );
    }

    #[test]
    fn a_measured_ring_grows_only_as_far_as_it_saves_more_time_than_it_costs() {
        let point = |block_bytes, depth, bytes_per_second| Point {
            block_bytes,
            depth,
            bytes_per_second,
        };
        let curve = Curve {
            points: vec![
                point(1 << 20, 2, 1e9),
                point(1 << 20, 8, 2e9),
                point(4 << 20, 16, 2.1e9),
            ],
        };
        let shape = |for_weights: u64, weight_bytes: u64| {
            measured_shape(&curve, for_weights << 20, weight_bytes << 20, 1 << 18)
        };
        // 1000 MiB to be read are worth 56 MiB more; 100 MiB are not.
        assert_eq!(shape(1000, 3000), Some((16, 4 << 20)));
        assert_eq!(shape(1000, 1100), Some((8, 1 << 20)));
        // An eighth of 60 MiB holds no ring of 8 MiB; one of 8 MiB holds none at all.
        assert_eq!(shape(60, 3000), Some((2, 1 << 20)));
        assert_eq!(shape(8, 3000), None);
    }

    #[test]
    fn a_ring_has_two_small_slots_at_least_and_sixteen_large_ones_at_most() {
        assert_eq!(ring_shape(0, 256 << 10), (2, 256 << 10));
        assert_eq!(ring_shape(64 << 30, 256 << 10), (16, 4 << 20));
        assert_eq!(ring_shape(0, 1 << 20), (2, 1 << 20));
    }
}
