//! Which experts follow which: counts of (layer, expert) → (next layer, expert), learnt
//! token by token.
//!
//! The experts of the layer at hand tell something about those of the next one, more than
//! how often these are used. After the last layer comes the first one of the next token.

use super::MixtureShape;

/// When an expert has been used so often, what is counted for it is halved: the table
/// follows what the model is used for, and a count fits a byte. As many as guess best.
const USES_MAX: u8 = 128;
/// What is left of the counts of an earlier run, as a divisor: another text has other
/// successors, and must be able to outweigh them soon.
const FADING: u8 = 8;
/// Uses that the frequency of the next layer's expert stands in for.
const PRIOR_USES: f32 = 4.0;

/// The table. It takes a byte for each pair of experts of neighbouring layers and for each
/// expert: 0.8 MB for 48 layers of 128 experts, 3.8 MB for 58 of 256.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Coactivation {
    shape: MixtureShape,
    /// `[layers, experts, experts of the next layer]`.
    counts: Vec<u8>,
    /// How often each expert was used before another layer, `[layers, experts]`.
    uses: Vec<u8>,
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
        shape.all() * (shape.experts + 1)
    }

    /// All of its numbers, for a file: uses, then counts.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u8> {
        self.uses.iter().chain(&self.counts).copied()
    }

    /// The table of these numbers, if it can have come about.
    pub(super) fn from_numbers(shape: MixtureShape, numbers: &[u8]) -> Option<Self> {
        let (uses, counts) = numbers.split_at(shape.all());
        let rows = counts.chunks_exact(shape.experts);
        let is_sane = |(&uses, counts): (&u8, &[u8])| {
            uses < USES_MAX && counts.iter().all(|&count| count <= uses)
        };
        uses.iter().zip(rows).all(is_sane).then_some(Self {
            shape,
            counts: counts.to_vec(),
            uses: uses.to_vec(),
        })
    }

    /// Makes less of what was counted, for another text.
    pub fn fade(&mut self) {
        for number in self.counts.iter_mut().chain(&mut self.uses) {
            *number /= FADING;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: MixtureShape = MixtureShape {
        layers: 2,
        experts: 4,
        used: 2,
    };

    fn predicted(table: &Coactivation, layer: usize, chosen: &[usize]) -> [f32; 4] {
        let mut chances = [0.5; 4];
        table.predict(layer, chosen, &mut chances);
        chances
    }

    #[test]
    fn an_empty_table_leaves_chances_as_they_are() {
        assert_eq!(predicted(&Coactivation::new(SHAPE), 0, &[1, 2]), [0.5; 4]);
    }

    #[test]
    fn what_followed_before_becomes_likelier() {
        let mut table = Coactivation::new(SHAPE);
        for _ in 0..50 {
            table.learn(0, &[0, 1], &[2, 3]);
            table.learn(0, &[2, 3], &[0, 1]);
        }
        let chances = predicted(&table, 0, &[0, 1]);
        assert!(chances[2] > 0.9 && chances[3] > 0.9, "{chances:?}");
        assert!(chances[0] < 0.1 && chances[1] < 0.1, "{chances:?}");
        // Half of the signs for each.
        for chance in predicted(&table, 0, &[0, 2]) {
            assert!((chance - 0.5).abs() < 0.01, "{chance}");
        }
        assert_eq!(predicted(&table, 1, &[0, 1]), [0.5; 4], "another layer");
    }

    #[test]
    fn counts_stay_in_their_bytes_and_old_ones_fade() {
        let mut table = Coactivation::new(SHAPE);
        let learn = |table: &mut Coactivation, next: &[usize]| {
            (0..1000).for_each(|_| table.learn(1, &[0], next));
        };
        learn(&mut table, &[1, 2]);
        learn(&mut table, &[1, 3]);
        let chances = predicted(&table, 1, &[0]);
        assert!(chances[1] > 0.9 && chances[3] > 0.9, "{chances:?}");
        assert!(chances[2] < 0.1, "{chances:?}");
    }

    #[test]
    fn a_faded_table_is_soon_outweighed() {
        let mut table = Coactivation::new(SHAPE);
        (0..100).for_each(|_| table.learn(0, &[0], &[1, 2]));
        table.fade();
        assert!(predicted(&table, 0, &[0])[1] > 0.8);
        (0..30).for_each(|_| table.learn(0, &[0], &[3, 2]));
        let chances = predicted(&table, 0, &[0]);
        assert!(chances[3] > chances[1], "{chances:?}");
    }
}
