//! The activations of the tokens in flight: one block of memory for each [`Buffer`].

use arrayvec::ArrayVec;

use crate::program::{BUFFERS, Buffer};

/// Buffers of `[tokens, width]` floats.
#[derive(Debug)]
pub(crate) struct Activations {
    buffers: [Vec<f32>; BUFFERS],
    /// As of the last operation that wrote the buffer.
    widths: [usize; BUFFERS],
    /// Tokens in flight, the same in every buffer.
    pub(crate) tokens: usize,
}

impl Activations {
    /// Buffers of at most these widths; `room` says for how many tokens each is.
    pub(crate) fn new(widths: [usize; BUFFERS], room: impl Fn(usize) -> usize) -> Self {
        Self {
            buffers: std::array::from_fn(|buffer| vec![0.0; room(buffer) * widths[buffer]]),
            widths,
            tokens: 0,
        }
    }

    /// Floats that a token has in the buffer.
    pub(crate) fn width(&self, buffer: Buffer) -> usize {
        self.widths[buffer as usize]
    }

    /// The next operation writes so many floats per token.
    pub(crate) fn set_width(&mut self, buffer: Buffer, width: usize) {
        debug_assert!(
            self.tokens * width <= self.buffers[buffer as usize].len(),
            "{buffer:?} is not {width} wide"
        );
        self.widths[buffer as usize] = width;
    }

    /// One token's floats.
    pub(crate) fn row(&self, buffer: Buffer, token: usize) -> &[f32] {
        let width = self.width(buffer);
        &self.buffers[buffer as usize][token * width..][..width]
    }

    /// One token's floats.
    pub(crate) fn row_mut(&mut self, buffer: Buffer, token: usize) -> &mut [f32] {
        let width = self.width(buffer);
        &mut self.buffers[buffer as usize][token * width..][..width]
    }

    /// The floats of all tokens in flight.
    pub(crate) fn all(&self, buffer: Buffer) -> &[f32] {
        &self.buffers[buffer as usize][..self.tokens * self.width(buffer)]
    }

    /// The floats of all tokens in flight.
    pub(crate) fn all_mut(&mut self, buffer: Buffer) -> &mut [f32] {
        let length = self.tokens * self.width(buffer);
        &mut self.buffers[buffer as usize][..length]
    }

    /// The floats of all tokens in flight, of several buffers.
    ///
    /// # Panics
    /// When two of them are the same.
    pub(crate) fn several<const N: usize>(&mut self, buffers: [Buffer; N]) -> [&mut [f32]; N] {
        let (tokens, widths) = (self.tokens, self.widths);
        let mut index = buffers
            .iter()
            .map(|&buffer| tokens * widths[buffer as usize]);
        self.buffers
            .get_disjoint_mut(buffers.map(|buffer| buffer as usize))
            .expect("different buffers")
            .map(|values| &mut values[..index.next().unwrap_or(0)])
    }

    /// The floats of all tokens in flight: of a buffer that is read, and of others.
    ///
    /// # Panics
    /// When two of them are the same, or there are more than `N` others.
    pub(crate) fn one_and_others<const N: usize>(
        &mut self,
        one: Buffer,
        others: &[Buffer],
    ) -> (&[f32], ArrayVec<&mut [f32], N>) {
        let mut found: [Option<&mut [f32]>; BUFFERS] = [const { None }; BUFFERS];
        for ((found, values), width) in found.iter_mut().zip(&mut self.buffers).zip(self.widths) {
            *found = values.get_mut(..self.tokens * width);
        }
        let mut take = |buffer: Buffer| {
            let values = found[buffer as usize].take();
            values.expect("different buffers with room for the tokens in flight")
        };
        let one = take(one);
        (one, others.iter().map(|&buffer| take(buffer)).collect())
    }

    /// Leaves only the last `count` tokens of a buffer in flight.
    pub(crate) fn keep_last(&mut self, buffer: Buffer, count: usize) {
        let width = self.width(buffer);
        let first = (self.tokens - count) * width;
        self.buffers[buffer as usize].copy_within(first..self.tokens * width, 0);
        self.tokens = count;
    }
}
