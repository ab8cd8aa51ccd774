//! Layers that look back on a number of positions only, between layers that look at all.

use crate::error::ModelError;
use crate::hyperparameters::Hyperparameters;
use crate::keys::Keys;

/// Which layers have a sliding window.
#[derive(Debug, Clone)]
pub(super) struct Windows {
    /// Positions that they look back on, the token's own included.
    positions: usize,
    /// Whether a layer is one of them.
    layers: Vec<bool>,
}

impl Windows {
    /// A window of `positions` in all layers but one in `every`, the last of each run, unless
    /// the file has a pattern: another such number, or a flag for each layer.
    ///
    /// # Errors
    /// When the pattern is of another type or length, or of no layer.
    pub(super) fn read(
        keys: &Keys<'_>,
        shape: &Hyperparameters,
        positions: usize,
        every: usize,
    ) -> Result<Self, ModelError> {
        let suffix = "attention.sliding_window_pattern";
        let layers = if keys.is_array(suffix) {
            keys.flags(suffix, shape.blocks)?.unwrap_or_default()
        } else {
            let every = keys.u32(suffix)?.map_or(every, |every| every as usize);
            let is_last = |layer: usize| every != 0 && (layer + 1).is_multiple_of(every);
            (0..shape.layers).map(|layer| !is_last(layer)).collect()
        };
        if !layers.contains(&true) {
            let found = if keys.is_array(suffix) {
                "false for all layers"
            } else {
                "1"
            };
            return Err(keys.refuse(suffix, found, "a window in some layer"));
        }
        Ok(Self { positions, layers })
    }

    /// A window of `positions` in all layers.
    pub(super) fn everywhere(shape: &Hyperparameters, positions: usize) -> Self {
        Self {
            positions,
            layers: vec![true; shape.layers],
        }
    }

    /// Positions that a layer looks back on, if it has a window.
    pub(super) fn of(&self, layer: usize) -> Option<usize> {
        self.layers[layer].then_some(self.positions)
    }
}
