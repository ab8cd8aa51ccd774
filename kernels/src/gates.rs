//! What bounds or gates activations outside a feed-forward network.

use crate::path::Kernels;

impl Kernels {
    /// `values *= 1 / (1 + e^-gate)`. Each gate counts for a run of the values, all runs
    /// equally long.
    ///
    /// # Panics
    ///
    /// If the values are not a whole number of runs.
    pub fn sigmoid_gate(&self, values: &mut [f32], gates: &[f32]) {
        if gates.is_empty() {
            assert!(values.is_empty(), "values without gates");
            return;
        }
        assert!(
            values.len().is_multiple_of(gates.len()),
            "a gate counts for a whole run"
        );
        let run = values.len() / gates.len();
        for (values, gate) in values.chunks_exact_mut(run.max(1)).zip(gates) {
            self.scale(values, 1.0 / (1.0 + (-gate).exp()));
        }
    }

    /// `values = cap · tanh(values / cap)` (Gemma 2).
    pub fn softcap(&self, values: &mut [f32], cap: f32) {
        for value in values {
            *value = cap * (*value / cap).tanh();
        }
    }
}
