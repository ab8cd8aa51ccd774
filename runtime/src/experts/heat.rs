//! What was learnt about a model's experts, in a file: how hot each of them is, which follow
//! which, and what a cache of any size would miss. `emel-run` keeps it beside the model
//! ([`place`]); `emel replay` can write it and begin with it, to score what learning over several
//! texts is worth.
//!
//! ```text
//! "EMELHEAT"                     8 bytes
//! version                        u32
//! layers, experts                u32 each
//! identity of the model          u64
//! heat of each expert            u16, 65535 for one that every token uses
//! uses of each expert            u8
//! counts of each expert          u8 for each expert of the next layer
//! demands by rank                f32, 64 of them
//! XxHash64 of all the above      u64
//! ```
//!
//! All numbers are little-endian. The file is written beside its place and moved there when
//! it is whole.

use std::fs::File;
use std::hash::Hasher;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use super::MixtureShape;
use super::coactivation::Coactivation;
use super::miss_curve::{CURVE_BYTES, MissCurve};
use crate::hashing::Hashing;
use crate::whole_file::{begins_with, write_whole};

/// What such a file begins with.
pub const MAGIC: [u8; 8] = *b"EMELHEAT";
const VERSION: u32 = 2;
const HEADER_BYTES: usize = 28;

/// What becomes of what an engine learns about experts that do not all fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Learning {
    /// It is forgotten.
    #[default]
    Off,
    /// What an earlier run has left beside the model is used, and nothing is written.
    Read,
    /// The same, and what was learnt is written there at the end.
    Keep,
}

/// Where what is learnt about a model is kept: `MODEL.emel-heat`, beside its first file.
pub fn place(model: &Path) -> PathBuf {
    let mut name = model.as_os_str().to_owned();
    name.push(".emel-heat");
    name.into()
}

/// Why what was learnt cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HeatError {
    /// The file cannot be opened or read.
    #[error("cannot read what was learnt: {0}; check the path and its permissions")]
    Read(io::Error),
    /// The file cannot be written.
    #[error(
        "cannot write what was learnt: {0}; check the folder, its permissions and the disk, or turn learning off"
    )]
    Write(io::Error),
    /// The file is something else.
    #[error("this is not what emel has learnt, which would be kept here; move it away")]
    Foreign,
    /// The file is from another version of emel.
    #[error("what was learnt has format {found}, expected {VERSION}; delete it to learn anew")]
    Version {
        /// The format's number.
        found: u32,
    },
    /// The file belongs to another model.
    #[error("what was learnt is of another model; delete it to learn anew")]
    OtherModel,
    /// The file is cut off, some of its bytes have changed, or its numbers make no sense.
    #[error("what was learnt is damaged or cut off; delete it to learn anew")]
    Damaged,
}

/// What is learnt.
#[derive(Debug, Clone, PartialEq)]
pub struct Heat {
    /// The model's experts.
    pub shape: MixtureShape,
    /// How large a share of the tokens each expert is used for, `[layers, experts]`.
    pub heats: Vec<f32>,
    /// Which experts follow which.
    pub table: Coactivation,
    /// What a cache of any size would miss.
    pub misses: MissCurve,
}

impl Heat {
    /// The experts from the hottest on, as layer and expert.
    pub fn hottest(&self) -> Vec<(usize, usize)> {
        let mut order: Vec<usize> = (0..self.heats.len()).collect();
        order.sort_by(|&a, &b| self.heats[b].total_cmp(&self.heats[a]));
        let place = |index| (index / self.shape.experts, index % self.shape.experts);
        order.into_iter().map(place).collect()
    }

    /// Writes the file; it appears whole or not at all. What is there already is replaced
    /// if it is such a file.
    ///
    /// # Errors
    /// When the path holds something else, or the folder or the disk does not take it.
    pub fn save(&self, path: &Path, identity: u64) -> Result<(), HeatError> {
        check_place(path)?;
        write_whole(path, |out| self.write(out, identity)).map_err(HeatError::Write)
    }

