//! Texts that end an answer.
//!
//! An answer comes in pieces whose borders mean nothing, so the end of a piece is held back
//! as long as it may be the beginning of such a text. The result is the same for any pieces.

/// Looks for texts in an answer, and keeps them out of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StopTexts {
    texts: Vec<String>,
    held: String,
}

/// What an answer goes on with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// The text that can be shown now.
    pub text: String,
    /// Whether a stop text came after it, which ends the answer.
    pub is_stopped: bool,
}

impl StopTexts {
    /// Looks for these texts; empty ones are ignored.
    pub fn new(texts: impl IntoIterator<Item = String>) -> Self {
        Self {
            texts: texts.into_iter().filter(|text| !text.is_empty()).collect(),
            held: String::new(),
        }
    }

    /// Takes the next piece. The stop text that is complete first counts; of several that
    /// end at the same place, the longest.
    pub fn push(&mut self, piece: &str) -> Checked {
        self.held += piece;
        let found = self.texts.iter().filter_map(|text| {
            let start = self.held.find(text.as_str())?;
            Some((start + text.len(), start))
        });
        if let Some((_, start)) = found.min() {
            let mut text = std::mem::take(&mut self.held);
            text.truncate(start);
            return Checked {
                text,
                is_stopped: true,
            };
        }
        let begun = begun_bytes(&self.held, self.texts.iter().map(String::as_str));
        let rest = self.held.split_off(self.held.len() - begun);
        Checked {
            text: std::mem::replace(&mut self.held, rest),
            is_stopped: false,
        }
    }

    /// What is still held back when the answer is over.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Bytes of the longest end of `text` that begins one of `markers` without being all of it.
pub fn begun_bytes<'a>(text: &str, markers: impl Iterator<Item = &'a str>) -> usize {
    let begun = |marker: &str| {
        let most = marker.len().saturating_sub(1).min(text.len());
        let is_begun = |&bytes: &usize| {
            let end = &text.as_bytes()[text.len() - bytes..];
            marker.as_bytes().starts_with(end)
        };
        (1..=most).rev().find(is_begun).unwrap_or(0)
    };
    markers.map(begun).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is shown of an answer in these pieces, and whether it was stopped.
    fn shown(texts: &[&str], pieces: &[&str]) -> (String, bool) {
        let mut stops = StopTexts::new(texts.iter().map(|&text| text.to_owned()));
        let mut shown = String::new();
        for piece in pieces {
            let checked = stops.push(piece);
            shown += &checked.text;
            if checked.is_stopped {
                return (shown, true);
            }
        }
        (shown + &stops.finish(), false)
    }

    /// `text` in pieces of `length` characters.
    fn pieces(text: &str, length: usize) -> Vec<String> {
        let characters: Vec<char> = text.chars().collect();
        characters.chunks(length).map(String::from_iter).collect()
    }

    #[test]
    fn a_stop_text_is_found_in_any_pieces_and_kept_out_of_the_answer() {
        for (texts, answer, expected, is_stopped) in [
            (&["User:"][..], "Hello.\nUser: hi", "Hello.\n", true),
            (&["User:"], "Hello, User", "Hello, User", false),
            (&["\n\n"], "one\ntwo\n\nthree", "one\ntwo", true),
            (&["aab"], "aaab", "a", true),
            (&["é!", "–"], "caf é é! – b", "caf é ", true),
            (&["stop"], "stop", "", true),
            (&[""], "anything", "anything", false),
            (&[], "anything", "anything", false),
            // The one that is complete first, and the longer of two that end together.
            (&["abcdef", "cd"], "xabcdefg", "xab", true),
            (&["cd", "bcd"], "abcd", "a", true),
        ] {
            for length in 1..=answer.chars().count() {
                let pieces = pieces(answer, length);
                let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
                let found = shown(texts, &pieces);
                assert_eq!(
                    found,
                    (expected.to_owned(), is_stopped),
                    "{texts:?} {length}"
                );
            }
        }
    }

    #[test]
    fn only_what_may_begin_a_stop_text_is_held_back() {
        let mut stops = StopTexts::new(["<end>".to_owned()]);
        assert_eq!(stops.push("one <e").text, "one ");
        assert_eq!(stops.push("lse").text, "<else");
        assert_eq!(stops.push(" and <en").text, " and ");
        assert_eq!(stops.finish(), "<en");
        assert_eq!(stops.finish(), "");
    }
}
