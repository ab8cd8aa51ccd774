//! Slots for experts that do not all fit in memory, and what is in each.
//!
//! An expert is its rows of its mixture's gate, up and down matrices: three extents of the
//! file, read at the same time into one slot. The slot's life is Nothing → Reading (so many
//! of three landed) → Ready. Whoever wants to compute on a slot names the expert, and gets
//! its bytes only if they are there, all of them: a slot that holds nothing, half of it, or
//! another expert is never computed on. Computing borrows the slots, so that none is given
//! away meanwhile.
//!
//! A slot that is given to another expert while reads for the one before are still under
//! way waits for them to land: the kernel may write to its memory until then.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::arena::{Arena, PAGE_BYTES, SlotBuffer, View};
use crate::files::Window;
use crate::gguf::{Catalog, Extent};
use crate::weights::EXPERTS_MAX;

/// The matrices that an expert has rows of: gate, up and down.
pub const EXPERT_PARTS: usize = 3;

/// Reads of experts asked for at a time: those that a step of computing may wait to take,
/// and as many again, so that the reader has some to go on with meanwhile.
pub const EXPERT_READS: usize = 2 * EXPERT_PARTS * EXPERTS_MAX;

/// Reads of guesses under way at a time. A drive works on all of its reads at once, so with
/// more of them none had landed when the layer came, and all were in the way of its demands:
/// one made tokens 6 to 10 % faster, two or three made them 3 to 10 % slower.
const GUESS_READS_MAX: usize = 1;

/// In debug builds, what a slot is filled with before a read: no number in most formats.
const POISON: u8 = 0xff;

/// Where the experts of a mixture are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertUse {
    /// Indices of their gate, up and down tensors in the catalog. The experts' rows follow
    /// each other.
    pub tensors: [usize; EXPERT_PARTS],
    /// Number of experts.
    pub experts: usize,
    /// Experts that a token goes to.
    pub used: usize,
}

impl ExpertUse {
    /// An expert's extent of one of the three tensors.
    pub fn extent(&self, catalog: &Catalog, part: usize, expert: usize) -> Extent {
        let all = catalog.tensors()[self.tensors[part]].extent;
        let bytes = all.bytes / self.experts as u64;
        Extent {
            offset: all.offset + expert as u64 * bytes,
            bytes,
            ..all
        }
    }
}

/// An expert of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertId {
    /// The mixture, counted from the first in a pass.
    pub mixture: usize,
    /// Which of its experts.
    pub expert: usize,
}

/// The bytes of an expert: its rows of the gate, up and down matrices.
#[derive(Debug, Clone, Copy)]
pub struct ExpertBytes<'a> {
    /// Which of its mixture's experts it is.
    pub expert: usize,
    /// Its rows of each matrix.
    pub parts: [&'a [u8]; EXPERT_PARTS],
}

