//! The machine that a report is of, without its name.

use std::path::Path;

use emel_cli::doctor::machine::{filesystem_type, kernel, processor};
use emel_loader::probe::Curve;
use emel_systemd::Memory;
use serde::Serialize;

use super::drive::Drive;

/// What speeds depend on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Environment {
    /// The processor's name, where the kernel tells it.
    pub processor: Option<String>,
    /// Processors that may be used.
    pub processors: usize,
    /// Memory in all.
    pub ram_bytes: u64,
    /// The kernel's release.
    pub kernel: String,
    /// The type of the filesystem that the model is on.
    pub filesystem: Option<String>,
    /// By how much the page cache reads ahead on that drive: what a mapping's page fault
    /// brings beside its page.
    pub read_ahead_bytes: Option<u64>,
    /// The drive's rates, if it has been measured.
    pub drive: Vec<DrivePoint>,
}

/// What the drive gives to one ring.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct DrivePoint {
    /// Bytes of a slot.
    pub block_bytes: u64,
    /// Slots, half of which are in flight.
    pub depth: usize,
    /// Bytes that arrive in a second.
    pub bytes_per_second: f64,
}

impl Environment {
    /// This machine, with the drive that `model` is on.
    ///
    /// # Errors
    /// When the kernel does not say how much memory there is.
    pub fn look(
        model: &Path,
        drive: Option<&Drive>,
        curve: Option<&Curve>,
    ) -> anyhow::Result<Self> {
        let points = curve.into_iter().flat_map(|curve| &curve.points);
        Ok(Self {
            processor: processor(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            ram_bytes: Memory::default().total()?,
            kernel: kernel(),
            filesystem: filesystem_type(model),
            read_ahead_bytes: drive.and_then(Drive::read_ahead_bytes),
            drive: points
                .map(|point| DrivePoint {
                    block_bytes: point.block_bytes,
                    depth: point.depth,
                    bytes_per_second: point.bytes_per_second,
                })
                .collect(),
        })
    }

    /// The drive's highest rate.
    pub fn drive_bytes_per_second(&self) -> Option<f64> {
        let rates = self.drive.iter().map(|point| point.bytes_per_second);
        rates.max_by(f64::total_cmp)
    }
}
