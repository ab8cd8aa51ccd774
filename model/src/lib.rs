//! What tensors mean: architectures, KV cache, tokenizers and samplers.

#![forbid(unsafe_code)]

pub mod sampler;
pub mod tokenizer;
