//! Short causal convolutions over the tokens of a sequence, one filter for each channel.

use crate::path::Kernels;

impl Kernels {
    /// Replaces each token's values by `y[t, c] = Σ_j weight[j, c] · x[t - taps + 1 + j, c]`.
    ///
    /// `x` is `[tokens, channels]` and `weight` `[taps, channels]`, the last tap for the token
    /// itself. `history`, `[taps - 1, channels]`, holds the inputs before `x`, oldest first (zeros
    /// before the first token), and afterwards the last ones of `x`. Tokens are taken one after
    /// another, so how a sequence is cut into calls does not show in the bits.
    ///
    /// # Panics
    ///
    /// If the shapes disagree.
    pub fn short_convolution(
        &self,
        weight: &[f32],
        channels: usize,
        history: &mut [f32],
        x: &mut [f32],
    ) {
        assert!(
            channels > 0 && !weight.is_empty() && weight.len().is_multiple_of(channels),
            "a filter for each channel"
        );
        let earlier = weight.len() - channels;
        assert_eq!(history.len(), earlier, "inputs before these");
        assert!(
            x.len().is_multiple_of(channels),
            "a convolution needs whole tokens"
        );
        let (earlier, last) = weight.split_at(earlier);
        for token in x.chunks_exact_mut(channels) {
            if history.is_empty() {
                self.multiply(token, last);
            } else {
                convolve(earlier, last, history, token);
            }
        }
    }
}

/// One token. The oldest inputs, which nobody needs after it, make room for the sums, and then
/// for the newest.
fn convolve(earlier: &[f32], last: &[f32], history: &mut [f32], token: &mut [f32]) {
    let channels = token.len();
    let (sums, past) = history.split_at_mut(channels);
    let (oldest, newer) = earlier.split_at(channels);
    for (sum, tap) in sums.iter_mut().zip(oldest) {
        *sum *= tap;
    }
    let rows = past.chunks_exact(channels);
    for (inputs, taps) in rows.zip(newer.chunks_exact(channels)) {
        for ((sum, input), tap) in sums.iter_mut().zip(inputs).zip(taps) {
            *sum += tap * input;
        }
    }
    for ((value, sum), tap) in token.iter_mut().zip(sums).zip(last) {
        let input = *value;
        *value = *sum + tap * input;
        *sum = input;
    }
    history.rotate_left(channels);
}
