//! From a GGUF file to bytes in memory: catalog, plan, readers and slots.
//!
//! The data flow, one module per hop: [`gguf`] describes what the files hold,
//! [`mod@unit`] cuts it into pieces, [`plan`] decides which of them stay, [`reader`]
//! brings the others into the [`slots`], and [`weights`] hands them to the steps. Experts
//! that do not all fit have [`expert_slots`], cut by [`expert_layout`]. The [`probe`] tells the plan what the drive
//! gives.

mod aligned_range;
pub mod arena;
#[cfg(feature = "counting-allocator")]
pub mod counting_allocator;
pub mod expert_layout;
pub mod expert_slots;
mod faults;
pub mod files;
pub mod gguf;
pub mod page;
pub mod page_cache;
pub mod plan;
pub mod probe;
mod read_error;
pub mod reader;
pub mod slots;
mod sync;
pub mod trace;
pub mod unit;
pub mod weights;
