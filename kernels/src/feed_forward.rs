//! Activation functions and the other element-by-element steps of a layer.

use crate::arch::{LANES, Routine, Simd, exponential, pad};
use crate::path::Kernels;

impl Kernels {
    /// `out = silu(gate) · up` with `silu(x) = x / (1 + e^-x)` (Shazeer, 2020).
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    pub fn swiglu(&self, gate: &[f32], up: &[f32], out: &mut [f32]) {
        self.gated(Gate::Silu, gate, up, out);
    }

    /// `out = gelu(gate) · up` with the tanh form of GELU (Hendrycks and Gimpel, 2016):
    /// `x/2 · (1 + tanh(√(2/π) · (x + 0.044715·x³)))`.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    pub fn geglu(&self, gate: &[f32], up: &[f32], out: &mut [f32]) {
        self.gated(Gate::Gelu, gate, up, out);
    }

    /// The clamped SwiGLU of gpt-oss: with `g = min(gate, limit)` and `u` clamped to `±limit`,
    /// `out = g / (1 + e^(-alpha·g)) · (u + 1)`.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    pub fn swiglu_clamped(
        &self,
        gate: &[f32],
        up: &[f32],
        alpha: f32,
        limit: f32,
        out: &mut [f32],
    ) {
        self.gated(Gate::Clamped { alpha, limit }, gate, up, out);
    }

    /// `accumulator += values`: a residual connection.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    pub fn add(&self, accumulator: &mut [f32], values: &[f32]) {
        assert_eq!(accumulator.len(), values.len(), "operands of an addition");
        for (sum, value) in accumulator.iter_mut().zip(values) {
            *sum += value;
        }
    }

    /// `accumulator += values · factor`, the product rounded before the addition: an expert's
    /// weighted share.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    pub fn add_scaled(&self, accumulator: &mut [f32], values: &[f32], factor: f32) {
        assert_eq!(accumulator.len(), values.len(), "operands of an addition");
        for (sum, value) in accumulator.iter_mut().zip(values) {
            *sum += value * factor;
        }
    }

    /// `values *= factor`.
    pub fn scale(&self, values: &mut [f32], factor: f32) {
        for value in values {
            *value *= factor;
        }
    }

    fn gated(&self, kind: Gate, gate: &[f32], up: &[f32], out: &mut [f32]) {
        assert_eq!(gate.len(), up.len(), "gate and up of a feed-forward");
        assert_eq!(gate.len(), out.len(), "input and output of a feed-forward");
        self.dispatch(Gated {
            kind,
            gate,
            up,
            out,
        });
    }
}

/// The function of a gate.
#[derive(Clone, Copy)]
enum Gate {
    Silu,
    Gelu,
    Clamped { alpha: f32, limit: f32 },
}

struct Gated<'a> {
    kind: Gate,
    gate: &'a [f32],
    up: &'a [f32],
    out: &'a mut [f32],
}

impl Routine for Gated<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (gates, gate_rest) = self.gate.as_chunks::<LANES>();
        let (ups, up_rest) = self.up.as_chunks::<LANES>();
        let (outs, out_rest) = self.out.as_chunks_mut::<LANES>();
        for ((gate, up), out) in gates.iter().zip(ups).zip(outs) {
            simd.store(self.kind.apply(simd, simd.load(gate), simd.load(up)), out);
        }
        let mut padded = [0.0; LANES];
        let (gate, up) = (simd.load(&pad(gate_rest)), simd.load(&pad(up_rest)));
        simd.store(self.kind.apply(simd, gate, up), &mut padded);
        out_rest.copy_from_slice(&padded[..out_rest.len()]);
    }
}

impl Gate {
    #[inline(always)]
    fn apply<S: Simd>(self, simd: S, gate: S::Floats, up: S::Floats) -> S::Floats {
        match self {
            Self::Silu => simd.multiply(times_sigmoid(simd, gate, gate), up),
            Self::Gelu => {
                // (1 + tanh(u)) / 2 is the logistic function of 2u; this is 2·√(2/π).
                const TWICE_ROOT: f32 = 1.595_769;
                let square = simd.multiply(gate, gate);
                let inner = simd.fused_multiply_add(square, simd.splat(0.044_715), simd.splat(1.0));
                let twice = simd.multiply(simd.multiply(gate, inner), simd.splat(TWICE_ROOT));
                simd.multiply(times_sigmoid(simd, gate, twice), up)
            }
            Self::Clamped { alpha, limit } => {
                let (low, high) = (simd.splat(-limit), simd.splat(limit));
                let gate = simd.minimum(high, gate);
                let up = simd.maximum(low, simd.minimum(high, up));
                let scaled = simd.multiply(gate, simd.splat(alpha));
                let linear = simd.add(up, simd.splat(1.0));
                simd.multiply(times_sigmoid(simd, gate, scaled), linear)
            }
        }
    }
}

/// `x / (1 + e^-y)`.
#[inline(always)]
pub(crate) fn times_sigmoid<S: Simd>(simd: S, x: S::Floats, y: S::Floats) -> S::Floats {
    let negated = simd.subtract(simd.splat(0.0), y);
    let denominator = simd.add(simd.splat(1.0), exponential(simd, negated));
    simd.divide(x, denominator)
}
