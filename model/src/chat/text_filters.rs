//! The filters of jinja2 that make a text of a text.

use minijinja::value::Value;
use minijinja::{Error, State};

use super::arguments::{bind, int, is_true, text};
use super::text::{Text, plain, text_of};
use super::values::{Kind, charge, error, kind, tuple, unsupported};
use super::{format, methods};

pub(super) fn apply(
    state: &State,
    name: &str,
    value: &Value,
    args: &[Value],
) -> Result<Value, Error> {
    match name {
        "indent" => return indent(state, value, args),
        "truncate" => return truncate(state, value, args),
        _ => {}
    }
    let text = plain(state, value)?;
    let text = text.as_str().unwrap_or_default();
    match name {
        "center" => {
            let [width] = bind(args, ["width"], 0)?;
            methods::padded(state, text, int(&width, 80)?, " ", name)
        }
        "title" => title(state, text),
        "trim" => {
            let [characters] = bind(args, ["chars"], 0)?;
            methods::stripped(text, &characters, "strip")
        }
        "wordcount" => words(text),
        "format" => format::percent(state, text, &tuple(args.to_vec())),
        "replace" => replace(state, text, args),
        _ => methods::changed_case(state, text, name),
    }
}

fn replace(state: &State, text: &str, args: &[Value]) -> Result<Value, Error> {
    let [old, new, count] = bind(args, ["old", "new", "count"], 2)?;
    let part = |part: Option<Value>| text_of(state, &part.unwrap_or_default());
    let (old, new) = (part(old)?, part(new)?);
    let count = match &count {
        Some(count) if !count.is_none() => int(&Some(count.clone()), -1)?,
        _ => -1,
    };
    let [old, new] = [&old, &new].map(|part| part.as_str().unwrap_or_default());
    methods::replaced(state, text, old, new, count)
}

/// Every word with a capital; jinja2 cuts words otherwise than Python does.
fn title(state: &State, text: &str) -> Result<Value, Error> {
    let ends_word = |character: char| methods::is_space(character) || "-({[<".contains(character);
    let mut out = Text::new(state);
    for part in text.split_inclusive(ends_word) {
        let mut characters = part.chars();
        if let Some(first) = characters.next() {
            out.push(&first.to_uppercase().collect::<String>())?;
            out.push(&characters.as_str().to_lowercase())?;
        }
    }
    Ok(out.value())
}

fn words(text: &str) -> Result<Value, Error> {
    if !text.is_ascii() {
        return Err(unsupported("the filter `wordcount` beyond ASCII"));
    }
    let words = text.split(|c: char| c != '_' && !c.is_ascii_alphanumeric());
    Ok(words.filter(|word| !word.is_empty()).count().into())
}

fn indent(state: &State, value: &Value, args: &[Value]) -> Result<Value, Error> {
    let [width, first, blank] = bind(args, ["width", "first", "blank"], 0)?;
    let Kind::Text(text) = kind(value) else {
        let found = kind(value).name();
        return Err(error(format!("indent: expected a string, found '{found}'")));
    };
    plain(state, value)?;
    let mut indent = Text::new(state);
    match width.as_ref().and_then(Value::as_str) {
        Some(text) => indent.push(text)?,
        None => {
            let width = int(&width, 4)?.max(0);
            indent.push_times(" ", usize::try_from(width).unwrap_or(usize::MAX))?;
        }
    }
    let indent = indent.into_string();
    let mut out = Text::new(state);
    if is_true(&first) {
        out.push(&indent)?;
    }
    let mut found: Vec<&str> = methods::lines(text).map(|(line, _)| line).collect();
    charge(state, found.len() * size_of::<&str>())?;
    // Python appends a line end first, so that there is a line after the last end.
    if methods::lines(text)
        .last()
        .is_none_or(|(_, end)| !end.is_empty())
    {
        found.push("");
    }
    for (index, line) in found.into_iter().enumerate() {
        if index > 0 {
            out.push("\n")?;
            if !line.is_empty() || is_true(&blank) {
                out.push(&indent)?;
            }
        }
        out.push(line)?;
    }
    Ok(out.value())
}

fn truncate(state: &State, value: &Value, args: &[Value]) -> Result<Value, Error> {
    let names = ["length", "killwords", "end", "leeway"];
    let [length, kill_words, end, leeway] = bind(args, names, 0)?;
    let end = text(&end)?.unwrap_or("...");
    let leeway = match leeway {
        Some(leeway) if !leeway.is_none() => int(&Some(leeway), 5)?,
        _ => 5,
    };
    let length = int(&length, 255)?;
    let end_length = end.chars().count() as i128;
    if length < end_length || leeway < 0 {
        return Err(error(format!(
            "truncate: expected a length of at least {end_length}"
        )));
    }
    let Kind::Text(text) = kind(value) else {
        return Err(unsupported("the filter `truncate` of what is no string"));
    };
    plain(state, value)?;
    if text.chars().count() as i128 <= length.saturating_add(leeway) {
        return Ok(value.clone());
    }
    let kept = (length - end_length) as usize;
    let cut = text
        .char_indices()
        .nth(kept)
        .map_or(text.len(), |(at, _)| at);
    let mut part = &text[..cut];
    if !is_true(&kill_words) {
        part = part.rsplit_once(' ').map_or(part, |(words, _)| words);
    }
    let mut out = Text::new(state);
    out.push(part)?;
    out.push(end)?;
    Ok(out.value())
}
