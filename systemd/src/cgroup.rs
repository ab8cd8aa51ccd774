//! The memory cgroup this process runs in: its limit, its usage, its peak.
//!
//! Under version 2 every cgroup is a folder of one tree; under version 1 each
//! controller has a tree of its own. Both may be mounted at once (hybrid), and then
//! the memory controller belongs to one of them only.

use std::io;
use std::path::{Component, Path, PathBuf};

use crate::SystemError;
use crate::error::{read, unexpected};

/// Version 1 says "no limit" with the largest page-aligned number, which depends on
/// the page size. No machine has this much memory.
const UNLIMITED_BYTES_MIN: u64 = 1 << 60;

/// Which cgroup interface holds the memory controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// `memory.limit_in_bytes` and its like.
    V1,
    /// `memory.max` and its like.
    V2,
}

/// The cgroup that accounts for this process's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cgroup {
    version: Version,
    /// Where the hierarchy is mounted; limits above it cannot be seen.
    mount: PathBuf,
    folder: PathBuf,
}

impl Cgroup {
    /// Finds the cgroup of this process.
    ///
    /// # Errors
    /// [`SystemError::NoMemoryCgroup`] when no mounted hierarchy has the memory
    /// controller; others when `/proc` cannot be read.
    pub fn own() -> Result<Self, SystemError> {
        Self::own_below(Path::new("/"))
    }

    /// Finds the cgroup of this process as told by `root/proc/self`, for tests.
    ///
    /// # Errors
    /// As for [`Cgroup::own`].
    pub fn own_below(root: &Path) -> Result<Self, SystemError> {
        let memberships = read(&root.join("proc/self/cgroup"))?;
        let mounts = read(&root.join("proc/self/mountinfo"))?;
        let mounts: Vec<Mount> = mounts.lines().filter_map(Mount::parse).collect();
        // A hybrid system mounts version 2 without the memory controller, so the
        // membership that names it comes first.
        for version in [Version::V1, Version::V2] {
            let Some(member) = memberships.lines().find_map(|it| membership(it, version)) else {
                continue;
            };
            for mount in mounts.iter().filter(|mount| mount.version == version) {
                let Some(inside) = mount.inside(member) else {
                    continue;
                };
                let mount_point = below(root, &mount.point);
                let cgroup = Self {
                    version,
                    folder: below(&mount_point, &inside),
                    mount: mount_point,
                };
                if cgroup.has_memory_controller() {
                    return Ok(cgroup);
                }
            }
        }
        Err(SystemError::NoMemoryCgroup)
    }

    /// The interface in use.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The smallest hard limit on the way to the root, in bytes; `None` when there
    /// is none.
    ///
    /// # Errors
    /// When a limit exists but cannot be read.
    pub fn memory_limit(&self) -> Result<Option<u64>, SystemError> {
        self.smallest(|folder| self.limit_of(folder))
    }

    /// The least that a hard limit on the way to the root leaves, in bytes: the limit
    /// without what is charged already, of which page cache does not count, because
    /// the kernel drops it where memory is short. `None` when there is no limit.
    ///
    /// # Errors
    /// When a limit or a count exists but cannot be read.
    pub fn memory_available(&self) -> Result<Option<u64>, SystemError> {
        self.smallest(|folder| {
            let Some(limit) = self.limit_of(folder)? else {
                return Ok(None);
            };
            let usage = self.usage_of(folder)?.unwrap_or(0);
            let used = usage.saturating_sub(self.page_cache_of(folder)?);
            Ok(Some(limit.saturating_sub(used)))
        })
    }

    /// Bytes charged to the cgroup now, page cache among them. `None` at the root
    /// of version 2, which keeps no count.
    ///
    /// # Errors
    /// When the count exists but cannot be read.
    pub fn memory_usage(&self) -> Result<Option<u64>, SystemError> {
        self.usage_of(&self.folder)
    }

    /// The most bytes ever charged to the cgroup. `None` where the kernel keeps no
    /// peak (version 2 before Linux 5.19).
    ///
    /// # Errors
    /// When the peak exists but cannot be read.
    pub fn memory_peak(&self) -> Result<Option<u64>, SystemError> {
        optional_number(&self.folder.join(match self.version {
            Version::V1 => "memory.max_usage_in_bytes",
            Version::V2 => "memory.peak",
        }))
    }

    /// Whether the process `pid` is alone in its cgroup, so that the cgroup's
    /// numbers are its own. Cgroups below this one count as company.
    ///
    /// # Errors
    /// When the list of processes cannot be read.
    pub fn only_process(&self, pid: u32) -> Result<bool, SystemError> {
        let path = self.folder.join("cgroup.procs");
        let alone = read(&path)?.split_whitespace().eq([pid.to_string()]);
        Ok(alone && !self.has_children()?)
    }

    /// The cgroup's folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folders of the cgroup and of those above it that can be seen.
    pub(crate) fn ancestors(&self) -> impl Iterator<Item = &Path> {
        let above = self.mount.parent();
        let all = self.folder.ancestors();
        all.take_while(move |folder| Some(*folder) != above)
    }