/// How experts lie in a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpertLayout {
    /// The parts of each mixture's experts.
    mixtures: Vec<MixtureLayout>,
    /// Bytes of a slot.
    pub slot_bytes: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct MixtureLayout {
    experts: usize,
    parts: [PartLayout; EXPERT_PARTS],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PartLayout {
    /// The first expert's; the others' follow.
    first: Extent,
    /// Where the part's buffer starts in a slot.
    offset: usize,
    /// Bytes of the buffer: of the widest expert, in whole pages.
    bytes: usize,
}

impl ExpertLayout {
    /// Lays the experts of all mixtures out: a slot holds any of them.
    pub fn new(catalog: &Catalog, uses: &[ExpertUse]) -> Self {
        let mixtures: Vec<MixtureLayout> = uses
            .iter()
            .map(|mixture| {
                let mut offset = 0;
                let parts = std::array::from_fn(|part| {
                    let window = |expert| {
                        let extent = mixture.extent(catalog, part, expert);
                        Window::around(extent.offset, extent.bytes as usize, PAGE_BYTES).bytes
                    };
                    let layout = PartLayout {
                        first: mixture.extent(catalog, part, 0),
                        offset,
                        bytes: (0..mixture.experts).map(window).max().unwrap_or(0),
                    };
                    offset += layout.bytes;
                    layout
                });
                MixtureLayout {
                    experts: mixture.experts,
                    parts,
                }
            })
            .collect();
        let slot_bytes = mixtures.iter().map(MixtureLayout::held_bytes).max();
        Self {
            slot_bytes: slot_bytes.unwrap_or(0),
            mixtures,
        }
    }

    /// The experts of all mixtures.
    pub fn experts(&self) -> usize {
        self.mixtures.iter().map(|mixture| mixture.experts).sum()
    }

    /// Bytes of an expert of one of the mixtures in the file.
    pub fn expert_bytes(&self, mixture: usize) -> u64 {
        let parts = &self.mixtures[mixture].parts;
        parts.iter().map(|part| part.first.bytes).sum()
    }

    /// The number of mixtures.
    pub fn mixtures(&self) -> usize {
        self.mixtures.len()
    }

    fn extent(&self, id: ExpertId, part: usize) -> Extent {
        let first = self.mixtures[id.mixture].parts[part].first;
        Extent {
            offset: first.offset + id.expert as u64 * first.bytes,
            ..first
        }
    }
}

impl MixtureLayout {
    fn held_bytes(&self) -> usize {
        self.parts.iter().map(|part| part.bytes).sum()
    }
}

/// What is in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    Nothing,
    Reading {
        id: ExpertId,
        /// Whether nobody needs it yet.
        is_guess: bool,
        /// Parts whose reads were begun, and those of them that have landed.
        begun: usize,
        landed: usize,
    },
    Ready(ExpertId),
}

/// Experts under way: given a slot, and not there yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UnderWay {
    /// Those that a layer needs.
    pub demanded: usize,
    /// Those that one may need.
    pub guessed: usize,
}

impl UnderWay {
    fn of(&mut self, is_guess: bool) -> &mut usize {
        match is_guess {
            true => &mut self.guessed,
            false => &mut self.demanded,
        }
    }
}

#[derive(Debug, Clone)]
struct Slot {
    content: Content,
    /// Where the parts are that have landed.
    parts: [Option<View>; EXPERT_PARTS],
    /// Reads under way for what the slot no longer is.
    stale_reads: usize,
}

/// A read under way.
#[derive(Debug, Clone, Copy)]
struct Read {
    slot: usize,
    part: usize,
    /// Whether the slot is another expert's by now.
    is_stale: bool,
}

/// Bytes of the tables that say where experts are, with up to a slot for each: those of the
/// slots, and of a mapping, which notes the extents in use.
pub fn table_bytes(uses: &[ExpertUse]) -> u64 {
    let experts: usize = uses.iter().map(|mixture| mixture.experts).sum();
    let of_mixtures = uses.len() * size_of::<MixtureLayout>();
    let of_expert = size_of::<Slot>() + 2 * size_of::<usize>() + EXPERT_PARTS * size_of::<Extent>();
    let of_reads = EXPERT_READS * size_of::<Option<Read>>();
    (experts * of_expert + of_mixtures + of_reads) as u64
}

/// The slots, and the reads that fill them.
pub(crate) struct ExpertSlots {
    layout: ExpertLayout,
    /// Where reads land; none for a reader that needs no buffers.
    arena: Option<Arc<Arena>>,
    slots: Vec<Slot>,
    /// How many of them may be used, and how many of the first may have memory.
    open: usize,
    held: usize,
    /// Slots with reads that were not begun, in the order of their wishes.
    wanted: VecDeque<usize>,
    /// The same for guesses, of which nothing is begun while something wanted is under way.
    guessed: VecDeque<usize>,
    under_way: UnderWay,
    reads: [Option<Read>; EXPERT_READS],
}

/// A read to begin.
pub(crate) struct NextRead {
    /// Its index among the reads.
    pub(crate) read: usize,
    pub(crate) extent: Extent,
    pub(crate) buffer: Option<SlotBuffer>,
}

