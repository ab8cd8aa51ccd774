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
use emel::internals::blueprint::{Blueprint, Io};
use emel::internals::budget::{in_bytes, number_and_unit};
use emel::internals::measurements::{ComputeRates, DamagedError, Measurements};
use emel::{Backend, Error};

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
#[derive(Debug, Clone, PartialEq)]
pub struct DriveRate {
    /// Bytes per second.
    pub bytes_per_second: f64,
    /// As it was written.
    pub text: String,
}

/// A rate that cannot be understood.
#[derive(Debug, thiserror::Error)]
pub enum RateError {
    /// The text is no rate.
    #[error("`{0}` is not a drive's rate; write 500MB/s or 2GB/s, or 2GiB/s (powers of 1024)")]
    Syntax(String),
    /// The text is only a number.
    #[error("{0} what? for example {0}GB/s")]
    Unit(String),
}

impl FromStr for DriveRate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        let refused = || RateError::Syntax(text.to_owned());
        let per_second = text.strip_suffix("/s").unwrap_or(text);
        let (number, unit) = number_and_unit(per_second).ok_or_else(refused)?;
        if unit.is_empty() {
            return Err(RateError::Unit(per_second.trim_end().to_owned()));
        }
        let bytes = unit_bytes(unit).and_then(|unit_bytes| in_bytes(number, unit_bytes));
        Ok(Self {
            bytes_per_second: bytes.ok_or_else(refused)? as f64,
            text: text.to_owned(),
        })
    }
}

/// Bytes of a unit as drives are sold: `GB` is decimal, `GiB` binary. `Gb` are bits to those who
/// write it so.
fn unit_bytes(unit: &str) -> Option<f64> {
    let is_of_bits = unit.len() == 2 && unit.starts_with(char::is_uppercase) && unit.ends_with('b');
    let unit = unit.to_ascii_uppercase();
    let (base, prefix) = match (unit.strip_suffix("IB"), unit.strip_suffix('B')) {
        _ if is_of_bits => return None,
        (Some(prefix), _) => (1024.0_f64, prefix),
        (None, Some(prefix)) => (1000.0, prefix),
        (None, None) => (1000.0, unit.as_str()),
    };
    let power = match prefix {
        "" if unit == "B" => 0,
        "K" => 1,
        "M" => 2,
        "G" => 3,
        "T" => 4,
        _ => return None,
    };
    Some(base.powi(power))
}

impl DriveRate {
    /// A curve that is the same everywhere. Its ring is one that drives of any kind reach most of
    /// their rate with.
    pub fn curve(&self) -> Curve {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_decimal_unless_they_say_that_they_are_binary() {
        const GIB: f64 = (1_u64 << 30) as f64;
        for (text, expected) in [
            ("3500MB/s", 3.5e9),
            ("3.5GB/s", 3.5e9),
            ("3.5 GB/s", 3.5e9),
            ("2gb/s", 2e9),
            ("2G", 2e9),
            ("500M/s", 5e8),
            ("2GiB/s", 2.0 * GIB),
            ("2 gib/s", 2.0 * GIB),
            ("512KiB/s", 524_288.0),
            ("4096B/s", 4096.0),
        ] {
            let rate: DriveRate = text.parse().unwrap();
            assert_eq!(rate.bytes_per_second, expected, "{text}");
        }
    }

    #[test]
    fn a_rate_without_a_unit_is_asked_for_one_and_bits_are_refused() {
        for text in ["2", "2/s", "2 "] {
            let refused = text.parse::<DriveRate>().unwrap_err().to_string();
            assert_eq!(refused, "2 what? for example 2GB/s", "{text}");
        }
        for text in [
            "", "fast", "GB/s", "0GB/s", "6Gb/s", "2X/s", "1G/m", "2iB/s", "-1GB/s",
        ] {
            let refused = text.parse::<DriveRate>().unwrap_err();
            assert!(matches!(refused, RateError::Syntax(_)), "{text}: {refused}");
        }
    }
}
