//! The keys and values of a layer's past positions.

use std::io::{self, Read, Write};
use std::ops::Range;

use emel_kernels::{Kernels, KvSlice, KvSliceMut, KvView};
use half::f16;
use half::slice::HalfFloatSliceExt;
use half::vec::HalfBitsVecExt;

use crate::state::{StateError, read_numbers, write_numbers};

/// How keys and values are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvType {
    /// Half precision.
    F16,
    /// Single precision.
    F32,
}

impl KvType {
    /// The name that `--kv` takes.
    pub fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::F32 => "f32",
        }
    }

    fn bytes(self) -> usize {
        match self {
            Self::F16 => size_of::<f16>(),
            Self::F32 => size_of::<f32>(),
        }
    }
}

/// What a layer keeps of each position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of a key.
    pub key_width: usize,
    /// Elements of a value; `None` where the keys serve as values too.
    pub value_width: Option<usize>,
    /// Positions that a token looks back on, itself included; `None` keeps all.
    pub window: Option<usize>,
}

/// A windowed cache begins at a multiple of this, so that blocks of positions keep their
/// place among the rows when it moves on.
const WINDOW_STEP: usize = 64;

impl KvShape {
    /// Positions for which a cache has room. One with a window slides: when its rows are
    /// full, those that are still looked back on move to the front. The room for a
    /// quarter of a window on top makes that rare.
    fn rows(&self, context: usize, chunk: usize) -> usize {
        self.window.map_or(context, |window| {
            window
                .saturating_add(chunk.max(window / 4))
                .saturating_add(WINDOW_STEP)
                .min(context)
        })
    }

    /// Elements of a position's keys, and of its values.
    fn widths(&self) -> [usize; 2] {
        let width = |of_head: usize| self.kv_heads.saturating_mul(of_head);
        [width(self.key_width), self.value_width.map_or(0, width)]
    }

    /// The bytes that [`KvCache::new`] allocates.
    pub fn required_bytes(&self, context: usize, chunk: usize, kv_type: KvType) -> u64 {
        // Saturating: a plan for absurd sizes is to be refused, not to overflow.
        let [keys, values] = self.widths();
        (keys.saturating_add(values) as u64)
            .saturating_mul(self.rows(context, chunk) as u64)
            .saturating_mul(kv_type.bytes() as u64)
    }
}

/// A layer's cache.
#[derive(Debug, Clone)]
pub struct KvCache {
    shape: KvShape,
    /// Positions that fit.
    rows: usize,
    /// The position of row 0.
    first: usize,
    keys: Rows,
    values: Rows,
}

/// Rows of one width each, position after position.
#[derive(Debug, Clone)]
enum Rows {
    F16(Vec<f16>),
    F32(Vec<f32>),
}

impl KvCache {
    /// An empty cache for sequences of `context` positions that come in batches of up to
    /// `chunk`.
    pub fn new(shape: KvShape, context: usize, chunk: usize, kv_type: KvType) -> Self {
        let rows = shape.rows(context, chunk);
        let [keys, values] = shape.widths();
        Self {
            shape,
            rows,
            first: 0,
            keys: Rows::new(rows.saturating_mul(keys), kv_type),
            values: Rows::new(rows.saturating_mul(values), kv_type),
        }
    }

    /// What it keeps of each position.
    pub fn shape(&self) -> &KvShape {
        &self.shape
    }

    /// The position of the first row; attention counts from there.
    pub fn first(&self) -> usize {
        self.first
    }

    /// Whether a sequence of `positions` could go on from what is here.
    pub fn reaches(&self, positions: usize) -> bool {
        self.first <= self.needed(positions)
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.first = 0;
    }

    /// Keeps the keys and values, `[count, heads, width]` each, of the `count` positions
    /// from `position` on; values that are the keys are not looked at.
    ///
    /// # Panics
    /// When the positions are more than a batch, or beyond the context.
    pub fn store(
        &mut self,
        kernels: &Kernels,
        position: usize,
        count: usize,
        [keys, values]: [&[f32]; 2],
    ) {
        if position + count > self.first + self.rows {
            self.slide(position);
        }
        let [key_width, value_width] = self.shape.widths();
        let row = position - self.first;
        kernels.store_kv(self.keys.slice_mut(), row * key_width, keys);
        if self.shape.value_width.is_some() {
            kernels.store_kv(self.values.slice_mut(), row * value_width, values);
        }
    }

