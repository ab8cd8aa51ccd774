//! The arguments of a command, with llama.cpp's spellings put into emel's: what has no effect
//! here is left out and noted, and all that is refused is refused at once. clap does the rest.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use clap::{Arg, ArgAction, Command};

use super::cache_types::{CacheTypes, Kept};
use super::llama_flags::{self, Meaning, Row, SWITCHES, Values};
use super::model_name;

/// Why an option is refused that `emel run` takes.
const OF_RUN: &str = "an option of `emel run`, not of this command; leave it out";

/// Arguments that clap takes, and what the user should know about those that were given.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Spelt {
    pub(super) arguments: Vec<OsString>,
    pub(super) notes: Vec<String>,
    /// What cannot be taken, with what to do instead; it is not among the arguments.
    pub(super) refusals: Vec<String>,
}

/// The command that the words call, as which those behind [`words_of_name`] are read.
pub(super) fn called<'a>(command: &'a Command, words: &[OsString]) -> Option<&'a Command> {
    match command.has_subcommands() {
        true => command.find_subcommand(words.get(1)?),
        false => Some(command),
    }
}

/// How many words are the name of the program and its command.
fn words_of_name(command: &Command) -> usize {
    1 + usize::from(command.has_subcommands())
}

/// The arguments as the `command`, which is built, spells them.
pub(super) fn in_own_terms(command: &Command, arguments: Vec<OsString>) -> Spelt {
    let Some(called) = called(command, &arguments) else {
        return Spelt {
            arguments,
            ..Spelt::default()
        };
    };
    let mut words = arguments.into_iter();
    let own: Vec<OsString> = words.by_ref().take(words_of_name(command)).collect();
    let run = command.find_subcommand("run");
    let mut reading = Reading::new(called, run, own);
    while let Some(word) = words.next() {
        if word == "--" {
            reading.own.push(word);
            reading.own.extend(words);
            break;
        }
        reading.take(word, &mut words);
    }
    reading.finish()
}

/// The words of a command so far.
struct Reading<'a> {
    command: &'a Command,
    /// The command that runs a model, beside this one.
    run: Option<&'a Command>,
    own: Vec<OsString>,
    /// Where options may stand: behind the program's name and the command's.
    start: usize,
    /// Where the model stands in `own`, if `-m` named it.
    model: Option<usize>,
    cache: CacheTypes,
    seen: BTreeSet<&'a str>,
    repeated: Vec<String>,
    without_effect: Vec<String>,
    refused: Vec<Refusal>,
}

/// Flags, and why they cannot be taken.
struct Refusal {
    names: Vec<String>,
    reason: String,
}

impl<'a> Reading<'a> {
    fn new(command: &'a Command, run: Option<&'a Command>, own: Vec<OsString>) -> Self {
        Self {
            command,
            run,
            start: own.len(),
            own,
            model: None,
            cache: CacheTypes::default(),
            seen: BTreeSet::new(),
            repeated: Vec::new(),
            without_effect: Vec::new(),
            refused: Vec::new(),
        }
    }

    /// Takes a word, and from `rest` the values that belong to it.
    fn take(&mut self, word: OsString, rest: &mut std::vec::IntoIter<OsString>) {
        let Some((given, value)) = flag_and_value(&word) else {
            self.own.push(word);
            return;
        };
        // Options of emel's own come first: `-o` may be one of them.
        if let Some(option) = own_option(self.command, &given) {
            self.take_own(&given, value, option, rest);
            return;
        }
        let Some(row) = llama_flags::find(&given) else {
            match self.run.and_then(|run| own_option(run, &given)) {
                Some(option) => self.take_other(&given, value, option, rest),
                None => self.take_unknown(word, &given, value.is_some()),
            }
            return;
        };
        let (own, value) = match row.meaning {
            Meaning::Named(own) => (own, value),
            Meaning::Stands(own, its_value) => (own, Some(its_value.into())),
            _ => ("", value),
        };
        match own_option(self.command, own) {
            Some(option) => self.take_own(own, value, option, rest),
            None => self.take_foreign(&given, value, row, rest),
        }
    }

