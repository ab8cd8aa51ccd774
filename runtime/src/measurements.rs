//! What has been measured of this machine, kept between runs: the drive's curve and the
//! kernels' rates.
//!
//! A folder of small text files, one for each filesystem and reader and one for each
//! instruction set and number of threads. Nothing depends on it but speed: a file that
//! is missing is measured again, one that is damaged is passed over, and a folder that
//! cannot be written is done without.
//!
//! A drive and a memory that others use too have moments in which they are half as fast. So a
//! new measurement joins what is kept, as a mean of logarithms, and no single one decides.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};

use emel_loader::files::filesystem_id;
use emel_loader::probe::{Curve, Point};
use emel_loader::reader::Backend;
use tempfile::NamedTempFile;

use crate::whole_file::write_whole;

/// The first line of each kind of file. A format that changes gets another number, and so does
/// what is measured.
const DRIVE_HEAD: &str = "emel-drive 3";
const COMPUTE_HEAD: &str = "emel-compute 2";
/// More than any of the files has.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Bytes per second that a drive or a memory may have: what lies outside was not measured.
const RATES: std::ops::RangeInclusive<f64> = 1.0..=1e13;

/// The latest measurements that a kept rate is a mean of, roughly.
const TIMES_MAX: u32 = 4;
/// A new rate so many times the kept one, or its inverse, is no moment's: it replaces it.
const CHANGE_MAX: f64 = 4.0;

/// Weights that the kernels go through while they make one token.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ComputeRates {
    /// Names of formats, and bytes of weights per second.
    pub bytes_per_second: Vec<(String, f64)>,
}

impl ComputeRates {
    /// The rate of a format.
    pub fn of(&self, format: &str) -> Option<f64> {
        let mut rates = self.bytes_per_second.iter();
        rates
            .find(|(name, _)| name == format)
            .map(|(_, rate)| *rate)
    }
}

/// A file of measurements cannot be understood.
#[derive(Debug, thiserror::Error)]
#[error("{}: {found}, expected what emel doctor writes; it is ignored, run emel doctor to replace it", path.display())]
pub struct DamagedError {
    path: PathBuf,
    found: String,
}

/// A file of measurements cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub struct KeepError {
    path: PathBuf,
    source: io::Error,
}

/// A rate that is kept.
#[derive(Debug, Clone, Copy, PartialEq)]
struct KeptRate {
    /// The geometric mean of what was measured.
    bytes_per_second: f64,
    /// How often that was.
    times: u32,
}

impl KeptRate {
    /// What is kept of a new rate, and of what was kept before.
    fn joined(before: Option<Self>, bytes_per_second: f64) -> Self {
        let first = Self {
            bytes_per_second,
            times: 1,
        };
        let Some(before) = before else { return first };
        let change = (bytes_per_second / before.bytes_per_second).ln();
        if change.abs() > CHANGE_MAX.ln() {
            return first;
        }
        let times = (before.times + 1).min(TIMES_MAX);
        Self {
            bytes_per_second: before.bytes_per_second * (change / f64::from(times)).exp(),
            times,
        }
    }

    fn parse(rate: &str, times: &str) -> Option<Self> {
        let times = times.parse().ok()?;
        let is_sane = (1..=TIMES_MAX).contains(&times);
        is_sane.then_some(Self {
            bytes_per_second: rate.parse().ok().filter(|rate| RATES.contains(rate))?,
            times,
        })
    }
}

/// The folder of measurements.
#[derive(Debug, Clone)]
pub struct Measurements {
    folder: PathBuf,
}

