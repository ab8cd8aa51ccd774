//! What bounds or gates activations outside a feed-forward network.

use crate::arch::{LANES, Routine, Simd, pad};
use crate::feed_forward::times_sigmoid;
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

    /// `values *= factors`, element by element.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    pub fn multiply(&self, values: &mut [f32], factors: &[f32]) {
        assert_eq!(values.len(), factors.len(), "operands of a product");
        for (value, factor) in values.iter_mut().zip(factors) {
            *value *= factor;
        }
    }

    /// `values = silu(values)`, with `silu(x) = x / (1 + e^-x)`.
    pub fn silu(&self, values: &mut [f32]) {
        self.dispatch(Silu { values });
    }

    /// `values *= silu(gate)`.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    pub fn gate_by_silu(&self, values: &mut [f32], gate: &[f32]) {
        assert_eq!(values.len(), gate.len(), "values and their gates");
        self.dispatch(GateBySilu { values, gate });
    }
}

struct Silu<'a> {
    values: &'a mut [f32],
}

impl Routine for Silu<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let apply = |lanes| times_sigmoid(simd, lanes, lanes);
        let (eights, rest) = self.values.as_chunks_mut::<LANES>();
        for eight in eights {
            simd.store(apply(simd.load(eight)), eight);
        }
        let mut padded = pad(rest);
        simd.store(apply(simd.load(&padded)), &mut padded);
        rest.copy_from_slice(&padded[..rest.len()]);
    }
}

struct GateBySilu<'a> {
    values: &'a mut [f32],
    gate: &'a [f32],
}

impl Routine for GateBySilu<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let apply = |value, gate| simd.multiply(value, times_sigmoid(simd, gate, gate));
        let (eights, rest) = self.values.as_chunks_mut::<LANES>();
        let (gates, gate_rest) = self.gate.as_chunks::<LANES>();
        for (eight, gate) in eights.iter_mut().zip(gates) {
            simd.store(apply(simd.load(eight), simd.load(gate)), eight);
        }
        let mut padded = pad(rest);
        simd.store(
            apply(simd.load(&padded), simd.load(&pad(gate_rest))),
            &mut padded,
        );
        rest.copy_from_slice(&padded[..rest.len()]);
    }
}
