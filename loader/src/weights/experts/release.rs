//! Memory of experts that is given back when it becomes scarce, and taken again: fewer
//! slots, whose experts are read anew when they are needed.
//!
//! Where all experts stay in buffers, none of them is kept when memory is given back: the
//! same memory is cut into slots, as many of which are used as there is room for.

use super::{Experts, Resident, Weights};
use crate::expert_slots::{EXPERT_READS, ExpertSlots};

impl Experts {
    /// Bytes in memory, or that slots may take.
    pub(in super::super) fn bytes(&self) -> u64 {
        match self {
            Self::Resident(resident) => resident.bytes,
            Self::Slots(slots, _) => (slots.open() * slots.slot_bytes()) as u64,
        }
    }

    /// Bytes of all slots but the `least` first, or of experts that stay and would be left
    /// with so many slots.
    fn releasable_bytes(&self, least: usize) -> u64 {
        match self {
            Self::Slots(slots, _) => ((slots.count() - least) * slots.slot_bytes()) as u64,
            Self::Resident(resident) => match (&resident.spare, &resident.arena) {
                (Some(spare), Some(_)) => resident.bytes.saturating_sub(spare.bytes()),
                _ => 0,
            },
        }
    }

    /// Cuts the memory of experts that stay into slots, if it is theirs alone.
    fn cut_into_slots(&mut self) {
        let Self::Resident(resident) = self else {
            return;
        };
        let Resident { arena, spare, .. } = resident;
        let Some((arena, spare)) = arena.take().zip(spare.take()) else {
            return;
        };
        // SAFETY: the reads of experts that stay ended when they were loaded. Their views go
        // with `self`, and slices of them were borrowed from the weights, which are borrowed
        // mutably now.
        unsafe { arena.give_back(0, arena.bytes()) };
        let slots = arena.bytes() / spare.layout.slot_bytes.max(1);
        let slots = slots.min(spare.layout.experts());
        let slots = ExpertSlots::new(spare.layout, slots, Some(arena));
        *self = Self::Slots(Box::new(slots), None);
    }
}

impl Weights {
    /// How many slots for experts may be used now: the first ones. None where all stay.
    pub fn expert_slots(&self) -> Option<usize> {
        match &self.experts {
            Experts::Slots(slots, _) => Some(slots.open()),
            Experts::Resident(_) => None,
        }
    }

    /// Bytes of experts that can be given back: of all that the plan has for them.
    pub(in super::super) fn releasable_expert_bytes(&self) -> u64 {
        self.experts.releasable_bytes(self.expert_slots_min)
    }

    /// Lets experts take `bytes` besides the slots that a token needs.
    pub(in super::super) fn set_expert_bytes(&mut self, bytes: u64) {
        if matches!(self.experts, Experts::Resident(_)) {
            if bytes >= self.releasable_expert_bytes() {
                return;
            }
            self.experts.cut_into_slots();
        }
        let Experts::Slots(slots, _) = &self.experts else {
            return;
        };
        let more = bytes / slots.slot_bytes().max(1) as u64;
        let more = usize::try_from(more).unwrap_or(usize::MAX);
        let open = self
            .expert_slots_min
            .saturating_add(more)
            .min(slots.count());
        for slot in open..slots.open() {
            self.empty_expert_slot(slot);
        }
        self.experts.set_open(open);
        self.give_back_landed();
    }

    /// Gives the memory of slots back that were closed while reads into them were under way,
    /// if these have landed. Only needed while no pass runs.
    pub fn give_back_landed(&mut self) {
        let Experts::Slots(slots, _) = &self.experts else {
            return;
        };
        if !slots.has_closed_memory() {
            return;
        }
        for read in 0..EXPERT_READS {
            let is_stale = self.experts.slots().is_stale(read) == Some(true);
            if is_stale && self.table.is_free(self.first_expert_read() + read) {
                self.experts.slots_mut().stale_read_ended(read);
            }
        }
    }
}