impl Measurements {
    /// The user's: `emel` in `XDG_CACHE_HOME`, or in `.cache` in `HOME`; none without
    /// either.
    pub fn of_user() -> Option<Self> {
        let folder = |name| {
            let path = PathBuf::from(std::env::var_os(name)?);
            path.is_absolute().then_some(path)
        };
        let cache = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))?;
        Some(Self::in_folder(cache.join("emel")))
    }

    /// Those in `folder`, which need not be there.
    pub fn in_folder(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// What `backend` reaches on the drive that `model` is on, if it has been measured.
    ///
    /// # Errors
    /// When what is kept is damaged.
    pub fn drive(&self, model: &Path, backend: Backend) -> Result<Option<Curve>, DamagedError> {
        let kept = self.kept_points(model, backend)?;
        let curve = Curve {
            points: kept.into_iter().map(|(point, _)| point).collect(),
        };
        Ok((!curve.points.is_empty()).then_some(curve))
    }

    /// The points that are kept, each with how often it was measured.
    fn kept_points(
        &self,
        model: &Path,
        backend: Backend,
    ) -> Result<Vec<(Point, u32)>, DamagedError> {
        let Some(path) = self.drive_path(model, backend) else {
            return Ok(Vec::new());
        };
        let points = read(&path, DRIVE_HEAD, |words| match words {
            ["point", block_bytes, depth, rate, times] => {
                let KeptRate {
                    bytes_per_second,
                    times,
                } = KeptRate::parse(rate, times)?;
                Some((point(block_bytes, depth, bytes_per_second)?, times))
            }
            _ => None,
        })?;
        Ok(points.unwrap_or_default())
    }

    /// Keeps what `backend` reaches on the drive that `model` is on: each point with what is
    /// kept of it, and the points that `curve` lacks, because little memory leaves some out.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn keep_drive(
        &self,
        model: &Path,
        backend: Backend,
        curve: &Curve,
    ) -> Result<PathBuf, KeepError> {
        let id = filesystem_id(model).map_err(|source| KeepError {
            path: model.to_owned(),
            source,
        })?;
        let path = self.path_of_filesystem(&id, backend);
        let kept = self.kept_points(model, backend).unwrap_or_default();
        let is_at = |a: &Point, b: &Point| (a.block_bytes, a.depth) == (b.block_bytes, b.depth);
        let joined = curve.points.iter().map(|new| {
            let before = kept.iter().find(|(old, _)| is_at(old, new));
            let before = before.map(|&(old, times)| KeptRate {
                bytes_per_second: old.bytes_per_second,
                times,
            });
            (*new, KeptRate::joined(before, new.bytes_per_second))
        });
        let is_new = |old: &Point| !curve.points.iter().any(|new| is_at(old, new));
        let others = kept
            .iter()
            .filter(|(old, _)| is_new(old))
            .map(|&(old, times)| {
                let bytes_per_second = old.bytes_per_second;
                let rate = KeptRate {
                    bytes_per_second,
                    times,
                };
                (old, rate)
            });
        let mut text = format!("{DRIVE_HEAD}\n");
        for (point, rate) in joined.chain(others) {
            let Point {
                block_bytes, depth, ..
            } = point;
            let KeptRate {
                bytes_per_second,
                times,
            } = rate;
            let _ = writeln!(
                text,
                "point {block_bytes} {depth} {bytes_per_second:.0} {times}"
            );
        }
        self.write(path, &text)
    }

    /// The rates of kernels named `kernels` on so many threads, if they have been
    /// measured.
    ///
    /// # Errors
    /// When what is kept is damaged.
    pub fn compute(
        &self,
        kernels: &str,
        threads: usize,
    ) -> Result<Option<ComputeRates>, DamagedError> {
        let kept = self.kept_rates(kernels, threads)?;
        let rates = |kept: Vec<(String, KeptRate)>| {
            let rates = kept.into_iter();
            rates.map(|(format, rate)| (format, rate.bytes_per_second))
        };
        Ok(kept.map(|kept| ComputeRates {
            bytes_per_second: rates(kept).collect(),
        }))
    }

    /// The rates that are kept, by format.
    fn kept_rates(
        &self,
        kernels: &str,
        threads: usize,
    ) -> Result<Option<Vec<(String, KeptRate)>>, DamagedError> {
        let path = self.compute_path(kernels, threads);
        read(&path, COMPUTE_HEAD, |words| match words {
            ["rate", format, rate, times] => {
                Some(((*format).to_owned(), KeptRate::parse(rate, times)?))
            }
            _ => None,
        })
    }

    /// Keeps the rates of kernels named `kernels` on so many threads: each with what is kept
    /// of it, and those of other formats.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn keep_compute(
        &self,
        kernels: &str,
        threads: usize,
        rates: &ComputeRates,
    ) -> Result<PathBuf, KeepError> {
        let kept = self.kept_rates(kernels, threads).ok().flatten();
        let mut all = kept.unwrap_or_default();
        for (format, rate) in &rates.bytes_per_second {
            match all.iter_mut().find(|(name, _)| name == format) {
                Some((_, kept)) => *kept = KeptRate::joined(Some(*kept), *rate),
                None => all.push((format.clone(), KeptRate::joined(None, *rate))),
            }
        }
        let mut text = format!("{COMPUTE_HEAD}\n");
        for (format, rate) in all {
            let KeptRate {
                bytes_per_second,
                times,
            } = rate;
            let _ = writeln!(text, "rate {format} {bytes_per_second:.0} {times}");
        }
        self.write(self.compute_path(kernels, threads), &text)
    }

    /// Whether the folder takes files; makes it if it is not there.
    pub fn is_writable(&self) -> bool {
        std::fs::create_dir_all(&self.folder)
            .and_then(|()| NamedTempFile::new_in(&self.folder))
            .is_ok()
    }

    fn drive_path(&self, model: &Path, backend: Backend) -> Option<PathBuf> {
        let filesystem = filesystem_id(model).ok()?;
        Some(self.path_of_filesystem(&filesystem, backend))
    }

    fn path_of_filesystem(&self, id: &str, backend: Backend) -> PathBuf {
        self.folder
            .join(format!("drive-{id}-{}.txt", backend.name()))
    }

    fn compute_path(&self, kernels: &str, threads: usize) -> PathBuf {
        self.folder.join(format!("compute-{kernels}-{threads}.txt"))
    }

    /// The file is there whole or not at all.
    fn write(&self, path: PathBuf, text: &str) -> Result<PathBuf, KeepError> {
        let written = || {
            std::fs::create_dir_all(&self.folder)?;
            write_whole(&path, |out| out.write_all(text.as_bytes()))
        };
        match written() {
            Ok(()) => Ok(path),
            Err(source) => Err(KeepError { path, source }),
        }
    }
}

