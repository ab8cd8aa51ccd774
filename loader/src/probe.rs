//! The probe: how many bytes per second a drive gives to a ring, by the size of its slots and
//! their number.
//!
//! It reads the model's own files through the reader that will stream them, as a pass
//! does: blocks are taken in order, and each is held for as long as a step computes on
//! it. Without that, far smaller rings would seem to do. Points of the curve are measured
//! in turns, each for a moment, and all of them again; the median of its turns is a point's
//! rate, so that a hiccup of the drive is no point's. Time and memory are bounded.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::future::poll_fn;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::arena::Arena;
use crate::files::{OpenFile, OpenFiles};
use crate::gguf::Extent;
use crate::page::PageSize;
use crate::reader::{self, Backend, ReadError, ReadLimits, ReadRequest, Reader, in_flight_of_ring};
use crate::slots::SlotTable;

/// A point whose rate is this part of the best one is as good, in percent, and so is one that
/// takes the least time but for this part.
const NEARLY_BEST_PERCENT: f64 = 97.0;
/// Rates that differ by less are taken for the same, in percent of the best: two measurements
/// of a point differ by 3 % mostly, and by 8 at times.
const SAME_RATE_PERCENT: f64 = 95.0;
/// Parts of the time in which all points are measured once: the fewest that have a median.
const ROUNDS: u32 = 3;
/// Bytes that a step computes on in a second, about as many as two cores do.
const STEP_BYTES_PER_SECOND: f64 = 25e9;

/// What is lost whenever the reads in flight have landed together and others take their place:
/// fitted to what rings of 4 to 32 MiB decode at with 3 billion weights in 900 and 1300 MiB,
/// beside what the probe measures, which has nothing else to do than to hear of them.
const HAND_OVER_SECONDS: f64 = 6e-5;
/// What a step costs besides the bytes it computes on, as profiled with 3 billion weights in
/// 872 of them: a fork and a join, inputs quantised, the unit handed over.
pub const STEP_SECONDS: f64 = 7e-6;

/// What a drive gives to one ring.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Bytes of a read.
    pub block_bytes: u64,
    /// Slots of the ring, half of which are in flight ([`ReadLimits::with_ring`]).
    pub depth: usize,
    /// Bytes that arrive in a second.
    pub bytes_per_second: f64,
}

impl Point {
    /// Bytes of a ring of that many slots.
    pub fn ring_bytes(&self) -> u64 {
        self.block_bytes * self.depth as u64
    }
}

/// What a drive gives: points in any order, each size and depth once.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Curve {
    /// The points.
    pub points: Vec<Point>,
}

impl Curve {
    /// The highest rate.
    pub fn best(&self) -> Option<Point> {
        let by_rate = |a: &&Point, b: &&Point| a.bytes_per_second.total_cmp(&b.bytes_per_second);
        self.points.iter().max_by(by_rate).copied()
    }

    /// The point with the smallest ring that is nearly as fast as the best.
    pub fn knee(&self) -> Option<Point> {
        let enough = self.best()?.bytes_per_second * NEARLY_BEST_PERCENT / 100.0;
        let fast = self
            .points
            .iter()
            .filter(|point| point.bytes_per_second >= enough);
        fast.min_by_key(|point| point.ring_bytes()).copied()
    }

    /// The point whose ring takes at most `ring_bytes_max` and with which a pass over
    /// `weight_bytes` takes the least time, of which `rest_bytes`, and what the ring
    /// displaces besides, are read. Every byte of the ring is one that cannot be pinned; a
    /// small ring is handed over more often, and small units are more steps, which count in full
    /// though a slow drive hides them.
    ///
    /// Rates within 5 % of the best one count as equal, for they are no more exact than that.
    /// Of rings that take nearly the least time it is the largest: it keeps the drive busy for
    /// longer while a step or the system takes its time.
    pub fn fastest_for(
        &self,
        weight_bytes: u64,
        rest_bytes: u64,
        ring_bytes_max: u64,
    ) -> Option<Point> {
        let enough = self.best()?.bytes_per_second * SAME_RATE_PERCENT / 100.0;
        let seconds = |point: &Point| {
            let bytes = (rest_bytes + point.ring_bytes()) as f64;
            let rate = point.bytes_per_second.clamp(1.0, enough.max(1.0));
            let steps = weight_bytes as f64 / point.block_bytes.max(1) as f64;
            let lost = hand_over_seconds(bytes, point.block_bytes, point.depth);
            bytes / rate + lost + steps * STEP_SECONDS
        };
        let fitting = || {
            let points = self.points.iter();
            points.filter(|point| point.ring_bytes() <= ring_bytes_max)
        };
        let least = fitting().map(seconds).min_by(f64::total_cmp)?;
        let good = fitting().filter(|point| seconds(point) * NEARLY_BEST_PERCENT / 100.0 <= least);
        let by_size = |a: &&Point, b: &&Point| {
            let sizes = a.ring_bytes().cmp(&b.ring_bytes());
            sizes.then_with(|| seconds(b).total_cmp(&seconds(a)))
        };
        good.max_by(by_size).copied()
    }

