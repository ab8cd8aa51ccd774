//! The capped benchmark: one model and one prompt through several contenders, each run a process
//! of its own in a memory cgroup of its own, and a report of them.
//!
//! `bench/capped.sh` makes the cgroups, `capped-sweep` runs the contenders ([`run`]) in turns
//! and writes the report ([`report`], [`markdown`], [`plot`]); `capped-run` is emel's side.

pub mod cap;
pub mod contender;
pub mod drive;
pub mod environment;
mod free_memory;
pub mod group;
pub mod markdown;
pub mod plot;
pub mod report;
pub mod run;
pub mod sweep;
pub mod under_way;
