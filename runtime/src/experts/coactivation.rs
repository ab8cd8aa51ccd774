//! Which experts follow which: counts of (layer, expert) → (next layer, expert), learnt
//! while the model runs.
//!
//! The experts of the layer at hand tell something about those of the next one, more than
//! how often these are used. After the last layer comes the first one of the next token.

use super::MixtureShape;

/// When an expert has been used so often, what is counted for it is halved: the table
/// follows what the model is used for, and a count fits 16 bits.
const USES_MAX: u16 = 4096;
/// Uses that the frequency of the next layer's expert stands in for.
const PRIOR_USES: f32 = 4.0;

/// The table. It takes 2 bytes for each pair of experts of neighbouring layers and for
/// each expert: 1.6 MB for 48 layers of 128 experts, 7.6 MB for 58 of 256.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Coactivation {
    shape: MixtureShape,
    /// `[layers, experts, experts of the next layer]`.
    counts: Vec<u16>,
    /// How often each expert was used before another layer, `[layers, experts]`.
    uses: Vec<u16>,
}

impl Coactivation {
    /// An empty table.
    pub fn new(shape: MixtureShape) -> Self {
        Self {
            shape,
            counts: vec![0; shape.all() * shape.experts],
            uses: vec![0; shape.all()],
        }
    }

    /// The bytes that [`Coactivation::new`] allocates.
    pub fn required_bytes(shape: MixtureShape) -> usize {
        shape.all() * (shape.experts + 1) * size_of::<u16>()
    }

    /// All of its numbers, for a file: uses, then counts.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u16> {
        self.uses.iter().chain(&self.counts).copied()
    }

    /// The table of these numbers, if it can have come about.
    pub(super) fn from_numbers(
        shape: MixtureShape,
        numbers: impl Iterator<Item = u16>,
    ) -> Option<Self> {
        let mut uses: Vec<u16> = numbers.collect();
        let counts = uses.split_off(shape.all());
        let rows = counts.chunks_exact(shape.experts);
        let is_sane = |(&uses, counts): (&u16, &[u16])| {
            uses < USES_MAX && counts.iter().all(|&count| count <= uses)
        };
        uses.iter().zip(rows).all(is_sane).then_some(Self {
            shape,
            counts,
            uses,
        })
    }

    /// A token went to the experts `before` in `layer` and to `after` in the next one.
    pub fn learn(&mut self, layer: usize, before: &[usize], after: &[usize]) {
        let experts = self.shape.experts;
        for &expert in before {
            let index = self.shape.index(layer, expert);
            let row = &mut self.counts[index * experts..][..experts];
            for &next in after {
                row[next] += 1;
            }
            self.uses[index] += 1;
            if self.uses[index] == USES_MAX {
                self.uses[index] /= 2;
                row.iter_mut().for_each(|count| *count /= 2);
            }
        }
    }

    /// The chance of each expert of the layer after `layer`, where a token goes to
    /// `chosen`; `chances` holds their chances without that, `[experts]`.
    pub fn predict(&self, layer: usize, chosen: &[usize], chances: &mut [f32]) {
        let experts = self.shape.experts;
        let index = |&expert: &usize| self.shape.index(layer, expert);
        for (next, chance) in chances.iter_mut().enumerate() {
            let of_expert = |index: usize| {
                let count = f32::from(self.counts[index * experts + next]);
                (count + PRIOR_USES * *chance) / (f32::from(self.uses[index]) + PRIOR_USES)
            };
            let sum: f32 = chosen.iter().map(index).map(of_expert).sum();
            *chance = sum / chosen.len().max(1) as f32;
        }
    }
}
