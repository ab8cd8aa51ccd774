//! llama.cpp's spellings of options, put into emel's, and what emel does instead of those that
//! it has no counterpart of.

use std::ffi::{OsStr, OsString};

/// Options that are only spelt otherwise.
const RENAMED: [(&str, &str); 12] = [
    ("-cnv", "--conversation"),
    ("-no-cnv", "--no-conversation"),
    ("-sys", "--system-prompt"),
    ("-sysf", "--system-prompt-file"),
    ("-st", "--single-turn"),
    ("--n-predict", "--predict"),
    ("--temperature", "--temp"),
    ("--top-n-sigma", "--top-nsigma"),
    ("--typical-p", "--typical"),
    ("--sampler-seq", "--sampling-seq"),
    ("--reverse-prompt", "--stop"),
    ("-co", "--color"),
];

/// Options that ask for what emel does anyway.
const ALREADY_SO: [&str; 6] = [
    "--no-display-prompt",
    "--no-escape",
    "--no-warmup",
    "--simple-io",
    "--log-disable",
    "--offline",
];

/// Options whose value may look like another option.
const WITH_TEXT: [&str; 11] = [
    "-p",
    "--prompt",
    "-f",
    "--file",
    "--system-prompt",
    "--system-prompt-file",
    "--chat-template",
    "--dry-sequence-breaker",
    "--session",
    "-r",
    "--stop",
];

/// An option that may have one of these values as its next argument, or none.
const COLOR: &str = "--color";
const COLOR_VALUES: [&str; 3] = ["auto", "on", "off"];

const MODEL: [&str; 2] = ["-m", "--model"];
const KEY_TYPE: [&str; 2] = ["-ctk", "--cache-type-k"];
const VALUE_TYPE: [&str; 2] = ["-ctv", "--cache-type-v"];
/// What llama.cpp keeps keys and values as unless it is told.
const CACHE_TYPE_DEFAULT: &str = "f16";
const GPU_LAYERS: [&str; 3] = ["-ngl", "--gpu-layers", "--n-gpu-layers"];

/// Options without a counterpart, and what to do instead.
const WITHOUT_COUNTERPART: [(&[&str], &str); 10] = [
    (
        &["-b", "--batch-size", "-ub", "--ubatch-size"],
        "emel takes as many tokens of a prompt in a pass as the budget allows, which changes no bit of the result; leave it out",
    ),
    (
        &["--mlock"],
        "emel holds its weights in memory of its own, as much as --ram-budget says; leave it out",
    ),
    (
        &["--prompt-cache"],
        "--session FILE keeps what has been computed, of the prompt and the answer",
    ),
    (
        &["-fa", "--flash-attn"],
        "there is one kind of attention, which never holds a whole row of scores for each head; leave it out",
    ),
    (
        &["-tb", "--threads-batch"],
        "-t is for prompts and answers alike",
    ),
    (
        &["-hf", "--hf-repo", "-mu", "--model-url"],
        "emel downloads nothing; fetch the file and give its path",
    ),
    (
        &["-e", "--escape"],
        "a text is taken as it is; have the shell make its line breaks, as in -p $'one\\ntwo'",
    ),
    (
        &["-i", "--interactive", "-if", "--interactive-first"],
        "-cnv holds a conversation",
    ),
    (
        &["-v", "--verbose", "--log-verbose"],
        "--stats tells what an answer costs, and --profile where its time goes",
    ),
    (
        &[
            "--grammar",
            "--grammar-file",
            "-j",
            "--json-schema",
            "-jf",
            "--json-schema-file",
        ],
        "emel has no grammars; ask for the form in the prompt",
    ),
];

/// The arguments as emel spells them.
///
/// # Errors
/// When one of them has no counterpart: what emel does instead.
pub(super) fn in_own_terms(arguments: Vec<OsString>) -> Result<Vec<OsString>, String> {
    let mut own = Vec::with_capacity(arguments.len());
    let mut cache = CacheTypes::default();
    let mut arguments = arguments.into_iter().peekable();
    own.extend(arguments.next());
    while let Some(argument) = arguments.next() {
        if argument == "--" {
            own.push(argument);
            own.extend(arguments);
            break;
        }
        let argument = renamed(argument);
        let (name, value) = name_and_value(&argument);
        let is_one_of = |names: &[&str]| names.iter().any(|known| name == OsStr::new(known));
        // The value is in the argument, or in the next one.
        let mut take = || match value {
            Some(value) => Some(value.to_owned()),
            None => arguments.next(),
        };
        if is_one_of(&WITH_TEXT) {
            let text = value.is_none().then(take).flatten();
            own.push(argument);
            own.extend(text);
        } else if is_one_of(&[COLOR]) && value.is_none() {
            let is_value = |next: &OsString| COLOR_VALUES.iter().any(|known| next == known);
            let mut argument = argument;
            if let Some(value) = arguments.next_if(is_value) {
                argument.push("=");
                argument.push(value);
            }
            own.push(argument);
        } else if is_one_of(&ALREADY_SO) && value.is_none() {
            // It is so.
        } else if is_one_of(&MODEL) {
            // The model is the argument without a name.
            own.extend(take());
        } else if is_one_of(&KEY_TYPE) || is_one_of(&VALUE_TYPE) {
            cache.at.get_or_insert(own.len());
            let kept = match is_one_of(&KEY_TYPE) {
                true => &mut cache.keys,
                false => &mut cache.values,
            };
            *kept = Some(required(name, take(), "<TYPE>")?);
        } else if is_one_of(&GPU_LAYERS) {
            let layers = required(name, take(), "<N>")?;
            if layers != "0" {
                return Err(format!(
                    "{} {}: emel computes on the processor; leave it out",
                    name.display(),
                    layers.display()
                ));
            }
        } else if let Some((_, instead)) = WITHOUT_COUNTERPART
            .iter()
            .find(|(names, _)| is_one_of(names))
        {
            return Err(format!("{}: {instead}", name.display()));
        } else {
            own.push(argument);
        }
    }
    cache.insert(&mut own)?;
    Ok(own)
}

