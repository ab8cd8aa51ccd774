//! Pinned units, and which of them go first when memory becomes scarce.
//!
//! They lie in the arena in the order in which they are kept, the first the longest. So
//! what is given back is one stretch at its end, and the kernel gets whole huge pages.

use std::sync::Arc;

use crate::arena::{Arena, SlotBuffer, View};
use crate::gguf::Extent;
use crate::plan::{Plan, Residency};
use crate::unit::Unit;

/// The units that a plan pins: those in memory now, and those that should be.
pub(super) struct Pinned {
    arena: Arc<Arena>,
    with_buffers: bool,
    /// The planned units, those that are kept longest first.
    order: Vec<usize>,
    /// Bytes of the arena before each of them, and of all of them.
    starts: Vec<u64>,
    /// Where each unit of the plan is in `order`.
    places: Vec<Option<usize>>,
    views: Vec<Option<View>>,
    /// How many of `order` should be in memory.
    wanted: usize,
    /// Whether units have come or gone since the ring was last told.
    has_changed: bool,
}

impl Pinned {
    /// None of the units is in memory yet. Without `with_buffers` they will be views of a
    /// mapping, and `arena` is empty.
    pub(super) fn new(plan: &Plan, arena: Arc<Arena>, with_buffers: bool) -> Self {
        let planned: Vec<usize> = (0..plan.units.len())
            .filter(|&unit| plan.residency[unit] == Residency::Pinned)
            .collect();
        let order: Vec<usize> = spread(planned.len()).map(|index| planned[index]).collect();
        let mut places = vec![None; plan.units.len()];
        let mut starts = Vec::with_capacity(order.len() + 1);
        let mut bytes = 0;
        for (place, &unit) in order.iter().enumerate() {
            places[unit] = Some(place);
            starts.push(bytes);
            bytes += plan.page.held_bytes(&plan.units[unit].extent);
        }
        starts.push(bytes);
        Self {
            arena,
            with_buffers,
            wanted: order.len(),
            order,
            starts,
            places,
            views: vec![None; plan.units.len()],
            has_changed: false,
        }
    }

    /// The bytes of a unit that is in memory.
    pub(super) fn view(&self, unit: usize) -> Option<View> {
        self.views[unit]
    }

    /// The bytes at `extent` if they are part of a unit that is in memory.
    pub(super) fn view_of(&self, units: &[Unit], extent: &Extent) -> Option<View> {
        units.iter().zip(&self.views).find_map(|(unit, view)| {
            let view = (*view)?;
            let start = extent.offset.checked_sub(unit.extent.offset)?;
            let inside =
                unit.extent.file == extent.file && start + extent.bytes <= unit.extent.bytes;
            inside.then(|| view.part(start as usize, extent.bytes as usize))
        })
    }

    /// Whether a unit should be in memory and is not.
    pub(super) fn is_missing(&self, unit: usize) -> bool {
        let is_wanted = self.places[unit].is_some_and(|place| place < self.wanted);
        is_wanted && self.views[unit].is_none()
    }

    /// Where a missing unit's bytes go; `None` for a mapping.
    ///
    /// # Panics
    /// When the unit is in memory.
    ///
    /// # Safety
    /// No other buffer of the unit is in use, and the unit is not given back while this one is.
    pub(super) unsafe fn buffer(&self, unit: usize) -> Option<SlotBuffer> {
        let place = self.places[unit].filter(|_| self.with_buffers)?;
        assert!(self.views[unit].is_none(), "unit {unit} is in memory");
        let (start, end) = (self.starts[place], self.starts[place + 1]);
        let bytes = (end - start) as usize;
        // SAFETY: units do not overlap each other, this one has no view, and the caller
        // vouches for other buffers.
        Some(unsafe { self.arena.buffer(start as usize, bytes, None) })
    }

    /// A unit's bytes are in memory.
    pub(super) fn put(&mut self, unit: usize, view: View) {
        self.views[unit] = Some(view);
        self.has_changed = true;
    }

    /// Bytes of the units in memory, in whole pages.
    pub(super) fn bytes(&self) -> u64 {
        let held = (0..self.order.len()).filter(|&place| self.views[self.order[place]].is_some());
        held.map(|place| self.starts[place + 1] - self.starts[place])
            .sum()
    }

    /// Bytes of all units that the plan pins, in whole pages.
    pub(super) fn planned_bytes(&self) -> u64 {
        self.starts[self.order.len()]
    }

    /// Wants as many of the units as fit into `bytes`, and gives back the memory of the
    /// others. Returns those that are gone.
    pub(super) fn set_bytes(&mut self, bytes: u64) -> Vec<usize> {
        let before = self.wanted;
        self.wanted = self.starts.partition_point(|&end| end <= bytes) - 1;
        let mut gone = Vec::new();
        for place in self.wanted..before {
            let unit = self.order[place];
            if self.views[unit].take().is_some() {
                gone.push(unit);
            }
        }
        if self.wanted < before && self.with_buffers {
            let (start, end) = (self.starts[self.wanted], self.starts[before]);
            // SAFETY: these units have no views any more; slices of those that they had were
            // borrowed from the weights, which are borrowed mutably now. Reads into the arena
            // are those of loading, which has ended.
            unsafe { self.arena.give_back(start as usize, (end - start) as usize) };
        }
        self.has_changed |= !gone.is_empty();
        gone
    }

    /// Whether units have come or gone since this was last asked.
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }
}

/// The numbers below `count` in an order of which every beginning is spread evenly: that
/// of their bits reversed.
fn spread(count: usize) -> impl Iterator<Item = usize> {
    let bits = count.next_power_of_two().trailing_zeros();
    let reversed = move |index: usize| match bits {
        0 => 0,
        bits => index.reverse_bits() >> (usize::BITS - bits),
    };
    (0..count.next_power_of_two())
        .map(reversed)
        .filter(move |&index| index < count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_beginning_of_the_order_is_spread_evenly() {
        assert_eq!(spread(0).count(), 0);
        assert_eq!(spread(1).collect::<Vec<_>>(), [0]);
        assert_eq!(spread(6).collect::<Vec<_>>(), [0, 4, 2, 1, 5, 3]);
        for count in [7, 100, 256] {
            let order: Vec<usize> = spread(count).collect();
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..count));
            for kept in [count / 8, count / 4, count / 2] {
                let half = order[..kept].iter().filter(|&&index| index < count / 2);
                let half = half.count();
                assert!(
                    half.abs_diff(kept - half) <= 2,
                    "{half} of {kept} in a half"
                );
            }
        }
    }
}
