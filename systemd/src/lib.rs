//! What the operating system allows: cgroup limits and usage.

#![forbid(unsafe_code)]

mod cgroup;
mod error;
mod memory;

pub use cgroup::{Cgroup, Version};
pub use error::SystemError;
pub use memory::{Memory, OwnMemory};
