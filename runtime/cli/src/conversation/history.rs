//! What the user has typed, kept for the next conversation.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Editor, Helper};

use super::super::notice;
use emel::internals::whole_file::folder_of;

/// The file that typed lines are kept in, if they are kept.
#[derive(Debug)]
pub(super) struct History(Option<PathBuf>);

impl History {
    /// The user's: `emel/history` in `XDG_STATE_HOME`, or in `.local/state` in `HOME`; none
    /// without either.
    pub(super) fn of_user() -> Self {
        let folder = |name: &str| {
            let folder = std::env::var_os(name).map(PathBuf::from);
            folder.filter(|folder| folder.is_absolute())
        };
        let state = folder("XDG_STATE_HOME").or_else(|| Some(folder("HOME")?.join(".local/state")));
        Self(state.map(|state| state.join("emel/history")))
    }

    /// Nothing is kept.
    pub(super) fn none() -> Self {
        Self(None)
    }

    /// Gives the editor what was typed before.
    pub(super) fn load(&mut self, editor: &mut Editor<impl Helper, FileHistory>) {
        let Some(path) = self.0.as_ref().filter(|path| path.exists()) else {
            return;
        };
        let loaded = editor.load_history(path);
        self.check(loaded);
    }

    /// Keeps what was typed since the last time.
    pub(super) fn append(&mut self, editor: &mut Editor<impl Helper, FileHistory>) {
        let Some(path) = &self.0 else { return };
        // A folder that cannot be made is noticed when the file is written.
        let _ = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder_of(path));
        let appended = editor.append_history(path);
        self.check(appended);
    }

    /// Says so if the history cannot be kept, once.
    fn check(&mut self, outcome: Result<(), ReadlineError>) {
        if let (Err(error), Some(path)) = (outcome, &self.0) {
            notice(&format!(
                "{}: the history cannot be kept: {error}; --no-history turns it off",
                path.display()
            ));
            self.0 = None;
        }
    }
}
