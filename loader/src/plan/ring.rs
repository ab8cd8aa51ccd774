//! How many slots a ring has, and of what size.

use super::SLOT_BYTES_MAX;
use crate::page::PageSize;
use crate::probe::Curve;

/// A ring deeper than this hides no more latency, and takes what could be pinned.
const SLOTS_MAX: u64 = 16;
/// Slots of a ring before they grow.
const SLOTS_WANTED: u64 = 8;
/// One slot is read while the other is computed on.
pub(super) const SLOTS_MIN: usize = 2;
/// The part of the weights' budget that a ring may take, as a divisor.
const RING_SHARE: u64 = 16;

/// What there is room for.
pub(super) struct RingRoom {
    /// Bytes of the budget for weights that are in the ring or pinned.
    pub(super) for_weights: u64,
    /// Bytes of the smallest unit worth a read.
    pub(super) unit_bytes_min: u64,
    /// The pages that memory comes in.
    pub(super) page: PageSize,
}

impl RingRoom {
    /// The ring with which a pass over `weight_bytes` takes the least time, by what a drive
    /// gives that has been measured: slots, and the bytes of the largest unit. `None` where no
    /// measured one is small enough.
    pub(super) fn measured(&self, curve: &Curve, weight_bytes: u64) -> Option<(usize, u64)> {
        let ring_bytes_max = self.for_weights / RING_SHARE;
        let rest_bytes = weight_bytes.saturating_sub(self.for_weights);
        let point = curve.fastest_for(weight_bytes, rest_bytes, ring_bytes_max)?;
        let unit_bytes = point.block_bytes.max(self.unit_bytes_min);
        let slots = point.depth.max(SLOTS_MIN);
        let fits = slots as u64 * unit_bytes <= ring_bytes_max;
        fits.then(|| (slots, self.unit_of_slot(unit_bytes)))
    }

    /// The ring for a drive of which nothing is known: slots, and the bytes of the largest
    /// unit.
    pub(super) fn unmeasured(&self) -> (usize, u64) {
        let ring_bytes = self.for_weights / RING_SHARE;
        let mut unit_bytes = SLOT_BYTES_MAX;
        while unit_bytes > self.unit_bytes_min && unit_bytes * SLOTS_WANTED > ring_bytes {
            unit_bytes /= 2;
        }
        let unit_bytes = unit_bytes.max(self.unit_bytes_min);
        let slots = (ring_bytes / unit_bytes).clamp(SLOTS_MIN as u64, SLOTS_MAX);
        (slots as usize, self.unit_of_slot(unit_bytes))
    }

    /// The largest unit of a slot that is to take `slot_bytes`: wherever in a page it starts,
    /// it takes no more.
    fn unit_of_slot(&self, slot_bytes: u64) -> u64 {
        slot_bytes
            .saturating_sub(self.page.bytes() as u64)
            .max(self.unit_bytes_min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Point;

    const PAGE_BYTES: u64 = 4096;

    fn room(for_weights: u64, unit_bytes_min: u64) -> RingRoom {
        RingRoom {
            for_weights,
            unit_bytes_min,
            page: PageSize::new(PAGE_BYTES as usize),
        }
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
            room(for_weights << 20, 1 << 18).measured(&curve, weight_bytes << 20)
        };
        // 2000 MiB to be read are worth 56 MiB more; 100 MiB are not.
        assert_eq!(shape(2000, 4000), Some((16, (4 << 20) - PAGE_BYTES)));
        assert_eq!(shape(2000, 2100), Some((8, (1 << 20) - PAGE_BYTES)));
        // A part of 120 MiB holds no ring of 8 MiB; one of 16 MiB holds none at all.
        assert_eq!(shape(120, 3000), Some((2, (1 << 20) - PAGE_BYTES)));
        assert_eq!(shape(16, 3000), None);
    }

    #[test]
    fn a_ring_has_two_small_slots_at_least_and_sixteen_large_ones_at_most() {
        let shape = |for_weights, unit_bytes_min| room(for_weights, unit_bytes_min).unmeasured();
        assert_eq!(shape(0, 256 << 10), (2, 256 << 10));
        assert_eq!(shape(64 << 30, 256 << 10), (16, (2 << 20) - PAGE_BYTES));
        assert_eq!(shape(256 << 20, 256 << 10), (8, (2 << 20) - PAGE_BYTES));
        assert_eq!(shape(0, 3 << 20), (2, 3 << 20));
    }

    #[test]
    fn the_larger_the_pages_the_smaller_the_unit_of_a_slot() {
        for page_bytes in [4 << 10, 16 << 10, 64 << 10] {
            let room = RingRoom {
                page: PageSize::new(page_bytes),
                ..room(256 << 20, 192 << 10)
            };
            let unit_bytes = (2 << 20) - page_bytes as u64;
            assert_eq!(room.unmeasured(), (8, unit_bytes));
        }
    }
}
