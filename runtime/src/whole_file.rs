//! Files that appear whole or not at all, and keep what others rely on.

use std::fs::{self, File, Permissions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// Symbolic links that lead to a file, one to another, at most; as many as Linux follows.
const LINKS_MAX: usize = 40;

/// A file that is written beside its place, and moved there when it is whole. Dropped before
/// that, it leaves nothing behind.
#[derive(Debug)]
pub(crate) struct WholeFile {
    file: NamedTempFile,
    path: PathBuf,
}

impl WholeFile {
    /// Begins the file for `path`. Where a symbolic link is there, what it leads to is
    /// replaced. `mode` are the permissions of a new file, less what the process leaves out.
    pub(crate) fn begin(path: &Path, mode: u32) -> io::Result<Self> {
        let path = end_of_links(path)?;
        let file = tempfile::Builder::new()
            .permissions(Permissions::from_mode(mode))
            .tempfile_in(folder_of(&path));
        let file = file.map_err(without_path)?;
        Ok(Self { file, path })
    }

    /// Moves the file to its place when it is on the disk. Where a file is there, its
    /// permissions are kept.
    pub(crate) fn finish(self) -> io::Result<()> {
        let Self { file, path } = self;
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
