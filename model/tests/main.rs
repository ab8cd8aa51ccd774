//! Tests of the model's parts that need no process of their own, in one program.

mod bad_models;
#[cfg(feature = "chat")]
mod chat;
#[cfg(feature = "chat")]
mod jinja;
mod rope_scaling;
mod sampler_breakers;
mod tokenizer_families;
mod tokenizer_golden;
mod tokenizer_properties;
mod tokenizer_real;
