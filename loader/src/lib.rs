//! From a GGUF file to bytes in memory: catalog, plan, readers and slots.

pub mod gguf;