    /// The rate of a ring of `depth` slots of `block_bytes`. Between points it lies between
    /// theirs, in proportion to the logarithms of depth, then of size; beyond them it is that
    /// of the last.
    pub fn bytes_per_second(&self, block_bytes: u64, depth: usize) -> Option<f64> {
        let of_size = |size: u64| {
            let points = self.points.iter().filter(|it| it.block_bytes == size);
            let known = points.map(|it| (it.depth as f64, it.bytes_per_second));
            interpolated(known, depth as f64)
        };
        let sizes = || self.points.iter().map(|point| point.block_bytes);
        let below = sizes().filter(|&size| size <= block_bytes).max();
        let above = sizes().filter(|&size| size >= block_bytes).min();
        let nearest = below.into_iter().chain(above);
        let known = nearest.filter_map(|size| Some((size as f64, of_size(size)?)));
        interpolated(known, block_bytes as f64)
    }
}

/// What is lost between reads while `bytes` go through a ring of `slots`.
pub fn hand_over_seconds(bytes: f64, slot_bytes: u64, slots: usize) -> f64 {
    let in_flight_bytes = slot_bytes.max(1) * in_flight_of_ring(slots) as u64;
    bytes / in_flight_bytes as f64 * HAND_OVER_SECONDS
}

/// The value at `place` between the nearest known ones on both sides of it, in proportion to
/// the logarithms of places, which are positive.
fn interpolated(known: impl Iterator<Item = (f64, f64)>, place: f64) -> Option<f64> {
    let place = place.max(1.0);
    let mut below: Option<(f64, f64)> = None;
    let mut above = below;
    for (at, value) in known {
        if at <= place && below.is_none_or(|(nearest, _)| at > nearest) {
            below = Some((at, value));
        }
        if at >= place && above.is_none_or(|(nearest, _)| at < nearest) {
            above = Some((at, value));
        }
    }
    match (below, above) {
        (Some((from, low)), Some((to, high))) if from < to => {
            Some(low + (high - low) * (place / from).ln() / (to / from).ln())
        }
        (found, other) => found.or(other).map(|(_, value)| value),
    }
}

/// What a probe may take, and what it tries.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Time in all. A drive that is slower than any we know exceeds it by one read.
    pub time: Duration,
    /// Bytes of all buffers; points that need more are left out.
    pub memory_bytes: u64,
    /// Bytes of a read.
    pub block_bytes: &'static [u64],
    /// Slots of the ring.
    pub depths: &'static [usize],
}

impl Limits {
    /// For someone who waits for the whole curve.
    pub const THOROUGH: Self = Self {
        time: Duration::from_secs(2),
        memory_bytes: 128 << 20,
        block_bytes: &[256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20],
        depths: &[2, 4, 8, 16, 32],
    };
    /// For a run that begins.
    pub const BRIEF: Self = Self {
        time: Duration::from_millis(400),
        memory_bytes: 64 << 20,
        block_bytes: &[512 << 10, 1 << 20, 2 << 20, 4 << 20],
        depths: &[4, 8, 16],
    };

    /// The sizes and depths, the smallest in all first.
    fn points(&self) -> Vec<Point> {
        let mut points: Vec<Point> = self
            .block_bytes
            .iter()
            .flat_map(|&block_bytes| {
                self.depths.iter().map(move |&depth| Point {
                    block_bytes,
                    depth,
                    bytes_per_second: 0.0,
                })
            })
            .filter(|point| point.ring_bytes() <= self.memory_bytes)
            .collect();
        points.sort_by_key(Point::ring_bytes);
        points
    }
}

