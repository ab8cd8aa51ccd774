//! What the commands know of the drive: from the last time it was measured, or from a
//! moment's measuring before a model streams from it for the first time.

use std::path::Path;
use std::sync::Arc;

use emel_kernels::Kernels;
use emel_loader::files::OpenFiles;
use emel_loader::probe::{self, Curve, Limits};
use emel_loader::reader;

use super::notice;
use crate::blueprint::{Blueprint, Io};
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

/// What was measured of the drive that `model` is on.
pub fn kept_curve(model: &Path, io: Io) -> Option<Curve> {
    let kept = Measurements::of_user()?;
    let backend = streaming_reader(io);
    or_notice(kept.drive(model, backend))
}

/// What was measured of the kernels with so many threads.
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
