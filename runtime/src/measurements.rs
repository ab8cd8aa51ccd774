//! What has been measured of this machine, kept between runs: the drive's curve and the
//! kernels' rates.
//!
//! A folder of small text files, one for each filesystem and reader and one for each
//! instruction set and number of threads. Nothing depends on it but speed: a file that
//! is missing is measured again, one that is damaged is passed over, and a folder that
//! cannot be written is done without.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};

use emel_loader::files::filesystem_id;
use emel_loader::probe::{Curve, Point};
use emel_loader::reader::Backend;
use tempfile::NamedTempFile;

/// The first line of each kind of file. A format that changes gets another number.
const DRIVE_HEAD: &str = "emel-drive 1";
const COMPUTE_HEAD: &str = "emel-compute 1";
/// More than any of the files has.
const FILE_BYTES_MAX: u64 = 64 << 10;

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
#[error("{}: {found}, expected what emel doctor writes; it is passed over, run emel doctor to replace it", path.display())]
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
        let Some(path) = self.drive_path(model, backend) else {
            return Ok(None);
        };
        let points = read(&path, DRIVE_HEAD, |words| match words {
            ["point", block_bytes, depth, rate] => point(block_bytes, depth, rate),
            _ => None,
        })?;
        Ok(points
            .filter(|points| !points.is_empty())
            .map(|points| Curve { points }))
    }

    /// Keeps what `backend` reaches on the drive that `model` is on, and with it the points
    /// that are kept and that `curve` lacks: little memory leaves some out.
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
        let kept = self.drive(model, backend).ok().flatten();
        let is_new = |old: &Point| {
            let mut points = curve.points.iter();
            !points.any(|it| (it.block_bytes, it.depth) == (old.block_bytes, old.depth))
        };
        let kept = kept.unwrap_or_default().points.into_iter().filter(is_new);
        let mut text = format!("{DRIVE_HEAD}\n");
        for point in curve.points.iter().copied().chain(kept) {
            let Point {
                block_bytes,
                depth,
                bytes_per_second,
            } = point;
            let _ = writeln!(text, "point {block_bytes} {depth} {bytes_per_second:.0}");
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
        let path = self.compute_path(kernels, threads);
        let rates = read(&path, COMPUTE_HEAD, |words| match words {
            ["rate", format, rate] => Some(((*format).to_owned(), positive(rate)?)),
            _ => None,
        })?;
        Ok(rates.map(|bytes_per_second| ComputeRates { bytes_per_second }))
    }

    /// Keeps the rates of kernels named `kernels` on so many threads, and with them those
    /// that are kept of other formats.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn keep_compute(
        &self,
        kernels: &str,
        threads: usize,
        rates: &ComputeRates,
    ) -> Result<PathBuf, KeepError> {
        let mut all = rates.bytes_per_second.clone();
        let kept = self.compute(kernels, threads).ok().flatten();
        let others = kept.unwrap_or_default().bytes_per_second;
        all.extend(
            others
                .into_iter()
                .filter(|(name, _)| rates.of(name).is_none()),
        );
        let mut text = format!("{COMPUTE_HEAD}\n");
        for (format, rate) in all {
            let _ = writeln!(text, "rate {format} {rate:.0}");
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
            let mut file = NamedTempFile::new_in(&self.folder)?;
            file.write_all(text.as_bytes())?;
            file.persist(&path).map_err(|error| error.error)
        };
        match written() {
            Ok(_) => Ok(path),
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
    if lines.next() != Some(head) {
        return Err(damaged(format!("the first line is not `{head}`")));
    }
    let parsed = lines.enumerate().map(|(index, text)| {
        let words: Vec<&str> = text.split(' ').collect();
        line(&words).ok_or_else(|| damaged(format!("line {} makes no sense", index + 2)))
    });
    parsed.collect::<Result<_, _>>().map(Some)
}

fn point(block_bytes: &str, depth: &str, rate: &str) -> Option<Point> {
    let block_bytes = block_bytes.parse().ok()?;
    let depth = depth.parse().ok()?;
    // What a plan can be made of.
    let is_sane = (4096..=1 << 30).contains(&block_bytes) && (1..=1024).contains(&depth);
    is_sane.then_some(Point {
        block_bytes,
        depth,
        bytes_per_second: positive(rate)?,
    })
}

fn positive(text: &str) -> Option<f64> {
    let number: f64 = text.parse().ok()?;
    (number.is_finite() && number > 0.0).then_some(number)
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
        expected.points[0].bytes_per_second = 3e9;
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
        keep(&[("Q4_K", 3e9)]);
        let found = kept.compute("avx2", 2).unwrap().unwrap();
        assert_eq!(found, rates(&[("Q4_K", 3e9), ("F32", 2e9)]));
        assert_eq!(kept.compute("avx2", 4).unwrap(), None);
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
            "emel-drive 2\npoint 1048576 8 1\n",
            "emel-drive 1\npoint 1048576 8\n",
            "emel-drive 1\npoint 0 8 1\n",
            "emel-drive 1\npoint 1048576 99999999 1\n",
            "emel-drive 1\npoint 1048576 8 nan\n",
            "emel-drive 1\npoint 1048576 8 -1\n",
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
        std::fs::write(&path, "emel-drive 1\n").unwrap();
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
