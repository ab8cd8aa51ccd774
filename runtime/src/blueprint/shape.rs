//! The context and the chunk: how much of the budget they may take.

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
pub(super) const CHUNK_MIN: usize = 8;
/// Parts of the budget that a KV cache and activations may take unasked, as divisors.
const KV_SHARE: u64 = 4;
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
    settings
        .context
        .unwrap_or_else(|| CONTEXT_DEFAULT.min(trained))
}

impl Draft<'_> {
    /// Context and chunk that leave most of the budget to weights.
    pub(super) fn shape(&self) -> Shape {
        let mut context = self.context_wished();
        if self.settings.context.is_none() {
            let kv_bytes = |context| {
                let shape = self.with_chunk(context, CHUNK_MIN);
                shape
                    .footprint(self.settings, self.program)
                    .kv_bytes(self.program)
            };
            while kv_bytes(context) > self.budget_bytes / KV_SHARE
                && context / 2 >= self.context_min()
            {
                context /= 2;
            }
        }
        let mut chunk = CHUNK_MAX;
        let of_chunk = |chunk| {
            let shape = self.with_chunk(context, chunk);
            let footprint = shape.footprint(self.settings, self.program);
            (
                footprint.activation_bytes(self.program),
                footprint.kv_bytes(self.program),
            )
        };
        // A cache with a window has room for a chunk on top.
        let (_, kv_bytes_min) = of_chunk(CHUNK_MIN);
        let activation_bytes = |chunk| {
            let (activations, kv_bytes) = of_chunk(chunk);
            activations + (kv_bytes - kv_bytes_min)
        };
        while chunk > CHUNK_MIN && activation_bytes(chunk) > self.budget_bytes / ACTIVATION_SHARE {
            chunk /= 2;
        }
        self.with_chunk(context, chunk)
    }

    pub(super) fn with_chunk(&self, context: usize, chunk: usize) -> Shape {
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

    pub(super) fn context_min(&self) -> usize {
        match self.settings.context {
            Some(context) => context,
            None => self.context_wished().min(CONTEXT_MIN),
        }
    }
}