    fn write(&self, out: &mut impl Write, identity: u64) -> io::Result<()> {
        let mut out = Hashing::new(out);
        out.write_all(&MAGIC)?;
        for number in [VERSION as usize, self.shape.layers, self.shape.experts] {
            let number = u32::try_from(number).map_err(io::Error::other)?;
            out.write_all(&number.to_le_bytes())?;
        }
        out.write_all(&identity.to_le_bytes())?;
        let heat = |&heat: &f32| (heat.clamp(0.0, 1.0) * f32::from(u16::MAX)).round() as u16;
        for heat in self.heats.iter().map(heat) {
            out.write_all(&heat.to_le_bytes())?;
        }
        for number in self.table.numbers() {
            out.write_all(&[number])?;
        }
        out.write_all(&self.misses.to_bytes())?;
        let Hashing { inner, hasher } = out;
        inner.write_all(&hasher.finish().to_le_bytes())
    }

    /// Reads the file of a model of this identity and shape. Nothing if there is none.
    ///
    /// # Errors
    /// When there is something else, or it cannot be used; a replay can go on without.
    pub fn load(
        path: &Path,
        identity: u64,
        shape: MixtureShape,
    ) -> Result<Option<Self>, HeatError> {
        // Not a FIFO, which would be waited for.
        if path.exists() && !path.is_file() {
            return Err(HeatError::Foreign);
        }
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(HeatError::Read(error)),
        };
        let bytes = file.metadata().map_err(HeatError::Read)?.len();
        let mut input = Hashing::new(BufReader::new(file));
        let mut header = [0; HEADER_BYTES];
        read(&mut input, &mut header).map_err(|error| match error {
            HeatError::Damaged => HeatError::Foreign,
            other => other,
        })?;
        let (magic, rest) = header.split_at(8);
        if magic != MAGIC {
            return Err(HeatError::Foreign);
        }
        let number =
            |at: usize| u32::from_le_bytes([rest[at], rest[at + 1], rest[at + 2], rest[at + 3]]);
        if number(0) != VERSION {
            return Err(HeatError::Version { found: number(0) });
        }
        let found = [number(4) as usize, number(8) as usize];
        if rest[12..] != identity.to_le_bytes() || found != [shape.layers, shape.experts] {
            return Err(HeatError::OtherModel);
        }
        let content = shape.all() * 2 + Coactivation::required_bytes(shape) + CURVE_BYTES;
        if bytes != (HEADER_BYTES + content + 8) as u64 {
            return Err(HeatError::Damaged);
        }
        let mut numbers = vec![0; content];
        read(&mut input, &mut numbers)?;
        let Hashing { mut inner, hasher } = input;
        let mut hash = [0; 8];
        read(&mut inner, &mut hash)?;
        if hash != hasher.finish().to_le_bytes() {
            return Err(HeatError::Damaged);
        }
        let (heats, table) = numbers.split_at(shape.all() * 2);
        let heats = heats.chunks_exact(2).map(|pair| {
            let heat = u16::from_le_bytes([pair[0], pair[1]]);
            f32::from(heat) / f32::from(u16::MAX)
        });
        let (table, misses) = table.split_at(table.len() - CURVE_BYTES);
        let table = Coactivation::from_numbers(shape, table).ok_or(HeatError::Damaged)?;
        let misses = MissCurve::from_bytes(misses).ok_or(HeatError::Damaged)?;
        Ok(Some(Self {
            shape,
            heats: heats.collect(),
            table,
            misses,
        }))
    }
}

/// Refuses a path that holds something else than what [`Heat::save`] writes.
///
/// # Errors
/// When it does, or cannot be looked into.
pub fn check_place(path: &Path) -> Result<(), HeatError> {
    if !path.exists() {
        return Ok(());
    }
    // Not a FIFO, which would be waited for.
    if !path.is_file() {
        return Err(HeatError::Foreign);
    }
    let file = File::open(path).map_err(HeatError::Read)?;
    match begins_with(file, MAGIC).map_err(HeatError::Read)? {
        true => Ok(()),
        false => Err(HeatError::Foreign),
    }
}