/// The lines of a file after its head, each made of its words by `line`; `None` when
/// there is no file.
fn read<T>(
    path: &Path,
    head: &str,
    line: impl Fn(&[&str]) -> Option<T>,
) -> Result<Option<Vec<T>>, DamagedError> {
    let damaged = |found: String| DamagedError {
        path: path.to_owned(),
        found,
    };
    let mut text = String::new();
    // Opening a FIFO would wait for whoever writes to it.
    if path.metadata().is_ok_and(|found| !found.is_file()) {
        return Err(damaged("it is no regular file".to_owned()));
    }
    match File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text))
    {
        Ok(bytes) if bytes as u64 > FILE_BYTES_MAX => {
            return Err(damaged(format!("has more than {FILE_BYTES_MAX} bytes")));
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Ok(None),
        // Another user's, which is nothing to tell at every run: it is measured anew, and
        // replaced where the folder allows it.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(None),
        Err(error) => return Err(damaged(format!("cannot be read ({error})"))),
    }
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default();
    if is_other_version(first, head) {
        return Ok(None);
    }
    if first != head {
        return Err(damaged(format!("the first line is not `{head}`")));
    }
    let parsed = lines.enumerate().map(|(index, text)| {
        let words: Vec<&str> = text.split(' ').collect();
        line(&words).ok_or_else(|| damaged(format!("line {} makes no sense", index + 2)))
    });
    parsed.collect::<Result<_, _>>().map(Some)
}

/// Whether it is the head of another version's file, which is measured anew like one that is
/// missing.
fn is_other_version(first: &str, head: &str) -> bool {
    let kind_and_version = |line: &str| {
        let (kind, version) = line.rsplit_once(' ')?;
        Some((kind.to_owned(), version.parse::<u32>().ok()?))
    };
    match (kind_and_version(first), kind_and_version(head)) {
        (Some((found, version)), Some((kind, expected))) => found == kind && version != expected,
        _ => false,
    }
}

