//! The experts of a model in memory: all of them for good, or those that have a slot.

mod release;

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use super::populate::Populate;
use super::{Weights, WeightsError};
use crate::arena::{Arena, SlotBuffer, View};
use crate::expert_layout::{EXPERT_PARTS, EXPERTS_MAX, ExpertBytes, ExpertId};
use crate::expert_slots::{EXPERT_READS, ExpertSlots, NextRead, UnderWay};
use crate::plan::{ExpertRun, ExpertSlotsPlan, Plan, ROW_SLOTS};
use crate::reader::ReadError;
use crate::trace::Subject;

/// An expert of a mixture, and the slot that it is in; any slot where all experts stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlacedExpert {
    /// Which of the mixture's experts.
    pub expert: usize,
    /// The slot.
    pub slot: usize,
}

/// Where the experts are.
pub(super) enum Experts {
    /// In memory for good.
    Resident(Resident),
    /// Some of them are in slots.
    Slots(Box<ExpertSlots>, Option<Populate>),
}

/// Experts that stay, once they are loaded.
pub(super) struct Resident {
    /// The parts of each expert of each mixture.
    mixtures: Vec<Vec<[Option<View>; EXPERT_PARTS]>>,
    /// Where they are read to; none for a reader that needs no buffers.
    arena: Option<Arc<Arena>>,
    /// Bytes of it that reads have been given.
    given_bytes: usize,
    /// Bytes of all of them, in whole pages.
    bytes: u64,
    /// The slots that they are left with when memory becomes scarce.
    spare: Option<ExpertSlotsPlan>,
}

impl Experts {
    /// Nothing is loaded yet. `arena_of` makes the memory.
    pub(super) fn new(
        plan: &Plan,
        arena_of: &dyn Fn(u64) -> Result<Arc<Arena>, WeightsError>,
    ) -> Result<Self, WeightsError> {
        let bytes = match &plan.expert_slots {
            Some(planned) => planned.bytes(),
            None => plan.expert_run_bytes(),
        };
        let arena = arena_of(bytes)?;
        let arena = (arena.bytes() > 0).then_some(arena);
        let Some(planned) = &plan.expert_slots else {
            return Ok(Self::Resident(Resident {
                mixtures: Vec::new(),
                arena,
                given_bytes: 0,
                bytes,
                spare: plan.spare_expert_slots.clone(),
            }));
        };
        let populate = arena.as_ref().map(Populate::start);
        let slots = ExpertSlots::new(planned.layout.clone(), planned.slots, arena);
        Ok(Self::Slots(Box::new(slots), populate))
    }

    /// Where the next experts that stay are read to, whole pages of `bytes`; `None` for a
    /// mapping.
    pub(super) fn next_buffer(&mut self, bytes: u64) -> Option<SlotBuffer> {
        let Self::Resident(resident) = self else {
            return None;
        };
        let arena = resident.arena.as_ref()?;
        let (start, bytes) = (resident.given_bytes, bytes as usize);
        resident.given_bytes += bytes;
        // SAFETY: what follows the bytes that were given before has been given to nobody.
        Some(unsafe { arena.buffer(start, bytes, None) })
    }

    /// The experts of this run are in memory for good.
    pub(super) fn stay(&mut self, run: &ExpertRun, view: View) {
        let Self::Resident(Resident { mixtures, .. }) = self else {
            return;
        };
        if mixtures.len() <= run.mixture {
            mixtures.resize(run.mixture + 1, Vec::new());
        }
        let experts = &mut mixtures[run.mixture];
        let end = run.first + run.count;
        if experts.len() < end {
            experts.resize(end, [None; EXPERT_PARTS]);
        }
        let bytes = view.bytes() / run.count;
        for (index, parts) in experts[run.first..end].iter_mut().enumerate() {
            parts[run.part] = Some(view.part(index * bytes, bytes));
        }
    }

    /// Bytes of the experts that stay, in whole pages.
    pub(super) fn resident_bytes(&self) -> u64 {
        match self {
            Self::Resident(resident) => resident.bytes,
            Self::Slots(..) => 0,
        }
    }

    fn slots(&self) -> &ExpertSlots {
        match self {
            Self::Slots(slots, _) => slots,
            Self::Resident(_) => panic!("a slot is asked for where all experts stay"),
        }
    }

