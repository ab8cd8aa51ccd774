//! Root-mean-square normalisation (Zhang and Sennrich, 2019).

use crate::arch::{LANES, Routine, Simd, pad};
use crate::path::Kernels;

impl Kernels {
    /// `out = x / sqrt(mean(x²) + epsilon) · weight`, row by row; a row is `weight.len()` values.
    /// Rows are tokens, or the heads of tokens for per-head norms.
    ///
    /// # Panics
    ///
    /// If `x` is not whole rows or `out` is not as long.
    pub fn rms_norm(&self, x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
        assert_eq!(x.len(), out.len(), "input and output of a norm");
        out.copy_from_slice(x);
        self.rms_norm_in_place(out, weight, epsilon);
    }

    /// [`Kernels::rms_norm`] over its own input.
    ///
    /// # Panics
    ///
    /// If `x` is not whole rows.
    pub fn rms_norm_in_place(&self, x: &mut [f32], weight: &[f32], epsilon: f32) {
        if x.is_empty() {
            return;
        }
        assert!(
            x.len().is_multiple_of(weight.len()),
            "a norm needs whole rows"
        );
        self.dispatch(RmsNorm { x, weight, epsilon });
    }
}

struct RmsNorm<'a> {
    x: &'a mut [f32],
    weight: &'a [f32],
    epsilon: f32,
}

impl Routine for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for row in self.x.chunks_exact_mut(self.weight.len()) {
            let mean = sum_of_squares(simd, row) / row.len() as f32;
            let scale = 1.0 / (mean + self.epsilon).sqrt();
            for (value, weight) in row.iter_mut().zip(self.weight) {
                *value = *value * scale * weight;
            }
        }
    }
}

/// `Σ x²` in the canonical order.
#[inline(always)]
pub(crate) fn sum_of_squares<S: Simd>(simd: S, row: &[f32]) -> f32 {
    let (eights, rest) = row.as_chunks::<LANES>();
    let mut sums = simd.splat(0.0);
    for eight in eights {
        let lanes = simd.load(eight);
        sums = simd.fused_multiply_add(lanes, lanes, sums);
    }
    let lanes = simd.load(&pad(rest));
    simd.sum(simd.fused_multiply_add(lanes, lanes, sums))
}
