//! Experts that do not all fit in memory: which are kept, and which might come next.
//!
//! | module | is |
//! |---|---|
//! | [`demand`] | a layer's experts, computed as they come |
//! | [`prefetch`] | those of the layer after it, read while the drive would be idle |
//! | [`calibration`] | which of them are likely enough |
//! | [`account`] | whether that pays |
//! | [`cache`] | who is in which slot, and who has to go |
//! | [`coactivation`] | which experts follow which, counted token by token |
//! | [`predictor`] | the next layer's experts, by that table and by the next router |
//! | [`miss_curve`] | what a cache of any size would miss, counted on the way |
//! | [`heat`] | what was learnt, in a file for another run |
//! | `heat_file` | where that file is |
//! | [`trace`] | the routing of a text in a file |
//! | [`replay`] | policies and predictors, scored on such a file |
//!
//! The engine runs [`demand`] on [`cache`] and has [`prefetch`] guess; `emel replay` scores
//! the same cache and the same guesses on a trace, without reading weights.

pub mod account;
pub mod cache;
pub mod calibration;
pub mod coactivation;
pub mod demand;
pub mod heat;
pub(crate) mod heat_file;
pub mod miss_curve;
pub mod predictor;
pub mod prefetch;
pub mod replay;
pub mod trace;

use emel_model::program::Program;

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
    /// That of a model, as the engine counts its experts.
    pub fn of(program: &Program) -> Self {
        let (experts, used) = program.routing_max();
        Self {
            layers: program.expert_groups.len(),
            experts,
            used,
        }
    }

    /// The experts of all layers together.
    pub fn all(self) -> usize {
        self.layers * self.experts
    }

    /// The place of an expert among them.
    pub(crate) fn index(self, layer: usize, expert: usize) -> usize {
        layer * self.experts + expert
    }
}
