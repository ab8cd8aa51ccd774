//! A model's thoughts, apart from its answer.
//!
//! Models that reason write their thoughts first, between marks of their own. Only what
//! begins with such a mark is a thought; the same mark later in an answer is text.

use emel_model::chat::channels;

use emel::internals::stop_texts::begun_bytes;

/// What thoughts begin and end with.
const MARKS: [(&str, &str); 3] = [
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    (channels::ANALYSIS, channels::END),
];

/// What may stand between thoughts and the answer, and belongs to neither.
const BETWEEN: [&str; 2] = [channels::START, channels::FINAL];

/// What a piece of an answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Thought,
    Answer,
}

/// Takes an answer apart as it comes.
#[derive(Debug)]
pub(super) struct Reasoning {
    state: State,
    held: String,
    has_marks: bool,
    /// Whether the thoughts have begun, after the space that follows their mark.
    has_thought: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the answer, where thoughts may begin.
    Before,
    /// In thoughts that end with this.
    Thinking(&'static str),
    /// In the answer.
    Answering,
}

impl Reasoning {
    /// For the answer to a rendered prompt, which may end with the mark that thoughts begin
    /// with.
    pub(super) fn after(prompt: &str) -> Self {
        let prompt = prompt.trim_end();
        let begun = MARKS.iter().find(|(open, _)| prompt.ends_with(open));
        Self {
            state: begun.map_or(State::Before, |(_, close)| State::Thinking(close)),
            held: String::new(),
            has_marks: begun.is_some(),
            has_thought: false,
        }
    }

    /// What the next piece of the answer makes known.
    pub(super) fn push(&mut self, piece: &str) -> Vec<(Part, String)> {
        self.held += piece;
        let mut parts = Vec::new();
        while self.step(&mut parts) {}
        parts
    }

    /// What is still held back when the answer is over.
    pub(super) fn finish(&mut self) -> Vec<(Part, String)> {
        let held = std::mem::take(&mut self.held);
        let part = match self.state {
            State::Thinking(_) => Part::Thought,
            State::Before | State::Answering => Part::Answer,
        };
        match held.trim().is_empty() && (self.has_marks || held.is_empty()) {
            true => Vec::new(),
            false => vec![(part, held)],
        }
    }

    /// Goes on by one part. Returns whether there may be more.
    fn step(&mut self, parts: &mut Vec<(Part, String)>) -> bool {
        match self.state {
            State::Before => self.step_before(),
            State::Thinking(close) => {
                if !self.has_thought {
                    self.held = self.held.trim_start().to_owned();
                    self.has_thought = !self.held.is_empty();
                }
                let end = self.held.find(close);
                let begun = || begun_bytes(&self.held, [close].into_iter());
                let known = end.unwrap_or_else(|| self.held.len() - begun());
                let rest = self.held.split_off(known);
                let thought = std::mem::replace(&mut self.held, rest);
                if !thought.is_empty() {
                    parts.push((Part::Thought, thought));
                }
                if end.is_some() {
                    self.held.drain(..close.len());
                    self.state = State::Before;
                }
                end.is_some()
            }
            State::Answering => {
                if !self.held.is_empty() {
                    parts.push((Part::Answer, std::mem::take(&mut self.held)));
                }
                false
            }
        }
    }

    fn step_before(&mut self) -> bool {
        let begun = self.held.trim_start();
        let opened = MARKS.iter().find(|(open, _)| begun.starts_with(open));
        if let Some((open, close)) = opened {
            self.held = begun[open.len()..].to_owned();
            self.state = State::Thinking(close);
            self.has_marks = true;
            self.has_thought = false;
            return true;
        }
        if let Some(mark) = BETWEEN.iter().find(|mark| begun.starts_with(*mark)) {
            self.held = begun[mark.len()..].to_owned();
            self.has_marks = true;
            return true;
        }
        let mut marks = MARKS.iter().map(|(open, _)| *open).chain(BETWEEN);
        if marks.any(|mark| mark.starts_with(begun)) {
            return false;
        }
        if self.has_marks {
            self.held = begun.to_owned();
        }
        self.state = State::Answering;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Thoughts and answer, whatever the pieces are.
    #[track_caller]
    fn check(prompt: &str, answer: &str, thoughts: &str, shown: &str) {
        let characters: Vec<char> = answer.chars().collect();
        for length in 1..=characters.len() {
            let mut reasoning = Reasoning::after(prompt);
            let mut found = [String::new(), String::new()];
            let pieces = characters.chunks(length).map(String::from_iter);
            let mut parts: Vec<_> = pieces.flat_map(|piece| reasoning.push(&piece)).collect();
            parts.extend(reasoning.finish());
            for (part, text) in parts {
                found[usize::from(part == Part::Answer)] += &text;
            }
            assert_eq!(found, [thoughts, shown], "{length}");
        }
    }

    #[test]
    fn thoughts_are_told_from_the_answer_in_any_pieces() {
        check("", "<think>\nHm.\n</think>\n\nHi <b>", "Hm.\n", "Hi <b>");
        check("…<think>\n", "Hm.</think>Hi", "Hm.", "Hi");
        check("", "[THINK]Hm.[/THINK]Hi", "Hm.", "Hi");
        check("", "<think></think>\n\nHi", "", "Hi");
        check("", "<think>Hm, never", "Hm, never", "");
    }

    #[test]
    fn channels_of_gpt_oss_are_thoughts_and_answer() {
        let answer = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi";
        check("<|start|>assistant", answer, "Hm.", "Hi");
        check("", "<|channel|>final<|message|>Hi", "", "Hi");
    }

    #[test]
    fn an_answer_without_thoughts_is_shown_as_it_is() {
        check(
            "",
            "\n Hi, <think> is a mark.\n",
            "",
            "\n Hi, <think> is a mark.\n",
        );
        check("", "<thin", "", "<thin");
        check("", "  ", "", "  ");
    }
}
