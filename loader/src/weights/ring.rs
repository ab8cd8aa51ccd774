//! The ring of slots that streamed units go through: which unit is read next, and into
//! which memory.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Pass;
use crate::arena::{Arena, SlotBuffer};
use crate::plan::Plan;
use crate::unit::{Section, Unit};

/// Slots of the ring that a plan without one gets when its units are given back.
const SPARE_SLOTS: usize = 4;

/// Slots of the ring, and their bytes. A mapping in which all is pinned needs none.
pub(super) fn shape(plan: &Plan, with_buffers: bool) -> (usize, usize) {
    if plan.slots > 0 || !with_buffers {
        return (plan.slots, plan.slot_bytes);
    }
    let held_bytes = plan.units.iter();
    let held_bytes = held_bytes.map(|unit| plan.page.held_bytes(&unit.extent));
    (SPARE_SLOTS, held_bytes.max().unwrap_or(0) as usize)
}

/// Which units are read next, and which slot each is in.
pub(super) struct Ring {
    pub(super) slots: usize,
    /// Streamed units in the order of a pass.
    pub(super) order: Vec<usize>,
    /// How many of them belong to the body.
    body: usize,
    /// What the current pass and the one after it go through.
    passes: [Pass; 2],
    /// Reads begun: passes after the current one, and units of that pass.
    ahead: (usize, usize),
    /// Slots and their units, in the order of use.
    pub(super) queue: VecDeque<(usize, usize)>,
    started: bool,
}

impl Ring {
    pub(super) fn new(units: usize, slots: usize) -> Self {
        Self {
            slots,
            order: Vec::with_capacity(units),
            body: 0,
            passes: [Pass::Full; 2],
            ahead: (0, 0),
            queue: VecDeque::with_capacity(slots),
            started: false,
        }
    }

    pub(super) fn set_order(&mut self, streamed: impl Iterator<Item = usize>, units: &[Unit]) {
        self.order.clear();
        self.order.extend(streamed);
        let is_body = |unit: &usize| units[*unit].section == Section::Body;
        self.body = self.order.iter().take_while(|unit| is_body(unit)).count();
    }

    fn units_of(&self, pass: Pass) -> usize {
        match pass {
            Pass::Body => self.body,
            Pass::Full => self.order.len(),
        }
    }

    /// Begins a pass, or returns `false` when what has been read does not suit it:
    /// the pass before was left in the middle, or another kind was expected.
    pub(super) fn begin(&mut self, pass: Pass, next: Pass) -> bool {
        if self.started {
            let (ahead, read) = self.ahead;
            let over = ahead == 1 || read == self.units_of(self.passes[0]);
            let queued = if ahead == 1 { read } else { 0 };
            let suits = self.passes[1] == pass || queued <= self.body;
            if !over || self.queue.len() != queued || !suits {
                return false;
            }
            self.ahead = (0, queued);
        }
        self.started = true;
        self.passes = [pass, next];
        true
    }

    pub(super) fn rewind(&mut self) {
        self.ahead = (0, 0);
        self.started = false;
    }

    /// Whether a free slot would be given a unit.
    pub(super) fn has_next(&self) -> bool {
        self.slots > 0 && self.next().is_some()
    }

    pub(super) fn next_unit(&mut self) -> Option<usize> {
        let (ahead, read) = self.next()?;
        self.ahead = (ahead, read + 1);
        Some(self.order[read])
    }

    /// The pass after the current one, and the place in its order, of the next read.
    fn next(&self) -> Option<(usize, usize)> {
        if !self.started {
            return None;
        }
        let (mut ahead, mut read) = self.ahead;
        if ahead == 0 && read == self.units_of(self.passes[0]) {
            (ahead, read) = (1, 0);
        }
        if read == self.units_of(self.passes[ahead]) {
            return None;
        }
        Some((ahead, read))
    }
}

/// Where the reads of ring slots and of embedding rows land.
pub(super) struct SlotBuffers {
    pub(super) arena: Arc<Arena>,
    pub(super) rows: Arc<Arena>,
    pub(super) ring: (usize, usize),
    pub(super) row_bytes: usize,
    pub(super) with_buffers: bool,
}

impl SlotBuffers {
    /// # Safety
    /// The slot is free, and given a read with this buffer next; or the buffer only names
    /// the slot's memory to the kernel.
    pub(super) unsafe fn ring_buffer(&self, slot: usize) -> Option<SlotBuffer> {
        let (_, bytes) = self.ring;
        self.with_buffers.then(|| {
            // SAFETY: slots do not overlap each other, and while one is free nobody reads or
            // writes its memory; so says the caller.
            unsafe { self.arena.buffer(slot * bytes, bytes, Some(slot as u16)) }
        })
    }

    /// # Safety
    /// The row's slot is free, and given a read with this buffer next.
    pub(super) unsafe fn row_buffer(&self, place: usize) -> Option<SlotBuffer> {
        let bytes = self.row_bytes;
        self.with_buffers.then(|| {
            // SAFETY: as for a slot of the ring.
            unsafe { self.rows.buffer(place * bytes, bytes, None) }
        })
    }

    /// Buffers that name the slots' memory to the kernel.
    pub(super) fn registered(&self) -> Vec<SlotBuffer> {
        (0..self.ring.0)
            // SAFETY: a reader registers their addresses. The kernel writes there only for a
            // read that was given another buffer of the slot, which waits meanwhile.
            .filter_map(|slot| unsafe { self.ring_buffer(slot) })
            .collect()
    }

    /// Gives the memory of the slots back that `is_free` says are.
    ///
    /// # Safety
    /// No read into those slots is under way, and nothing that one has brought is used.
    pub(super) unsafe fn give_ring_back(&self, is_free: impl Fn(usize) -> bool) {
        let (slots, bytes) = self.ring;
        for slot in (0..slots).filter(|&slot| self.with_buffers && is_free(slot)) {
            // SAFETY: so says the caller.
            unsafe { self.arena.give_back(slot * bytes, bytes) };
        }
    }
}
