//! A trace: the routing of a text, position by position, in a file.
//!
//! ```text
//! "EMELTRCE"                            8 bytes
//! version                               u32
//! layers, experts, used, guesses        u32 each
//! identity of the model                 u64
//! positions                             u64
//! for each position:
//!   position in its context             u32
//!   for each layer:
//!     the experts chosen, best first    u16 × used
//!     their weights                     f16 × used
//!   for each layer but the first:
//!     what its router was guessed to choose one layer before,
//!     the likeliest first               u16 × guesses
//! XxHash64 of all the above             u64
//! ```
//!
//! All numbers are little-endian. A position that does not follow the one before it begins
//! a new context.

use std::hash::Hasher;
use std::io::{self, Read, Write};

use half::f16;

use super::MixtureShape;
use super::coactivation::Coactivation;
use crate::hashing::Hashing;

/// What such a file begins with.
pub const MAGIC: [u8; 8] = *b"EMELTRCE";
const VERSION: u32 = 1;
/// As far as a trace is held in memory, of which it takes no more than in the file, and its
/// replay up to four times as much.
const FILE_BYTES_MAX: u64 = 1 << 28;
/// More than any model has.
pub const LAYERS_MAX: usize = 1 << 10;
/// See [`LAYERS_MAX`].
pub const EXPERTS_MAX: usize = 1 << 11;
/// The largest co-activation table of a replay; it bounds what the cache takes, too.
pub const TABLE_BYTES_MAX: usize = 1 << 28;

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The file cannot be read.
    #[error("cannot read the trace: {0}; check the path and its permissions")]
    Read(#[from] io::Error),
    /// The file is something else.
    #[error("this is no trace, expected one that `emel trace` has written")]
    Foreign,
    /// The file is from another version of emel.
    #[error("the trace has format {found}, expected {VERSION}; write it again with `emel trace`")]
    Version {
        /// The format's number.
        found: u32,
    },
    /// No model is like this.
    #[error(
        "the trace is of {} layers with {} experts, {} of them used and {guesses} guessed; it is damaged, write it again with `emel trace`",
        shape.layers, shape.experts, shape.used
    )]
    Shape {
        /// The model's experts.
        shape: MixtureShape,
        /// Guesses for each layer.
        guesses: usize,
    },
    /// The file is longer than is held in memory.
    #[error("the trace has {bytes} bytes, expected up to {FILE_BYTES_MAX}; trace a shorter text")]
    TooLong {
        /// Its length.
        bytes: u64,
    },
    /// The file is cut off or goes on too long.
    #[error("the trace has {found} bytes, expected {expected}; write it again with `emel trace`")]
    Length {
        /// Its length.
        found: u64,
        /// The length that its beginning states.
        expected: u64,
    },
    /// Some of its bytes have changed.
    #[error("the trace is damaged {place}; write it again with `emel trace`")]
    Damaged {
        /// Where that was noticed.
        place: String,
    },
}

/// What a trace begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceHeader {
    /// The model's experts.
    pub shape: MixtureShape,
    /// Guesses for each layer but the first.
    pub guesses: usize,
    /// Identity of the model.
    pub identity: u64,
    /// Positions that follow.
    pub positions: u64,
}

/// An expert that a token goes to, and its weight, which a file holds as f16.
pub type Chosen = (u16, f32);

/// Routing in memory, without the weights of what was chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    header: TraceHeader,
    positions: Vec<u32>,
    /// `[positions, layers, used]`.
    experts: Vec<u16>,
    /// `[positions, layers - 1, guesses]`.
    guesses: Vec<u16>,
}

impl TraceHeader {
    const BYTES: u64 = 44;

    fn position_bytes(&self) -> u64 {
        let MixtureShape { layers, used, .. } = self.shape;
        (4 + layers * used * 4 + (layers - 1) * self.guesses * 2) as u64
    }

