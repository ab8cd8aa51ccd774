//! The weights of a model in memory: pinned units, and a ring of slots for the rest.
//!
//! [`Weights::with_unit`] is how a step gets at a unit: at once if it is pinned,
//! otherwise when its slot is ready, and only for as long as the step runs. The ring
//! reads in the order of use and never waits for the token: it runs on through the end
//! of a pass into the next one, as far as it has slots.
//!
//! [`Weights::set_kept_bytes`] gives memory back when it becomes scarce: slots of experts,
//! then pinned units, which go through the ring like the others from the next pass on. Those
//! that are wanted again stay in memory the next time they come through it.

mod experts;
mod kept;
mod pinned;
mod populate;
mod ring;

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use self::experts::Experts;
pub use self::experts::PlacedExpert;
use crate::arena::{Arena, SlotBuffer, View};
use crate::expert_layout::EXPERT_PARTS;
use crate::expert_slots::EXPERT_READS;
use crate::files::OpenFiles;
use crate::gguf::Extent;
use crate::page::PageSize;
use crate::plan::{ExpertRun, Plan, ROW_SLOTS};
use crate::reader::{self, Backend, ReadError, ReadLimits, ReadRequest, Reader};
use crate::slots::{SlotTable, TracedRead};
use crate::trace::{Activity, Subject, Trace};
use crate::unit::Unit;
use pinned::Pinned;
use ring::{Ring, SlotBuffers};

/// Reads asked for at a time while pinned units are loaded.
const LOAD_DEPTH: usize = 8;

/// Why weights cannot be brought into memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// The kernel refused the memory.
    #[error("cannot map {bytes} bytes of memory: {source}; lower the RAM budget")]
    Memory {
        /// Bytes asked for.
        bytes: u64,
        /// What the kernel said.
        source: io::Error,
    },
    /// The reader cannot be started.
    #[error("cannot start the {} reader: {source}; {}, or use another reader", backend.name(), backend.remedy(source))]
    Reader {
        /// The reader.
        backend: Backend,
        /// What the kernel said.
        source: io::Error,
    },
    /// A pinned unit could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// What is loaded at the start, to stay.
#[derive(Debug, Clone, Copy)]
enum Load<'a> {
    Unit(usize),
    Experts(&'a ExpertRun),
}

impl Load<'_> {
    fn extent(&self, units: &[Unit]) -> Extent {
        match self {
            Self::Unit(unit) => units[*unit].extent,
            Self::Experts(run) => run.extent,
        }
    }
}

/// What a pass goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// The body only: a chunk of a prompt whose logits nobody wants.
    Body,
    /// Body and head.
    Full,
}

/// What reading has cost so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReadStatistics {
    /// Bytes read, alignment and pinned units included.
    pub bytes_read: u64,
    /// Finished reads.
    pub reads: u64,
    /// Calls for bytes that had to follow a short read or an error that passed.
    pub retries: u64,
    /// Time that steps have waited for slots.
    pub wait: Duration,
}

/// All units of a plan, pinned or streamed.
pub struct Weights {
    // Dropped first: the reader's thread ends, and with it every access to the arenas.
    reader: Box<dyn Reader>,
    files: Arc<OpenFiles>,
    table: Arc<SlotTable>,
    units: Vec<Unit>,
    page: PageSize,
    pinned: Pinned,
    ring: Ring,
    experts: Experts,
    // Slots that experts have at least, and the bytes that the plan has for experts.
    expert_slots_min: usize,
    expert_bytes_planned: u64,
    // Whether bytes are released again.
    streams: bool,
    // What each slot was last given to read.
    extents: Box<[Extent]>,
    buffers: SlotBuffers,
    // The plan has no ring, and this one is only needed when units are given back.
    has_spare_ring: bool,
    wait: Duration,
    trace: Option<Arc<Trace>>,
}