    fn take_own(
        &mut self,
        name: &str,
        value: Option<OsString>,
        option: &'a Arg,
        rest: &mut std::vec::IntoIter<OsString>,
    ) {
        let is_first = self.seen.insert(option.get_id().as_str());
        if !is_first && matches!(option.get_action(), ArgAction::Set) {
            add_once(&mut self.repeated, name);
        }
        let values = option.get_num_args().map_or(0, |range| range.min_values());
        let value = value.or_else(|| {
            // As in `--color on`, where the word could also be the model.
            let known = option.get_possible_values();
            let next = rest.as_slice().first()?.to_str()?;
            let is_value =
                option.is_require_equals_set() && known.iter().any(|it| it.matches(next, false));
            is_value.then(|| rest.next()).flatten()
        });
        let has_value = value.is_some();
        self.own.push(joined(name, value));
        if !has_value {
            // They may look like options.
            self.own.extend(rest.take(values));
        }
    }

    fn take_foreign(
        &mut self,
        name: &str,
        value: Option<OsString>,
        row: &Row,
        rest: &mut std::vec::IntoIter<OsString>,
    ) {
        let value = match row.values {
            Values::None => None,
            Values::One => value.or_else(|| rest.next()),
            Values::Two => value.or_else(|| rest.next()).and(rest.next()),
            Values::Switch => value.or_else(|| {
                let next = rest.as_slice().first()?.to_str()?;
                SWITCHES.contains(&next).then(|| rest.next()).flatten()
            }),
        };
        let needs_value = matches!(row.values, Values::One | Values::Two);
        let value = value.filter(|text| !text.is_empty());
        if needs_value && value.is_none() {
            self.refuse(name, "a value is missing");
            return;
        }
        let value = value.unwrap_or_default();
        match row.meaning {
            // It stands for an option that this command does not have.
            Meaning::WithoutEffect | Meaning::Stands(..) => {
                add_once(&mut self.without_effect, name);
            }
            Meaning::Refused(reason) => self.refuse(name, reason),
            Meaning::Download => {
                let asked = value.to_string_lossy();
                let advice = model_name::download(&asked).unwrap_or_else(|| {
                    "emel downloads nothing; fetch the file and give its path".to_owned()
                });
                self.refuse(name, &advice);
            }
            // The model is the argument without a name.
            Meaning::Model => match self.model {
                Some(place) => {
                    self.own[place] = value;
                    add_once(&mut self.repeated, name);
                }
                None => {
                    self.model = Some(self.own.len());
                    self.own.push(value);
                }
            },
            Meaning::KeyType => self.cache.keys = Some((name.to_owned(), value)),
            Meaning::ValueType => self.cache.values = Some((name.to_owned(), value)),
            Meaning::Named(_) => self.refuse(name, OF_RUN),
        }
    }

    /// Takes an option that only another command has.
    fn take_other(
        &mut self,
        name: &str,
        value: Option<OsString>,
        option: &Arg,
        rest: &mut std::vec::IntoIter<OsString>,
    ) {
        let takes_next = option.get_action().takes_values() && !option.is_require_equals_set();
        if takes_next && value.is_none() {
            rest.next();
        }
        self.refuse(name, OF_RUN);
    }

    fn take_unknown(&mut self, word: OsString, name: &str, has_value: bool) {
        let with_number = option_with_number(self.command, name).filter(|_| !has_value);
        if let Some((option, _)) = with_number {
            let short = &name[..2];
            if !self.seen.insert(option.get_id().as_str()) {
                add_once(&mut self.repeated, short);
            }
            self.own.push(word);
            return;
        }
        match nearest_option(self.command, name) {
            Some(meant) => self.refuse(name, &format!("no such option; --{meant} is one")),
            None => self.refuse(name, "no such option; see --help"),
        }
    }

    fn refuse(&mut self, name: &str, reason: &str) {
        let known = self.refused.iter_mut().find(|it| it.reason == reason);
        match known {
            Some(refusal) => add_once(&mut refusal.names, name),
            None => self.refused.push(Refusal {
                names: vec![name.to_owned()],
                reason: reason.to_owned(),
            }),
        }
    }

