//! What the budget is spent on besides weights.

use emel_loader::expert_slots;
use emel_loader::page::PageSize;
use emel_loader::plan::Item;
use emel_loader::trace::Trace;
use emel_model::sampler::Sampler;

use super::draft::Draft;
use super::settings::Settings;
use super::shape::Shape;
use crate::experts::demand::ExpertDemand;

/// Code, stacks, allocator and kernel structures, as measured on a small model with a
/// program that was not cached.
const PROCESS_BYTES: u64 = 10 << 20;
/// Events that a profile keeps.
pub(super) const TRACE_EVENTS: usize = 1 << 16;
/// What a worker thread adds, in pages, as measured with 1024 of them.
const THREAD_PAGES: usize = 4;

/// About what a token of a conversation has as text.
#[cfg(feature = "chat")]
const TOKEN_BYTES: usize = 4;

/// Bytes of what is recorded, if anything is.
pub(super) fn profile_bytes(settings: &Settings) -> Option<u64> {
    let bytes = Trace::required_bytes(TRACE_EVENTS) as u64;
    settings.profile.then_some(bytes)
}

impl Draft<'_> {
    /// One after the other, as they are printed.
    pub(super) fn items(&self, shape: Shape) -> Vec<Item> {
        let footprint = shape.footprint(self.settings, self.program);
        let page_bytes = PageSize::of_system().bytes();
        let item = |name: String, bytes| Item { name, bytes };
        let profile = profile_bytes(self.settings).map(|bytes| item("profile".to_owned(), bytes));
        #[cfg(feature = "chat")]
        let rendering = self.settings.renders.then(|| {
            let bytes = emel_model::chat::rendering_bytes(shape.context * TOKEN_BYTES);
            item("chat template".to_owned(), bytes)
        });
        let expert_uses = &self.program.expert_uses;
        let expert_tables = (!expert_uses.is_empty()).then(|| {
            let bytes =
                expert_slots::table_bytes(expert_uses) + ExpertDemand::required_bytes(self.program);
            item("expert tables".to_owned(), bytes)
        });
        let mut items = vec![
            item(
                "process".to_owned(),
                PROCESS_BYTES + (self.settings.threads * THREAD_PAGES * page_bytes) as u64,
            ),
            item("tokenizer".to_owned(), self.tokenizer_bytes),
            item(
                "sampler".to_owned(),
                self.sampler_bytes(shape.context) as u64,
            ),
            item(
                "norms and biases".to_owned(),
                self.program.resident_bytes(self.catalog),
            ),
            item(
                format!(
                    "KV cache ({} tokens, {})",
                    shape.context,
                    self.settings.kv_type.name()
                ),
                footprint.kv_bytes(self.program),
            ),
            item(
                "tokens and recurrent state".to_owned(),
                footprint.recurrent_bytes(self.program),
            ),
            item(
                format!("activations ({} tokens a pass)", shape.chunk),
                footprint.activation_bytes(self.program),
            ),
        ];
        items.extend(expert_tables);
        items.extend(profile);
        #[cfg(feature = "chat")]
        items.extend(rendering);
        items
    }

    /// What the sampler takes for a context, in whole pages, and a page for the biases
    /// that rule out the ends of generation.
    pub(super) fn sampler_bytes(&self, context: usize) -> usize {
        let (options, vocabulary) = (&self.sampler, self.program.vocabulary());
        let tokens_max = context.saturating_add(1);
        let bytes = Sampler::required_bytes(options, vocabulary, tokens_max, &self.breakers);
        let page_bytes = PageSize::of_system().bytes();
        let pages = bytes.div_ceil(page_bytes).saturating_add(1);
        pages.saturating_mul(page_bytes)
    }
}
