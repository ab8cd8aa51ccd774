//! What the tests of all crates share.

#![forbid(unsafe_code)]

pub mod gguf_writer;
