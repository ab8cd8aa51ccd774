//! What a forward pass takes of memory.

use emel_kernels::{AttentionScratch, Q8Activations, RopeTable};

use super::guess::Guessing;
use crate::kv_cache::KvType;
use crate::program::{BUFFERS, Buffer, Program};
use crate::routing::Routing;
use crate::routing_log::RoutingLog;
use crate::state::SequenceState;

/// The sizes that a forward pass is made ready for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footprint {
    /// Positions in the KV cache.
    pub context: usize,
    /// The positions that were asked for, of which a budget may leave less. Frequencies
    /// that depend on the context go by this, so that a budget does not change them.
    pub context_wished: usize,
    /// Tokens in a batch.
    pub chunk: usize,
    /// Tokens of a batch whose logits are wanted.
    pub logit_tokens: usize,
    /// Threads that compute.
    pub threads: usize,
    /// How keys and values are kept.
    pub kv_type: KvType,
}

impl Footprint {
    /// Bytes of the KV cache.
    pub fn kv_bytes(&self, program: &Program) -> u64 {
        SequenceState::kv_bytes(&program.states, self.context, self.chunk, self.kv_type)
    }

    /// Bytes of what else a sequence keeps: memories of recurrent layers, its tokens.
    pub fn recurrent_bytes(&self, program: &Program) -> u64 {
        SequenceState::recurrent_bytes(&program.states, self.context)
    }

    /// Bytes of everything else that a pass works in.
    pub fn activation_bytes(&self, program: &Program) -> u64 {
        // Saturating: a plan for absurd sizes is to be refused, not to overflow.
        let floats_bytes = (0..BUFFERS)
            .map(|buffer| {
                self.tokens_in(buffer)
                    .saturating_mul(program.widths[buffer])
            })
            .fold(0, usize::saturating_add)
            .saturating_mul(size_of::<f32>());
        let turns = program
            .rotations
            .iter()
            .map(|rotation| RopeTable::required_bytes(self.chunk, rotation.width))
            .fold(0, usize::saturating_add);
        let [of_tokens, of_experts] = program.quantised_columns();
        let scores = AttentionScratch::required_bytes(self.threads);
        let (experts, used) = program.routing_max();
        let quantised = Q8Activations::required_bytes(self.chunk, of_tokens).saturating_add(
            Q8Activations::required_bytes(self.chunk.saturating_mul(used), of_experts),
        );
        let routing = Routing::required_bytes(self.chunk, experts, used);
        let logged = program.logged_guesses.map_or(0, |guesses| {
            let layers = program.routers.len();
            RoutingLog::required_bytes(self.chunk, layers, [used, guesses])
                .saturating_add(Routing::required_bytes(self.chunk, experts, guesses))
        });
        // One for each token, and one for each of its experts.
        let positions = (1 + used).saturating_mul(self.chunk * size_of::<usize>());
        [
            floats_bytes,
            turns,
            quantised,
            scores,
            routing,
            logged,
            Guessing::required_bytes(program),
            positions,
        ]
        .into_iter()
        .fold(0, usize::saturating_add) as u64
    }

    /// Tokens that a buffer has room for.
    pub(super) fn tokens_in(&self, buffer: usize) -> usize {
        if buffer == Buffer::Logits as usize {
            self.logit_tokens
        } else {
            self.chunk
        }
    }
}
