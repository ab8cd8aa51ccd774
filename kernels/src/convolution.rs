//! Short causal convolutions over the tokens of a sequence, one filter for each channel.

use crate::path::Kernels;

impl Kernels {
    /// Replaces each token's values by `y[t, c] = Σ_j weight[c, j] · x[t - taps + 1 + j, c]`.
    ///
    /// `x` is `[tokens, channels]` and `weight` `[channels, taps]`, the last tap for the token
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
        let taps = weight.len() / channels;
        assert_eq!(history.len(), (taps - 1) * channels, "inputs before these");
        assert!(
            x.len().is_multiple_of(channels),
            "a convolution needs whole tokens"
        );
        for token in x.chunks_exact_mut(channels) {
            for (channel, (value, filter)) in
                token.iter_mut().zip(weight.chunks_exact(taps)).enumerate()
            {
                let (&last, earlier) = filter.split_last().expect("at least one tap");
                let past = history.iter().skip(channel).step_by(channels);
                let sum = earlier
                    .iter()
                    .zip(past)
                    .fold(0.0, |sum, (tap, past)| sum + tap * past);
                let input = std::mem::replace(value, sum + last * *value);
                advance(history, channels, channel, input);
            }
        }
    }
}

/// Drops a channel's oldest input and takes a new one in.
#[inline(always)]
fn advance(history: &mut [f32], channels: usize, channel: usize, input: f32) {
    let mut newer = input;
    for row in history.chunks_exact_mut(channels).rev() {
        newer = std::mem::replace(&mut row[channel], newer);
    }
}
