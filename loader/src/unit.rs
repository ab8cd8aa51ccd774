//! Units: the pieces in which weights are read, kept and computed on.
//!
//! A forward pass uses its matrices in a fixed order. A matrix larger than a slot is
//! cut into runs of whole rows; small matrices that follow each other in that order
//! and lie together in the file share a unit, because one large read beats four small
//! ones. A unit is one contiguous extent, and no two units are in use at once.

use crate::gguf::{Catalog, Extent, Tensor};

/// Bytes of other tensors that a shared unit may read along.
const GAP_BYTES_MAX: u64 = 64 << 10;

/// Which half of a pass a matrix belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    /// Every token goes through it.
    Body,
    /// Only tokens whose logits are wanted go through it.
    Head,
}

/// One use of a matrix in a forward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightUse {
    /// Index of the tensor in the catalog.
    pub tensor: usize,
    /// Units do not reach from one layer into the next.
    pub layer: usize,
    /// The half of the pass.
    pub section: Section,
}

/// A run of rows of one matrix inside a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Index of the [`WeightUse`].
    pub weight: usize,
    /// The first row.
    pub first_row: usize,
    /// The number of rows.
    pub rows: usize,
    /// Where the first row starts inside the unit.
    pub offset: usize,
    /// The bytes of the rows.
    pub bytes: usize,
}

/// A contiguous extent of the file that is read at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    /// Where it lies.
    pub extent: Extent,
    /// The half of the pass it is used in.
    pub section: Section,
    /// What is in it, in the order of use.
    pub parts: Vec<Part>,
}

/// Cuts the matrices of a pass into units of at most `unit_bytes`, except that a unit
/// always holds at least one row.
pub fn partition(catalog: &Catalog, uses: &[WeightUse], unit_bytes: u64) -> Vec<Unit> {
    let mut units = Vec::new();
    let mut next = 0;
    while next < uses.len() {
        let tensor = &catalog.tensors()[uses[next].tensor];
        if tensor.extent.bytes > unit_bytes {
            split_rows(&mut units, tensor, next, uses[next].section, unit_bytes);
            next += 1;
        } else {
            let end = shared_end(catalog, uses, next, unit_bytes);
            units.push(share(catalog, uses, next..end));
            next = end;
        }
    }
    units
}

fn split_rows(units: &mut Vec<Unit>, tensor: &Tensor, weight: usize, section: Section, limit: u64) {
    let row_bytes = tensor.row_bytes();
    let rows = tensor.rows();
    let count = rows.div_ceil((limit / row_bytes).max(1));
    // As equal as can be, so that no read is much shorter than the others.
    for index in 0..count {
        let first_row = rows * index / count;
        let end_row = rows * (index + 1) / count;
        let bytes = (end_row - first_row) * row_bytes;
        units.push(Unit {
            extent: Extent {
                file: tensor.extent.file,
                offset: tensor.extent.offset + first_row * row_bytes,
                bytes,
            },
            section,
            parts: vec![Part {
                weight,
                first_row: first_row as usize,
                rows: (end_row - first_row) as usize,
                offset: 0,
                bytes: bytes as usize,
            }],
        });
    }
}

/// The end of the longest run of uses from `start` that fits one unit.
fn shared_end(catalog: &Catalog, uses: &[WeightUse], start: usize, unit_bytes: u64) -> usize {
    let first = uses[start];
    let mut span = catalog.tensors()[first.tensor].extent;
    let mut wanted = span.bytes;
    let mut best = start + 1;
    for (index, weight) in uses.iter().enumerate().skip(start + 1) {
        let extent = catalog.tensors()[weight.tensor].extent;
        let same_place = weight.layer == first.layer
            && weight.section == first.section
            && extent.file == span.file;
        wanted = wanted.saturating_add(extent.bytes);
        if !same_place || wanted > unit_bytes {
            break;
        }
        let start = span.offset.min(extent.offset);
        let end = (span.offset + span.bytes).max(extent.offset + extent.bytes);
        span.offset = start;
        span.bytes = end - start;
        // A tensor further on may fill the gap, so a gap does not end the search.
        if span.bytes <= unit_bytes && span.bytes.saturating_sub(wanted) <= GAP_BYTES_MAX {
            best = index + 1;
        }
    }
    best
}

fn share(catalog: &Catalog, uses: &[WeightUse], run: std::ops::Range<usize>) -> Unit {
    let tensors = || {
        uses[run.clone()]
            .iter()
            .map(|weight| &catalog.tensors()[weight.tensor])
    };
    let offset = tensors().map(|tensor| tensor.extent.offset).min();
    let end = tensors()
        .map(|tensor| tensor.extent.offset + tensor.extent.bytes)
        .max();
    let (offset, end) = offset.zip(end).expect("a run holds at least one use");
    let parts = run
        .clone()
        .zip(tensors())
        .map(|(weight, tensor)| Part {
            weight,
            first_row: 0,
            rows: tensor.rows() as usize,
            offset: (tensor.extent.offset - offset) as usize,
            bytes: tensor.extent.bytes as usize,
        })
        .collect();
    Unit {
        extent: Extent {
            file: catalog.tensors()[uses[run.start].tensor].extent.file,
            offset,
            bytes: end - offset,
        },
        section: uses[run.start].section,
        parts,
    }
}
