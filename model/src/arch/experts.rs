//! Layers with mixtures of experts: dense ones before them, and experts of every token beside
//! them. <https://arxiv.org/abs/2401.06066>

use crate::error::ModelError;
use crate::program::{Activation, Mixture, ProgramBuilder};

/// Where a mixture of experts stands.
#[derive(Debug, Clone, Copy)]
pub(super) struct Experts {
    /// Its router and activation function.
    pub(super) mixture: Mixture,
    /// Layers before the first mixture.
    pub(super) leading_dense: usize,
    /// Width of the experts of every token, 0 if there are none.
    pub(super) shared_width: usize,
    /// Whether a gate says how much of these counts.
    pub(super) gates_shared: bool,
}

impl Experts {
    /// A mixture in every layer, without experts of every token.
    pub(super) fn everywhere(mixture: Mixture) -> Self {
        Self {
            mixture,
            leading_dense: 0,
            shared_width: 0,
            gates_shared: false,
        }
    }

    /// The feed-forward network of a layer: dense, or the mixture and the shared experts.
    pub(super) fn feed_forward(
        &self,
        model: &mut ProgramBuilder<'_>,
        block: &str,
        layer: usize,
    ) -> Result<(), ModelError> {
        if layer < self.leading_dense {
            return model.feed_forward(block, Activation::Silu);
        }
        model.mixture(block, self.mixture)?;
        if self.shared_width > 0 {
            let activation = self.mixture.activation;
            model.shared_experts(block, self.shared_width, activation, self.gates_shared)?;
        }
        Ok(())
    }
}
