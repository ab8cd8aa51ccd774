//! The machine's free memory and this process's share of it.

use std::path::{Path, PathBuf};

use crate::SystemError;
use crate::error::{read, unexpected};

/// The machine's memory, read from `/proc`.
#[derive(Debug, Clone)]
pub struct Memory {
    proc: PathBuf,
}

/// This process's own memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnMemory {
    /// Resident now (`VmRSS`).
    pub resident_bytes: u64,
    /// The most that was ever resident (`VmHWM`).
    pub resident_bytes_max: u64,
}

impl Default for Memory {
    fn default() -> Self {
        Self::with_root(Path::new("/"))
    }
}

impl Memory {
    /// Reads below another root, for tests.
    pub fn with_root(root: &Path) -> Self {
        Self {
            proc: root.join("proc"),
        }
    }

    /// Bytes that can be taken without swapping (`MemAvailable`).
    ///
    /// # Errors
    /// When the kernel does not say; a guess would make a wrong budget silently.
    pub fn available(&self) -> Result<u64, SystemError> {
        let path = self.proc.join("meminfo");
        kibibytes(
            &path,
            &read(&path)?,
            "MemAvailable",
            "a line `MemAvailable: N kB`",
        )
    }

    /// Bytes that nobody uses, not even the page cache (`MemFree`).
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn free(&self) -> Result<u64, SystemError> {
        let path = self.proc.join("meminfo");
        kibibytes(&path, &read(&path)?, "MemFree", "a line `MemFree: N kB`")
    }

    /// Bytes that the machine has (`MemTotal`).
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn total(&self) -> Result<u64, SystemError> {
        let path = self.proc.join("meminfo");
        kibibytes(&path, &read(&path)?, "MemTotal", "a line `MemTotal: N kB`")
    }

    /// This process's own memory. Page cache is not in it.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn own(&self) -> Result<OwnMemory, SystemError> {
        let path = self.proc.join("self/status");
        let text = read(&path)?;
        Ok(OwnMemory {
            resident_bytes: kibibytes(&path, &text, "VmRSS", "a line `VmRSS: N kB`")?,
            resident_bytes_max: kibibytes(&path, &text, "VmHWM", "a line `VmHWM: N kB`")?,
        })
    }

    /// Page faults of this process that had to wait for a drive.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn own_major_faults(&self) -> Result<u64, SystemError> {
        let path = self.proc.join("self/stat");
        let text = read(&path)?;
        // The name, in parentheses, may hold spaces and parentheses; the count is the
        // tenth field after it (`majflt`, proc_pid_stat(5)).
        let count = text
            .rsplit_once(')')
            .and_then(|(_, fields)| fields.split_whitespace().nth(9)?.parse().ok());
        count.ok_or_else(|| unexpected(&path, &text, "a line `PID (NAME) STATE NUMBER…`"))
    }

    /// Bytes that this process has had drives read, page faults and O_DIRECT included.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn own_bytes_read(&self) -> Result<u64, SystemError> {
        let path = self.proc.join("self/io");
        let text = read(&path)?;
        let line = text.lines().find_map(|it| it.strip_prefix("read_bytes:"));
        let bytes = line.and_then(|number| number.trim().parse().ok());
        bytes.ok_or_else(|| unexpected(&path, &text, "a line `read_bytes: N`"))
    }
}

/// The bytes on the line `name: N kB`.
fn kibibytes(
    path: &Path,
    text: &str,
    name: &str,
    expected: &'static str,
) -> Result<u64, SystemError> {
    let number = text.lines().find_map(|line| {
        let value = line.strip_prefix(name)?.strip_prefix(':')?;
        let kibibytes: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kibibytes.checked_mul(1024)
    });
    number.ok_or_else(|| unexpected(path, text, expected))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn root_with(file: &str, text: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        root
    }

    #[test]
    fn available_memory_is_read_in_bytes() {
        let text = "MemTotal:  200 kB\nMemFree: 50 kB\nMemAvailable:     100 kB\n";
        let root = root_with("proc/meminfo", text);
        let memory = Memory::with_root(root.path());
        assert_eq!(memory.available().unwrap(), 102_400);
        assert_eq!(memory.free().unwrap(), 51_200);
        assert_eq!(memory.total().unwrap(), 204_800);
    }

    #[test]
    fn a_missing_meminfo_is_an_error_and_not_zero() {
        let root = tempfile::tempdir().unwrap();
        let error = Memory::with_root(root.path()).available().unwrap_err();
        assert!(error.to_string().contains("proc/meminfo: cannot read"));
    }

    #[test]
    fn a_meminfo_without_the_line_is_an_error_and_not_zero() {
        let root = root_with("proc/meminfo", "MemTotal: 200 kB\n");
        let error = Memory::with_root(root.path()).available().unwrap_err();
        assert!(error.to_string().contains("MemAvailable"));
    }

    #[test]
    fn bytes_that_a_drive_read_are_told_from_those_that_were_asked_for() {
        let text = "rchar: 9000\nwchar: 1\nread_bytes: 8192\nwrite_bytes: 0\n";
        let root = root_with("proc/self/io", text);
        let memory = Memory::with_root(root.path());
        assert_eq!(memory.own_bytes_read().unwrap(), 8192);
        let root = root_with("proc/self/io", "rchar: 9000\n");
        let error = Memory::with_root(root.path()).own_bytes_read().unwrap_err();
        assert!(error.to_string().contains("read_bytes"), "{error}");
    }

    #[test]
    fn own_memory_is_read_from_the_status() {
        let root = root_with("proc/self/status", "VmHWM:\t  30 kB\nVmRSS:\t  20 kB\n");
        let expected = OwnMemory {
            resident_bytes: 20 << 10,
            resident_bytes_max: 30 << 10,
        };
        assert_eq!(Memory::with_root(root.path()).own().unwrap(), expected);
    }

    #[test]
    fn major_faults_are_counted_behind_any_name() {
        let text = "7 (a) b) (c) S 1 7 7 0 -1 4194560 900 0 31 0 5 6";
        let root = root_with("proc/self/stat", text);
        assert_eq!(
            Memory::with_root(root.path()).own_major_faults().unwrap(),
            31
        );
        let root = root_with("proc/self/stat", "7 (a) S 1");
        assert!(Memory::with_root(root.path()).own_major_faults().is_err());
    }

    #[test]
    fn this_machine_answers() {
        Memory::default().own_major_faults().unwrap();
        assert!(Memory::default().available().unwrap() > 0);
        let own = Memory::default().own().unwrap();
        assert!(own.resident_bytes > 0 && own.resident_bytes <= own.resident_bytes_max);
    }
}