    /// The header, if a model can be like this.
    ///
    /// # Errors
    /// When it has more layers or experts than any model, or than a table can be of.
    pub fn check(self) -> Result<Self, TraceError> {
        let (shape, guesses) = (self.shape, self.guesses);
        let is_sane = (1..=LAYERS_MAX).contains(&shape.layers)
            && (1..=EXPERTS_MAX).contains(&shape.experts)
            && Coactivation::required_bytes(shape) <= TABLE_BYTES_MAX
            && (1..=shape.experts).contains(&shape.used)
            && guesses <= shape.experts;
        if is_sane {
            Ok(self)
        } else {
            Err(TraceError::Shape { shape, guesses })
        }
    }

    fn read(input: &mut impl Read) -> Result<Self, TraceError> {
        let mut bytes = [0; Self::BYTES as usize];
        input.read_exact(&mut bytes).map_err(short_or)?;
        if bytes[..8] != MAGIC {
            return Err(TraceError::Foreign);
        }
        let number = |at: usize| u32_at(&bytes, at);
        if number(8) != VERSION {
            return Err(TraceError::Version { found: number(8) });
        }
        let size = |at: usize| number(at) as usize;
        let header = Self {
            shape: MixtureShape {
                layers: size(12),
                experts: size(16),
                used: size(20),
            },
            guesses: size(24),
            identity: u64::from_le_bytes(bytes[28..36].try_into().expect("8 bytes")),
            positions: u64::from_le_bytes(bytes[36..44].try_into().expect("8 bytes")),
        };
        header.check()
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let MixtureShape {
            layers,
            experts,
            used,
        } = self.shape;
        out.write_all(&MAGIC)?;
        for number in [VERSION as usize, layers, experts, used, self.guesses] {
            let number = u32::try_from(number).map_err(io::Error::other)?;
            out.write_all(&number.to_le_bytes())?;
        }
        out.write_all(&self.identity.to_le_bytes())?;
        out.write_all(&self.positions.to_le_bytes())
    }
}

impl Trace {
    /// An empty trace; positions are counted as they come.
    ///
    /// # Errors
    /// When no model has such experts.
    pub fn new(shape: MixtureShape, guesses: usize, identity: u64) -> Result<Self, TraceError> {
        let header = TraceHeader {
            shape,
            guesses,
            identity,
            positions: 0,
        };
        Ok(Self {
            header: header.check()?,
            positions: Vec::new(),
            experts: Vec::new(),
            guesses: Vec::new(),
        })
    }

    /// What it is a trace of.
    pub fn header(&self) -> &TraceHeader {
        &self.header
    }

    /// The position of the `index`th token in its context.
    pub fn position(&self, index: usize) -> u32 {
        self.positions[index]
    }

    /// Whether the `index`th token comes after the one before it in the same context.
    pub fn follows(&self, index: usize) -> bool {
        index > 0 && self.position(index - 1).checked_add(1) == Some(self.position(index))
    }

    /// Positions recorded.
    pub fn len(&self) -> usize {
        self.positions.len()
    }

    /// Whether nothing is recorded.
    pub fn is_empty(&self) -> bool {
        self.positions.is_empty()
    }

    /// The experts that the `index`th token goes to in a layer, the best first.
    pub fn experts(&self, index: usize, layer: usize) -> &[u16] {
        let MixtureShape { layers, used, .. } = self.header.shape;
        &self.experts[(index * layers + layer) * used..][..used]
    }

    /// What the router of a layer was guessed to choose one layer before, the likeliest
    /// first; nothing for the first layer.
    pub fn guesses(&self, index: usize, layer: usize) -> &[u16] {
        let (layers, width) = (self.header.shape.layers, self.header.guesses);
        match layer.checked_sub(1) {
            Some(before) => &self.guesses[(index * (layers - 1) + before) * width..][..width],
            None => &[],
        }
    }

