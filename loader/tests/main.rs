//! Tests of the loader that need no process of their own, in one program.

mod expert_slots;
mod faults;
mod gguf;
mod live_budget;
mod page_cache;
mod plan;
mod probe;
mod support;
