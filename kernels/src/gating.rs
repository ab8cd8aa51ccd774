//! Activation functions in place, and gates that let a part of other values through.

use crate::arch::{LANES, Routine, Simd, pad};
use crate::feed_forward::times_sigmoid;
use crate::path::Kernels;

impl Kernels {
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