    /// The keys and values from [`KvCache::first`] on.
    pub fn view(&self) -> KvView<'_> {
        let keys = self.keys.slice();
        KvView {
            keys,
            values: match self.shape.value_width {
                Some(_) => self.values.slice(),
                None => keys,
            },
        }
    }

    /// Writes what the first `positions` leave behind for those that follow.
    pub(crate) fn write(&self, positions: usize, out: &mut impl Write) -> io::Result<()> {
        let last = self.needed(positions.saturating_sub(1));
        let first = (last / WINDOW_STEP * WINDOW_STEP).max(self.first);
        out.write_all(&(first as u64).to_le_bytes())?;
        let rows = first - self.first..positions - self.first;
        for (cached, width) in [&self.keys, &self.values]
            .into_iter()
            .zip(self.shape.widths())
        {
            cached.write(rows.start * width..rows.end * width, out)?;
        }
        Ok(())
    }

    /// Takes what [`KvCache::write`] has written for as many positions.
    pub(crate) fn read(
        &mut self,
        positions: usize,
        input: &mut impl Read,
    ) -> Result<(), StateError> {
        let mut first = [0; 8];
        input.read_exact(&mut first)?;
        let first = usize::try_from(u64::from_le_bytes(first)).unwrap_or(usize::MAX);
        let fits = first.is_multiple_of(WINDOW_STEP)
            && first <= self.needed(positions)
            && positions - first <= self.rows;
        if !fits {
            return Err(StateError::Damaged);
        }
        self.first = first;
        let [keys, values] = self.shape.widths();
        self.keys.read((positions - first) * keys, input)?;
        self.values.read((positions - first) * values, input)
    }

    /// The first position that a token at `position` looks back on.
    fn needed(&self, position: usize) -> usize {
        self.shape
            .window
            .map_or(0, |window| (position + 1).saturating_sub(window))
    }

    /// Moves what a token at `position` looks back on to the front.
    fn slide(&mut self, position: usize) {
        let first = self.needed(position) / WINDOW_STEP * WINDOW_STEP;
        let (from, to) = (first - self.first, position - self.first);
        let [key_width, value_width] = self.shape.widths();
        self.keys.move_to_front(from * key_width..to * key_width);
        self.values
            .move_to_front(from * value_width..to * value_width);
        self.first = first;
    }
}

impl Rows {
    // Zeroed pages are not touched until they are written, so an unused context is free.
    fn new(length: usize, kv_type: KvType) -> Self {
        match kv_type {
            // Of bits, because only a vector of integers comes zeroed from the system.
            KvType::F16 => Self::F16(vec![0_u16; length].reinterpret_into()),
            KvType::F32 => Self::F32(vec![0.0; length]),
        }
    }

    fn move_to_front(&mut self, range: Range<usize>) {
        match self {
            Self::F16(rows) => rows.copy_within(range, 0),
            Self::F32(rows) => rows.copy_within(range, 0),
        }
    }

    fn write(&self, range: Range<usize>, out: &mut impl Write) -> io::Result<()> {
        match self {
            Self::F16(rows) => {
                let bits = rows[range].reinterpret_cast();
                write_numbers(bits, |bits| bits.to_le_bytes(), out)
            }
            Self::F32(rows) => write_numbers(&rows[range], |value| value.to_le_bytes(), out),
        }
    }

    fn read(&mut self, length: usize, input: &mut impl Read) -> Result<(), StateError> {
        match self {
            Self::F16(rows) => read_numbers(&mut rows[..length], f16::from_le_bytes, input)?,
            Self::F32(rows) => read_numbers(&mut rows[..length], f32::from_le_bytes, input)?,
        }
        Ok(())
    }

    fn slice(&self) -> KvSlice<'_> {
        match self {
            Self::F16(rows) => KvSlice::F16(rows),
            Self::F32(rows) => KvSlice::F32(rows),
        }
    }

    fn slice_mut(&mut self) -> KvSliceMut<'_> {
        match self {
            Self::F16(rows) => KvSliceMut::F16(rows),
            Self::F32(rows) => KvSliceMut::F32(rows),
        }
    }
}
