use super::*;
use crate::expert_layout::PartExtents;
use crate::page::PageSize;

const ID: ExpertId = ExpertId {
    mixture: 0,
    expert: 3,
};
const OTHER: ExpertId = ExpertId {
    mixture: 0,
    expert: 1,
};

/// Eight experts of 100, 200 and 300 bytes, in two slots. The second part has as many bytes of
/// something else behind each expert, and the third has the last expert first.
fn page() -> PageSize {
    PageSize::of_system()
}

fn slots() -> ExpertSlots {
    let extent = |offset, bytes| Extent {
        file: 0,
        offset,
        bytes,
    };
    let stacked = |first: Extent, stride_bytes| PartExtents::Stacked {
        first,
        stride_bytes,
    };
    let last_first = (0..8).rev().map(|place| extent(20_000 + 300 * place, 300));
    let extents = [
        stacked(extent(0, 100), 100),
        stacked(extent(10_000, 200), 400),
        PartExtents::Separate(last_first.collect()),
    ];
    let part = |index: usize| PartLayout {
        extents: extents[index].clone(),
        offset: 2 * page().bytes() * index,
        bytes: 2 * page().bytes(),
    };
    let layout = ExpertLayout {
        slot_bytes: 6 * page().bytes(),
        mixtures: vec![MixtureLayout {
            experts: 8,
            parts: std::array::from_fn(part),
        }],
    };
    let arena = Arena::new(2 * layout.slot_bytes, page()).unwrap();
    ExpertSlots::new(layout, 2, Some(arena))
}

/// A read of these bytes ends.
fn land(slots: &mut ExpertSlots, next: NextRead, byte: u8) -> bool {
    let mut buffer = next.buffer.unwrap();
    buffer.as_mut_slice().fill(byte);
    slots.landed(next.read, buffer.into_view(0, next.extent.bytes as usize))
}

#[test]
fn a_slot_is_computed_on_only_when_all_of_the_expert_has_landed() {
    let mut slots = slots();
    assert_eq!(slots.parts(0, ID), None, "nothing was read");
    slots.want(0, ID);
    let reads: Vec<NextRead> = (0..3).map(|_| slots.next_read().unwrap()).collect();
    assert!(slots.next_read().is_none());
    let extents: Vec<u64> = reads.iter().map(|next| next.extent.offset).collect();
    assert_eq!(extents, [300, 11_200, 21_200]);
    for (count, next) in reads.into_iter().enumerate() {
        assert_eq!(slots.parts(0, ID), None, "{count} of three have landed");
        assert_eq!(land(&mut slots, next, 7), count == 2);
    }
    let parts = slots.parts(0, ID).unwrap();
    assert_eq!(parts.map(|part| part.bytes()), [100, 200, 300]);
    assert_eq!(slots.parts(0, OTHER), None, "another expert's");
    assert_eq!(slots.parts(1, ID), None, "another slot");
}

#[test]
fn a_slot_given_to_another_expert_waits_for_reads_of_the_one_before() {
    let mut slots = slots();
    slots.want(0, ID);
    let first = slots.next_read().unwrap();
    assert!(!land(&mut slots, first, 7));
    let second = slots.next_read().unwrap();
    // What has landed is to be released, what is under way is waited for.
    let released = slots.empty(0);
    assert_eq!(
        released.map(|extent| extent.is_some()),
        [true, false, false]
    );
    slots.want(0, OTHER);
    assert_eq!(slots.is_stale(second.read), Some(true));
    assert!(slots.next_read().is_none(), "the kernel may write to it");
    slots.want(1, ID);
    assert_eq!(slots.next_read().unwrap().extent.offset, 300);
    slots.stale_read_ended(second.read);
    for count in 0..3 {
        assert_eq!(slots.parts(0, OTHER), None);
        let next = slots.next_read().unwrap();
        assert_eq!(land(&mut slots, next, 9), count == 2);
    }
    assert_eq!(slots.parts(0, ID), None, "stale");
    assert!(slots.parts(0, OTHER).is_some());
}

#[test]
fn a_slot_is_poisoned_before_it_is_read_into() {
    let mut slots = slots();
    slots.want(1, ID);
    let mut buffer = slots.next_read().unwrap().buffer.unwrap();
    let poisoned = buffer.as_mut_slice().iter().all(|&byte| byte == POISON);
    assert_eq!(poisoned, cfg!(debug_assertions));
}

#[test]
#[should_panic(expected = "given away while it is in use")]
fn a_slot_in_use_is_not_given_away() {
    let mut slots = slots();
    slots.want(0, ID);
    slots.want(0, OTHER);
}

