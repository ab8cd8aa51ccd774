//! Python's methods of strings, lists and mappings.

use minijinja::value::Value;
use minijinja::{Error, ErrorKind, State};

use super::arguments::{bind, int, is_true, text};
use super::format;
use super::text::{Text, plain};
use super::values::{
    Kind, charge, check_key, equal, error, items, kind, list, tuple, unsupported, view,
};

/// About what a short string takes in a list.
const STRING_BYTES: usize = 64;

pub(super) fn call(
    state: &mut State,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    match (kind(value), name) {
        (Kind::Text(text), _) => {
            plain(state, value)?;
            string(state, text, name, args)
        }
        (Kind::Dict, "keys" | "values" | "items") => {
            bind(args, [], 0)?;
            view(state, value, name)
        }
        (Kind::Dict, "get") => {
            let [key, default] = bind(args, [".key", ".default"], 1)?;
            let key = key.unwrap_or_default();
            check_key(&key)?;
            let found = value.get_item(&key)?;
            Ok(match found.is_undefined() {
                true => default.unwrap_or_else(|| ().into()),
                false => found,
            })
        }
        (Kind::Dict | Kind::List, "copy") => {
            bind(args, [], 0)?;
            Ok(value.clone())
        }
        (Kind::List | Kind::Tuple | Kind::Range(_), "count" | "index") => {
            let [wanted] = bind(args, [".value"], 1)?;
            let wanted = wanted.unwrap_or_default();
            let mut count = 0;
            for (index, item) in items(state, value)?.iter().enumerate() {
                if equal(state, item, &wanted)? {
                    if name == "index" {
                        return Ok(index.into());
                    }
                    count += 1;
                }
            }
            match name {
                "count" => Ok(count.into()),
                _ => Err(error("index: the value is not there")),
            }
        }
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

fn string(state: &State, receiver: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    match name {
        "capitalize" | "lower" | "swapcase" | "title" | "upper" => {
            bind(args, [], 0)?;
            changed_case(state, receiver, name)
        }
        "center" | "ljust" | "rjust" => field(state, receiver, name, args),
        "zfill" => zero_filled(state, receiver, args),
        "count" | "find" | "index" | "rfind" | "rindex" => search(receiver, name, args),
        "startswith" | "endswith" => affix(state, receiver, name, args),
        "format" => format::braces(state, receiver, args),
        "join" => joined(state, receiver, args),
        "lstrip" | "rstrip" | "strip" => {
            let [characters] = bind(args, [".chars"], 0)?;
            stripped(receiver, &characters, name)
        }
        "partition" | "rpartition" => partition(receiver, name, args),
        "removeprefix" | "removesuffix" => without_affix(receiver, name, args),
        "replace" => {
            let [old, new, count] = bind(args, [".old", ".new", ".count"], 2)?;
            replaced(
                state,
                receiver,
                required(&old)?,
                required(&new)?,
                int(&count, -1)?,
            )
        }
        "split" | "rsplit" => split(state, receiver, name, args),
        "splitlines" => split_lines(state, receiver, args),
        _ if name.starts_with("is") => {
            bind(args, [], 0)?;
            class(receiver, name).map(Value::from)
        }
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

fn field(state: &State, receiver: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let [width, fill] = bind(args, [".width", ".fillchar"], 1)?;
    let fill = fill.map_or(Ok(" ".to_owned()), |fill| {
        required(&Some(fill)).map(str::to_owned)
    })?;
    if fill.chars().count() != 1 {
        return Err(error(format!(
            "{name}: expected one character to fill with"
        )));
    }
    padded(state, receiver, int(&width, 0)?, &fill, name)
}

fn zero_filled(state: &State, receiver: &str, args: &[Value]) -> Result<Value, Error> {
    let [width] = bind(args, [".width"], 1)?;
    let (sign, digits) = receiver.split_at(usize::from(receiver.starts_with(['+', '-'])));
    let mut out = Text::new(state);
    out.push(sign)?;
    out.push_times("0", missing(receiver, int(&width, 0)?))?;
    out.push(digits)?;
    Ok(out.value())
}

fn joined(state: &State, receiver: &str, args: &[Value]) -> Result<Value, Error> {
    let [parts] = bind(args, [".iterable"], 1)?;
    let mut out = Text::new(state);
    for (index, part) in items(state, &parts.unwrap_or_default())?.iter().enumerate() {
        plain(state, part)?;
        if index > 0 {
            out.push(receiver)?;
        }
        out.push(required(&Some(part.clone()))?)?;
    }
    Ok(out.value())
}

fn partition(receiver: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let [separator] = bind(args, [".sep"], 1)?;
    let separator = required(&separator)?;
    let found = match (separator, name) {
        ("", _) => return Err(error("empty separator")),
        (_, "partition") => receiver.split_once(separator),
        _ => receiver.rsplit_once(separator),
    };
    let parts = match (found, name) {
        (Some((before, after)), _) => [before, separator, after],
        (None, "partition") => [receiver, "", ""],
        (None, _) => ["", "", receiver],
    };
    Ok(tuple(parts.map(Value::from).to_vec()))
}

fn without_affix(receiver: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let [affix] = bind(args, [".affix"], 1)?;
    let affix = required(&affix)?;
    let rest = match name {
        "removeprefix" => receiver.strip_prefix(affix),
        _ => receiver.strip_suffix(affix),
    };
    Ok(rest.unwrap_or(receiver).into())
}

fn split_lines(state: &State, receiver: &str, args: &[Value]) -> Result<Value, Error> {
    let [keep_ends] = bind(args, ["keepends"], 0)?;
    let mut found = Vec::new();
    for (line, end) in lines(receiver) {
        let kept = if is_true(&keep_ends) { end.len() } else { 0 };
        push_part(
            state,
            &mut found,
            &receiver[offset(receiver, line)..][..line.len() + kept],
        )?;
    }
    Ok(list(found))
}

/// A string argument that has to be there.
fn required(value: &Option<Value>) -> Result<&str, Error> {
    let Some(value) = value else {
        return Err(error("expected a string, found nothing"));
    };
    if value.is_safe() {
        return Err(unsupported(
            "a string that is marked as safe as an argument",
        ));
    }
    value.as_str().ok_or_else(|| {
        let found = kind(value).name();
        error(format!("expected a string, found '{found}'"))
    })
}

/// Where a part of a text begins.
fn offset(text: &str, part: &str) -> usize {
    part.as_ptr() as usize - text.as_ptr() as usize
}

fn push_part(state: &State, parts: &mut Vec<Value>, part: &str) -> Result<(), Error> {
    charge(state, STRING_BYTES + part.len())?;
    parts.push(part.into());
    Ok(())
}

/// What `str.isspace` is true for, and `strip` removes.
pub(super) fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\x1c'..='\x1f').contains(&character)
}

fn is_cased(character: char) -> bool {
    character.is_lowercase() || character.is_uppercase()
}

/// The text in another case, as the methods of these names.
pub(super) fn changed_case(state: &State, text: &str, name: &str) -> Result<Value, Error> {
    /// A letter may become three.
    const GROWTH: usize = 3;
    charge(state, text.len() * if text.is_ascii() { 1 } else { GROWTH })?;
    let has_digraph = |text: &str| {
        text.contains(|character: char| {
        matches!(character, '\u{1c4}'..='\u{1cc}' | '\u{1f1}'..='\u{1f3}' | '\u{1f80}'..='\u{1fff}')
    })
    };
    match name {
        "upper" => return Ok(text.to_uppercase().into()),
        "lower" => return Ok(text.to_lowercase().into()),
        _ if has_digraph(text) => {
            return Err(unsupported("a capital of two letters in one character"));
        }
        _ => {}
    }
    let capital = |out: &mut String, character: char| {
        let mut upper = character.to_uppercase();
        out.extend(upper.next());
        out.extend(upper.flat_map(char::to_lowercase));
    };
    let mut out = String::with_capacity(text.len());
    let mut follows_cased = false;
    for (at, character) in text.char_indices() {
        match name {
            "capitalize" if at == 0 => capital(&mut out, character),
            "capitalize" => {
                out.push_str(&text[at..].to_lowercase());
                break;
            }
            "swapcase" if character.is_uppercase() => out.extend(character.to_lowercase()),
            "swapcase" => out.extend(character.to_uppercase()),
            _ if follows_cased => out.extend(character.to_lowercase()),
            _ => capital(&mut out, character),
        }
        follows_cased = is_cased(character);
    }
    Ok(out.into())
}

/// Whether a text has letters with a case, and all of them are `lower` or `upper`.
pub(super) fn has_case(text: &str, name: &str) -> Result<bool, Error> {
    let is_of_case = match name {
        "lower" => char::is_lowercase,
        _ => char::is_uppercase,
    };
    let mut cased = text
        .chars()
        .filter(|character| is_cased(*character))
        .peekable();
    Ok(cased.peek().is_some() && cased.all(is_of_case))
}

fn class(text: &str, name: &str) -> Result<bool, Error> {
    let all = |is: fn(&char) -> bool| !text.is_empty() && text.chars().all(|c| is(&c));
    Ok(match name {
        "isascii" => text.is_ascii(),
        "islower" => has_case(text, "lower")?,
        "isupper" => has_case(text, "upper")?,
        "isspace" => all(|character| is_space(*character)),
        _ if !text.is_ascii() => {
            return Err(unsupported(&format!("`{name}` beyond ASCII")));
        }
        "isalnum" => all(char::is_ascii_alphanumeric),
        "isalpha" => all(char::is_ascii_alphabetic),
        "isdecimal" | "isdigit" | "isnumeric" => all(char::is_ascii_digit),
        "isprintable" => text.chars().all(|character| matches!(character, ' '..='~')),
        "isidentifier" => {
            !text.starts_with(|character: char| character.is_ascii_digit())
                && all(|character| *character == '_' || character.is_ascii_alphanumeric())
        }
        _ => return Err(Error::from(ErrorKind::UnknownMethod)),
    })
}

/// How many characters a text has less than `width`.
fn missing(text: &str, width: i128) -> usize {
    let missing = width - text.chars().count() as i128;
    usize::try_from(missing.max(0)).unwrap_or(usize::MAX)
}

/// The text in a field of `width` characters: `center`, `ljust` or `rjust`.
pub(super) fn padded(
    state: &State,
    text: &str,
    width: i128,
    fill: &str,
    name: &str,
) -> Result<Value, Error> {
    let missing = missing(text, width);
    let left = match name {
        "ljust" => 0,
        "rjust" => missing,
        // Where the sides cannot be equal, Python looks at the width.
        _ => missing / 2 + usize::from(missing % 2 == 1 && width % 2 == 1),
    };
    let mut out = Text::new(state);
    out.push_times(fill, left)?;
    out.push(text)?;
    out.push_times(fill, missing - left)?;
    Ok(out.value())
}

/// The part of a text between two indices of characters; nothing if it begins beyond
/// its end.
fn between<'t>(
    text: &'t str,
    start: &Option<Value>,
    stop: &Option<Value>,
) -> Result<Option<(usize, &'t str)>, Error> {
    let length = text.chars().count();
    let bound = |value: &Option<Value>, default: usize| {
        let is_absent = value.as_ref().is_none_or(Value::is_none);
        let bound = if is_absent {
            default as i128
        } else {
            int(value, 0)?
        };
        let bound = if bound < 0 {
            (bound + length as i128).max(0)
        } else {
            bound
        };
        Ok::<_, Error>(usize::try_from(bound).unwrap_or(usize::MAX))
    };
    let (start, stop) = (bound(start, 0)?, bound(stop, length)?.min(length));
    if start > stop {
        return Ok(None);
    }
    let at = |index: usize| {
        text.char_indices()
            .nth(index)
            .map_or(text.len(), |(at, _)| at)
    };
    Ok(Some((start, &text[at(start)..at(stop)])))
}

fn search(text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let [wanted, start, stop] = bind(args, [".sub", ".start", ".end"], 1)?;
    let wanted = required(&wanted)?;
    let part = between(text, &start, &stop)?;
    if name == "count" {
        return Ok(part
            .map_or(0, |(_, part)| part.matches(wanted).count())
            .into());
    }
    let found = part.and_then(|(start, part)| {
        let at = match name.starts_with('r') {
            true => part.rfind(wanted),
            false => part.find(wanted),
        };
        at.map(|at| start + part[..at].chars().count())
    });
    match found {
        Some(index) => Ok(index.into()),
        None if name.ends_with("index") => Err(error("substring not found")),
        None => Ok((-1).into()),
    }
}

fn affix(state: &State, text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let [wanted, start, stop] = bind(args, [".affix", ".start", ".end"], 1)?;
    let part = between(text, &start, &stop)?;
    let wanted = wanted.unwrap_or_default();
    let wanted = match kind(&wanted) {
        Kind::Tuple => items(state, &wanted)?,
        _ => vec![wanted],
    };
    for affix in wanted {
        let affix = Some(affix);
        let affix = required(&affix)?;
        let holds = part.is_some_and(|(_, part)| match name {
            "startswith" => part.starts_with(affix),
            _ => part.ends_with(affix),
        });
        if holds {
            return Ok(true.into());
        }
    }
    Ok(false.into())
}

/// `strip`, `lstrip` or `rstrip` of these characters, or of space.
pub(super) fn stripped(
    receiver: &str,
    characters: &Option<Value>,
    name: &str,
) -> Result<Value, Error> {
    let wanted = text(characters)?;
    let is_stripped = |character: char| match wanted {
        Some(wanted) => wanted.contains(character),
        None => is_space(character),
    };
    let mut rest = receiver;
    if name != "rstrip" {
        rest = rest.trim_start_matches(is_stripped);
    }
    if name != "lstrip" {
        rest = rest.trim_end_matches(is_stripped);
    }
    Ok(rest.into())
}

/// The text with up to `count` times another instead of `old`; a negative count is none.
pub(super) fn replaced(
    state: &State,
    text: &str,
    old: &str,
    new: &str,
    count: i128,
) -> Result<Value, Error> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let mut out = Text::new(state);
    let mut end = 0;
    for (at, found) in text.match_indices(old).take(count) {
        out.push(&text[end..at])?;
        out.push(new)?;
        end = at + found.len();
    }
    out.push(&text[end..])?;
    Ok(out.value())
}

fn split(state: &State, receiver: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let [separator, count] = bind(args, ["sep", "maxsplit"], 0)?;
    let count = usize::try_from(int(&count, -1)?).unwrap_or(usize::MAX);
    let is_from_end = name == "rsplit";
    let mut parts = Vec::new();
    match text(&separator)? {
        Some("") => return Err(error("empty separator")),
        Some(separator) if is_from_end => {
            for part in receiver.rsplitn(count.saturating_add(1), separator) {
                push_part(state, &mut parts, part)?;
            }
        }
        Some(separator) => {
            for part in receiver.splitn(count.saturating_add(1), separator) {
                push_part(state, &mut parts, part)?;
            }
        }
        None if is_from_end => {
            let mut rest = receiver.trim_end_matches(is_space);
            while !rest.is_empty() {
                let space = rest
                    .char_indices()
                    .rev()
                    .find(|(_, found)| is_space(*found));
                let space = space.filter(|_| parts.len() < count);
                let start = space.map_or(0, |(at, character)| at + character.len_utf8());
                push_part(state, &mut parts, &rest[start..])?;
                rest = rest[..start].trim_end_matches(is_space);
            }
        }
        None => {
            let mut rest = receiver.trim_start_matches(is_space);
            while !rest.is_empty() {
                let end = rest.find(is_space).filter(|_| parts.len() < count);
                let (word, after) = rest.split_at(end.unwrap_or(rest.len()));
                push_part(state, &mut parts, word)?;
                rest = after.trim_start_matches(is_space);
            }
        }
    }
    if is_from_end {
        parts.reverse();
    }
    Ok(list(parts))
}

/// The lines of a text, each with what ends it.
pub(super) fn lines(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let is_end = |character: char| {
        matches!(
            character,
            '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (line, from_end) = rest.split_at(rest.find(is_end).unwrap_or(rest.len()));
        let end = match from_end.chars().next() {
            Some('\r') if from_end.starts_with("\r\n") => 2,
            Some(character) => character.len_utf8(),
            None => 0,
        };
        let (end, after) = from_end.split_at(end);
        rest = after;
        Some((line, end))
    })
}
