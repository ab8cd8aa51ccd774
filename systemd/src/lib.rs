//! What the operating system allows: cgroup limits and usage, and how they change.

#![forbid(unsafe_code)]

mod cgroup;
mod error;
mod memory;
mod watch;

pub use cgroup::{Cgroup, Version};
pub use error::SystemError;
pub use memory::{Memory, OwnMemory};
pub use watch::{MemoryWatch, Pressure};
