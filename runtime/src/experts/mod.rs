//! Experts that do not all fit in memory.
//!
//! | module | is |
//! |---|---|
//! | [`cache`] | who is in which slot, and who has to go |
//! | [`demand`] | a layer's experts, computed as they come |

pub mod cache;
pub mod demand;

/// The experts of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MixtureShape {
    /// Mixtures of experts, one after the other in a pass.
    pub layers: usize,
    /// Experts of each.
    pub experts: usize,
    /// Experts that a token goes to in each.
    pub used: usize,
}

impl MixtureShape {
    /// The experts of all layers together.
    pub fn all(self) -> usize {
        self.layers * self.experts
    }

    /// The place of an expert among them.
    pub(crate) fn index(self, layer: usize, expert: usize) -> usize {
        layer * self.experts + expert
    }
}
