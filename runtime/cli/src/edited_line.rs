//! The line that the user is editing, above which others are written: there is one at most.

use std::sync::mpsc::Sender;
use std::sync::{Mutex, PoisonError};

/// Takes lines while one is being edited.
static ABOVE: Mutex<Option<Sender<String>>> = Mutex::new(None);

/// Writes a line above the one that is being edited, which is then drawn again. Returns whether
/// there is one.
pub(super) fn write_above(line: &str) -> bool {
    let above = ABOVE.lock().unwrap_or_else(PoisonError::into_inner);
    let line = format!("{line}\n");
    above.as_ref().is_some_and(|above| above.send(line).is_ok())
}

/// Has lines written above the one that is being edited from now on, by who gets them.
pub(super) fn begin(above: Option<Sender<String>>) {
    *ABOVE.lock().unwrap_or_else(PoisonError::into_inner) = above;
}

/// No line is being edited any more.
pub(super) fn end() {
    begin(None);
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn lines_are_written_above_another_as_long_as_it_is_edited() {
        assert!(!write_above("before"));
        let (above, lines) = channel();
        begin(Some(above));
        assert!(write_above("while"));
        end();
        assert!(!write_above("after"));
        assert_eq!(lines.iter().collect::<Vec<_>>(), ["while\n"]);
    }
}