impl Weights {
    /// Starts the reader and loads the pinned units; `progress` is told the bytes
    /// loaded so far, in whole pages as [`Plan::pinned_bytes`] counts them.
    ///
    /// # Errors
    /// When memory or the reader is refused, or a read fails.
    pub async fn open(
        files: &Arc<OpenFiles>,
        plan: &Plan,
        backend: Backend,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self, WeightsError> {
        let with_buffers = backend.needs_buffers();
        let arena_of = |bytes: u64| {
            let bytes = if with_buffers { bytes } else { 0 };
            Arena::new(bytes as usize, plan.page)
                .map_err(|source| WeightsError::Memory { bytes, source })
        };
        let (slots, slot_bytes) = ring::shape(plan, with_buffers);
        let buffers = SlotBuffers {
            arena: arena_of(plan.ring_bytes().max((slots * slot_bytes) as u64))?,
            rows: arena_of((ROW_SLOTS * plan.row_slot_bytes) as u64)?,
            ring: (slots, slot_bytes),
            row_bytes: plan.row_slot_bytes,
            with_buffers,
        };
        let pinned_arena = arena_of(plan.pinned_bytes() - plan.expert_run_bytes())?;

        let may_read_experts = plan.expert_slots.is_some() || plan.spare_expert_slots.is_some();
        let expert_reads = if may_read_experts { EXPERT_READS } else { 0 };
        let slot_count = slots + ROW_SLOTS + expert_reads;
        let table = SlotTable::new(slot_count.max(LOAD_DEPTH));
        // Registered buffers take their memory at once, which a spare ring may never need.
        let registered = match plan.slots > 0 {
            true => buffers.registered(),
            false => Vec::new(),
        };
        let in_use_max = plan
            .streams()
            .then(|| extents_in_use_max(plan, table.len()));
        let mut limits = ReadLimits::at_once(table.len(), in_use_max);
        // Experts are wanted all at once, though a ring has to share the reader with them. A ring
        // that takes the place of what is given back shares one made for loading.
        if plan.slots > 0 && plan.expert_slots.is_none() {
            limits = limits.with_ring(slots);
        }
        let reader = reader::open(backend, files, registered, limits)
            .map_err(|source| WeightsError::Reader { backend, source })?;
        let experts = Experts::new(plan, &arena_of)?;
        let slots_planned = plan.expert_slots.as_ref();
        let slots_planned = slots_planned.or(plan.spare_expert_slots.as_ref());
        let mut weights = Self {
            reader,
            files: Arc::clone(files),
            table,
            units: plan.units.clone(),
            page: plan.page,
            pinned: Pinned::new(plan, pinned_arena, with_buffers),
            ring: Ring::new(plan.units.len(), slots),
            expert_slots_min: slots_planned.map_or(0, |planned| planned.used),
            expert_bytes_planned: experts.bytes(),
            experts,
            streams: plan.streams(),
            extents: extents_of(slot_count.max(LOAD_DEPTH)),
            buffers,
            has_spare_ring: plan.slots == 0,
            wait: Duration::ZERO,
            trace: None,
        };
        weights.load_pinned(&plan.expert_runs, progress).await?;
        weights.stream_the_others();
        Ok(weights)
    }

    /// Runs `step` on the bytes of a unit as soon as they are there. Units of a pass
    /// are asked for in order.
    ///
    /// # Errors
    /// When the read has failed; the pass is then over, and [`Weights::restart`]
    /// makes the ring ready for another.
    pub async fn with_unit<R>(
        &mut self,
        unit: usize,
        step: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, ReadError> {
        if let Some(view) = self.pinned.view(unit) {
            // SAFETY: pinned views point into the pinned arena or the reader's mapping,
            // which this value owns; nothing writes there while the unit has a view, and
            // this borrow of it keeps that from being taken away.
            return Ok(step(unsafe { view.slice() }));
        }
        let started = Instant::now();
        let taken = poll_fn(|context| self.poll_front(unit, context)).await;
        self.waited(Subject::Unit(unit), started);
        let (slot, view) = taken?;
        // SAFETY: the slot is held until `give_back` below, so no read is given its
        // buffer; the arena or mapping is owned by this value.
        let result = step(unsafe { view.slice() });
        self.ring.queue.pop_front();
        if self.pinned.is_missing(unit) {
            self.keep(unit, slot, view);
        } else {
            self.give_back(slot);
        }
        self.pump();
        Ok(result)
    }

    /// The bytes of a unit, if it is in memory to stay.
    pub fn pinned_unit(&self, unit: usize) -> Option<&[u8]> {
        let view = self.pinned.view(unit)?;
        // SAFETY: as in `with_unit`: pinned views stay valid and unwritten while this is
        // borrowed.
        Some(unsafe { view.slice() })
    }

    /// Whether units are read in every pass.
    pub fn streams_units(&self) -> bool {
        !self.ring.order.is_empty()
    }

    /// Runs `step` on each of `extents` (embedding rows) with its index, a few reads
    /// at a time. An extent inside a pinned unit is not read.
    ///
    /// # Errors
    /// When a read fails.
    pub async fn with_rows(
        &mut self,
        extents: impl ExactSizeIterator<Item = Extent>,
        mut step: impl FnMut(usize, &[u8]),
    ) -> Result<(), ReadError> {
        // An earlier call may have been dropped, or its step may have panicked.
        for place in 0..ROW_SLOTS {
            self.abandon(self.ring.slots + place);
        }
        let mut extents = extents.enumerate();
        let mut batch: [Option<usize>; ROW_SLOTS] = [None; ROW_SLOTS];
        loop {
            let mut started = 0;
            while started < ROW_SLOTS {
                let Some((index, extent)) = extents.next() else {
                    break;
                };
                if let Some(view) = self.pinned.view_of(&self.units, &extent) {
                    // SAFETY: as in `with_unit`: pinned views stay valid and unwritten.
                    step(index, unsafe { view.slice() });
                } else {
                    self.start_row(started, &extent).await;
                    batch[started] = Some(index);
                    started += 1;
                }
            }
            if started == 0 {
                return Ok(());
            }
            let mut outcome = Ok(());
            for (place, row) in batch.iter_mut().enumerate().take(started) {
                let Some(index) = row.take() else {
                    continue;
                };
                let slot = self.ring.slots + place;
                match self.taken(slot).await {
                    Ok(view) => {
                        // SAFETY: the slot is held until it is given back below.
                        step(index, unsafe { view.slice() });
                        self.give_back(slot);
                    }
                    Err(error) => outcome = Err(error),
                }
            }
            outcome?;
        }
    }

    /// Says what the pass that begins now goes through, and what is expected after it,
    /// and starts reading. If the ring has read ahead for something else, it starts over.
    pub fn begin_pass(&mut self, pass: Pass, next: Pass) {
        if self.pinned.take_changed() {
            self.restart();
            self.stream_the_others();
        }
        if !self.ring.begin(pass, next) {
            self.restart();
            self.ring.begin(pass, next);
        }
        self.pump();
    }

    /// Forgets what the ring has read and where it was, after an error or a cancelled
    /// pass. Reads under way land in their slots before these are used again.
    pub fn restart(&mut self) {
        for slot in 0..self.table.len() {
            self.abandon(slot);
        }
        self.ring.queue.clear();
        self.ring.rewind();
        self.forget_unfinished_experts();
    }

    /// Bytes of pinned units, and experts that stay, in memory now, in whole pages.
    pub fn pinned_bytes(&self) -> u64 {
        self.pinned.bytes() + self.experts.resident_bytes()
    }

    /// Bytes of the ring that a plan without one gets when its units are given back.
    pub fn spare_ring_bytes(&self) -> u64 {
        let (slots, bytes) = self.buffers.ring;
        match self.has_spare_ring {
            true => (slots * bytes) as u64,
            false => 0,
        }
    }

    /// Has reads and waits recorded from now on.
    pub fn record(&mut self, trace: Arc<Trace>) {
        self.trace = Some(trace);
    }

    /// What reading has cost so far.
    pub fn statistics(&self) -> ReadStatistics {
        ReadStatistics {
            bytes_read: self.table.bytes_read(),
            reads: self.table.reads(),
            retries: self.files.retries(),
            wait: self.wait,
        }
    }

    /// Slots that are being read into or computed on, those of abandoned reads included.
    pub fn busy_slots(&self) -> usize {
        let slots = 0..self.table.len();
        slots.filter(|&slot| !self.table.is_free(slot)).count()
    }

    /// The reader in use.
    pub fn backend(&self) -> Backend {
        self.reader.backend()
    }

    /// Whether the kernel knows the ring's buffers beforehand.
    pub fn has_registered_buffers(&self) -> bool {
        self.reader.has_registered_buffers()
    }

    /// Loads the pinned units, and the experts that stay.
    async fn load_pinned(
        &mut self,
        runs: &[ExpertRun],
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), WeightsError> {
        let units = (0..self.units.len()).filter(|&unit| self.pinned.is_missing(unit));
        let loads: Vec<Load<'_>> = units
            .map(Load::Unit)
            .chain(runs.iter().map(Load::Experts))
            .collect();
        let mut loaded = 0;
        for (sequence, &load) in loads.iter().enumerate() {
            if sequence >= LOAD_DEPTH {
                let slot = sequence % LOAD_DEPTH;
                self.finish_load(loads[sequence - LOAD_DEPTH], slot, &mut loaded, progress)
                    .await?;
            }
            let (subject, buffer) = match load {
                // SAFETY: each unit is loaded once, and nothing is given back meanwhile.
                Load::Unit(unit) => (Subject::Unit(unit), unsafe { self.pinned.buffer(unit) }),
                Load::Experts(run) => (
                    Subject::Nothing,
                    self.experts.next_buffer(self.page.held_bytes(&run.extent)),
                ),
            };
            let extent = load.extent(&self.units);
            self.submit(sequence % LOAD_DEPTH, subject, extent, buffer);
        }
        let left = loads.iter().enumerate();
        for (sequence, &load) in left.skip(loads.len().saturating_sub(LOAD_DEPTH)) {
            self.finish_load(load, sequence % LOAD_DEPTH, &mut loaded, progress)
                .await?;
        }
        Ok(())
    }

    async fn finish_load(
        &mut self,
        load: Load<'_>,
        slot: usize,
        loaded: &mut u64,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), WeightsError> {
        let view = self.taken(slot).await?;
        self.table.give_back(slot);
        match load {
            Load::Unit(unit) => self.pinned.put(unit, view),
            Load::Experts(run) => self.experts.stay(run, view),
        }
        *loaded += self.page.held_bytes(&load.extent(&self.units));
        progress(*loaded);
        // Reads that are always there in time would leave nobody a moment to stop this.
        tokio::task::yield_now().await;
        Ok(())
    }

    /// A unit that is wanted in memory has come through the ring: keeps its bytes, and
    /// gives its slot back.
    fn keep(&mut self, unit: usize, slot: usize, view: View) {
        // SAFETY: loading has ended, so the unit has no other buffer, and this one is filled and
        // gone before anything is given back.
        let Some(mut buffer) = (unsafe { self.pinned.buffer(unit) }) else {
            // A mapping's bytes stay where they are if they are not released.
            self.table.give_back(slot);
            return self.pinned.put(unit, view);
        };
        // SAFETY: the slot is held until `give_back` below, so no read is given its
        // buffer, and the unit's own place in the other arena does not overlap it.
        let bytes = unsafe { view.slice() };
        buffer.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
        self.give_back(slot);
        self.pinned.put(unit, buffer.into_view(0, view.bytes()));
    }

    /// Has the ring read every unit that is not in memory. The ring is to be empty.
    fn stream_the_others(&mut self) {
        self.pinned.take_changed();
        let streamed = (0..self.units.len()).filter(|&unit| self.pinned.view(unit).is_none());
        self.ring.set_order(streamed, &self.units);
        if self.has_spare_ring && self.ring.order.is_empty() {
            // What was abandoned may still land: up to all slots outside the plan, until units
            // are given back and taken again the next time.
            //
            // SAFETY: a free slot has no read under way, nobody uses what it held, and while
            // this borrows the weights nothing is read into it.
            unsafe { self.buffers.give_ring_back(|slot| self.table.is_free(slot)) };
        }
    }

    fn poll_front(
        &mut self,
        unit: usize,
        context: &mut Context<'_>,
    ) -> Poll<Result<(usize, View), ReadError>> {
        // Before looking, so that a completion in between wakes us again.
        self.table.register(context.waker());
        self.pump();
        let Some(&(slot, front)) = self.ring.queue.front() else {
            // Every slot still waits for an abandoned read to land.
            assert!(
                self.ring.has_next(),
                "unit {unit} is asked for, and the pass streams nothing more"
            );
            return Poll::Pending;
        };
        assert_eq!(
            front, unit,
            "units are asked for in the order they are read"
        );
        match self.table.poll_take(slot) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(view)) => Poll::Ready(Ok((slot, view))),
            Poll::Ready(Err(error)) => {
                self.ring.queue.pop_front();
                Poll::Ready(Err(error))
            }
        }
    }

