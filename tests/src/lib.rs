//! What the tests of all crates share.

#![forbid(unsafe_code)]

pub mod fixtures;
pub mod gguf_writer;
pub mod run;
