//! Where experts are in the file, and how they lie in a slot.
//!
//! An expert is its rows of its mixture's gate, up and down matrices: three extents of the file.
//! A slot has room for those of any expert, each in whole pages.

use crate::arena::PAGE_BYTES;
use crate::files::Window;
use crate::gguf::{Catalog, Extent};

/// The matrices that an expert has rows of: gate, up and down.
pub const EXPERT_PARTS: usize = 3;

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
    pub(crate) mixtures: Vec<MixtureLayout>,
    /// Bytes of a slot.
    pub slot_bytes: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MixtureLayout {
    pub(crate) experts: usize,
    pub(crate) parts: [PartLayout; EXPERT_PARTS],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PartLayout {
    /// The first expert's; the others' follow.
    pub(crate) first: Extent,
    /// Where the part's buffer starts in a slot.
    pub(crate) offset: usize,
    /// Bytes of the buffer: of the widest expert, in whole pages.
    pub(crate) bytes: usize,
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

    /// Where a part of an expert is.
    pub(crate) fn extent(&self, id: ExpertId, part: usize) -> Extent {
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