#[test]
fn a_closed_slot_gives_its_memory_back_once_no_read_into_it_is_under_way() {
    let mut slots = slots();
    let bytes_of_second = |slots: &ExpertSlots| {
        let bytes = slots.layout.slot_bytes;
        let arena = slots.arena.as_ref().unwrap();
        // SAFETY: nothing else uses the slot.
        let mut buffer = unsafe { arena.buffer(bytes, bytes, None) };
        buffer.as_mut_slice().to_vec()
    };
    slots.want(1, ID);
    let first = slots.next_read().unwrap();
    assert!(!land(&mut slots, first, 7));
    let second = slots.next_read().unwrap();
    slots.empty(1);
    slots.set_open(1);
    assert!(slots.has_closed_memory());
    assert!(bytes_of_second(&slots).contains(&7), "still read into");
    slots.stale_read_ended(second.read);
    assert!(!slots.has_closed_memory());
    assert!(bytes_of_second(&slots).iter().all(|&byte| byte == 0));
    slots.set_open(2);
    slots.want(1, OTHER);
    for count in 0..3 {
        let next = slots.next_read().unwrap();
        assert_eq!(land(&mut slots, next, 9), count == 2);
    }
    assert!(slots.parts(1, OTHER).is_some());
}

#[test]
#[should_panic(expected = "is closed")]
fn a_closed_slot_is_given_to_nobody() {
    let mut slots = slots();
    slots.set_open(1);
    slots.want(1, ID);
}

#[test]
fn a_failed_read_leaves_nothing_in_the_slot() {
    let mut slots = slots();
    slots.want(0, ID);
    let first = slots.next_read().unwrap();
    let second = slots.next_read().unwrap();
    assert_eq!(slots.failed(first.read), Some((0, false)));
    slots.empty(0);
    assert!(!slots.is_given_to(0, ID));
    assert_eq!(slots.reads_into(0).collect::<Vec<_>>(), [second.read]);
    assert_eq!(slots.is_stale(second.read), Some(true));
    slots.stale_read_ended(second.read);
    assert_eq!(slots.slots_in_reading().count(), 0);
}

#[test]
fn a_guess_is_begun_while_nothing_is_wanted_and_goes_on_at_once_when_it_is_needed() {
    let mut slots = slots();
    slots.guess(0, ID);
    let first = slots.next_read().unwrap();
    assert!(slots.next_read().is_none(), "enough for a guess");
    slots.want(1, OTHER);
    let under_way = |slots: &ExpertSlots| {
        let UnderWay { demanded, guessed } = slots.under_way();
        (demanded, guessed)
    };
    assert_eq!(under_way(&slots), (1, 1));
    let wanted: Vec<NextRead> = (0..3).map(|_| slots.next_read().unwrap()).collect();
    let offsets: Vec<u64> = wanted.iter().map(|next| next.extent.offset).collect();
    assert_eq!(offsets, [100, 10_400, 21_800]);
    assert!(!land(&mut slots, first, 7));
    assert!(slots.next_read().is_none(), "others are waited for");
    assert!(slots.is_unfinished_guess(0, ID));
    slots.demand(0);
    assert!(!slots.is_unfinished_guess(0, ID));
    assert_eq!(under_way(&slots), (2, 0));
    let [second, third] = [0, 1].map(|_| slots.next_read().unwrap());
    assert_eq!(third.extent.offset, 21_200);
    assert!(!land(&mut slots, third, 7));
    assert_eq!(slots.parts(0, ID), None, "a third of it is missing");
    assert!(land(&mut slots, second, 7));
    assert!(slots.parts(0, ID).is_some());
    slots.empty(0);
    slots.empty(1);
    assert_eq!(under_way(&slots), (0, 0));
}

#[test]
fn a_guess_goes_on_when_what_is_wanted_has_landed() {
    let mut slots = slots();
    slots.want(1, OTHER);
    slots.guess(0, ID);
    for count in 0..3 {
        let next = slots.next_read().unwrap();
        assert_eq!(slots.under_way().demanded, 1);
        assert_eq!(land(&mut slots, next, 9), count == 2);
    }
    for count in 0..3 {
        let next = slots.next_read().unwrap();
        assert_eq!(land(&mut slots, next, 7), count == 2);
    }
    assert!(slots.parts(0, ID).is_some());
}

#[test]
fn a_guess_that_fails_or_is_taken_away_leaves_nothing_behind() {
    let mut slots = slots();
    slots.guess(0, ID);
    let first = slots.next_read().unwrap();
    assert_eq!(slots.failed(first.read), Some((0, true)));
    slots.empty(0);
    assert_eq!(slots.under_way(), UnderWay::default());
    assert!(slots.next_read().is_none());
    slots.guess(0, ID);
    slots.empty(0);
    slots.want(0, OTHER);
    for count in 0..3 {
        let next = slots.next_read().unwrap();
        assert_eq!(land(&mut slots, next, 9), count == 2);
    }
    assert_eq!(slots.under_way(), UnderWay::default());
    assert!(slots.parts(0, OTHER).is_some());
}