impl ExpertSlots {
    /// `slots` slots with nothing in them, in `arena` unless the reader needs no buffers.
    pub(crate) fn new(layout: ExpertLayout, slots: usize, arena: Option<Arc<Arena>>) -> Self {
        let empty = Slot {
            content: Content::Nothing,
            parts: [None; EXPERT_PARTS],
            stale_reads: 0,
        };
        Self {
            layout,
            arena,
            slots: vec![empty; slots],
            open: slots,
            held: slots,
            wanted: VecDeque::with_capacity(slots),
            guessed: VecDeque::with_capacity(slots),
            under_way: UnderWay::default(),
            reads: [None; EXPERT_READS],
        }
    }

    /// Whether the slot holds the expert, or will as soon as its reads have landed.
    pub(crate) fn is_given_to(&self, slot: usize, id: ExpertId) -> bool {
        match self.slots[slot].content {
            Content::Nothing => false,
            Content::Reading { id: other, .. } | Content::Ready(other) => other == id,
        }
    }

    /// Bytes of a slot.
    pub(crate) fn slot_bytes(&self) -> usize {
        self.layout.slot_bytes
    }

    /// Experts under way.
    pub(crate) fn under_way(&self) -> UnderWay {
        self.under_way
    }

    /// Reads under way.
    pub(crate) fn reads_under_way(&self) -> usize {
        self.reads.iter().flatten().count()
    }

    /// Gives the slot to an expert, which is to be read. Call [`ExpertSlots::empty`] first.
    pub(crate) fn want(&mut self, slot: usize, id: ExpertId) {
        self.give(slot, id, false);
        self.wanted.push_back(slot);
    }

    /// As [`ExpertSlots::want`], for an expert that nobody needs yet.
    pub(crate) fn guess(&mut self, slot: usize, id: ExpertId) {
        self.give(slot, id, true);
        self.guessed.push_back(slot);
    }

    /// The expert that the slot was given to is needed now, if it was a guess before.
    pub(crate) fn demand(&mut self, slot: usize) {
        let Content::Reading {
            is_guess: is_guess @ true,
            ..
        } = &mut self.slots[slot].content
        else {
            return;
        };
        *is_guess = false;
        self.under_way.guessed -= 1;
        self.under_way.demanded += 1;
        if let Some(place) = self.guessed.iter().position(|&guessed| guessed == slot) {
            self.guessed.remove(place);
            self.wanted.push_back(slot);
        }
    }

    /// Whether the slot's expert is still a guess of which some reads were not begun.
    pub(crate) fn is_unfinished_guess(&self, slot: usize, id: ExpertId) -> bool {
        match self.slots[slot].content {
            Content::Reading {
                id: other,
                is_guess,
                begun,
                ..
            } => is_guess && other == id && begun < EXPERT_PARTS,
            Content::Nothing | Content::Ready(_) => false,
        }
    }

    /// Reads under way for guesses, and those that nobody wants any more.
    fn guess_reads(&self) -> usize {
        let is_guess = |read: &&Read| {
            let content = &self.slots[read.slot].content;
            read.is_stale || matches!(content, Content::Reading { is_guess: true, .. })
        };
        self.reads.iter().flatten().filter(is_guess).count()
    }

    fn give(&mut self, slot: usize, id: ExpertId, is_guess: bool) {
        assert!(slot < self.open, "slot {slot} is closed");
        let place = &mut self.slots[slot];
        assert_eq!(
            place.content,
            Content::Nothing,
            "slot {slot} is given away while it is in use"
        );
        place.content = Content::Reading {
            id,
            is_guess,
            begun: 0,
            landed: 0,
        };
        *self.under_way.of(is_guess) += 1;
    }

