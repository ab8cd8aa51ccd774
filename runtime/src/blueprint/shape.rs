//! The context and the chunk: how much of the budget they may take.
//!
//! Both grow in small steps with what the budget has beyond the smallest plan: in doublings,
//! a somewhat larger budget would leave less to weights.

use emel_model::forward::Footprint;
use emel_model::program::Program;

use super::draft::Draft;
use super::settings::Settings;

/// The context length where neither the user nor the model asks for less.
const CONTEXT_DEFAULT: usize = 4096;
/// A context that nobody chose is shortened to fit, but not below this.
const CONTEXT_MIN: usize = 512;
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

/// Sizes that the plan is free to choose.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) context: usize,
    pub(super) chunk: usize,
    pub(super) logit_tokens: usize,
}

impl Shape {
    /// What the forward pass allocates.
    pub(super) fn footprint(self, settings: &Settings, program: &Program) -> Footprint {
        Footprint {
            context: self.context,
            context_wished: context_wished(settings, program),
            chunk: self.chunk,
            logit_tokens: self.logit_tokens,
            threads: settings.threads,
            kv_type: settings.kv_type,
        }
    }
}

/// The context before the budget shortens it.
pub(super) fn context_wished(settings: &Settings, program: &Program) -> usize {
    let trained = program.hyperparameters.context_length;
    match settings.context {
        Some(0) => trained,
        Some(context) => context,
        None => CONTEXT_DEFAULT.min(trained),
    }
}

impl Draft<'_> {
    /// The smallest context and chunk.
    pub(super) fn frugal_shape(&self) -> Shape {
        self.with_chunk(self.context_min(), CHUNK_MIN)
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
        let context = largest(self.context_min(), self.context_wished(), |context| {
            let (kv_bytes, _) = bytes(self.with_chunk(context, CHUNK_MIN));
            kv_bytes <= kv_bytes_min.saturating_add(spare_bytes / KV_SHARE)
        });
        // A cache with a window has room for a chunk on top.
        let of_chunk = |chunk| {
            let (kv_bytes, activation_bytes) = bytes(self.with_chunk(context, chunk));
            kv_bytes.saturating_add(activation_bytes)
        };
        let least_bytes = of_chunk(CHUNK_MIN);
        let chunk = largest(CHUNK_MIN, CHUNK_MAX, |chunk| {
            of_chunk(chunk) <= least_bytes.saturating_add(spare_bytes / ACTIVATION_SHARE)
        });
        self.with_chunk(context, chunk)
    }

    /// The most generous shape that `fits`, as the smallest one does.
    pub(super) fn largest_shape(&self, spare_bytes: u64, fits: impl Fn(Shape) -> bool) -> Shape {
        let part = |parts: usize| (u128::from(spare_bytes) * parts as u128 / PARTS as u128) as u64;
        let parts = largest(0, PARTS, |parts| fits(self.generous_shape(part(parts))));
        self.generous_shape(part(parts))
    }

    fn with_chunk(&self, context: usize, chunk: usize) -> Shape {
        let chunk = chunk.min(context);
        Shape {
            context,
            chunk,
            logit_tokens: if self.settings.all_logits { chunk } else { 1 },
        }
    }

    pub(super) fn context_wished(&self) -> usize {
        context_wished(self.settings, self.program)
    }

    fn context_min(&self) -> usize {
        match self.settings.context {
            Some(_) => self.context_wished(),
            None => self.context_wished().min(CONTEXT_MIN),
        }
    }
}

/// The largest number from `least` to `most`, in steps, that `fits`; all that are smaller
/// fit then, and `least` does in any case.
fn largest(least: usize, most: usize, fits: impl Fn(usize) -> bool) -> usize {
    let number = |steps: usize| (least + steps * STEP).min(most.max(least));
    let all = most.saturating_sub(least).div_ceil(STEP);
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
                let found = largest(8, most, |number| number <= limit);
                let steps = (8..most).step_by(STEP).chain([most]);
                let expected = steps.filter(|&number| number <= limit).max();
                assert_eq!(found, expected.unwrap_or(8), "{limit} of {most}");
            }
        }
        assert_eq!(largest(8, 3, |_| true), 8);
    }
}
