//! Where experts are in the file, and how they lie in a slot.
//!
//! An expert is its rows of its mixture's gate, up and down matrices: three extents of the file.
//! A slot has room for those of any expert, each in whole pages.

use crate::gguf::{Catalog, Extent, Tensor};
use crate::page::PageSize;

/// The matrices that an expert has rows of: gate, up and down.
pub const EXPERT_PARTS: usize = 3;

/// Experts that a step computes on at a time.
pub const EXPERTS_MAX: usize = 16;

/// Where the experts' rows of one of their three matrices are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExpertPart {
    /// In one tensor, in which the experts follow each other.
    Stacked {
        /// Index of the tensor in the catalog.
        tensor: usize,
        /// Matrices of the same size that an expert has there, one after the other, and
        /// which of them this is.
        matrices: usize,
        /// See `matrices`.
        matrix: usize,
    },
    /// Each in a tensor of its own: their indices in the catalog, in the order of the experts.
    Separate(Vec<usize>),
}

impl ExpertPart {
    /// A tensor that holds nothing else.
    pub fn alone(tensor: usize) -> Self {
        Self::Stacked {
            tensor,
            matrices: 1,
            matrix: 0,
        }
    }

    /// The tensor that an expert's rows are in.
    fn tensor<'a>(&self, catalog: &'a Catalog, expert: usize) -> &'a Tensor {
        match self {
            Self::Stacked { tensor, .. } => &catalog.tensors()[*tensor],
            Self::Separate(tensors) => &catalog.tensors()[tensors[expert]],
        }
    }

    /// Whether nothing lies between the rows of an expert and those of the next.
    pub(crate) fn is_contiguous(&self) -> bool {
        matches!(self, Self::Stacked { matrices: 1, .. })
    }

    /// Bytes of the list of tensors, and of that of their extents in an [`ExpertLayout`].
    pub(crate) fn list_bytes(&self) -> usize {
        match self {
            Self::Stacked { .. } => 0,
            Self::Separate(tensors) => tensors.len() * (size_of::<usize>() + size_of::<Extent>()),
        }
    }
}

/// Where the experts of a mixture are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpertUse {
    /// Their gate, up and down matrices.
    pub parts: [ExpertPart; EXPERT_PARTS],
    /// Number of experts.
    pub experts: usize,
    /// Experts that a token goes to.
    pub used: usize,
}

impl ExpertUse {
    /// An expert's extent of one of the three matrices.
    pub fn extent(&self, catalog: &Catalog, part: usize, expert: usize) -> Extent {
        let all = self.tensor(catalog, part, expert).extent;
        let ExpertPart::Stacked {
            matrices, matrix, ..
        } = self.parts[part]
        else {
            return all;
        };
        let bytes = all.bytes / (self.experts * matrices) as u64;
        Extent {
            offset: all.offset + (expert * matrices + matrix) as u64 * bytes,
            bytes,
            ..all
        }
    }

    /// The tensor that an expert's rows of one of the three matrices are in.
    pub fn tensor<'a>(&self, catalog: &'a Catalog, part: usize, expert: usize) -> &'a Tensor {
        self.parts[part].tensor(catalog, expert)
    }

    /// Where the part of every expert is.
    fn extents(&self, catalog: &Catalog, part: usize) -> PartExtents {
        match self.parts[part] {
            ExpertPart::Stacked { matrices, .. } => {
                let first = self.extent(catalog, part, 0);
                PartExtents::Stacked {
                    first,
                    stride_bytes: first.bytes * matrices as u64,
                }
            }
            ExpertPart::Separate(_) => PartExtents::Separate(
                (0..self.experts)
                    .map(|expert| self.extent(catalog, part, expert))
                    .collect(),
            ),
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

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PartLayout {
    /// Where it is in the file.
    pub(crate) extents: PartExtents,
    /// Where the part's buffer starts in a slot.
    pub(crate) offset: usize,
    /// Bytes of the buffer: of the widest expert, in whole pages.
    pub(crate) bytes: usize,
}

/// [`ExpertPart`], as extents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PartExtents {
    Stacked { first: Extent, stride_bytes: u64 },
    Separate(Vec<Extent>),
}

impl PartExtents {
    fn of(&self, expert: usize) -> Extent {
        match self {
            Self::Stacked {
                first,
                stride_bytes,
            } => Extent {
                offset: first.offset + expert as u64 * stride_bytes,
                ..*first
            },
            Self::Separate(extents) => extents[expert],
        }
    }
}

impl ExpertLayout {
    /// Lays the experts of all mixtures out, in whole pages: a slot holds any of them.
    pub fn new(catalog: &Catalog, uses: &[ExpertUse], page: PageSize) -> Self {
        let mixtures: Vec<MixtureLayout> = uses
            .iter()
            .map(|mixture| {
                let mut offset = 0;
                let parts = std::array::from_fn(|part| {
                    let extents = mixture.extents(catalog, part);
                    let held_bytes = |expert| page.held_bytes(&extents.of(expert)) as usize;
                    let bytes = (0..mixture.experts).map(held_bytes).max().unwrap_or(0);
                    let layout = PartLayout {
                        extents,
                        offset,
                        bytes,
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
        parts.iter().map(|part| part.extents.of(0).bytes).sum()
    }

    /// The number of mixtures.
    pub fn mixtures(&self) -> usize {
        self.mixtures.len()
    }

    /// Where a part of an expert is.
    pub(crate) fn extent(&self, id: ExpertId, part: usize) -> Extent {
        self.mixtures[id.mixture].parts[part].extents.of(id.expert)
    }
}

impl MixtureLayout {
    fn held_bytes(&self) -> usize {
        self.parts.iter().map(|part| part.bytes).sum()
    }
}