    fn finish(mut self) -> Spelt {
        let mut notes = Vec::new();
        match std::mem::take(&mut self.cache).kept() {
            // It says so itself, or the command keeps no keys and values.
            Ok(Some(_))
                if self.seen.contains("kv") || own_option(self.command, "--kv").is_none() =>
            {
                add_once(&mut self.without_effect, "-ctk, -ctv");
            }
            Ok(Some(Kept { kind, note })) => {
                let option = ["--kv".into(), kind.into()];
                self.own.splice(self.start..self.start, option);
                notes.extend(note);
            }
            Ok(None) => {}
            Err((names, reason)) => self.refuse(&names, &reason),
        }
        if !self.without_effect.is_empty() {
            let names = self.without_effect.join(", ");
            notes.push(format!("without effect here: {names}"));
        }
        if !self.repeated.is_empty() {
            let names = self.repeated.join(", ");
            notes.push(format!("given more than once, the last counts: {names}"));
        }
        let refusals = self.refused.iter().map(|Refusal { names, reason }| {
            let names = names.join(", ");
            format!("{names}: {reason}")
        });
        Spelt {
            refusals: refusals.collect(),
            arguments: self.own,
            notes,
        }
    }
}

/// The arguments without the first that gives `option`, as messages call it, this value. None
/// if it is not found.
pub(super) fn without_value(
    command: &Command,
    arguments: &[OsString],
    option: &str,
    value: &str,
) -> Option<Vec<OsString>> {
    let called = called(command, arguments)?;
    let is_value = |of: &Arg, given: &OsStr| {
        let given = given.to_string_lossy();
        let mut parts = given.split(|it| of.get_value_delimiter() == Some(it));
        given == value || parts.any(|part| part == value)
    };
    let mut place = words_of_name(command);
    while let Some(word) = arguments.get(place).filter(|word| *word != "--") {
        let (name, inline) = flag_and_value(word).unwrap_or_default();
        let found = match own_option(called, &name) {
            Some(option) => Some((option, inline)),
            None => option_with_number(called, &name)
                .map(|(option, number)| (option, Some(number.into()))),
        };
        let mut words = 1;
        if let Some((known, inline)) = found {
            let takes_next = inline.is_none() && known.get_action().takes_values();
            words += usize::from(takes_next);
            let given = inline.or_else(|| arguments.get(place + 1).cloned());
            if known.to_string() == option && given.is_some_and(|given| is_value(known, &given)) {
                let rest = arguments.get(place + words..).unwrap_or_default();
                return Some([&arguments[..place], rest].concat());
            }
        }
        place += words;
    }
    None
}

/// The long option that differs from `name` by a letter or two.
fn nearest_option<'a>(command: &'a Command, name: &str) -> Option<&'a str> {
    let name = name.trim_start_matches('-');
    let changes_max = match name.len() {
        0..3 => return None,
        3..8 => 1,
        _ => 2,
    };
    let known = command.get_arguments().filter_map(Arg::get_long);
    let nearest = known.min_by_key(|known| changes(name, known));
    nearest.filter(|known| changes(name, known) <= changes_max)
}

/// How many letters are to be left out, put in or replaced to make one word of another.
fn changes(from: &str, to: &str) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (index, letter) in from.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], index + 1);
        for (column, other) in to.bytes().enumerate() {
            let replaced = diagonal + usize::from(letter != other);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}

/// A flag's name, with `-` for `_` as in llama.cpp, and the value that stands in the same word,
/// if one does. None if the word is no flag.
fn flag_and_value(word: &OsStr) -> Option<(String, Option<OsString>)> {
    let bytes = word.as_bytes();
    let is_flag = match bytes {
        [b'-', second, ..] => !second.is_ascii_digit() && *second != b'.',
        _ => false,
    };
    let end = bytes.iter().position(|&byte| byte == b'=');
    let name = std::str::from_utf8(&bytes[..end.unwrap_or(bytes.len())]).ok();
    let name = name.filter(|_| is_flag)?;
    let value = end.map(|end| OsString::from_vec(bytes[end + 1..].to_vec()));
    let name = match name.strip_prefix("--") {
        Some(long) => format!("--{}", long.replace('_', "-")),
        None => name.to_owned(),
    };
    Some((name, value))
}

