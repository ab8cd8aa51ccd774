//! The arguments of a command, with llama.cpp's spellings put into emel's: what has no effect
//! here is left out and noted, and all that is refused is refused at once. clap does the rest.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use clap::{Arg, ArgAction, Command, ValueEnum};

use super::KvName;
use super::llama_flags::{self, Meaning, Row, SWITCHES, Values};
use super::model_name;

/// What llama.cpp keeps keys and values as by default.
const CACHE_TYPE_DEFAULT: &str = "f16";

/// Arguments that clap takes, and what the user should know about those that were given.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Spelt {
    pub(super) arguments: Vec<OsString>,
    pub(super) notes: Vec<String>,
}

/// The arguments as the `command`, which is built, spells them.
///
/// # Errors
/// When some cannot be taken: all of them, with what to do instead.
pub(super) fn in_own_terms(
    mut command: &Command,
    arguments: Vec<OsString>,
) -> Result<Spelt, String> {
    let mut words = arguments.into_iter();
    let mut own: Vec<OsString> = words.next().into_iter().collect();
    if command.has_subcommands() {
        let name = words.next();
        let called = name.as_ref().and_then(|it| command.find_subcommand(it));
        own.extend(name);
        let Some(called) = called else {
            own.extend(words);
            return Ok(Spelt {
                arguments: own,
                notes: Vec::new(),
            });
        };
        command = called;
    }
    let mut reading = Reading::new(command, own);
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
    /// Long options that nothing is known of: clap refuses them, with a tip.
    unknown: Vec<String>,
}

/// Flags, and why they cannot be taken.
struct Refusal {
    names: Vec<String>,
    reason: String,
}

impl<'a> Reading<'a> {
    fn new(command: &'a Command, own: Vec<OsString>) -> Self {
        Self {
            command,
            start: own.len(),
            own,
            model: None,
            cache: CacheTypes::default(),
            seen: BTreeSet::new(),
            repeated: Vec::new(),
            without_effect: Vec::new(),
            refused: Vec::new(),
            unknown: Vec::new(),
        }
    }

    /// Takes a word, and from `rest` the values that belong to it.
    fn take(&mut self, word: OsString, rest: &mut std::vec::IntoIter<OsString>) {
        let Some((given, value)) = flag_and_value(&word) else {
            self.own.push(word);
            return;
        };
        // Options of emel's own come first: `-o` may be one of them.
        let (name, row) = match (own_option(self.command, &given), llama_flags::find(&given)) {
            (None, Some(row)) => match row.meaning {
                Meaning::Named(own) if own_option(self.command, own).is_some() => {
                    (own.to_owned(), None)
                }
                _ => (given, Some(row)),
            },
            _ => (given, None),
        };
        match (own_option(self.command, &name), row) {
            (_, Some(row)) => self.take_foreign(&name, value, row, rest),
            (Some(option), None) => self.take_own(&name, value, option, rest),
            (None, None) => self.take_unknown(word, name, value),
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
            Meaning::WithoutEffect => add_once(&mut self.without_effect, name),
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
            Meaning::Named(_) => self.refuse(name, "no option of this command; see --help"),
        }
    }

    fn take_unknown(&mut self, word: OsString, name: String, value: Option<OsString>) {
        if name.starts_with("--") {
            self.unknown.push(name.clone());
            self.own.push(joined(&name, value));
        } else if let Some(option) = self.option_with_number(&name, value.is_some()) {
            let short = name[..2].to_owned();
            if !self.seen.insert(option.get_id().as_str()) {
                add_once(&mut self.repeated, &short);
            }
            self.own.push(word);
        } else {
            self.refuse(&name, "no such option; see --help");
        }
    }

    /// The option of `-n128`: of one letter, with a number.
    fn option_with_number(&self, name: &str, has_value: bool) -> Option<&'a Arg> {
        let mut rest = name.chars().skip(2);
        let first = rest.next()?;
        let is_number = first.is_ascii_digit()
            || first == '-' && rest.next().is_some_and(|digit| digit.is_ascii_digit());
        let letter = name.get(..2).filter(|_| is_number && !has_value)?;
        own_option(self.command, letter).filter(|option| option.get_action().takes_values())
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

