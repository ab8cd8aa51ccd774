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

use crate::arena::{Arena, SlotBuffer, View};
use crate::expert_layout::{
    EXPERT_PARTS, EXPERTS_MAX, ExpertId, ExpertLayout, ExpertPart, ExpertUse, MixtureLayout,
    PartLayout,
};
use crate::gguf::Extent;
use crate::trace::Subject;

/// Reads of experts asked for at a time: those that a step of computing may wait to take,
/// and as many again, so that the reader has some to go on with meanwhile.
pub const EXPERT_READS: usize = 2 * EXPERT_PARTS * EXPERTS_MAX;

/// Reads of guesses under way at a time. A drive works on all of its reads at once, so with
/// more of them none had landed when the layer came, and all were in the way of its demands:
/// one made tokens 6 to 10 % faster, two or three made them 3 to 10 % slower.
const GUESS_READS_MAX: usize = 1;

/// In debug builds, what a slot is filled with before a read: no number in most formats.
const POISON: u8 = 0xff;

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
    let parts = uses.iter().flat_map(|mixture| &mixture.parts);
    let of_lists: usize = parts.map(ExpertPart::list_bytes).sum();
    let of_reads = EXPERT_READS * size_of::<Option<Read>>();
    (experts * of_expert + of_mixtures + of_lists + of_reads) as u64
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
    pub(crate) subject: Subject,
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
            subject: Subject::Expert {
                mixture: id.mixture as u32,
                expert: id.expert as u32,
                part: part as u8,
            },
            extent: self.layout.extent(id, part),
            // SAFETY: the slot was empty when it was given to the expert, no stale read into it
            // is under way, and each of the expert's parts has one read.
            buffer: unsafe { self.buffer(slot, id.mixture, part) },
        })
    }

    /// # Safety
    /// The slot has no bytes of the part, and no other read into them is under way.
    unsafe fn buffer(&self, slot: usize, mixture: usize, part: usize) -> Option<SlotBuffer> {
        let PartLayout { offset, bytes, .. } = self.layout.mixtures[mixture].parts[part];
        let start = slot * self.layout.slot_bytes + offset;
        let arena = self.arena.as_ref()?;
        // SAFETY: neither slots nor the parts of one overlap; the caller vouches for the rest.
        let mut buffer = unsafe { arena.buffer(start, bytes, None) };
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
            // SAFETY: closed slots are empty: nobody has a view of their bytes, and slices of
            // those that there were ended with the borrow of the weights that this changes. No
            // read into those from `start` on is under way.
            unsafe { arena.give_back(start * self.layout.slot_bytes, bytes) };
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
mod tests;
