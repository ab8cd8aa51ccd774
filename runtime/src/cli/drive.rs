//! What the commands know of the drive: from the last time it was measured, or from a
//! moment's measuring before a model streams from it for the first time.

use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use emel_kernels::Kernels;
use emel_loader::files::OpenFiles;
use emel_loader::probe::{self, Curve, Limits, Point};
use emel_loader::reader;

use super::notice;
use crate::blueprint::{Blueprint, Io};
use crate::budget::parse_size;
use crate::measurements::{ComputeRates, DamagedError, Measurements};
use crate::{Backend, Error};

/// A model that is smaller has been read before its drive would have been measured.
const FILE_BYTES_MIN: u64 = 256 << 20;

/// The reader that `io` comes to when weights stream.
pub fn streaming_reader(io: Io) -> Backend {
    match io {
        Io::Only(backend) => backend,
        Io::Auto | Io::Unmapped => reader::fastest().0,
    }
}

/// What a drive is assumed to give, whatever is read from it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DriveRate {
    /// Bytes per second.
    pub bytes_per_second: f64,
}

/// A rate that cannot be understood.
#[derive(Debug, thiserror::Error)]
#[error(
    "`{found}` is not a drive's rate; write bytes per second, 500M/s or 2GiB/s (powers of 1024)"
)]
pub struct RateError {
    found: String,
}

impl FromStr for DriveRate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        let bytes = parse_size(text.strip_suffix("/s").unwrap_or(text));
        let refused = || RateError {
            found: text.to_owned(),
        };
        Ok(Self {
            bytes_per_second: bytes.ok_or_else(refused)? as f64,
        })
    }
}

impl DriveRate {
    /// A curve that is the same everywhere. Its ring is one that drives of any kind reach most of
    /// their rate with.
    pub fn curve(self) -> Curve {
        let point = Point {
            block_bytes: 1 << 20,
            depth: 8,
            bytes_per_second: self.bytes_per_second,
        };
        Curve {
            points: vec![point],
        }
    }
}

/// What was measured of the drive that `model` is on.
pub fn kept_curve(model: &Path, io: Io) -> Option<Curve> {
    let kept = Measurements::of_user()?;
    let backend = streaming_reader(io);
    or_notice(kept.drive(model, backend))
}

/// What was measured of the kernels with `threads` threads.
pub fn kept_rates(threads: usize) -> Option<ComputeRates> {
    let kernels = Kernels::from_environment().ok()?;
    or_notice(Measurements::of_user()?.compute(kernels.name(), threads))
}

fn or_notice<T>(found: Result<Option<T>, DamagedError>) -> Option<T> {
    found.unwrap_or_else(|error| {
        notice(&error.to_string());
        None
    })
}

/// Measures the drive for a moment if the blueprint streams much from it and it has not
/// been measured, plans anew, and keeps what was found. A drive that cannot be measured
/// is no error: the plan stays.
pub async fn measure_new(blueprint: &mut Blueprint) {
    let is_known = blueprint.settings.drive.is_some();
    let is_small = blueprint.catalog.file_bytes() < FILE_BYTES_MIN;
    if is_known || is_small || !blueprint.plan.streams() {
        return;
    }
    let backend = streaming_reader(blueprint.settings.io);
    let Some(kept) = Measurements::of_user().filter(|_| backend.needs_buffers()) else {
        return;
    };
    // What could not be kept would be measured every time.
    if !kept.is_writable() {
        return;
    }
    let limits = Limits {
        memory_bytes: Limits::BRIEF.memory_bytes.min(blueprint.weight_bytes()),
        ..Limits::BRIEF
    };
    let Ok(curve) = measure(blueprint, backend, limits).await else {
        return;
    };
    if kept.keep_drive(&blueprint.path, backend, &curve).is_ok() {
        blueprint.plan_for_drive(curve);
    }
}

async fn measure(blueprint: &Blueprint, backend: Backend, limits: Limits) -> Result<Curve, Error> {
    let files = OpenFiles::open_model(blueprint.catalog.files(), true)?;
    Ok(probe::measure(&Arc::new(files), backend, limits).await?)
}
