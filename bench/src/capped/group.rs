//! What a cgroup says of a run, from copies of its files, version 2 or 1.

use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// A cgroup's account of the run that it was made for. What its kernel does not count is
/// absent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct GroupUsage {
    /// 1 or 2.
    pub version: u8,
    /// The hard limit.
    pub limit_bytes: Option<u64>,
    /// The most that was charged at once, page cache included.
    pub peak_bytes: Option<u64>,
    /// Times that memory could not be had for want of it (`oom`).
    pub oom: Option<u64>,
    /// Processes that were killed for it (`oom_kill`).
    pub oom_kills: Option<u64>,
    /// Times that the soft limit was exceeded (`high`).
    pub high: Option<u64>,
    /// Times that the hard limit was reached and pages were taken back (`max`; the fail
    /// counts of version 1).
    pub max: Option<u64>,
    /// Page faults that had to wait for a drive (`pgmajfault`).
    pub major_faults: Option<u64>,
    /// Bytes that drives have read for the group.
    pub bytes_read: Option<u64>,
}

/// The copies cannot be understood.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// One is there and cannot be read.
    #[error("{}: cannot read: {source}; run the benchmark again", path.display())]
    Read {
        /// The copy.
        path: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
    /// One does not hold what it should.
    #[error("{}: found {found:?}, expected {expected}", path.display())]
    Format {
        /// The copy.
        path: PathBuf,
        /// The start of what it holds.
        found: String,
        /// What was looked for.
        expected: &'static str,
    },
    /// There are none.
    #[error(
        "{}: no files of a memory cgroup, expected memory.events or memory.limit_in_bytes; \
         is the capped.sh of this version in use?", folder.display()
    )]
    Nothing {
        /// Where they should be.
        folder: PathBuf,
    },
}

impl GroupUsage {
    /// Reads the copies in `folder`; reads are those of the drive `device` (`254:0`), or
    /// of all drives without.
    ///
    /// # Errors
    /// When there are none, or one holds something else.
    pub fn read(folder: &Path, device: Option<&str>) -> Result<Self, GroupError> {
        let files = Files { folder };
        if files.text("memory.events")?.is_some() {
            files.version_2(device)
        } else if files.text("memory.limit_in_bytes")?.is_some() {
            files.version_1(device)
        } else {
            Err(GroupError::Nothing {
                folder: folder.to_owned(),
            })
        }
    }
}

struct Files<'a> {
    folder: &'a Path,
}

impl Files<'_> {
    /// The layout of `Documentation/admin-guide/cgroup-v2.rst` of the kernel.
    fn version_2(&self, device: Option<&str>) -> Result<GroupUsage, GroupError> {
        let event = |key| self.keyed("memory.events", &[key]);
        Ok(GroupUsage {
            version: 2,
            limit_bytes: self.number("memory.max")?,
            peak_bytes: self.number("memory.peak")?,
            oom: event("oom")?,
            oom_kills: event("oom_kill")?,
            high: event("high")?,
            max: event("max")?,
            major_faults: self.keyed("memory.stat", &["pgmajfault"])?,
            bytes_read: self.bytes_read("io.stat", device, |words| {
                words
                    .find_map(|word| word.strip_prefix("rbytes="))
                    .map(str::to_owned)
            })?,
        })
    }

    /// The layout of `Documentation/admin-guide/cgroup-v1/{memory,blkio-controller}.rst`.
    fn version_1(&self, device: Option<&str>) -> Result<GroupUsage, GroupError> {
        let fails = self.number("memory.failcnt")?;
        // Where both limits are the same, the one with swap is reached first.
        let swap_fails = self.number("memory.memsw.failcnt")?;
        Ok(GroupUsage {
            version: 1,
            limit_bytes: self.number("memory.limit_in_bytes")?,
            peak_bytes: self.number("memory.max_usage_in_bytes")?,
            oom_kills: self.keyed("memory.oom_control", &["oom_kill"])?,
            max: fails.map(|fails| fails.saturating_add(swap_fails.unwrap_or(0))),
            major_faults: self.keyed("memory.stat", &["total_pgmajfault", "pgmajfault"])?,
            bytes_read: self.bytes_read("blkio.throttle.io_service_bytes", device, |words| {
                (words.next() == Some("Read")).then(|| words.next().map(str::to_owned))?
            })?,
            ..GroupUsage::default()
        })
    }

    fn text(&self, name: &str) -> Result<Option<String>, GroupError> {
        let path = self.folder.join(name);
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(GroupError::Read { path, source }),
        }
    }

    fn parse(&self, name: &str, number: &str) -> Result<u64, GroupError> {
        number.parse().map_err(|_| GroupError::Format {
            path: self.folder.join(name),
            found: number.chars().take(60).collect(),
            expected: "a number",
        })
    }

    /// The number that is all of a file; none for `max`.
    fn number(&self, name: &str) -> Result<Option<u64>, GroupError> {
        let text = self.text(name)?;
        let text = text.as_deref().map(str::trim).filter(|it| *it != "max");
        text.map(|text| self.parse(name, text)).transpose()
    }

    /// The number behind the first of `keys` that has a line.
    fn keyed(&self, name: &str, keys: &[&str]) -> Result<Option<u64>, GroupError> {
        let Some(text) = self.text(name)? else {
            return Ok(None);
        };
        let line = |key: &&str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(' '));
            lines.find_map(|(found, number)| (found == *key).then(|| number.trim()))
        };
        let number = keys.iter().find_map(line);
        number.map(|number| self.parse(name, number)).transpose()
    }

    /// The sum over lines that begin with a drive of what `number` finds in their rest;
    /// none without such a line.
    fn bytes_read(
        &self,
        name: &str,
        device: Option<&str>,
        number: impl Fn(&mut std::str::SplitWhitespace<'_>) -> Option<String>,
    ) -> Result<Option<u64>, GroupError> {
        let Some(text) = self.text(name)? else {
            return Ok(None);
        };
        let mut sum = None;
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let drive = words.next().unwrap_or_default();
            // The others are totals.
            if drive.contains(':')
                && device.is_none_or(|device| device == drive)
                && let Some(number) = number(&mut words)
            {
                let bytes = self.parse(name, &number)?;
                sum = Some(bytes.saturating_add(sum.unwrap_or(0)));
            }
        }
        Ok(sum)
    }
}
