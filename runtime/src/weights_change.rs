//! A change of how much of the weights is in memory.

use std::cmp::Ordering;
use std::fmt;

use crate::budget::in_binary_units;

/// What weights are given back or taken again, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightsChange {
    /// Bytes of weights that could be given back and were in memory before.
    pub before_bytes: u64,
    /// Bytes of them that are in memory from now on.
    pub kept_bytes: u64,
    /// The memory limit that this is due to; none if it is pressure, or memory that is free
    /// again.
    pub limit_bytes: Option<u64>,
    /// Bytes by which the limit is too low, though all has been given back that can be.
    pub excess_bytes: u64,
    /// Bytes of the plan that cannot be given back.
    pub fixed_bytes: u64,
}

impl fmt::Display for WeightsChange {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = in_binary_units;
        let changed = size(self.before_bytes.abs_diff(self.kept_bytes));
        match (self.kept_bytes.cmp(&self.before_bytes), self.kept_bytes) {
            (Ordering::Equal, _) => {}
            (Ordering::Greater, _) => write!(out, "takes again {changed} of weights: ")?,
            (Ordering::Less, 0) => {
                write!(out, "gave back {changed} of weights, all that can be: ")?;
            }
            (Ordering::Less, kept) => write!(
                out,
                "gave back {changed} of weights, {} more can be: ",
                size(kept)
            )?,
        }
        match (self.kept_bytes > self.before_bytes, self.limit_bytes) {
            (true, _) => out.write_str("memory allows it")?,
            (false, Some(limit)) => write!(out, "the memory limit is now {}", size(limit))?,
            (false, None) => out.write_str("memory is under pressure")?,
        }
        if self.excess_bytes > 0 {
            write!(
                out,
                ", {} too little for what is left: set it to {} at least, or start again with a \
                 smaller budget or context",
                size(self.excess_bytes),
                size(self.fixed_bytes)
            )?;
        }
        Ok(())
    }
}
