//! How much of the budget the context and the chunk take.
//!
//! Both grow in small steps with what the budget has beyond the smallest plan: in doublings,
//! a somewhat larger budget would leave less to weights.

use super::draft::Draft;
use super::settings::CONTEXT_MAX;
use super::shape::Shape;

/// Largest and smallest number of prompt tokens in a pass.
const CHUNK_MAX: usize = 512;
const CHUNK_MIN: usize = 8;
/// Tokens by which both grow.
const STEP: usize = 8;
/// Parts of what is spare, in steps of [`STEP`] of which is looked for what leaves all weights in
/// memory.
const PARTS: usize = 1 << 13;
/// Parts that a KV cache and activations may take unasked of what the smallest plan leaves,
/// as divisors.
const KV_SHARE: u64 = 16;
const ACTIVATION_SHARE: u64 = 8;
/// The same of what is free where all weights are in memory.
const KV_SHARE_OF_FREE: u64 = 2;

impl Draft<'_> {
    /// The smallest context and chunk.
    pub(super) fn frugal_shape(&self) -> Shape {
        self.with_chunk(self.context.least, CHUNK_MIN)
    }

    /// Context and chunk that leave to weights most of the `spare_bytes` which the budget has
    /// beyond the smallest plan.
    pub(super) fn generous_shape(&self, spare_bytes: u64) -> Shape {
        let bytes = |shape: Shape| {
            let footprint = shape.footprint(self.settings, self.program);
            let kv_bytes = footprint.kv_bytes(self.program);
            (kv_bytes, footprint.activation_bytes(self.program))
        };
        let (kv_bytes_min, _) = bytes(self.frugal_shape());
        let context = largest(self.context.least, self.context.most, STEP, |context| {
            let (kv_bytes, _) = bytes(self.with_chunk(context, CHUNK_MIN));
            kv_bytes <= kv_bytes_min.saturating_add(spare_bytes / KV_SHARE)
        });
        // A cache with a window has room for a chunk on top.
        let of_chunk = |chunk| {
            let (kv_bytes, activation_bytes) = bytes(self.with_chunk(context, chunk));
            kv_bytes.saturating_add(activation_bytes)
        };
        let least_bytes = of_chunk(CHUNK_MIN);
        let chunk = largest(CHUNK_MIN, CHUNK_MAX, STEP, |chunk| {
            of_chunk(chunk) <= least_bytes.saturating_add(spare_bytes / ACTIVATION_SHARE)
        });
        self.with_chunk(context, chunk)
    }

    /// The most generous shape that `fits`, as the smallest one does.
    pub(super) fn largest_shape(&self, spare_bytes: u64, fits: impl Fn(Shape) -> bool) -> Shape {
        let part = |parts: usize| (u128::from(spare_bytes) * parts as u128 / PARTS as u128) as u64;
        let parts = largest(0, PARTS, STEP, |parts| {
            fits(self.generous_shape(part(parts)))
        });
        self.generous_shape(part(parts))
    }

    /// The longest context that takes no more than its share of what is free beside all weights.
    pub(super) fn lengthened(&self, shape: Shape, free_bytes: u64) -> Shape {
        let bytes = |context| {
            let shape = Shape { context, ..shape };
            let footprint = shape.footprint(self.settings, self.program);
            footprint.kv_bytes(self.program)
        };
        let bytes_max = bytes(shape.context).saturating_add(free_bytes / KV_SHARE_OF_FREE);
        let context = largest(shape.context, self.context.most, STEP, |context| {
            bytes(context) <= bytes_max
        });
        Shape { context, ..shape }
    }

    fn with_chunk(&self, context: usize, chunk: usize) -> Shape {
        let chunk = chunk.min(context);
        Shape {
            context,
            chunk,
            logit_tokens: if self.settings.all_logits { chunk } else { 1 },
        }
    }

    /// The longest context that the budget holds, up to what the model was trained for or the
    /// range allows; 0 if it holds none. What is said of a budget is this number.
    pub(super) fn context_held(&self) -> usize {
        let trained = self.program.hyperparameters.context_length;
        let most = self.context.most.max(trained.min(CONTEXT_MAX));
        let fits = |context| self.needed_bytes(context) <= self.budget_bytes;
        match fits(1) {
            true => largest(1, most, 1, fits),
            false => 0,
        }
    }

    /// The smallest budget that holds a context.
    pub(super) fn needed_bytes(&self, context: usize) -> u64 {
        let items = self.items(self.with_chunk(context, CHUNK_MIN));
        let bytes = items.iter().map(|item| item.bytes);
        bytes.fold(self.weight_bytes_min, u64::saturating_add)
    }
}

/// The largest number from `least` to `most`, in steps, that `fits`; all that are smaller
/// fit then, and `least` does in any case.
fn largest(least: usize, most: usize, step: usize, fits: impl Fn(usize) -> bool) -> usize {
    let number = |steps: usize| (least + steps * step).min(most.max(least));
    let all = most.saturating_sub(least).div_ceil(step);
    // So many steps fit, and so many do not.
    let (mut fitting, mut too_many) = (0, all + 1);
    while fitting + 1 < too_many {
        let steps = usize::midpoint(fitting, too_many);
        match fits(number(steps)) {
            true => fitting = steps,
            false => too_many = steps,
        }
    }
    number(fitting)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_number_that_fits_is_found_wherever_it_lies() {
        for most in [8, 9, 16, 100, 512] {
            for limit in 0..600 {
                let found = largest(8, most, STEP, |number| number <= limit);
                let steps = (8..most).step_by(STEP).chain([most]);
                let expected = steps.filter(|&number| number <= limit).max();
                assert_eq!(found, expected.unwrap_or(8), "{limit} of {most}");
            }
        }
        assert_eq!(largest(8, 3, STEP, |_| true), 8);
    }
}