    /// The slot is in use from now on.
    fn used(&mut self, slot: usize) {
        if let Self::Slots(slots, Some(populate)) = self {
            populate.used((slot + 1) * slots.slot_bytes());
        }
    }

    /// Lets the first `open` slots be used from now on.
    fn set_open(&mut self, open: usize) {
        if let Self::Slots(slots, populate) = self {
            if let Some(populate) = populate {
                populate.limit(open * slots.slot_bytes());
            }
            slots.set_open(open);
        }
    }

    fn slots_mut(&mut self) -> &mut ExpertSlots {
        match self {
            Self::Slots(slots, _) => slots,
            Self::Resident(_) => panic!("a slot is asked for where all experts stay"),
        }
    }

    /// The parts of an expert, if they are in memory.
    fn parts(&self, id: ExpertId, slot: usize) -> Option<[View; EXPERT_PARTS]> {
        match self {
            Self::Slots(slots, _) => slots.parts(slot, id),
            Self::Resident(Resident { mixtures, .. }) => {
                let [gate, up, down] = *mixtures.get(id.mixture)?.get(id.expert)?;
                Some([gate?, up?, down?])
            }
        }
    }
}

impl Weights {
    /// Whether the slot has all of the expert.
    ///
    /// # Panics
    /// When the plan has no slots for experts.
    pub fn has_expert(&self, slot: usize, id: ExpertId) -> bool {
        self.experts.slots().parts(slot, id).is_some()
    }

    /// Sees to it that the slot gets the expert, which takes it from any other. Returns
    /// whether that takes a read that was not asked for before.
    ///
    /// # Panics
    /// When the plan has no slots for experts.
    pub fn want_expert(&mut self, slot: usize, id: ExpertId) -> bool {
        let is_given = self.experts.slots().is_given_to(slot, id);
        if is_given {
            self.experts.slots_mut().demand(slot);
        } else {
            self.empty_expert_slot(slot);
            self.experts.used(slot);
            self.experts.slots_mut().want(slot, id);
        }
        self.begin_expert_reads();
        !is_given
    }

    /// As [`Weights::want_expert`], for an expert that may be needed soon: its reads are
    /// begun after those of all that are, and that one of them has failed is not heard of.
    ///
    /// # Panics
    /// When the plan has no slots for experts.
    pub fn guess_expert(&mut self, slot: usize, id: ExpertId) {
        if !self.experts.slots().is_given_to(slot, id) {
            self.empty_expert_slot(slot);
            self.experts.used(slot);
            self.experts.slots_mut().guess(slot, id);
            self.begin_expert_reads();
        }
    }

    /// Takes the slot from a guess that was wrong, if that saves a read. Those under way land
    /// before the slot is used again. Returns whether it was taken.
    ///
    /// # Panics
    /// When the plan has no slots for experts.
    pub fn forget_guess(&mut self, slot: usize, id: ExpertId) -> bool {
        let saves = self.experts.slots().is_unfinished_guess(slot, id);
        if saves {
            self.empty_expert_slot(slot);
        }
        saves
    }

    /// Reads of experts that were submitted and not taken yet.
    pub fn expert_reads(&self) -> usize {
        match &self.experts {
            Experts::Slots(slots, _) => slots.reads_under_way(),
            Experts::Resident(_) => 0,
        }
    }

    /// When the last read of all ended, or the table was made.
    pub fn last_landed(&self) -> Instant {
        self.table.last_landed()
    }

    /// Experts that have a slot and are not there yet.
    ///
    /// # Panics
    /// When the plan has no slots for experts.
    pub fn experts_under_way(&self) -> UnderWay {
        self.experts.slots().under_way()
    }

    /// Waits until another expert that was wanted, of `mixture`, is there.
    ///
    /// # Errors
    /// When a read has failed; [`Weights::restart`] then forgets what is not there.
    ///
    /// # Panics
    /// When the plan has no slots for experts.
    pub async fn next_expert(&mut self, mixture: usize) -> Result<(), ReadError> {
        let started = Instant::now();
        let landed = self.next_guess().await;
        self.waited(Subject::Mixture(mixture), started);
        landed
    }

