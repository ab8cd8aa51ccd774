//! How much of the planned memory weights may take now.

use super::Weights;

impl Weights {
    /// Lets weights take `bytes` from now on, of the [`Weights::releasable_bytes`] that the
    /// plan gives them: some are given back at once, or taken again as they are read. Slots
    /// for experts go first, but for those that a token needs in a layer, then pinned units.
    /// Called between passes.
    pub fn set_kept_bytes(&mut self, bytes: u64) {
        let of_units = self.releasable_unit_bytes();
        // Buffered reads that follow are not to stay in the page cache.
        self.streams |= self.buffers.with_buffers && bytes < self.releasable_bytes();
        // A mapping of which nothing is released has no ring: its pages are the kernel's to
        // take.
        if self.ring.slots > 0 {
            let kept = match bytes < of_units {
                true => bytes,
                false => self.pinned.planned_bytes(),
            };
            for unit in self.pinned.set_bytes(kept) {
                self.reader.release(&self.units[unit].extent);
            }
        }
        self.set_expert_bytes(bytes.saturating_sub(of_units));
    }

    /// Bytes of weights that [`Weights::set_kept_bytes`] can give back: of all that the plan
    /// has. None of a mapping of which nothing is released.
    pub fn releasable_bytes(&self) -> u64 {
        self.releasable_unit_bytes() + self.releasable_expert_bytes()
    }

    /// Bytes of weights that the kernel takes by itself, being pages of a mapping.
    pub fn reclaimable_bytes(&self) -> u64 {
        match (self.ring.slots, self.expert_slots()) {
            (0, None) => self.pinned.planned_bytes() + self.experts.bytes(),
            (0, Some(_)) => self.pinned.planned_bytes(),
            _ => 0,
        }
    }

    /// Bytes of what the plan has for weights that are not in memory now, or may not be.
    pub fn given_back_bytes(&self) -> u64 {
        let units = self.pinned.planned_bytes() - self.pinned.bytes();
        units + (self.expert_bytes_planned - self.experts.bytes())
    }

    /// Bytes of pinned units that can be given back: where the plan has no ring, one of
    /// [`Weights::spare_ring_bytes`] takes their place.
    fn releasable_unit_bytes(&self) -> u64 {
        match self.ring.slots {
            0 => 0,
            _ => self
                .pinned
                .planned_bytes()
                .saturating_sub(self.spare_ring_bytes()),
        }
    }
}