fn read(input: &mut impl Read, bytes: &mut [u8]) -> Result<(), HeatError> {
    input.read_exact(bytes).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => HeatError::Damaged,
        _ => HeatError::Read(error),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const SHAPE: MixtureShape = MixtureShape {
        layers: 2,
        experts: 4,
        used: 2,
    };
    const IDENTITY: u64 = 77;

    fn learnt() -> Heat {
        let mut table = Coactivation::new(SHAPE);
        for _ in 0..10 {
            table.learn(0, &[0, 1], &[2, 3]);
            table.learn(1, &[2, 3], &[0, 2]);
        }
        let heats = vec![0.5, 1.0, 0.0, 0.25, 0.125, 0.75, 0.3, 0.2];
        Heat {
            shape: SHAPE,
            heats,
            table,
            misses: MissCurve::default(),
        }
    }

    /// The bytes of a file, and what becomes of them after a change.
    fn after(change: impl FnOnce(&mut Vec<u8>)) -> Result<Option<Heat>, HeatError> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("heat");
        learnt().save(&path, IDENTITY).expect("saved");
        let mut bytes = fs::read(&path).expect("read");
        change(&mut bytes);
        fs::write(&path, bytes).expect("written");
        Heat::load(&path, IDENTITY, SHAPE)
    }

    /// Makes the checksum right again.
    fn rehash(bytes: &mut [u8]) {
        let (content, hash) = bytes.split_at_mut(bytes.len() - 8);
        hash.copy_from_slice(&twox_hash::XxHash64::oneshot(0, content).to_le_bytes());
    }

    #[test]
    fn what_was_learnt_comes_back() {
        let found = after(|_| {}).expect("a good file").expect("a file");
        assert_eq!(found.table, learnt().table);
        for (found, expected) in found.heats.iter().zip(learnt().heats) {
            assert!((found - expected).abs() < 1e-4, "{found} {expected}");
        }
        assert_eq!(found.hottest()[..3], [(0, 1), (1, 1), (0, 0)]);
    }

    #[test]
    fn no_file_is_no_error() {
        let found = Heat::load(Path::new("/nowhere/heat"), IDENTITY, SHAPE);
        assert_eq!(found.expect("no error"), None);
    }

    #[test]
    fn what_others_have_written_is_not_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("model.gguf");
        for content in [&b"GGUF and so on"[..], b"EMEL", b""] {
            fs::write(&path, content).expect("written");
            let outcome = learnt().save(&path, IDENTITY);
            assert!(matches!(outcome, Err(HeatError::Foreign)), "{outcome:?}");
            assert_eq!(fs::read(&path).expect("read"), content);
        }
    }

    #[test]
    fn an_earlier_file_is_replaced_where_a_link_leads() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, link) = (folder.path().join("kept"), folder.path().join("link"));
        std::os::unix::fs::symlink("kept", &link).expect("linked");
        for identity in [IDENTITY, IDENTITY + 1] {
            learnt().save(&link, identity).expect("saved");
            let found = Heat::load(&path, identity, SHAPE).expect("a good file");
            assert!(found.is_some());
        }
        assert!(link.is_symlink() && !path.is_symlink());
    }

    #[test]
    fn files_of_others_and_damaged_ones_are_refused() {
        let refused = |change: fn(&mut Vec<u8>)| after(change).expect_err("refused").to_string();
        assert!(refused(|bytes| bytes[0] = b'X').contains("not what emel has learnt"));
        assert!(refused(|bytes| bytes.truncate(20)).contains("not what emel has learnt"));
        assert!(refused(|bytes| bytes[8] = 1).contains("format 1, expected 2"));
        assert!(refused(|bytes| bytes[20] ^= 1).contains("another model"));
        assert!(refused(|bytes| bytes[12] = 3).contains("another model"));
        for change in [
            (|bytes| bytes.truncate(60)) as fn(&mut Vec<u8>),
            |bytes| bytes[40] ^= 1,
            |bytes| bytes.push(0),
            |bytes| *bytes.last_mut().expect("bytes") ^= 1,
        ] {
            assert!(refused(change).contains("damaged or cut off"));
        }
    }

    #[test]
    fn numbers_that_make_no_sense_are_refused() {
        // More uses than are ever counted, and a successor more often than its expert.
        let first_uses = HEADER_BYTES + SHAPE.all() * 2;
        let first_count = first_uses + SHAPE.all();
        for at in [first_uses, first_count] {
            let found = after(|bytes| {
                bytes[at] = u8::MAX;
                rehash(bytes);
            });
            assert!(matches!(found, Err(HeatError::Damaged)), "{found:?}");
        }
    }
}