    /// As [`Weights::next_expert`], for whoever has nothing else to do: the time is not
    /// counted as one that a step has waited.
    ///
    /// # Errors
    /// As [`Weights::next_expert`].
    ///
    /// # Panics
    /// When the plan has no slots for experts.
    pub async fn next_guess(&mut self) -> Result<(), ReadError> {
        poll_fn(|context| self.poll_experts(context)).await
    }

    /// Takes what has landed without waiting for it.
    ///
    /// # Errors
    /// As [`Weights::next_expert`].
    ///
    /// # Panics
    /// When the plan has no slots for experts.
    pub fn take_landed_experts(&mut self) -> Result<bool, ReadError> {
        let mut has_landed = false;
        for read in 0..EXPERT_READS {
            let slot = self.first_expert_read() + read;
            match self.experts.slots().is_stale(read) {
                Some(true) if self.table.is_free(slot) => {
                    self.experts.slots_mut().stale_read_ended(read);
                }
                None | Some(true) => {}
                Some(false) => match self.table.poll_take(slot) {
                    Poll::Pending => {}
                    Poll::Ready(Ok(view)) => {
                        // The expert's slot keeps the bytes.
                        self.table.give_back(slot);
                        has_landed |= self.experts.slots_mut().landed(read, view);
                    }
                    Poll::Ready(Err(error)) => {
                        let failed = self.experts.slots_mut().failed(read);
                        if let Some((slot, _)) = failed {
                            self.empty_expert_slot(slot);
                        }
                        if !failed.is_some_and(|(_, is_guess)| is_guess) {
                            return Err(error);
                        }
                    }
                },
            }
        }
        self.begin_expert_reads();
        Ok(has_landed)
    }

    /// Runs `step` on the bytes of some experts of a mixture, at most [`EXPERTS_MAX`].
    ///
    /// # Panics
    /// When one of them is not in its slot, or only in part, or there are too many.
    pub fn with_experts<R>(
        &self,
        mixture: usize,
        experts: &[PlacedExpert],
        step: impl FnOnce(&[ExpertBytes<'_>]) -> R,
    ) -> R {
        let nothing = ExpertBytes {
            expert: 0,
            parts: [&[]; EXPERT_PARTS],
        };
        let mut bytes = [nothing; EXPERTS_MAX];
        let bytes = &mut bytes[..experts.len()];
        for (&PlacedExpert { expert, slot }, bytes) in experts.iter().zip(&mut *bytes) {
            let id = ExpertId { mixture, expert };
            let Some(parts) = self.experts.parts(id, slot) else {
                panic!("expert {expert} of mixture {mixture} is not in slot {slot}");
            };
            bytes.expert = expert;
            // SAFETY: all reads into the slot have landed, and none is begun while `self`
            // is borrowed; the memory is this value's or that of its reader.
            bytes.parts = parts.map(|view| unsafe { view.slice() });
        }
        step(bytes)
    }

    /// After an error or a cancelled pass: the reads of experts that have not landed were
    /// abandoned, and their slots are empty.
    pub(super) fn forget_unfinished_experts(&mut self) {
        let Experts::Slots(slots, _) = &self.experts else {
            return;
        };
        let mut next = slots.slots_in_reading().next();
        while let Some(slot) = next {
            self.empty_expert_slot(slot);
            next = self.experts.slots().slots_in_reading().next();
        }
    }

    fn empty_expert_slot(&mut self, slot: usize) {
        for extent in self.experts.slots_mut().empty(slot).iter().flatten() {
            self.reader.release(extent);
        }
        for read in self.experts.slots().reads_into(slot) {
            self.abandon(self.first_expert_read() + read);
        }
    }

    fn begin_expert_reads(&mut self) {
        while let Some(next) = self.experts.slots_mut().next_read() {
            let NextRead {
                read,
                subject,
                extent,
                buffer,
            } = next;
            self.submit(self.first_expert_read() + read, subject, extent, buffer);
        }
    }

    fn poll_experts(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ReadError>> {
        // Before looking, so that a completion in between wakes us again.
        self.table.register(context.waker());
        match self.take_landed_experts() {
            Ok(false) => Poll::Pending,
            Ok(true) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// Reads of experts come after the ring and the embedding's rows in the slot table.
    fn first_expert_read(&self) -> usize {
        self.ring.slots + ROW_SLOTS
    }
}