/// Why a drive could not be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// The kernel refused the memory or the reader.
    #[error("cannot measure the drive with {}: {source}", backend.name())]
    Refused {
        /// The reader.
        backend: Backend,
        /// What the kernel said.
        source: io::Error,
    },
    /// The files are too small to tell anything.
    #[error("{bytes} bytes are too few to measure a drive with, {wanted} are needed")]
    TooSmall {
        /// The bytes of the largest file.
        bytes: u64,
        /// The smallest number that tells something.
        wanted: u64,
    },
    /// A file has holes, which are read from nowhere.
    #[error(
        "{}: {hole_bytes} of {bytes} bytes are holes, which no drive is read for, expected a whole file; finish its download, or copy it with cp --sparse=never",
        path.display()
    )]
    Holes {
        /// The file.
        path: PathBuf,
        /// Bytes in holes.
        hole_bytes: u64,
        /// Bytes of the file.
        bytes: u64,
    },
    /// A read failed.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// The smallest file that a drive is measured with.
pub const FILE_BYTES_MIN: u64 = 64 << 20;

/// Holes that show in no rate, as a part of a file's bytes: a divisor.
const HOLES_SHARE: u64 = 100;

/// Measures the drive that `files` are on.
///
/// # Errors
/// When the files are small or have holes, the reader is refused, or a read fails.
pub async fn measure(
    files: &Arc<OpenFiles>,
    backend: Backend,
    limits: Limits,
) -> Result<Curve, ProbeError> {
    let started = Instant::now();
    let mut points = limits.points();
    let mut probe = Probe::new(files, backend, &points)?;
    let mut rates = vec![Vec::new(); points.len()];
    // A fifth is left for what is under way at the end of a turn.
    let turn = limits.time * 4 / 5 / ROUNDS / points.len().max(1) as u32;
    let mut slowest = f64::INFINITY;
    for _ in 0..ROUNDS {
        for (point, rates) in points.iter().zip(&mut rates) {
            // What a point has under way must land, however slow the drive.
            let landing = Duration::try_from_secs_f64(point.ring_bytes() as f64 / slowest);
            let left = limits.time.saturating_sub(started.elapsed());
            if landing.is_ok_and(|landing| landing >= left) {
                break;
            }
            let (bytes, time) = probe.turn(point, turn).await?;
            if let Some(rate) = rate(bytes, time) {
                rates.push(rate);
                slowest = slowest.min(rate);
            }
        }
    }
    for (point, rates) in points.iter_mut().zip(&mut rates) {
        point.bytes_per_second = median(rates).unwrap_or(0.0);
    }
    points.retain(|point| point.bytes_per_second > 0.0);
    Ok(Curve { points })
}

/// Bytes per second of a turn; none of one that brought nothing, which tells nothing of a drive.
fn rate(bytes: u64, time: Duration) -> Option<f64> {
    (bytes > 0).then(|| bytes as f64 / time.as_secs_f64().max(1e-9))
}

/// The middle of some numbers; of an even number of them the mean of the two in the middle.
pub fn median(numbers: &mut [f64]) -> Option<f64> {
    numbers.sort_by(f64::total_cmp);
    let middle = numbers.len() / 2;
    match numbers.len() % 2 {
        _ if numbers.is_empty() => None,
        0 => Some(f64::midpoint(numbers[middle - 1], numbers[middle])),
        _ => Some(numbers[middle]),
    }
}

/// Readers and their buffers, cut anew for every size of reads.
struct Probe<'a> {
    // By how many reads each has in flight.
    readers: BTreeMap<usize, Box<dyn Reader>>,
    table: Arc<SlotTable>,
    arena: Arc<Arena>,
    files: &'a OpenFiles,
    /// The next bytes to read: a file, and the offset in it.
    place: (usize, u64),
}