    /// Takes the slot from whatever it was given to. Returns the extents whose bytes are
    /// to be released.
    pub(crate) fn empty(&mut self, slot: usize) -> [Option<Extent>; EXPERT_PARTS] {
        let place = &mut self.slots[slot];
        let id = match place.content {
            Content::Nothing => return [None; EXPERT_PARTS],
            Content::Reading { id, is_guess, .. } => {
                *self.under_way.of(is_guess) -= 1;
                id
            }
            Content::Ready(id) => id,
        };
        let parts = std::mem::take(&mut place.parts);
        place.content = Content::Nothing;
        for read in self.reads.iter_mut().flatten() {
            if read.slot == slot && !read.is_stale {
                read.is_stale = true;
                place.stale_reads += 1;
            }
        }
        self.wanted.retain(|&wanted| wanted != slot);
        self.guessed.retain(|&guessed| guessed != slot);
        std::array::from_fn(|part| parts[part].map(|_| self.layout.extent(id, part)))
    }

    /// Slots whose expert has not landed.
    pub(crate) fn slots_in_reading(&self) -> impl Iterator<Item = usize> {
        let is_reading = |slot: &Slot| matches!(slot.content, Content::Reading { .. });
        (0..self.slots.len()).filter(move |&slot| is_reading(&self.slots[slot]))
    }

    /// The next read that can be begun.
    pub(crate) fn next_read(&mut self) -> Option<NextRead> {
        let read = self.reads.iter().position(Option::is_none)?;
        let may_guess = self.under_way.demanded == 0 && self.guess_reads() < GUESS_READS_MAX;
        let queue = match self.wanted.is_empty() && may_guess {
            true => &mut self.guessed,
            false => &mut self.wanted,
        };
        let slots = &mut self.slots;
        // A slot's memory is another read's until the stale ones have landed.
        let is_settled = |&slot: &usize| slots[slot].stale_reads == 0;
        let place = queue.iter().position(is_settled)?;
        let slot = queue[place];
        let Content::Reading { id, begun, .. } = &mut slots[slot].content else {
            unreachable!("only a slot that was given to an expert is wanted");
        };
        let (id, part) = (*id, *begun);
        *begun += 1;
        if *begun == EXPERT_PARTS {
            queue.remove(place);
        }
        self.reads[read] = Some(Read {
            slot,
            part,
            is_stale: false,
        });
        Some(NextRead {
            read,
            extent: self.layout.extent(id, part),
            buffer: self.buffer(slot, id.mixture, part),
        })
    }

    fn buffer(&self, slot: usize, mixture: usize, part: usize) -> Option<SlotBuffer> {
        let PartLayout { offset, bytes, .. } = self.layout.mixtures[mixture].parts[part];
        let start = slot * self.layout.slot_bytes + offset;
        let arena = self.arena.as_ref()?;
        let mut buffer = arena.buffer(start, bytes, None);
        if cfg!(debug_assertions) {
            buffer.as_mut_slice().fill(POISON);
        }
        Some(buffer)
    }

    /// Whether the read is under way, and if so whether it is stale.
    pub(crate) fn is_stale(&self, read: usize) -> Option<bool> {
        self.reads[read].map(|read| read.is_stale)
    }

    /// The reads under way into a slot.
    pub(crate) fn reads_into(&self, slot: usize) -> impl Iterator<Item = usize> + use<> {
        let reads = self.reads;
        (0..EXPERT_READS).filter(move |&read| reads[read].is_some_and(|it| it.slot == slot))
    }

    /// A read has ended and nobody wanted it any more.
    pub(crate) fn stale_read_ended(&mut self, read: usize) {
        if let Some(Read { slot, is_stale, .. }) = self.reads[read].take() {
            assert!(is_stale, "a read that is wanted was dropped");
            self.slots[slot].stale_reads -= 1;
            if slot >= self.open {
                self.give_back_closed();
            }
        }
    }

    /// How many slots there are.
    pub(crate) fn count(&self) -> usize {
        self.slots.len()
    }

    /// How many of the slots may be used: the first ones.
    pub(crate) fn open(&self) -> usize {
        self.open
    }

    /// Lets the first `open` slots be used from now on. The others are to be empty; their
    /// memory goes back to the kernel, as soon as no read into it is under way.
    pub(crate) fn set_open(&mut self, open: usize) {
        let closed = &self.slots[open..];
        assert!(
            closed.iter().all(|slot| slot.content == Content::Nothing),
            "a slot is closed while it is in use"
        );
        self.open = open;
        self.held = self.held.max(open);
        self.give_back_closed();
    }