fn point(block_bytes: &str, depth: &str, bytes_per_second: f64) -> Option<Point> {
    let block_bytes = block_bytes.parse().ok()?;
    let depth = depth.parse().ok()?;
    // What a plan can be made of.
    let is_sane = (4096..=1 << 30).contains(&block_bytes) && (1..=1024).contains(&depth);
    is_sane.then_some(Point {
        block_bytes,
        depth,
        bytes_per_second,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve() -> Curve {
        let point = |block_bytes, depth, bytes_per_second| Point {
            block_bytes,
            depth,
            bytes_per_second,
        };
        Curve {
            points: vec![point(1 << 20, 8, 2e9), point(4 << 20, 2, 1_234_567_890.0)],
        }
    }

    #[test]
    fn what_is_kept_of_a_drive_is_found_again_for_its_reader_only() {
        let folder = tempfile::tempdir().unwrap();
        let kept = Measurements::in_folder(folder.path().join("emel"));
        let model = folder.path();
        assert_eq!(kept.drive(model, Backend::Ring).unwrap(), None);
        kept.keep_drive(model, Backend::Ring, &curve()).unwrap();
        assert_eq!(kept.drive(model, Backend::Ring).unwrap(), Some(curve()));
        assert_eq!(kept.drive(model, Backend::Pread).unwrap(), None);
        let nowhere = Path::new("no/such/model");
        assert_eq!(kept.drive(nowhere, Backend::Ring).unwrap(), None);
    }

    #[test]
    fn points_that_a_poorer_curve_lacks_stay() {
        let folder = tempfile::tempdir().unwrap();
        let kept = Measurements::in_folder(folder.path().to_owned());
        kept.keep_drive(folder.path(), Backend::Ring, &curve())
            .unwrap();
        let mut poorer = curve();
        poorer.points.truncate(1);
        poorer.points[0].bytes_per_second = 3e9;
        kept.keep_drive(folder.path(), Backend::Ring, &poorer)
            .unwrap();
        let mut expected = curve();
        expected.points[0].bytes_per_second = (2e9_f64 * 3e9).sqrt().round();
        let found = kept.drive(folder.path(), Backend::Ring).unwrap();
        assert_eq!(found, Some(expected));
    }

    #[test]
    fn rates_of_formats_are_added_to_those_of_others() {
        let folder = tempfile::tempdir().unwrap();
        let kept = Measurements::in_folder(folder.path().to_owned());
        let rates = |pairs: &[(&str, f64)]| ComputeRates {
            bytes_per_second: pairs
                .iter()
                .map(|(name, rate)| ((*name).to_owned(), *rate))
                .collect(),
        };
        let keep = |pairs| kept.keep_compute("avx2", 2, &rates(pairs)).unwrap();
        keep(&[("Q4_K", 1e9), ("F32", 2e9)]);
        keep(&[("Q4_K", 4e9), ("Q6_K", 5e9)]);
        let found = kept.compute("avx2", 2).unwrap().unwrap();
        assert_eq!(found, rates(&[("Q4_K", 2e9), ("F32", 2e9), ("Q6_K", 5e9)]));
        assert_eq!(kept.compute("avx2", 4).unwrap(), None);
    }

    #[test]
    fn one_noisy_measurement_moves_a_kept_rate_by_a_part_and_a_changed_drive_replaces_it() {
        let mut kept = None;
        for _ in 0..10 {
            kept = Some(KeptRate::joined(kept, 2e9));
        }
        let noisy = KeptRate::joined(kept, 1e9);
        let expected = 2e9 * 0.5_f64.powf(0.25);
        assert!((noisy.bytes_per_second / expected - 1.0).abs() < 1e-9);
        // Half the speed and twice the speed cancel, in whichever order they come.
        let twice = KeptRate::joined(Some(KeptRate::joined(None, 1e9)), 4e9);
        assert!((twice.bytes_per_second / 2e9 - 1.0).abs() < 1e-9);
        let other_drive = KeptRate::joined(kept, 1e8);
        assert_eq!((other_drive.bytes_per_second, other_drive.times), (1e8, 1));
        let settled = (0..20).fold(noisy, |kept, _| KeptRate::joined(Some(kept), 1.5e9));
        assert!((settled.bytes_per_second / 1.5e9 - 1.0).abs() < 0.01);
    }

    #[test]
    fn a_damaged_file_is_an_error_of_one_line_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let kept = Measurements::in_folder(folder.path().to_owned());
        let path = kept
            .keep_drive(folder.path(), Backend::Ring, &curve())
            .unwrap();
        for text in [
            "",
            "emel-compute 2\npoint 1048576 8 1 1\n",
            "emel-drive 3\npoint 1048576 8 1\n",
            "emel-drive 3\npoint 0 8 1 1\n",
            "emel-drive 3\npoint 1048576 99999999 1 1\n",
            "emel-drive 3\npoint 1048576 8 nan 1\n",
            "emel-drive 3\npoint 1048576 8 -1 1\n",
            "emel-drive 3\npoint 1048576 8 inf 1\n",
            "emel-drive 3\npoint 1048576 8 1e300 1\n",
            "emel-drive 3\npoint 1048576 8 1e-300 1\n",
            "emel-drive 3\npoint 1048576 8 1 0\n",
            "emel-drive 3\npoint 1048576 8 1 4294967295\n",
            "\u{1b}[31m\n",
        ] {
            std::fs::write(&path, text).unwrap();
            let message = kept.drive(folder.path(), Backend::Ring).unwrap_err();
            let message = message.to_string();
            assert!(message.starts_with(path.to_str().unwrap()), "{message}");
            assert_eq!(message.lines().count(), 1);
        }
        std::fs::write(&path, [0xff; 100]).unwrap();
        assert!(kept.drive(folder.path(), Backend::Ring).is_err());
        std::fs::write(&path, "emel-drive 2\npoint 1048576 8 1 1\n").unwrap();
        assert_eq!(kept.drive(folder.path(), Backend::Ring).unwrap(), None);
        std::fs::write(&path, "emel-drive 3\n").unwrap();
        assert_eq!(kept.drive(folder.path(), Backend::Ring).unwrap(), None);
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_told_as_such() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let kept = Measurements::in_folder(file.join("emel"));
        assert!(!kept.is_writable());
        let refused = kept.keep_drive(folder.path(), Backend::Ring, &curve());
        let message = refused.unwrap_err().to_string();
        let path = file.join("emel");
        assert!(message.starts_with(path.to_str().unwrap()), "{message}");
        assert_eq!(kept.drive(folder.path(), Backend::Ring).unwrap(), None);
        assert!(Measurements::in_folder(folder.path().join("a/b")).is_writable());
    }
}