impl<'a> Probe<'a> {
    fn new(
        files: &'a Arc<OpenFiles>,
        backend: Backend,
        points: &[Point],
    ) -> Result<Self, ProbeError> {
        let refused = |source| ProbeError::Refused { backend, source };
        let bytes = files.iter().map(OpenFile::bytes).max().unwrap_or(0);
        if bytes < FILE_BYTES_MIN {
            return Err(ProbeError::TooSmall {
                bytes,
                wanted: FILE_BYTES_MIN,
            });
        }
        for file in files.iter() {
            let (hole_bytes, bytes) = (file.hole_bytes(), file.bytes());
            if hole_bytes > bytes / HOLES_SHARE {
                return Err(ProbeError::Holes {
                    path: file.path().to_owned(),
                    hole_bytes,
                    bytes,
                });
            }
        }
        let depth = points.iter().map(|point| point.depth).max().unwrap_or(1);
        let page = PageSize::of_system();
        let arena_bytes = points.iter().map(Point::ring_bytes).max();
        let arena = Arena::new(arena_bytes.unwrap_or(0) as usize, page).map_err(refused)?;
        // SAFETY: the first buffer of the arena, gone before there is another.
        let mut whole = unsafe { arena.buffer(0, arena.bytes(), None) };
        // Touched now: a first write to a page is no part of a drive's speed.
        whole
            .as_mut_slice()
            .chunks_mut(page.bytes())
            .for_each(|page| page[0] = 1);
        let mut readers = BTreeMap::new();
        for point in points {
            if let Entry::Vacant(place) = readers.entry(in_flight_of_ring(point.depth)) {
                let limits = ReadLimits::at_once(depth, Some(depth)).with_ring(point.depth);
                let opened = reader::open(backend, files, Vec::new(), limits);
                place.insert(opened.map_err(refused)?);
            }
        }
        Ok(Self {
            readers,
            table: SlotTable::new(depth),
            arena,
            files,
            place: (0, 0),
        })
    }

    /// The one with as many reads in flight as a ring of the point's slots has.
    fn reader(&self, point: &Point) -> &dyn Reader {
        &*self.readers[&in_flight_of_ring(point.depth)]
    }

    /// Keeps a point's reads under way for a while, and lets them land. Returns the
    /// bytes read and the time it took.
    async fn turn(&mut self, point: &Point, time: Duration) -> Result<(u64, Duration), ReadError> {
        let started = Instant::now();
        let step = Duration::from_secs_f64(point.block_bytes as f64 / STEP_BYTES_PER_SECOND);
        let mut extents = vec![None; point.depth];
        let mut bytes = 0;
        let mut outcome = Ok(());
        loop {
            let ends = started.elapsed() >= time || outcome.is_err();
            let mut lands = false;
            for (slot, place) in extents.iter_mut().enumerate() {
                if let Some(extent) = place.take() {
                    match self.taken(point, slot, &extent, step).await {
                        Ok(()) => bytes += extent.bytes,
                        Err(error) => outcome = Err(error),
                    }
                    lands = true;
                }
                if !ends {
                    *place = Some(self.begin(point, slot));
                }
            }
            if ends && !lands {
                return outcome.map(|()| (bytes, started.elapsed()));
            }
        }
    }

    fn begin(&mut self, point: &Point, slot: usize) -> Extent {
        let extent = self.next_extent(point.block_bytes);
        let bytes = point.block_bytes as usize;
        let completion = self.table.begin(slot);
        // SAFETY: the slot was free, and a point's slots do not overlap each other. Those of
        // the point before are free too, for a turn ends when all of its reads have landed.
        let buffer = unsafe { self.arena.buffer(slot * bytes, bytes, None) };
        let reader = self.reader(point);
        reader.submit(ReadRequest {
            extent,
            buffer: reader.backend().needs_buffers().then_some(buffer),
            completion,
        });
        extent
    }

    /// Waits for a block and holds it for as long as `step`.
    async fn taken(
        &self,
        point: &Point,
        slot: usize,
        extent: &Extent,
        step: Duration,
    ) -> Result<(), ReadError> {
        let taken = poll_fn(|context| {
            self.table.register(context.waker());
            self.table.poll_take(slot)
        });
        taken.await?;
        let held = Instant::now();
        while held.elapsed() < step {
            std::hint::spin_loop();
        }
        self.table.give_back(slot);
        self.reader(point).release(extent);
        Ok(())
    }

    /// The next whole block, from the first file to the last and again.
    fn next_extent(&mut self, block_bytes: u64) -> Extent {
        let (mut file, mut offset) = self.place;
        offset -= offset % block_bytes;
        loop {
            let file_bytes = self.files.get(file).bytes();
            if offset + block_bytes <= file_bytes {
                self.place = (file, offset + block_bytes);
                return Extent {
                    file,
                    offset,
                    bytes: block_bytes,
                };
            }
            file = (file + 1) % self.files.iter().count();
            offset = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_that_brought_nothing_has_no_rate() {
        let second = Duration::from_secs(1);
        assert_eq!(rate(0, second), None);
        assert_eq!(rate(0, Duration::ZERO), None);
        assert_eq!(rate(3 << 20, second * 3), Some(1_048_576.0));
    }
}