    /// Whether closed slots have memory, because reads into it are under way.
    pub(crate) fn has_closed_memory(&self) -> bool {
        self.held > self.open
    }

    /// One stretch at the arena's end, so that the kernel gets whole huge pages.
    fn give_back_closed(&mut self) {
        let is_read_into = |slot: &usize| self.slots[*slot].stale_reads > 0;
        let last = (self.open..self.held).rev().find(is_read_into);
        let start = last.map_or(self.open, |slot| slot + 1);
        if let Some(arena) = &self.arena {
            let bytes = (self.held - start) * self.layout.slot_bytes;
            arena.give_back(start * self.layout.slot_bytes, bytes);
        }
        self.held = start;
    }

    /// A read has failed. Returns its slot, which is to be emptied, and whether that was a
    /// guess: nobody needs to hear of it then.
    pub(crate) fn failed(&mut self, read: usize) -> Option<(usize, bool)> {
        let slot = self.reads[read].take()?.slot;
        let content = &self.slots[slot].content;
        Some((
            slot,
            matches!(content, Content::Reading { is_guess: true, .. }),
        ))
    }

    /// A read has landed. Returns whether its expert is ready with it.
    pub(crate) fn landed(&mut self, read: usize, view: View) -> bool {
        let Some(Read { slot, part, .. }) = self.reads[read].take() else {
            return false;
        };
        let place = &mut self.slots[slot];
        place.parts[part] = Some(view);
        let Content::Reading {
            id,
            is_guess,
            landed,
            ..
        } = &mut place.content
        else {
            unreachable!("reads for other contents are stale");
        };
        *landed += 1;
        let is_ready = *landed == EXPERT_PARTS;
        if is_ready {
            *self.under_way.of(*is_guess) -= 1;
            place.content = Content::Ready(*id);
        }
        is_ready
    }

    /// The bytes of an expert, if all of them are in the slot.
    pub(crate) fn parts(&self, slot: usize, id: ExpertId) -> Option<[View; EXPERT_PARTS]> {
        let place = &self.slots[slot];
        if place.content != Content::Ready(id) {
            return None;
        }
        let [Some(gate), Some(up), Some(down)] = place.parts else {
            return None;
        };
        Some([gate, up, down])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: ExpertId = ExpertId {
        mixture: 0,
        expert: 3,
    };
    const OTHER: ExpertId = ExpertId {
        mixture: 0,
        expert: 1,
    };

    /// Experts of 100, 200 and 300 bytes, eight of each, in two slots.
    fn slots() -> ExpertSlots {
        let part = |index: usize| PartLayout {
            first: Extent {
                file: 0,
                offset: 10_000 * index as u64,
                bytes: 100 * (index as u64 + 1),
            },
            offset: 2 * PAGE_BYTES * index,
            bytes: 2 * PAGE_BYTES,
        };
        let layout = ExpertLayout {
            slot_bytes: 6 * PAGE_BYTES,
            mixtures: vec![MixtureLayout {
                experts: 8,
                parts: std::array::from_fn(part),
            }],
        };
        let arena = Arena::new(2 * layout.slot_bytes).unwrap();
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
        assert_eq!(extents, [300, 10_600, 20_900]);
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
            let mut buffer = slots.arena.as_ref().unwrap().buffer(bytes, bytes, None);
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
        assert_eq!(offsets, [100, 10_200, 20_300]);
        assert!(!land(&mut slots, first, 7));
        assert!(slots.next_read().is_none(), "others are waited for");
        assert!(slots.is_unfinished_guess(0, ID));
        slots.demand(0);
        assert!(!slots.is_unfinished_guess(0, ID));
        assert_eq!(under_way(&slots), (2, 0));
        let [second, third] = [0, 1].map(|_| slots.next_read().unwrap());
        assert_eq!(third.extent.offset, 20_900);
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
}
