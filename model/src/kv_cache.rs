//! The keys and values of a layer's past positions.

use std::io::{self, Read, Write};
use std::ops::Range;

use emel_kernels::{KV_BLOCK_ELEMENTS, Kernels, KvBlock, KvSlice, KvSliceMut, KvView};
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
    /// 8 bits, and a half-precision scale for each 32 elements of a head; a head whose width
    /// is no multiple of 32 takes a whole block for the rest.
    Q8_0,
}

impl KvType {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::F16, Self::F32, Self::Q8_0];

    /// Its name, as users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::F32 => "f32",
            Self::Q8_0 => "q8_0",
        }
    }

    /// The unit of which a head is a whole number: its elements and bytes.
    fn unit(self) -> (usize, usize) {
        match self {
            Self::F16 => (1, size_of::<f16>()),
            Self::F32 => (1, size_of::<f32>()),
            Self::Q8_0 => (KV_BLOCK_ELEMENTS, size_of::<KvBlock>()),
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

    /// Units of a position's keys, and of its values.
    fn units(&self, kv_type: KvType) -> [usize; 2] {
        let (elements, _) = kv_type.unit();
        let units = |width: usize| self.kv_heads.saturating_mul(width.div_ceil(elements));
        [units(self.key_width), self.value_width.map_or(0, units)]
    }

    /// The bytes that [`KvCache::new`] allocates.
    pub fn required_bytes(&self, context: usize, chunk: usize, kv_type: KvType) -> u64 {
        // Saturating: a plan for absurd sizes is to be refused, not to overflow.
        let [keys, values] = self.units(kv_type);
        let (_, unit_bytes) = kv_type.unit();
        (keys.saturating_add(values) as u64)
            .saturating_mul(self.rows(context, chunk) as u64)
            .saturating_mul(unit_bytes as u64)
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

/// A row for each position.
#[derive(Debug, Clone)]
struct Rows {
    units: Units,
    /// Units of a row.
    width: usize,
}

#[derive(Debug, Clone)]
enum Units {
    F16(Vec<f16>),
    F32(Vec<f32>),
    Q8_0(Vec<KvBlock>),
}

impl KvCache {
    /// An empty cache for sequences of `context` positions that come in batches of up to
    /// `chunk`.
    pub fn new(shape: KvShape, context: usize, chunk: usize, kv_type: KvType) -> Self {
        let rows = shape.rows(context, chunk);
        let [keys, values] = shape.units(kv_type);
        Self {
            shape,
            rows,
            first: 0,
            keys: Rows::new(rows, keys, kv_type),
            values: Rows::new(rows, values, kv_type),
        }
    }

    /// What it keeps of each position.
    pub fn shape(&self) -> &KvShape {
        &self.shape
    }

    /// The position of the first row.
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
        let head = (position - self.first) * self.shape.kv_heads;
        kernels.store_kv(self.keys.slice_mut(), head, self.shape.key_width, keys);
        if let Some(width) = self.shape.value_width {
            kernels.store_kv(self.values.slice_mut(), head, width, values);
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
        self.keys.write(rows.clone(), out)?;
        self.values.write(rows, out)
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
        self.keys.read(positions - first, input)?;
        self.values.read(positions - first, input)
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
        let rows = first - self.first..position - self.first;
        self.keys.move_to_front(rows.clone());
        self.values.move_to_front(rows);
        self.first = first;
    }
}

impl Rows {
    // Zeroed pages are not touched until they are written, so an unused context is free.
    fn new(rows: usize, width: usize, kv_type: KvType) -> Self {
        let length = rows.saturating_mul(width);
        let units = match kv_type {
            // Of bits, because only a vector of integers comes zeroed from the system.
            KvType::F16 => Units::F16(vec![0_u16; length].reinterpret_into()),
            KvType::F32 => Units::F32(vec![0.0; length]),
            KvType::Q8_0 => Units::Q8_0(vec![[0; size_of::<KvBlock>()]; length]),
        };
        Self { units, width }
    }

    fn units(&self, rows: Range<usize>) -> Range<usize> {
        rows.start * self.width..rows.end * self.width
    }

    fn move_to_front(&mut self, rows: Range<usize>) {
        let range = self.units(rows);
        match &mut self.units {
            Units::F16(units) => units.copy_within(range, 0),
            Units::F32(units) => units.copy_within(range, 0),
            Units::Q8_0(units) => units.copy_within(range, 0),
        }
    }

    fn write(&self, rows: Range<usize>, out: &mut impl Write) -> io::Result<()> {
        let range = self.units(rows);
        match &self.units {
            Units::F16(units) => {
                let bits = units[range].reinterpret_cast();
                write_numbers(bits, |bits| bits.to_le_bytes(), out)
            }
            Units::F32(units) => write_numbers(&units[range], |value| value.to_le_bytes(), out),
            // Blocks are bytes already.
            Units::Q8_0(units) => out.write_all(units[range].as_flattened()),
        }
    }

    fn read(&mut self, rows: usize, input: &mut impl Read) -> Result<(), StateError> {
        let length = rows * self.width;
        match &mut self.units {
            Units::F16(units) => read_numbers(&mut units[..length], f16::from_le_bytes, input)?,
            Units::F32(units) => read_numbers(&mut units[..length], f32::from_le_bytes, input)?,
            Units::Q8_0(units) => input.read_exact(units[..length].as_flattened_mut())?,
        }
        Ok(())
    }

    fn slice(&self) -> KvSlice<'_> {
        match &self.units {
            Units::F16(units) => KvSlice::F16(units),
            Units::F32(units) => KvSlice::F32(units),
            Units::Q8_0(units) => KvSlice::Q8_0(units),
        }
    }

    fn slice_mut(&mut self) -> KvSliceMut<'_> {
        match &mut self.units {
            Units::F16(units) => KvSliceMut::F16(units),
            Units::F32(units) => KvSliceMut::F32(units),
            Units::Q8_0(units) => KvSliceMut::Q8_0(units),
        }
    }
}