    /// Appends a token at `position` of its context: the choices of all layers, and the
    /// guesses of all but the first.
    ///
    /// # Panics
    /// When there are more or fewer than the header states.
    pub fn push(
        &mut self,
        position: u32,
        choices: impl IntoIterator<Item = u16>,
        guesses: impl IntoIterator<Item = u16>,
    ) {
        self.positions.push(position);
        self.experts.extend(choices);
        self.guesses.extend(guesses);
        self.header.positions += 1;
        let MixtureShape { layers, used, .. } = self.header.shape;
        assert_eq!(self.experts.len(), self.len() * layers * used);
        let ahead = self.len() * (layers - 1) * self.header.guesses;
        assert_eq!(self.guesses.len(), ahead);
    }

    /// Leaves only the first `count` tokens.
    pub fn truncate(&mut self, count: usize) {
        let MixtureShape { layers, used, .. } = self.header.shape;
        self.positions.truncate(count);
        self.experts.truncate(count * layers * used);
        self.guesses
            .truncate(count * (layers - 1) * self.header.guesses);
        self.header.positions = self.len() as u64;
    }

    /// Reads a file of `file_bytes` bytes, and checks all of it. Takes no more memory than
    /// the file has bytes.
    ///
    /// # Errors
    /// When it cannot be read, or is not what a [`TraceWriter`] writes.
    pub fn read(input: impl Read, file_bytes: u64) -> Result<Self, TraceError> {
        if file_bytes > FILE_BYTES_MAX {
            return Err(TraceError::TooLong { bytes: file_bytes });
        }
        let mut input = Hashing::new(input);
        let header = TraceHeader::read(&mut input)?;
        if header.positions == 0 {
            let place = "at its beginning: it has no positions".to_owned();
            return Err(TraceError::Damaged { place });
        }
        let records = header.positions.checked_mul(header.position_bytes());
        let expected = records.map_or(u64::MAX, |bytes| {
            bytes.saturating_add(TraceHeader::BYTES + 8)
        });
        if file_bytes != expected {
            return Err(TraceError::Length {
                found: file_bytes,
                expected,
            });
        }
        let mut trace = Self::new(header.shape, header.guesses, header.identity)?;
        trace.reserve(header.positions as usize);
        let mut record = vec![0; header.position_bytes() as usize];
        let mut is_named = vec![false; header.shape.experts];
        for index in 0..header.positions {
            input.read_exact(&mut record).map_err(short_or)?;
            trace.push_record(&record, &mut is_named).map_err(|what| {
                let place = format!("at position {index}: {what}");
                TraceError::Damaged { place }
            })?;
        }
        let Hashing { mut inner, hasher } = input;
        let mut hash = [0; 8];
        inner.read_exact(&mut hash).map_err(short_or)?;
        if hash != hasher.finish().to_le_bytes() {
            let place = "somewhere: its checksum does not match".to_owned();
            return Err(TraceError::Damaged { place });
        }
        Ok(trace)
    }

    /// Makes room for exactly so many positions.
    fn reserve(&mut self, count: usize) {
        let MixtureShape { layers, used, .. } = self.header.shape;
        self.positions.reserve_exact(count);
        self.experts.reserve_exact(count * layers * used);
        self.guesses
            .reserve_exact(count * (layers - 1) * self.header.guesses);
    }

    /// Takes a position as the file has it, or says what is wrong with it. `is_named` has a
    /// place for each expert of a layer, all of them false.
    fn push_record(&mut self, record: &[u8], is_named: &mut [bool]) -> Result<(), String> {
        let MixtureShape { layers, used, .. } = self.header.shape;
        let (position, rest) = record.split_at(4);
        let (choices, guesses) = rest.split_at(layers * used * 4);
        self.positions.push(u32_at(position, 0));
        for layer in choices.chunks_exact(used * 4) {
            let (ids, weights) = layer.split_at(used * 2);
            take_ids(ids, is_named, &mut self.experts)?;
            let mut weights = numbers(weights).map(f16::from_bits);
            if let Some(weight) = weights.find(|weight| !weight.is_finite()) {
                return Err(format!("a weight is {weight}"));
            }
        }
        for layer in guesses.chunks_exact((self.header.guesses * 2).max(1)) {
            take_ids(layer, is_named, &mut self.guesses)?;
        }
        self.header.positions += 1;
        Ok(())
    }
}

