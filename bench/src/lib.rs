//! Benchmarks, and the models of random weights that they run on.

#![forbid(unsafe_code)]

pub mod capped;
pub mod options;
pub mod synth;
pub mod usage;
