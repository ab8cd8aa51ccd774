//! Short causal convolutions over the tokens of a sequence, one filter for each channel.

use std::ops::Range;

use crate::path::Kernels;
use crate::pool::{Pool, TASK_VALUES};
use crate::shared::SharedSlice;

/// Channels of a cache line, which two tasks had better not write to.
const CHANNELS_NEAR: usize = 16;

impl Kernels {
    /// Replaces each token's values by `y[t, c] = Σ_j weight[j, c] · x[t - taps + 1 + j, c]`.
    ///
    /// `x` is `[tokens, channels]` and `weight` `[taps, channels]`, the last tap for the token
    /// itself. `history`, `[taps - 1, channels]`, holds the inputs before `x`, oldest first (zeros
    /// before the first token), and afterwards the last ones of `x`. Tokens are taken one after
    /// another, so how a sequence is cut into calls does not show in the bits. The channels of
    /// many tokens are split over the pool.
    ///
    /// # Panics
    ///
    /// If the shapes disagree.
    pub fn short_convolution(
        &self,
        pool: &Pool,
        weight: &[f32],
        channels: usize,
        history: &mut [f32],
        x: &mut [f32],
    ) {
        assert!(
            channels > 0 && !weight.is_empty() && weight.len().is_multiple_of(channels),
            "a filter for each channel"
        );
        let (earlier, last) = weight.split_at(weight.len() - channels);
        assert_eq!(history.len(), earlier.len(), "inputs before these");
        assert!(
            x.len().is_multiple_of(channels),
            "a convolution needs whole tokens"
        );
        let (tokens, rows) = (x.len() / channels, earlier.len() / channels);
        let runs = channels.div_ceil(CHANNELS_NEAR);
        let tasks = (x.len() / TASK_VALUES).clamp(1, runs);
        let convolution = Convolution {
            earlier,
            last,
            history: SharedSlice::new(history),
            x: SharedSlice::new(x),
        };
        pool.run_tasks(tasks, |_, task| {
            let start = |task: usize| (runs * task / tasks * CHANNELS_NEAR).min(channels);
            // SAFETY: the runs of different tasks do not meet.
            unsafe { convolution.run(start(task)..start(task + 1), tokens) };
        });
        if rows > 0 {
            // Each input was written over the oldest.
            history.rotate_left(tokens % rows * channels);
        }
    }
}

/// The operands of a call.
struct Convolution<'a> {
    /// All taps but the last, and the last.
    earlier: &'a [f32],
    last: &'a [f32],
    history: SharedSlice<'a, f32>,
    x: SharedSlice<'a, f32>,
}

impl Convolution<'_> {
    /// Some channels of `tokens` tokens. The oldest inputs, which nobody needs after a token, make
    /// room for its sums, and then for the newest.
    ///
    /// # Safety
    ///
    /// No other thread is at these channels.
    unsafe fn run(&self, channels: Range<usize>, tokens: usize) {
        let (width, length) = (self.last.len(), channels.len());
        let rows = self.earlier.len() / width;
        let last = &self.last[channels.clone()];
        for token in 0..tokens {
            // SAFETY: the channels are this call's, so says the caller, and the tokens' rows and
            // those of the history do not overlap each other.
            let values = unsafe { self.x.range(token * width + channels.start, length) };
            if rows == 0 {
                for (value, tap) in values.iter_mut().zip(last) {
                    *value *= tap;
                }
                continue;
            }
            let past = |age: usize| {
                let row = (token + age) % rows;
                // SAFETY: as above; each row is borrowed once at a time.
                unsafe { self.history.range(row * width + channels.start, length) }
            };
            let taps = |age: usize| &self.earlier[age * width..][channels.clone()];
            let sums = past(0);
            for (sum, tap) in sums.iter_mut().zip(taps(0)) {
                *sum *= tap;
            }
            for age in 1..rows {
                for ((sum, input), tap) in sums.iter_mut().zip(past(age)).zip(taps(age)) {
                    *sum += tap * *input;
                }
            }
            for ((value, sum), tap) in values.iter_mut().zip(sums).zip(last) {
                let input = *value;
                *value = *sum + tap * input;
                *sum = input;
            }
        }
    }
}
