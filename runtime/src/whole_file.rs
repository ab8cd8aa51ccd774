//! Files that appear whole or not at all, and keep what others rely on.

use std::fs::{self, File, Permissions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::NamedTempFile;

/// Symbolic links that lead to a file, one to another, at most; as many as Linux follows.
const LINKS_MAX: usize = 40;

/// The files of this process that are not whole yet.
static UNFINISHED: Unfinished = Unfinished(Mutex::new(Vec::new()));

/// Files that are not whole yet, which an end of the process would leave behind.
#[derive(Debug)]
struct Unfinished(Mutex<Vec<PathBuf>>);

/// Counts a file among the unfinished ones as long as it is held.
#[derive(Debug)]
struct Unfinishedness {
    among: &'static Unfinished,
    path: PathBuf,
}

/// A file that is written beside its place, and moved there when it is whole. Dropped before
/// that, it leaves nothing behind.
#[derive(Debug)]
pub(crate) struct WholeFile {
    file: NamedTempFile,
    path: PathBuf,
    unfinished: Unfinishedness,
}

impl Unfinished {
    fn paths(&self) -> MutexGuard<'_, Vec<PathBuf>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&'static self, path: &Path, mode: u32) -> io::Result<WholeFile> {
        let path = end_of_links(path)?;
        // Held while the file is made, so that none is missed.
        let mut paths = self.paths();
        let file = tempfile::Builder::new()
            .permissions(Permissions::from_mode(mode))
            .tempfile_in(folder_of(&path));
        let file = file.map_err(without_path)?;
        paths.push(file.path().to_owned());
        let unfinished = Unfinishedness {
            among: self,
            path: file.path().to_owned(),
        };
        Ok(WholeFile {
            file,
            path,
            unfinished,
        })
    }

    /// Removes them all; none begins or becomes whole while the guard is held.
    #[cfg(any(feature = "cli", test))]
    fn remove(&self) -> MutexGuard<'_, Vec<PathBuf>> {
        let paths = self.paths();
        for path in paths.iter() {
            // One that has just become whole is no longer there.
            let _ = fs::remove_file(path);
        }
        paths
    }
}

impl Drop for Unfinishedness {
    fn drop(&mut self) {
        self.among.paths().retain(|path| *path != self.path);
    }
}

/// Ends the process, and leaves no file behind that another thread has not finished.
#[cfg(feature = "cli")]
pub(crate) fn exit(status: i32) -> ! {
    let _none_begins = UNFINISHED.remove();
    std::process::exit(status)
}

impl WholeFile {
    /// Begins the file for `path`. Where a symbolic link is there, what it leads to is
    /// replaced. `mode` are the permissions of a new file, less what the process leaves out.
    pub(crate) fn begin(path: &Path, mode: u32) -> io::Result<Self> {
        UNFINISHED.begin(path, mode)
    }

    /// Moves the file to its place when it is on the disk. Where a file is there, its
    /// permissions are kept.
    pub(crate) fn finish(self) -> io::Result<()> {
        let Self {
            file,
            path,
            unfinished: _unfinished,
        } = self;
        if path.exists() {
            file.as_file()
                .set_permissions(fs::metadata(&path)?.permissions())?;
        }
        file.as_file().sync_all()?;
        file.persist(&path).map_err(|error| error.error)?;
        sync_folder(&path)
    }
}

impl Write for WholeFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // The temporary file itself would put its name into errors.
        self.file.as_file_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_file_mut().flush()
    }
}

/// Writes what `write` does to a [`WholeFile`] that only its owner may read.
pub(crate) fn write_whole(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<WholeFile>) -> io::Result<()>,
) -> io::Result<()> {
    let mut out = BufWriter::new(WholeFile::begin(path, 0o600)?);
    write(&mut out)?;
    out.into_inner()?.finish()
}

/// Whether these are the first bytes of a file.
pub(crate) fn begins_with(mut file: impl Read, magic: [u8; 8]) -> io::Result<bool> {
    let mut found = [0; 8];
    match file.read_exact(&mut found) {
        Ok(()) => Ok(found == magic),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// The path that symbolic links at `path` lead to, whether or not anything is there. An error
/// where they lead in a circle, or to what only a folder can be.
pub(crate) fn end_of_links(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..=LINKS_MAX {
        match fs::read_link(&path) {
            Ok(target) => path = folder_of(&path).join(target),
            Err(_) if is_spelt_as_folder(&path) => {
                return Err(io::Error::from_raw_os_error(libc::EISDIR));
            }
            // What is no link ends them; what cannot be looked at is noticed in its use.
            Err(_) => return Ok(path),
        }
    }
    Err(io::Error::other("symbolic links lead in a circle"))
}

/// Whether a path ends as only a folder's does, which [`Path`] itself passes over.
fn is_spelt_as_folder(path: &Path) -> bool {
    let path = path.as_os_str().as_bytes();
    [&b"/"[..], b"/."].iter().any(|end| path.ends_with(end))
}

/// A new file in the folder of `path`, which is gone again unless it is kept.
pub(crate) fn file_beside(path: &Path) -> io::Result<NamedTempFile> {
    NamedTempFile::new_in(folder_of(path)).map_err(without_path)
}

/// An error without the name of a file that nobody has asked for.
fn without_path(error: io::Error) -> io::Error {
    let text = error.to_string();
    let reason = text.split(" at path ").next().unwrap_or_default();
    io::Error::new(error.kind(), reason)
}

/// The folder that a path is in.
pub(crate) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

/// Makes a new name in the folder of `path` outlast a loss of power.
fn sync_folder(path: &Path) -> io::Result<()> {
    // A folder may take files and not be readable, and some filesystems sync no folders.
    let Ok(folder) = File::open(folder_of(path)) else {
        return Ok(());
    };
    match folder.sync_all() {
        Err(error) if error.kind() != io::ErrorKind::InvalidInput => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_whole_can_be_removed_by_another_and_is_then_an_error() {
        static HERE: Unfinished = Unfinished(Mutex::new(Vec::new()));
        let folder = tempfile::tempdir().unwrap();
        let names = || fs::read_dir(folder.path()).unwrap().count();
        let begin = |name: &str| HERE.begin(&folder.path().join(name), 0o600).unwrap();
        begin("whole").finish().unwrap();
        drop(begin("given up"));
        let mut file = begin("half");
        file.write_all(b"some of it").unwrap();
        assert_eq!(names(), 2);
        assert_eq!(HERE.remove().len(), 1);
        assert_eq!(names(), 1);
        assert!(file.finish().is_err());
        assert!(folder.path().join("whole").exists());
        assert!(HERE.paths().is_empty());
    }

    #[test]
    fn links_that_end_where_only_a_folder_can_be_are_no_place_of_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        for target in ["file", "nothing/", "nothing/."] {
            let _ = fs::remove_file(place("link"));
            std::os::unix::fs::symlink(target, place("link")).unwrap();
            for path in [place(target), place("link")] {
                let found = end_of_links(&path);
                match target {
                    "file" => assert_eq!(found.unwrap(), place("file")),
                    _ => assert_eq!(found.unwrap_err().raw_os_error(), Some(libc::EISDIR)),
                }
            }
        }
    }
}
