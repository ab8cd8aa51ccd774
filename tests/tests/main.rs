//! Tests of the whole engine, in one program: linking one takes less than linking twenty.
//! `steady_decode.rs` is another, because it counts what the process allocates.

mod arch_golden;
mod budget_ladder;
mod cancel;
mod changed_file;
mod dequantise;
mod exactness;
mod expert_layouts;
mod experts;
mod faults;
mod keys;
mod live_budget;
mod lossy;
mod memory;
mod moe_replay;
mod odd_models;
mod prefetch;
mod profile;
mod quants_golden;
mod real_models;
mod routing_log;
mod sessions;
mod stream_events;
mod streamed_bytes;
mod test_files;
mod unit_cuts;
mod unused_tensors;