    fn finish(mut self) -> Result<Spelt, String> {
        match std::mem::take(&mut self.cache).kept() {
            // No option of this command: it keeps no keys and values.
            Ok(Some(_)) if own_option(self.command, "--kv").is_none() => {
                add_once(&mut self.without_effect, "-ctk, -ctv");
            }
            Ok(Some(kind)) => {
                let option = ["--kv".into(), kind];
                self.own.splice(self.start..self.start, option);
            }
            Ok(None) => {}
            Err((names, reason)) => self.refuse(&names, &reason),
        }
        if !self.refused.is_empty() {
            for name in std::mem::take(&mut self.unknown) {
                self.refuse(&name, "no such option; see --help");
            }
            let sentences = self.refused.iter().map(|Refusal { names, reason }| {
                let names = names.join(", ");
                format!("{names}: {reason}")
            });
            return Err(sentences.collect::<Vec<_>>().join(" | "));
        }
        let mut notes = Vec::new();
        if !self.without_effect.is_empty() {
            let names = self.without_effect.join(", ");
            notes.push(format!("without effect here: {names}"));
        }
        if !self.repeated.is_empty() {
            let names = self.repeated.join(", ");
            notes.push(format!("given more than once, the last counts: {names}"));
        }
        Ok(Spelt {
            arguments: self.own,
            notes,
        })
    }
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

fn add_once(names: &mut Vec<String>, name: &str) {
    if !names.iter().any(|known| known == name) {
        names.push(name.to_owned());
    }
}

/// The flags that say how keys and values are to be kept, and what they say.
#[derive(Default)]
struct CacheTypes {
    keys: Option<(String, OsString)>,
    values: Option<(String, OsString)>,
}

impl CacheTypes {
    /// The type of both, or the flags and why they cannot be taken.
    fn kept(self) -> Result<Option<OsString>, (String, String)> {
        let given: Vec<_> = [&self.keys, &self.values].into_iter().flatten().collect();
        if given.is_empty() {
            return Ok(None);
        }
        let shown = |(name, kind): &(String, OsString)| format!("{name} {}", kind.display());
        let names = given.iter().map(|it| shown(it)).collect::<Vec<_>>();
        let names = names.join(" ");
        let known = KvName::value_variants().iter();
        let known: Vec<String> = known
            .filter_map(|it| Some(it.to_possible_value()?.get_name().to_owned()))
            .collect();
        let is_known = |(_, kind): &&(String, OsString)| known.iter().any(|it| kind == it.as_str());
        if !given.iter().all(is_known) {
            let reason = format!("keys and values are kept as one of {}", known.join(", "));
            return Err((names, reason));
        }
        let kind = |kept: &Option<(String, OsString)>| match kept {
            Some((_, kind)) => kind.clone(),
            None => CACHE_TYPE_DEFAULT.into(),
        };
        let (keys, values) = (kind(&self.keys), kind(&self.values));
        if keys != values {
            let reason = format!(
                "keys would be {} and values {}, and emel keeps both alike; give both the same type, or --kv",
                keys.display(),
                values.display()
            );
            return Err((names, reason));
        }
        Ok(Some(keys))
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
        let words = in_own_terms(&command, words)?.arguments;
        let words: Vec<_> = words.iter().filter_map(|word| word.to_str()).collect();
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
            ("emel eval -ctv f16 m", "emel eval --kv f16 m"),
            (
                "emel eval m --cache-type-k=f32 -ctv=f32",
                "emel eval --kv f32 m",
            ),
        ] {
            let found = spelt_by(Options::command(), line);
            assert_eq!(found.as_deref(), Ok(expected));
        }
    }

    /// Every flag of llama.cpp's programs for the terminal is an option, without effect, or
    /// refused with its own sentence, and has as many values here as there.
    #[test]
    fn every_flag_of_llama_cpp_is_known() {
        let flags = include_str!("../../../tests/fixtures/llama_cli_flags.txt");
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
            }
        }
        assert!(known > 300, "{known}");
    }
}