/// Writes a trace position by position, and holds but one.
#[derive(Debug)]
pub struct TraceWriter<W> {
    header: TraceHeader,
    out: Hashing<W>,
    record: Vec<u8>,
}

impl<W: Write> TraceWriter<W> {
    /// Begins a trace; as many positions follow as the header states.
    ///
    /// # Errors
    /// When the writer fails.
    pub fn new(out: W, header: TraceHeader) -> io::Result<Self> {
        let mut out = Hashing::new(out);
        header.write(&mut out)?;
        Ok(Self {
            header,
            out,
            record: Vec::with_capacity(header.position_bytes() as usize),
        })
    }

    /// Writes a token at `position` of its context, as [`Trace::push`] takes it, with the
    /// weights of the choices.
    ///
    /// # Errors
    /// When the writer fails, or a weight is beyond what f16 holds.
    ///
    /// # Panics
    /// When there are more or fewer choices or guesses than the header states.
    pub fn push(
        &mut self,
        position: u32,
        choices: impl IntoIterator<Item = Chosen>,
        guesses: impl IntoIterator<Item = u16>,
    ) -> io::Result<()> {
        let (start, used) = (4, self.header.shape.used);
        self.record.clear();
        self.record.resize(self.header.position_bytes() as usize, 0);
        self.record[..start].copy_from_slice(&position.to_le_bytes());
        let ahead = start + self.header.shape.layers * used * 4;
        let mut count = 0;
        for (index, (expert, weight)) in choices.into_iter().enumerate() {
            let at = start + index / used * used * 4 + index % used * 2;
            let half = f16::from_f32(weight);
            if !half.is_finite() {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!(
                        "at position {position} expert {expert} of layer {} has weight {weight}, expected a number up to {}; the model is damaged, or no trace can hold its routing",
                        index / used,
                        f16::MAX
                    ),
                ));
            }
            self.record[at..at + 2].copy_from_slice(&expert.to_le_bytes());
            self.record[at + used * 2..][..2].copy_from_slice(&half.to_le_bytes());
            count = index + 1;
        }
        assert_eq!(start + count * 4, ahead, "choices");
        count = 0;
        for (index, expert) in guesses.into_iter().enumerate() {
            self.record[ahead + index * 2..][..2].copy_from_slice(&expert.to_le_bytes());
            count = index + 1;
        }
        assert_eq!(ahead + count * 2, self.record.len(), "guesses");
        self.out.write_all(&self.record)
    }

    /// Ends the trace, and gives the writer back.
    ///
    /// # Errors
    /// When the writer fails.
    pub fn finish(self) -> io::Result<W> {
        let Hashing { mut inner, hasher } = self.out;
        inner.write_all(&hasher.finish().to_le_bytes())?;
        inner.flush()?;
        Ok(inner)
    }
}

fn numbers(bytes: &[u8]) -> impl Iterator<Item = u16> {
    bytes
        .chunks_exact(2)
        .map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
}

/// Takes the experts of a layer, if each is one of the model's and there but once.
/// `is_named` is all false before, and after success.
fn take_ids(bytes: &[u8], is_named: &mut [bool], out: &mut Vec<u16>) -> Result<(), String> {
    let (first, experts) = (out.len(), is_named.len());
    for id in numbers(bytes) {
        match is_named.get_mut(usize::from(id)) {
            None => return Err(format!("expert {id} of {experts}")),
            Some(true) => return Err(format!("expert {id} twice in a layer")),
            Some(is_named) => *is_named = true,
        }
        out.push(id);
    }
    for &id in &out[first..] {
        is_named[usize::from(id)] = false;
    }
    Ok(())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

/// A file that ends too early, where it is read.
fn short_or(error: io::Error) -> TraceError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => TraceError::Foreign,
        _ => TraceError::Read(error),
    }
}

#[cfg(test)]
mod tests;
