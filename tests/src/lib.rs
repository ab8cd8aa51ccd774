//! What the tests of all crates share.

#![forbid(unsafe_code)]

pub mod faults;
pub mod fixtures;
pub mod forward;
pub mod gguf_writer;
pub mod programs;
pub mod random;
pub mod routing;
pub mod run;
pub mod signals;
pub mod terminal;
pub mod variants;
