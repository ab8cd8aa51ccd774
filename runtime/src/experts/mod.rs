//! Experts that do not all fit in memory: which are kept, which come next, what was learnt.
//!
//! | module | is |
//! |---|---|
//! | [`cache`] | who is in which slot, and who has to go |
//! | [`coactivation`] | which experts follow which, counted while the model runs |
//! | [`predictor`] | the next layer's experts, by that table and by the next router |
//! | [`heat`] | what was learnt, in a file beside the model |
//! | [`trace`] | the routing of a text in a file |
//! | [`replay`] | policies and predictors, scored on such a file |
//!
//! Nothing here reads weights. Layer by layer, whoever does calls
//! [`cache::ExpertCache::route`] with the layer's choices, computes those that have a slot,
//! reads the others into the slots that [`cache::ExpertCache::admit`] names, and asks the
//! predictor; while the drive is idle, it reads what [`cache::ExpertCache::prefetch`] gives
//! a slot to. `emel replay` does the same without the reading.

pub mod cache;
pub mod coactivation;
pub mod heat;
pub mod predictor;
pub mod replay;
pub mod trace;

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
