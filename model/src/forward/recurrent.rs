//! Recurrent layers: short convolutions, and the gated delta rule.

use emel_kernels::{DeltaRuleInput, DeltaRuleShape};

use super::Forward;
use crate::program::Buffer;

impl Forward {
    /// Runs what is mixed through a short convolution.
    pub(super) fn convolve(&mut self, state: usize, weight: usize) {
        let (history, _) = self.state.recurrent_mut(state);
        let channels = self.activations.width(Buffer::Mixed);
        self.kernels.short_convolution(
            &self.pool,
            &self.resident[weight],
            channels,
            history,
            self.activations.all_mut(Buffer::Mixed),
        );
        self.changed(Buffer::Mixed);
    }

    /// Runs queries, keys and values through the memories of a layer.
    pub(super) fn delta_rule(
        &mut self,
        state: usize,
        shape: &DeltaRuleShape,
        [rate, bias]: [usize; 2],
    ) {
        let (_, memory) = self.state.recurrent_mut(state);
        self.activations.set_width(Buffer::Attended, shape.values());
        let [mixed, decay, strength, out] = self.activations.several([
            Buffer::Mixed,
            Buffer::Decay,
            Buffer::Strength,
            Buffer::Attended,
        ]);
        let (kernels, epsilon) = (self.kernels, self.norm_epsilon);
        self.pool.run_rows(mixed, shape.mixed(), |_, mixed| {
            kernels.normalise_queries_and_keys(shape, epsilon, mixed);
        });
        let [rate, bias] = [rate, bias].map(|weight| self.resident[weight].as_slice());
        self.pool.run_rows(decay, rate.len(), |_, decay| {
            kernels.decays(rate, bias, decay);
        });
        self.pool
            .run_rows(strength, 1, |_, strength| kernels.sigmoid(strength));
        let input = DeltaRuleInput {
            mixed,
            decay,
            strength,
        };
        self.kernels
            .delta_rule(&self.pool, shape, &input, memory, out);
        for buffer in [
            Buffer::Mixed,
            Buffer::Decay,
            Buffer::Strength,
            Buffer::Attended,
        ] {
            self.changed(buffer);
        }
    }
}