/// The value of an option, or what clap says without one.
fn required(name: &OsStr, value: Option<OsString>, what: &str) -> Result<OsString, String> {
    value.filter(|value| !value.is_empty()).ok_or_else(|| {
        let name = name.display();
        format!("a value is required for '{name} {what}' but none was supplied")
    })
}

/// The argument with emel's name of the option, where that is another.
fn renamed(argument: OsString) -> OsString {
    let (name, value) = name_and_value(&argument);
    let Some((_, known)) = RENAMED
        .iter()
        .find(|(theirs, _)| name == OsStr::new(theirs))
    else {
        return argument;
    };
    let mut renamed = OsString::from(known);
    if let Some(value) = value {
        renamed.push("=");
        renamed.push(value);
    }
    renamed
}

/// An option's name, and the value that stands in the same argument, if one does.
fn name_and_value(argument: &OsStr) -> (&OsStr, Option<&OsStr>) {
    use std::os::unix::ffi::OsStrExt;
    let bytes = argument.as_bytes();
    let equals = bytes.iter().position(|&byte| byte == b'=');
    match equals.filter(|_| bytes.starts_with(b"-")) {
        Some(at) => (
            OsStr::from_bytes(&bytes[..at]),
            Some(OsStr::from_bytes(&bytes[at + 1..])),
        ),
        None => (argument, None),
    }
}

/// How keys and values are to be kept, and where that was said first.
#[derive(Default)]
struct CacheTypes {
    at: Option<usize>,
    keys: Option<OsString>,
    values: Option<OsString>,
}

impl CacheTypes {
    /// Says it in one option, where it was said.
    fn insert(self, own: &mut Vec<OsString>) -> Result<(), String> {
        let Some(at) = self.at else {
            return Ok(());
        };
        let [keys, values] =
            [self.keys, self.values].map(|kept| kept.unwrap_or_else(|| CACHE_TYPE_DEFAULT.into()));
        if keys != values {
            return Err(format!(
                "-ctk {} with -ctv {}: emel keeps keys and values alike; give both the same type, or --kv",
                keys.display(),
                values.display()
            ));
        }
        own.splice(at..at, ["--kv".into(), keys]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spelt(line: &str) -> Result<String, String> {
        let words = in_own_terms(line.split(' ').map(OsString::from).collect())?;
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
            ("emel eval --model=a.gguf -p -m", "emel eval a.gguf -p -m"),
            ("emel-run m -ngl 0 -n 3", "emel-run m -n 3"),
            (
                "emel-run m --no-display-prompt --temperature 0 -p --simple-io",
                "emel-run m --temp 0 -p --simple-io",
            ),
            ("emel-run m --n-predict 3", "emel-run m --predict 3"),
            ("emel-run --color -m m", "emel-run --color m"),
            ("emel-run -co off m", "emel-run --color=off m"),
            ("emel-run m -r --color", "emel-run m -r --color"),
            ("emel-run m", "emel-run m"),
            ("emel-run -m", "emel-run"),
            (
                "emel-run -m=a.gguf -sys=-st --n-predict=3 -p=-cnv --prompt=-m -ngl=0 x=y",
                "emel-run a.gguf --system-prompt=-st --predict=3 -p=-cnv --prompt=-m x=y",
            ),
        ] {
            assert_eq!(spelt(line).unwrap(), expected);
        }
    }

    #[test]
    fn keys_and_values_that_are_kept_alike_are_one_option() {
        for (line, expected) in [
            (
                "emel eval m -ctk q8_0 -p a -ctv q8_0 -- b",
                "emel eval m --kv q8_0 -p a -- b",
            ),
            ("emel-run -ctv f16 m", "emel-run --kv f16 m"),
            (
                "emel-run m --cache-type-k=f32 -ctv=f32",
                "emel-run m --kv f32",
            ),
        ] {
            assert_eq!(spelt(line).unwrap(), expected);
        }
        let refused = spelt("emel-run m -ctk q8_0").unwrap_err();
        assert!(refused.contains("-ctk q8_0 with -ctv f16"), "{refused}");
    }

    #[test]
    fn options_without_a_counterpart_say_what_is_done_instead() {
        for (line, part) in [
            (
                "emel-run m -ngl 99",
                "-ngl 99: emel computes on the processor",
            ),
            (
                "emel-run m --gpu-layers=99",
                "--gpu-layers 99: emel computes on the processor",
            ),
            ("emel-run m -ngl", "a value is required for '-ngl <N>'"),
            ("emel-run m -ctk", "a value is required for '-ctk <TYPE>'"),
            (
                "emel-run m --gpu-layers=",
                "a value is required for '--gpu-layers <N>'",
            ),
            ("emel-run m --prompt-cache f", "--session FILE"),
            ("emel-run m --mlock", "--ram-budget"),
        ] {
            let refused = spelt(line).unwrap_err();
            assert!(refused.contains(part), "{refused}");
        }
        for (names, instead) in WITHOUT_COUNTERPART {
            for name in names {
                for value in ["", " 512", "=512"] {
                    let refused = spelt(&format!("emel-run m {name}{value}")).unwrap_err();
                    assert_eq!(refused, format!("{name}: {instead}"));
                }
            }
        }
    }
}