fn joined(name: &str, value: Option<OsString>) -> OsString {
    let mut word = OsString::from(name);
    if let Some(value) = value {
        word.push("=");
        word.push(value);
    }
    word
}

fn own_option<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    command
        .get_arguments()
        .find(|option| match name.strip_prefix("--") {
            Some(long) => {
                option.get_long() == Some(long)
                    || option
                        .get_all_aliases()
                        .is_some_and(|all| all.contains(&long))
            }
            None => option
                .get_short()
                .is_some_and(|short| name.chars().eq(['-', short])),
        })
}

/// The option of `-n128`: of one letter, with a number.
fn option_with_number<'a, 'n>(command: &'a Command, name: &'n str) -> Option<(&'a Arg, &'n str)> {
    let (letter, number) = name.split_at_checked(2)?;
    let digits = number.strip_prefix('-').unwrap_or(number);
    let option = own_option(command, letter)?;
    let is_given = digits.starts_with(|first: char| first.is_ascii_digit());
    (is_given && option.get_action().takes_values()).then_some((option, number))
}

fn add_once(names: &mut Vec<String>, name: &str) {
    if !names.iter().any(|known| known == name) {
        names.push(name.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use clap::error::ErrorKind;

    use super::super::program::{Options, RunAlone};
    use super::*;

    fn spelt_by(mut command: Command, line: &str) -> Result<String, String> {
        command.build();
        let words = line.split(' ').map(OsString::from).collect();
        let spelt = in_own_terms(&command, words);
        if !spelt.refusals.is_empty() {
            return Err(spelt.refusals.join(" | "));
        }
        let words: Vec<_> = spelt
            .arguments
            .iter()
            .filter_map(|word| word.to_str())
            .collect();
        Ok(words.join(" "))
    }

    #[test]
    fn options_are_renamed_unless_they_are_values() {
        for (line, expected) in [
            (
                "emel-run m -cnv -sys -st -st -p -cnv -- -cnv",
                "emel-run m --conversation --system-prompt -st --single-turn -p -cnv -- -cnv",
            ),
            ("emel-run -m a.gguf -p b", "emel-run a.gguf -p b"),
            (
                "emel-run m -i -if",
                "emel-run m --conversation --conversation",
            ),
            ("emel-run m -ngl 0 -n 3", "emel-run m -n 3"),
            (
                "emel-run m --no-display-prompt --temp 0 -p --simple-io",
                "emel-run m --temp 0 -p --simple-io",
            ),
            ("emel-run m --n_predict 3", "emel-run m --n-predict 3"),
            ("emel-run m", "emel-run m"),
            (
                "emel-run -m=a.gguf -sys=-st --n-predict=3 -p=-cnv --prompt=-m -ngl=0 x=y",
                "emel-run a.gguf --system-prompt=-st --n-predict=3 -p=-cnv --prompt=-m x=y",
            ),
            ("emel-run m -fa -n128 -fa on -t8", "emel-run m -n128 -t8"),
            ("emel-run m -fit off -l15-1.5", "emel-run m -l15-1.5"),
            (
                "emel-run --color m --color off -co on",
                "emel-run --color m --color=off --color=on",
            ),
        ] {
            let found = spelt_by(RunAlone::command(), line);
            assert_eq!(found.as_deref(), Ok(expected));
        }
        for (line, expected) in [
            ("emel eval --model=a.gguf -p -m", "emel eval a.gguf -p -m"),
            // It is the trace here.
            ("emel trace m -f t -o -ngl", "emel trace m -f t -o -ngl"),
            ("emel plan m -ngl 9 -c 4", "emel plan m -c 4"),
            ("emel plan m --no-context-shift", "emel plan m"),
            (
                "emel run m --no-context-shift --context-shift",
                "emel run m --context-full=stop --context-full=drop",
            ),
            ("emel explain -ngl", "emel explain -ngl"),
            ("emel --version", "emel --version"),
        ] {
            let found = spelt_by(Options::command(), line);
            assert_eq!(found.as_deref(), Ok(expected));
        }
    }

    #[test]
    fn keys_and_values_that_are_kept_alike_are_one_option() {
        for (line, expected) in [
            (
                "emel eval m -ctk q8_0 -p a -ctv q8_0 -- b",
                "emel eval --kv q8_0 m -p a -- b",
            ),
            (
                "emel eval m --cache-type-k=f32 -ctv=f32",
                "emel eval --kv f32 m",
            ),
            // None is coarser than asked for.
            ("emel eval m -ctk q8_0", "emel eval --kv f16 m"),
            ("emel eval m --kv q8_0 -ctk f32", "emel eval m --kv q8_0"),
            ("emel eval m -ctk q4_0 -ctv q5_1", "emel eval --kv q8_0 m"),
            ("emel eval m -ctk q8_0 -ctv bf16", "emel eval --kv f32 m"),
        ] {
            let found = spelt_by(Options::command(), line);
            assert_eq!(found.as_deref(), Ok(expected));
        }
    }

    /// Every flag of llama.cpp's programs is an option, without effect, or refused with its own
    /// sentence, and has as many values here as there.
    #[test]
    fn every_flag_of_llama_cpp_is_known() {
        let flags = include_str!("../../../tests/fixtures/llama_cpp_flags.txt");
        let mut command = RunAlone::command();
        command.build();
        let mut known = 0;
        for line in flags.lines() {
            let (values, names) = line.split_once(' ').unwrap();
            let values = " 1".repeat(values.parse().unwrap());
            for name in names.split(' ') {
                known += 1;
                let line = format!("emel-run {name}{values} -m m.gguf -p x");
                match spelt_by(command.clone(), &line) {
                    Ok(own) if own == "emel-run m.gguf -p x" => {}
                    Ok(own) => {
                        let parsed = command.clone().try_get_matches_from(own.split(' '));
                        let kind = parsed.err().map(|error| error.kind());
                        assert_ne!(kind, Some(ErrorKind::UnknownArgument), "{name}: {own}");
                    }
                    Err(refusal) => assert!(!refusal.contains("no such option"), "{refusal}"),
                }
                // The other commands know those of a run, too.
                let line = format!("emel plan m.gguf {name}{values}");
                if let Err(refusal) = spelt_by(Options::command(), &line) {
                    assert!(!refusal.contains("no such option"), "{refusal}");
                }
            }
        }
        assert!(known > 500, "{known}");
    }

    #[test]
    fn a_value_is_left_out_with_its_option() {
        let mut command = Options::command();
        command.build();
        for (line, option, value, expected) in [
            (
                "emel run m --temp hot -c 4",
                "--temp <X>",
                "hot",
                "emel run m -c 4",
            ),
            (
                "emel run m --temp=hot -c 4",
                "--temp <X>",
                "hot",
                "emel run m -c 4",
            ),
            (
                "emel run m -p hot -n-7",
                "--predict <N>",
                "-7",
                "emel run m -p hot",
            ),
            // What is a value itself is none of an option.
            (
                "emel run m -p --temp hot --temp hot",
                "--temp <X>",
                "hot",
                "emel run m -p --temp hot",
            ),
            (
                "emel eval m --tokens 1,x",
                "--tokens <IDS>",
                "x",
                "emel eval m",
            ),
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let left = without_value(&command, &words, option, value).unwrap();
            assert_eq!(left.join(OsStr::new(" ")), expected);
        }
        let words = ["emel", "run", "m", "--", "--temp", "hot"].map(OsString::from);
        assert_eq!(without_value(&command, &words, "--temp <X>", "hot"), None);
    }

    #[test]
    fn the_nearest_option_is_named_if_it_is_near() {
        let command = RunAlone::command();
        for (name, expected) in [
            ("--promt", Some("prompt")),
            ("--ram-buget", Some("ram-budget")),
            ("--flash-attention", None),
            ("-x", None),
        ] {
            assert_eq!(nearest_option(&command, name), expected, "{name}");
        }
    }
}
