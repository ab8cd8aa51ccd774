//! The files that a command's options name. An output replaces what is there, which must not be
//! what another option is for, nor what is not easily had again.

use std::fs::{File, metadata};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use super::output::{OutputFile, OutputKind, create_output, is_standard_output};
use super::remedies::OptionError;
use emel::internals::blueprint::Blueprint;
use emel::internals::experts::{heat, trace};
use emel::internals::session;
use emel::internals::whole_file::{end_of_links, folder_of};

/// Files that no output of another kind replaces, by their first bytes. A model is not replaced
/// by a model either: it may be the only copy of gigabytes.
const KEPT: [(&[u8], &str, Option<OutputKind>); 4] = [
    (b"GGUF", "a model", None),
    (&heat::MAGIC, "what emel has learnt about a model", None),
    (&session::MAGIC, "a session", None),
    (&trace::MAGIC, "a trace", Some(OutputKind::Trace)),
];

/// The files that the options of a command have named so far.
#[derive(Debug)]
pub struct NamedFiles {
    /// Device and inode of each of the model's files.
    model: Vec<(u64, u64)>,
    /// Where what is learnt about the model is kept, whether or not it is there.
    heat: PathBuf,
    inputs: Vec<(&'static str, PathBuf)>,
    outputs: Vec<(&'static str, PathBuf)>,
}

impl NamedFiles {
    /// Those of the model alone.
    pub fn of(blueprint: &Blueprint) -> Self {
        let files = blueprint.catalog.files().iter();
        let identities = files.map(|file| (file.identity.device, file.identity.inode));
        Self {
            model: identities.collect(),
            heat: heat::place(&blueprint.path),
            inputs: Vec::new(),
            outputs: Vec::new(),
        }
    }

    /// None yet, of a command that opens no model.
    pub fn without_model() -> Self {
        Self {
            model: Vec::new(),
            heat: PathBuf::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
        }
    }

    /// A file that is read; `-` is standard input.
    pub fn input(&mut self, option: &'static str, path: Option<&Path>) {
        let path = path.map(|path| in_place_of_dash(path, "/dev/stdin"));
        self.inputs.extend(path.map(|path| (option, path)));
    }

    /// A file that is read at the beginning and replaced at the end.
    ///
    /// # Errors
    /// When it is standard output, or the file of something else.
    pub fn kept(&mut self, option: &'static str, path: &Path) -> anyhow::Result<()> {
        if path == Path::new("-") {
            return Err(is_no_file(option).into());
        }
        self.refuse_others(option, path)?;
        if is_same(path, &self.heat) {
            return Err(taken(option, path, "what emel learns about the model").into());
        }
        self.outputs.push((option, path.to_owned()));
        Ok(())
    }

    /// The place of an output; `-` is standard output.
    ///
    /// # Errors
    /// When it is the file of something else, or nothing can be written there.
    pub fn output(
        &mut self,
        option: &'static str,
        path: &Path,
        kind: OutputKind,
    ) -> anyhow::Result<OutputFile> {
        let path = in_place_of_dash(path, "/dev/stdout");
        self.claim(option, &path, kind)?;
        OutputFile::new(&path, kind)
    }

    /// Creates an output that is written from the beginning of the work on, by a command whose
    /// result goes to standard output.
    ///
    /// # Errors
    /// As [`NamedFiles::output`], and when it is standard output.
    pub fn create(
        &mut self,
        option: &'static str,
        path: &Path,
        kind: OutputKind,
    ) -> anyhow::Result<File> {
        let path = in_place_of_dash(path, "/dev/stdout");
        if has_answer(&path) {
            let error = OptionError {
                option,
                found: "standard output, where the result goes".to_owned(),
                expected: "another file".to_owned(),
            };
            return Err(error.into());
        }
        self.claim(option, &path, kind)?;
        create_output(&path, kind)
    }

    fn claim(&mut self, option: &'static str, path: &Path, kind: OutputKind) -> anyhow::Result<()> {
        self.refuse_others(option, path)?;
        let found = metadata(path);
        let is_model = |found: &std::fs::Metadata| self.model.contains(&(found.dev(), found.ino()));
        if found.is_ok_and(|found| is_model(&found)) {
            bail!(
                "{}: this is the model, expected another file for {kind}; choose another name",
                path.display()
            );
        }
        if is_same(path, &self.heat) {
            bail!(
                "{}: emel keeps what it learns about the model here, expected another file for {kind}; choose another name",
                path.display()
            );
        }
        refuse_kept(path, kind)?;
        self.outputs.push((option, path.to_owned()));
        Ok(())
    }

    fn refuse_others(&self, option: &'static str, path: &Path) -> Result<(), OptionError> {
        // A terminal may be input and output at once.
        let inputs = self.inputs.iter().filter(|(_, input)| input.is_file());
        let outputs = self.outputs.iter().filter(|_| !is_shared(path));
        let other = inputs
            .chain(outputs)
            .find(|(_, other)| is_same(path, other));
        match other {
            Some((other, _)) => Err(taken(option, path, other)),
            None => Ok(()),
        }
    }
}

/// The place of a new model, where the links at `path` lead. A file that is no model gives way.
///
/// # Errors
/// When there is a model already, or what no file takes the place of.
pub fn place_of_model(path: &Path) -> anyhow::Result<PathBuf> {
    if path.exists() && !path.is_file() {
        bail!(
            "{}: this is no regular file, expected one, or nothing, where the model is to be; choose another name",
            path.display()
        );
    }
    refuse_kept(path, OutputKind::Model)?;
    end_of_links(path).with_context(|| path.display().to_string())
}

/// Refuses to replace a file that is not easily had again, as its first bytes tell.
///
/// # Errors
/// When it is such a file.
fn refuse_kept(path: &Path, kind: OutputKind) -> anyhow::Result<()> {
    // A FIFO would be waited for.
    if !path.is_file() {
        return Ok(());
    }
    let mut start = Vec::new();
    // What may be written and not read is nobody's model.
    if let Ok(file) = File::open(path) {
        let _ = file.take(8).read_to_end(&mut start);
    }
    let found = KEPT.iter().find(|(magic, ..)| start.starts_with(magic));
    match found {
        Some(&(_, what, replacing)) if replacing != Some(kind) => bail!(
            "{}: this is {what}, expected another file for {kind}; choose another name, or delete it first",
            path.display()
        ),
        _ => Ok(()),
    }
}

/// What is said where a file is to be read again, and `-` is given.
pub fn is_no_file(option: &'static str) -> OptionError {
    OptionError {
        option,
        found: "-, which is no file".to_owned(),
        expected: "a path (./- if that is its name)".to_owned(),
    }
}

fn in_place_of_dash(path: &Path, stream: &str) -> PathBuf {
    match path == Path::new("-") {
        true => stream.into(),
        false => path.to_owned(),
    }
}

fn taken(option: &'static str, path: &Path, other: &str) -> OptionError {
    OptionError {
        option,
        found: format!("{}, the file of {other}", path.display()),
        expected: format!("another file than {other}"),
    }
}

/// Whether a command's result goes there, to somebody who reads it.
fn has_answer(path: &Path) -> bool {
    is_standard_output(path) && !is_same(path, Path::new("/dev/null"))
}

/// Whether several outputs may go there, as to `/dev/null`.
fn is_shared(path: &Path) -> bool {
    let is_device = |found: std::fs::Metadata| found.file_type().is_char_device();
    metadata(path).is_ok_and(is_device) && !has_answer(path)
}

/// Whether two paths lead to the same file, which need not be there yet.
fn is_same(path: &Path, other: &Path) -> bool {
    let inode = |path: &Path| {
        let found = metadata(path).ok()?;
        Some((found.dev(), found.ino()))
    };
    let is_same_inode = inode(path).is_some_and(|found| inode(other) == Some(found));
    is_same_inode || absolute(path).is_some_and(|path| Some(path) == absolute(other))
}

/// The path with all links followed; the file need not be there.
fn absolute(path: &Path) -> Option<PathBuf> {
    let path = end_of_links(path).ok()?;
    Some(
        folder_of(&path)
            .canonicalize()
            .ok()?
            .join(path.file_name()?),
    )
}