    fn has_children(&self) -> Result<bool, SystemError> {
        let error = |source| SystemError::Read {
            path: self.folder.clone(),
            source,
        };
        for entry in std::fs::read_dir(&self.folder).map_err(error)? {
            let kind = entry.and_then(|entry| entry.file_type()).map_err(error)?;
            if kind.is_dir() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The controller's own files tell. The root of version 2 has no limit, but its
    /// list of controllers.
    fn has_memory_controller(&self) -> bool {
        match self.version {
            Version::V1 => self.folder.join("memory.limit_in_bytes").exists(),
            Version::V2 => {
                let list = std::fs::read_to_string(self.folder.join("cgroup.controllers"));
                let listed = list.is_ok_and(|it| it.split_whitespace().any(|it| it == "memory"));
                listed || self.folder.join("memory.max").exists()
            }
        }
    }

    fn limit_of(&self, folder: &Path) -> Result<Option<u64>, SystemError> {
        let limit = optional_number(&folder.join(match self.version {
            Version::V1 => "memory.limit_in_bytes",
            Version::V2 => "memory.max",
        }))?;
        Ok(limit.filter(|&limit| limit < UNLIMITED_BYTES_MIN))
    }

    fn usage_of(&self, folder: &Path) -> Result<Option<u64>, SystemError> {
        optional_number(&folder.join(match self.version {
            Version::V1 => "memory.usage_in_bytes",
            Version::V2 => "memory.current",
        }))
    }

    /// Bytes of files in the page cache, cgroups below included; 0 where the kernel
    /// does not say.
    fn page_cache_of(&self, folder: &Path) -> Result<u64, SystemError> {
        let Some(text) = optional_text(&folder.join("memory.stat"))? else {
            return Ok(0);
        };
        let keys = match self.version {
            Version::V1 => ["total_inactive_file", "total_active_file"],
            Version::V2 => ["inactive_file", "active_file"],
        };
        let numbers = text.lines().filter_map(|line| {
            let (key, number) = line.split_once(' ')?;
            keys.contains(&key).then(|| number.parse::<u64>().ok())?
        });
        Ok(numbers.fold(0, u64::saturating_add))
    }

    /// The smallest of what the cgroups on the way to the root say.
    fn smallest(
        &self,
        of: impl Fn(&Path) -> Result<Option<u64>, SystemError>,
    ) -> Result<Option<u64>, SystemError> {
        let mut smallest: Option<u64> = None;
        for folder in self.ancestors() {
            smallest = [smallest, of(folder)?].into_iter().flatten().min();
        }
        Ok(smallest)
    }
}

/// A mounted hierarchy that may hold the memory controller.
struct Mount {
    version: Version,
    /// The cgroup that the mount point shows; not `/` in a container.
    root: PathBuf,
    point: PathBuf,
}

impl Mount {
    /// Reads a line of `mountinfo`: `id parent device root point options [fields…] -
    /// type source options`.
    fn parse(line: &str) -> Option<Self> {
        let (front, back) = line.split_once(" - ")?;
        let mut front = front.split(' ').skip(3);
        let (root, point) = (unescape(front.next()?), unescape(front.next()?));
        let mut back = back.split(' ');
        let kind = back.next()?;
        let options = back.nth(1).unwrap_or_default();
        let version = match kind {
            "cgroup2" => Version::V2,
            "cgroup" if options.split(',').any(|it| it == "memory") => Version::V1,
            _ => return None,
        };
        Some(Self {
            version,
            root,
            point,
        })
    }

    /// Where `cgroup` lies below the mount point; `None` when it lies outside.
    fn inside(&self, cgroup: &str) -> Option<PathBuf> {
        let cgroup = Path::new(cgroup);
        // A cgroup outside the reader's namespace is told as `/../name`.
        if cgroup.components().any(|it| it == Component::ParentDir) {
            return None;
        }
        // With a cgroup namespace the membership is told from the mount's root on,
        // and without one from the hierarchy's; the mount's root is `/` or a prefix.
        match cgroup.strip_prefix(&self.root) {
            Ok(inside) => Some(inside.to_owned()),
            Err(_) => None,
        }
    }
}

/// The path in a line of `/proc/self/cgroup`, if the line is the one in question.
fn membership(line: &str, version: Version) -> Option<&str> {
    let mut parts = line.splitn(3, ':');
    let (id, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let wanted = match version {
        Version::V1 => controllers.split(',').any(|it| it == "memory"),
        Version::V2 => id == "0" && controllers.is_empty(),
    };
    wanted.then_some(path)
}

/// `mountinfo` writes space, tab, line feed and backslash as octal numbers.
fn unescape(text: &str) -> PathBuf {
    let pairs = [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ];
    let text = pairs
        .iter()
        .fold(text.to_owned(), |text, (from, to)| text.replace(from, to));
    text.into()
}

/// `path` moved below `root`, whether or not it is absolute.
fn below(root: &Path, path: &Path) -> PathBuf {
    let relative = path.strip_prefix("/").unwrap_or(path);
    if relative.as_os_str().is_empty() {
        return root.to_owned();
    }
    root.join(relative)
}

/// The number in a file, `None` when the file is absent or says `max`.
fn optional_number(path: &Path) -> Result<Option<u64>, SystemError> {
    let Some(text) = optional_text(path)? else {
        return Ok(None);
    };
    match text.trim() {
        "max" => Ok(None),
        number => match number.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(unexpected(path, number, "a number of bytes or `max`")),
        },
    }
}

/// What is in a file, `None` when it is absent.
fn optional_text(path: &Path) -> Result<Option<String>, SystemError> {
    match read(path) {
        Err(SystemError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Ok(None)
        }
        text => text.map(Some),
    }
}

#[cfg(test)]
mod tests;
