//! What tensors mean: architectures, KV cache, tokenizers and samplers.

#![forbid(unsafe_code)]

mod activations;
pub mod arch;
#[cfg(feature = "chat")]
pub mod chat;
pub mod error;
pub mod forward;
pub mod hyperparameters;
pub mod keys;
pub mod kv_cache;
pub mod program;
pub mod routing;
pub mod routing_log;
pub mod sampler;
mod saved_numbers;
pub mod state;
pub mod steps;
pub mod tokenizer;
