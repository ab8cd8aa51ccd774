//! Experts that do not all fit in memory: which are kept, and which might come next.
//!
//! | module | is |
//! |---|---|
//! | [`demand`] | a layer's experts, computed as they come |
//! | [`cache`] | who is in which slot, and who has to go |
//! | [`coactivation`] | which experts follow which, counted token by token |
//! | [`predictor`] | the next layer's experts, by that table and by the next router |
//! | [`heat`] | what a replay has learnt, in a file for another one |
//! | [`trace`] | the routing of a text in a file |
//! | [`replay`] | policies and predictors, scored on such a file |
//!
//! The engine runs [`demand`] on [`cache`]: an expert is read when its layer's routing names
//! it. Guesses ([`coactivation`], [`predictor`], [`heat`]) are scored by `emel replay` alone,
//! which reads no weights.

pub mod cache;
pub mod coactivation;
pub mod demand;
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