    /// Gives every free slot the next unit.
    fn pump(&mut self) {
        for slot in 0..self.ring.slots {
            if !self.table.is_free(slot) {
                continue;
            }
            let Some(unit) = self.ring.next_unit() else {
                return;
            };
            // SAFETY: the slot is free, and given this read.
            let buffer = unsafe { self.buffers.ring_buffer(slot) };
            let subject = Subject::Unit(unit);
            self.submit(slot, subject, self.units[unit].extent, buffer);
            self.ring.queue.push_back((slot, unit));
        }
    }

    async fn start_row(&mut self, place: usize, extent: &Extent) {
        let slot = self.ring.slots + place;
        poll_fn(|context| {
            self.table.register(context.waker());
            if self.table.is_free(slot) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
        // SAFETY: the slot is free, and given this read.
        let buffer = unsafe { self.buffers.row_buffer(place) };
        self.submit(slot, Subject::Embedding, *extent, buffer);
    }

    async fn taken(&mut self, slot: usize) -> Result<View, ReadError> {
        let started = Instant::now();
        let taken = poll_fn(|context| {
            self.table.register(context.waker());
            self.table.poll_take(slot)
        })
        .await;
        self.waited(Subject::Embedding, started);
        taken
    }

    fn waited(&mut self, subject: Subject, started: Instant) {
        let length = started.elapsed();
        self.wait += length;
        if let Some(trace) = &self.trace {
            trace.record(Activity::Wait, subject, started, length);
        }
    }

    fn submit(
        &mut self,
        slot: usize,
        subject: Subject,
        extent: Extent,
        buffer: Option<SlotBuffer>,
    ) {
        self.extents[slot] = extent;
        let traced = self.trace.as_ref().map(|trace| TracedRead {
            trace: Arc::clone(trace),
            subject,
            submitted: Instant::now(),
        });
        self.reader.submit(ReadRequest {
            extent,
            buffer,
            completion: self.table.begin(slot).traced(traced),
        });
    }

    fn give_back(&mut self, slot: usize) {
        self.table.give_back(slot);
        self.release(slot);
    }

    fn abandon(&mut self, slot: usize) {
        if self.table.abandon(slot) {
            self.release(slot);
        }
    }

    fn release(&self, slot: usize) {
        // Where nothing streams there is room for the whole file.
        if self.streams {
            self.reader.release(&self.extents[slot]);
        }
    }
}

/// Extents that are not released at a time: those of reads in `slots`, and all that stays.
fn extents_in_use_max(plan: &Plan, slots: usize) -> usize {
    let expert_slots = plan
        .expert_slots
        .as_ref()
        .map_or(0, |planned| planned.slots);
    slots + plan.units.len() + plan.expert_runs.len() + EXPERT_PARTS * expert_slots
}

fn extents_of(slots: usize) -> Box<[Extent]> {
    let nothing = Extent {
        file: 0,
        offset: 0,
        bytes: 0,
    };
    vec![nothing; slots].into_boxed_slice()
}

#[cfg(test)]
mod tests;
