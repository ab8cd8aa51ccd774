//! Limit and pressure of memory, asked for again and again.
//!
//! The kernel's files are opened once and read into a buffer on the stack, so that asking
//! allocates nothing.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::cgroup::{Cgroup, Version};

/// Numbers and lines of pressure are far shorter.
const TEXT_BYTES_MAX: usize = 256;

/// The limits above this process and the pressure on it.
#[derive(Debug)]
pub struct MemoryWatch {
    limits: Vec<File>,
    pressure: Option<File>,
}

/// Share of time lost to want of memory over the last ten seconds, in percent, as the
/// kernel's pressure stall information has it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pressure {
    /// At least one task waited.
    pub some_percent: f32,
    /// All tasks waited.
    pub full_percent: f32,
}

impl MemoryWatch {
    /// Watches the cgroup of this process and those above it: the hard limit of each, and
    /// the one that is to be kept to if possible (`memory.high` of version 2, the soft
    /// limit of version 1). Where there is no cgroup, or no pressure stall information,
    /// that is not watched.
    pub fn own() -> Self {
        Self::own_below(Path::new("/"))
    }

    /// As [`MemoryWatch::own`] with another root, for tests.
    pub fn own_below(root: &Path) -> Self {
        let mut limits = Vec::new();
        let mut pressure = None;
        if let Ok(cgroup) = Cgroup::own_below(root) {
            let names = match cgroup.version() {
                Version::V1 => ["memory.limit_in_bytes", "memory.soft_limit_in_bytes"],
                Version::V2 => ["memory.max", "memory.high"],
            };
            let paths = cgroup
                .ancestors()
                .flat_map(|folder| names.map(|name| folder.join(name)));
            limits.extend(paths.filter_map(|path| File::open(path).ok()));
            pressure = open_pressure(&cgroup.folder().join("memory.pressure"));
        }
        Self {
            limits,
            pressure: pressure.or_else(|| open_pressure(&root.join("proc/pressure/memory"))),
        }
    }

    /// The smallest limit now, in bytes; `None` when there is none.
    pub fn limit(&self) -> Option<u64> {
        let read = |file: &File| with_text(file, |text| text.trim().parse::<u64>().ok());
        // `max`, and the number that stands for it in version 1, are larger than any.
        self.limits.iter().filter_map(read).min()
    }

    /// The pressure now, of the cgroup or else of the machine; `None` where the kernel
    /// does not say.
    pub fn pressure(&self) -> Option<Pressure> {
        with_text(self.pressure.as_ref()?, parse_pressure)
    }
}

/// A kernel may have the file and refuse to read it.
fn open_pressure(path: &Path) -> Option<File> {
    let file = File::open(path).ok()?;
    with_text(&file, parse_pressure).map(|_| file)
}

fn with_text<T>(file: &File, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
    let mut bytes = [0; TEXT_BYTES_MAX];
    let count = file.read_at(&mut bytes, 0).ok()?;
    parse(std::str::from_utf8(&bytes[..count]).ok()?)
}

/// Reads `some avg10=0.00 avg60=0.00 …` and the same line for `full`.
fn parse_pressure(text: &str) -> Option<Pressure> {
    let percent = |kind: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(kind))?;
        let average = line.trim_start().strip_prefix("avg10=")?;
        average.split(' ').next()?.parse().ok()
    };
    Some(Pressure {
        some_percent: percent("some ")?,
        full_percent: percent("full ")?,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    const PRESSURE: &str = "\
some avg10=12.50 avg60=2.03 avg300=0.10 total=3603537
full avg10=7.25 avg60=1.00 avg300=0.00 total=1541163
";

    fn write(root: &TempDir, file: &str, text: &str) {
        let path = root.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn machine(memberships: &str, mount: &str) -> TempDir {
        let root = tempfile::tempdir().unwrap();
        write(&root, "proc/self/cgroup", memberships);
        write(&root, "proc/self/mountinfo", mount);
        root
    }

    #[test]
    fn the_smallest_limit_of_version_2_is_seen_as_it_changes() {
        let root = machine(
            "0::/a.slice/b.scope\n",
            "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        );
        let folder = "sys/fs/cgroup/a.slice";
        write(&root, &format!("{folder}/memory.max"), "9000\n");
        write(&root, &format!("{folder}/b.scope/memory.max"), "max\n");
        write(&root, &format!("{folder}/b.scope/memory.high"), "max\n");
        write(
            &root,
            &format!("{folder}/b.scope/memory.pressure"),
            PRESSURE,
        );
        let watch = MemoryWatch::own_below(root.path());
        assert_eq!(watch.limit(), Some(9000));
        write(&root, &format!("{folder}/b.scope/memory.high"), "7000\n");
        assert_eq!(watch.limit(), Some(7000));
        write(&root, &format!("{folder}/memory.max"), "512\n");
        assert_eq!(watch.limit(), Some(512));
        write(&root, &format!("{folder}/memory.max"), "max\n");
        write(&root, &format!("{folder}/b.scope/memory.high"), "max\n");
        assert_eq!(watch.limit(), None);
        let pressure = watch.pressure().unwrap();
        assert_eq!((pressure.some_percent, pressure.full_percent), (12.5, 7.25));
        let calm = PRESSURE.replace("7.25", "0.00");
        write(&root, &format!("{folder}/b.scope/memory.pressure"), &calm);
        assert_eq!(watch.pressure().unwrap().full_percent, 0.0);
    }

    #[test]
    fn version_1_has_a_soft_limit_and_the_pressure_of_the_machine() {
        let root = machine(
            "5:memory:/box\n0::/\n",
            "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
        );
        let folder = "sys/fs/cgroup/memory/box";
        let unlimited = "9223372036854771712\n";
        write(&root, &format!("{folder}/memory.limit_in_bytes"), "8000\n");
        write(
            &root,
            &format!("{folder}/memory.soft_limit_in_bytes"),
            unlimited,
        );
        write(&root, "proc/pressure/memory", PRESSURE);
        let watch = MemoryWatch::own_below(root.path());
        assert_eq!(watch.limit(), Some(8000));
        write(
            &root,
            &format!("{folder}/memory.soft_limit_in_bytes"),
            "4000\n",
        );
        assert_eq!(watch.limit(), Some(4000));
        assert_eq!(watch.pressure().unwrap().full_percent, 7.25);
    }

    #[test]
    fn what_the_kernel_does_not_tell_is_not_watched() {
        let root = machine("", "");
        let watch = MemoryWatch::own_below(root.path());
        assert_eq!((watch.limit(), watch.pressure()), (None, None));
        write(&root, "proc/pressure/memory", "nothing of the kind");
        assert_eq!(MemoryWatch::own_below(root.path()).pressure(), None);
        let own = MemoryWatch::own();
        assert!(
            own.pressure()
                .is_none_or(|it| it.full_percent <= it.some_percent)
        );
    }
}
