//! The drive that a model is on: how busy it is, and what it gives.

use std::fs::{metadata, read_to_string};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use emel::Io;
use emel::internals::measurements::Measurements;
use emel_cli::drive::{kept_curve, streaming_reader};
use emel_loader::files::OpenFiles;
use emel_loader::page_cache::{CachedPages, cached_pages, evict};
use emel_loader::probe::{self, Curve, Limits};

/// A drive that keeps count of its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drive {
    folder: PathBuf,
    /// The number of the whole drive, as cgroups have it: `254:0`.
    pub device: String,
}

/// The time at a moment, and the drive's busy time until then.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    at: Instant,
    busy: Option<Duration>,
}

impl Drive {
    /// The drive that `path` is on; none where the filesystem is on no drive of its own.
    pub fn of(path: &Path) -> Option<Self> {
        let number = metadata(path).ok()?.dev();
        let (major, minor) = (nix::sys::stat::major(number), nix::sys::stat::minor(number));
        Self::in_folder(Path::new("/sys/dev/block"), &format!("{major}:{minor}"))
    }

    /// The drive that `device` is, or is a partition of, as told below `blocks`.
    fn in_folder(blocks: &Path, device: &str) -> Option<Self> {
        let mut folder = blocks.join(device).canonicalize().ok()?;
        if folder.join("partition").exists() {
            folder.pop();
        }
        let device = read_to_string(folder.join("dev")).ok()?.trim().to_owned();
        Some(Self { folder, device })
    }

    /// By how much the page cache reads ahead (`queue/read_ahead_kb`).
    pub fn read_ahead_bytes(&self) -> Option<u64> {
        let text = read_to_string(self.folder.join("queue/read_ahead_kb")).ok()?;
        let kibibytes: u64 = text.trim().parse().ok()?;
        kibibytes.checked_mul(1024)
    }

    /// Time for which it had something to do, so far (`io_ticks`, the tenth field of
    /// `Documentation/block/stat.rst`).
    fn busy(&self) -> Option<Duration> {
        let text = read_to_string(self.folder.join("stat")).ok()?;
        let milliseconds = text.split_whitespace().nth(9)?.parse().ok()?;
        Some(Duration::from_millis(milliseconds))
    }
}

impl Moment {
    /// Now.
    pub fn now(drive: Option<&Drive>) -> Self {
        Self {
            at: Instant::now(),
            busy: drive.and_then(Drive::busy),
        }
    }

    /// The share of the time since `earlier` for which the drive had something to do.
    pub fn busy_share_since(&self, earlier: &Self) -> Option<f64> {
        let busy = self.busy?.checked_sub(earlier.busy?)?;
        let time = self.at.duration_since(earlier.at).as_secs_f64();
        (time > 0.0).then(|| (busy.as_secs_f64() / time).min(1.0))
    }
}

/// Puts all files of a model out of the page cache, and says what is left in it.
///
/// # Errors
/// When a file cannot be opened, or more than a hundredth of its pages stay.
pub fn evict_all(files: &[PathBuf]) -> anyhow::Result<CachedPages> {
    let mut all = CachedPages {
        is_told: true,
        ..CachedPages::default()
    };
    for path in files {
        let failed = || format!("{}: cannot put it out of the page cache", path.display());
        evict(path).with_context(failed)?;
        let found = cached_pages(path).with_context(failed)?;
        all.pages += found.pages;
        all.resident += found.resident;
        all.is_told &= found.is_told;
    }
    anyhow::ensure!(
        !all.is_told || all.resident <= all.pages / 100,
        "{} of {} pages stay in the page cache, so a run would not start cold; end what has the \
         model mapped, and have it on a drive and not in memory",
        all.resident,
        all.pages
    );
    Ok(all)
}

/// What the drive gives: as it was measured before, or measured now and kept for the contenders.
/// None for a model that is too small to measure with, and where measuring is refused.
pub async fn curve(model: &Path, files: &[PathBuf]) -> Option<Curve> {
    if let Some(curve) = kept_curve(model, Io::Auto) {
        return Some(curve);
    }
    let backend = streaming_reader(Io::Auto);
    let open = OpenFiles::open(files.iter().map(PathBuf::as_path), true).ok()?;
    let curve = probe::measure(&Arc::new(open), backend, Limits::THOROUGH).await;
    let curve = curve.ok()?;
    if let Some(kept) = Measurements::of_user() {
        // Where it cannot be kept the contenders plan without, as they would anyway.
        let _ = kept.keep_drive(model, backend, &curve);
    }
    Some(curve)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

    use std::fs;

    use super::*;

    fn write(folder: &Path, file: &str, text: &str) {
        let path = folder.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn a_partition_is_counted_as_its_drive_as_cgroups_do() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "vda/dev", "254:0\n");
        write(root.path(), "vda/stat", "1 2 3 4 5 6 7 8 9 1500 11\n");
        write(root.path(), "vda/queue/read_ahead_kb", "128\n");
        write(root.path(), "vda/vda1/partition", "1\n");
        write(root.path(), "vda/vda1/dev", "254:1\n");
        let blocks = root.path().join("block");
        fs::create_dir(&blocks).unwrap();
        std::os::unix::fs::symlink("../vda/vda1", blocks.join("254:1")).unwrap();
        let drive = Drive::in_folder(&blocks, "254:1").unwrap();
        assert_eq!(drive.device, "254:0");
        assert_eq!(drive.busy(), Some(Duration::from_millis(1500)));
        assert_eq!(drive.read_ahead_bytes(), Some(128 << 10));
        assert_eq!(Drive::in_folder(&blocks, "0:42"), None);
    }

    #[test]
    fn a_share_is_of_the_time_between_and_at_most_all_of_it() {
        let at = Instant::now();
        let moment = |milliseconds, busy| Moment {
            at: at + Duration::from_millis(milliseconds),
            busy: Some(Duration::from_millis(busy)),
        };
        assert_eq!(
            moment(1000, 750).busy_share_since(&moment(0, 500)),
            Some(0.25)
        );
        assert_eq!(
            moment(1000, 9000).busy_share_since(&moment(0, 500)),
            Some(1.0)
        );
        let unknown = Moment { at, busy: None };
        assert_eq!(moment(1000, 9000).busy_share_since(&unknown), None);
        assert_eq!(moment(0, 1).busy_share_since(&moment(0, 0)), None);
    }

    #[test]
    fn a_model_starts_cold() {
        // Where this program is there is a drive, which /tmp may not be on.
        let programs = std::env::current_exe().unwrap();
        let folder = tempfile::tempdir_in(programs.parent().unwrap()).unwrap();
        let path = folder.path().join("file");
        fs::write(&path, vec![1; 1 << 20]).unwrap();
        let left = evict_all(std::slice::from_ref(&path)).unwrap();
        assert_eq!((left.pages, left.resident, left.is_told), (256, 0, true));
        let missing = evict_all(&[folder.path().join("nothing")]).unwrap_err();
        assert!(format!("{missing:#}").contains("nothing: cannot put it out"));
    }
}
