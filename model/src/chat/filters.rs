//! The filters of jinja2 that minijinja does not have, or with other results. What jinja2
//! has beyond these and minijinja's is refused as unknown.

use std::cmp::Ordering;

use minijinja::value::{Kwargs, Rest, Value, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, State, filters as builtin};

use super::arguments::{bind, int, is_true, text};
use super::operators::{binary, item};
use super::text::{Text, plain, text_of};
use super::values::{
    Kind, charge, check_key, equal, error, items, kind, list, once, order, tuple, unsupported, view,
};
use super::{format, methods};

/// Filters that have minijinja's results for the values that Python takes.
const CHECKED: [&str; 12] = [
    "abs", "attr", "batch", "dictsort", "first", "float", "groupby", "int", "last", "length",
    "count", "slice",
];

const OURS: [&str; 33] = [
    "capitalize",
    "center",
    "default",
    "d",
    "e",
    "escape",
    "format",
    "forceescape",
    "indent",
    "items",
    "join",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "sort",
    "string",
    "sum",
    "title",
    "trim",
    "truncate",
    "unique",
    "upper",
    "wordcount",
];

/// Filters that jinja2 does not have.
const OTHERS: [&str; 6] = ["bool", "split", "lines", "chain", "zip", "pprint"];

pub(super) fn add_to(environment: &mut Environment) {
    for name in CHECKED {
        let filter = match name {
            "abs" => Value::from_function(builtin::abs),
            "attr" => Value::from_function(builtin::attr),
            "batch" => Value::from_function(builtin::batch),
            "dictsort" => Value::from_function(builtin::dictsort),
            "first" => Value::from_function(builtin::first),
            "float" => Value::from_function(builtin::float),
            "groupby" => Value::from_function(builtin::groupby),
            "int" => Value::from_function(builtin::int),
            "last" => Value::from_function(builtin::last),
            "slice" => Value::from_function(builtin::slice),
            _ => Value::from_function(builtin::length),
        };
        environment.add_filter(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            let value = args.first().cloned().unwrap_or_default();
            check(state, name, &value, &args)?;
            let made = filter.call(state, &args)?;
            Ok::<_, Error>(match name {
                "batch" | "slice" => once(items(state, &made)?),
                _ => made,
            })
        });
    }
    for name in OURS {
        environment.add_filter(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            let (value, args) = args
                .split_first()
                .ok_or_else(|| error("a filter of nothing"))?;
            apply(state, name, value, args)
        });
    }
    for name in OTHERS {
        environment.remove_filter(name);
    }
}

/// Refuses values that Python's filter does not take.
fn check(state: &State, name: &str, value: &Value, args: &[Value]) -> Result<(), Error> {
    let found = kind(value);
    let is_taken = match name {
        "dictsort" => matches!(found, Kind::Dict),
        "attr" => !matches!(found, Kind::Dict),
        "int" | "float" => match found {
            Kind::Undefined => false,
            Kind::Float(number) => number.abs() < 2_f64.powi(126),
            _ => true,
        },
        "last" | "length" | "count" if matches!(found, Kind::Iterator) => value.len().is_some(),
        "abs" | "length" | "count" => !matches!(found, Kind::Namespace),
        _ => !matches!(
            found,
            Kind::None | Kind::Namespace | Kind::Other | Kind::Bool(_)
        ),
    };
    if !is_taken {
        return Err(unsupported(&format!(
            "the filter `{name}` of a value of type {}",
            found.name()
        )));
    }
    if let "batch" | "slice" = name {
        // What fills the last row is paid for.
        let count = args
            .get(1)
            .map_or(0, |count| kind(count).int().unwrap_or(0));
        let is_count = args
            .get(1)
            .is_none_or(|count| matches!(kind(count), Kind::Int(_)));
        if !is_count {
            return Err(unsupported("a count that is no integer"));
        }
        charge(
            state,
            usize::try_from(count).unwrap_or(0).saturating_mul(64),
        )?;
    }
    if name == "dictsort" {
        // minijinja orders what Python does not.
        let by_value = args.len() > 1 && format!("{:?}", &args[1..]).contains("value");
        for what in [if by_value { "values" } else { "keys" }] {
            let found = items(state, &view(state, value, what)?)?;
            for pair in found.windows(2) {
                order(state, &pair[0], &pair[1], "<")?;
            }
        }
    }
    Ok(())
}

fn apply(state: &mut State, name: &str, value: &Value, args: &[Value]) -> Result<Value, Error> {
    match name {
        "capitalize" | "center" | "lower" | "title" | "trim" | "upper" | "wordcount" => {
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
                _ => methods::changed_case(state, text, name),
            }
        }
        "default" | "d" => {
            let [default, also_false] = bind(args, ["default_value", "boolean"], 0)?;
            let is_missing = value.is_undefined() || (is_true(&also_false) && !value.is_true());
            Ok(match default {
                _ if !is_missing => value.clone(),
                Some(default) => default,
                None => "".into(),
            })
        }
        "e" | "escape" => escaped(state, value),
        "forceescape" if value.is_safe() => Err(unsupported("escaping twice")),
        "forceescape" => escaped(state, value),
        "format" => {
            let text = plain(state, value)?;
            format::percent(
                state,
                text.as_str().unwrap_or_default(),
                &tuple(args.to_vec()),
            )
        }
        "indent" => indent(state, value, args),
        "items" => match kind(value) {
            Kind::Undefined => Ok(once(Vec::new())),
            Kind::Dict => Ok(once(items(state, &view(state, value, "items")?)?)),
            _ => Err(error("Can only get item pairs from a mapping.")),
        },
        "join" => join(state, value, args),
        "list" => items(state, value).map(list),
        "map" => map(state, value, args),
        "max" | "min" => extreme(state, name, value, args),
        "replace" => {
            let [old, new, count] = bind(args, ["old", "new", "count"], 2)?;
            let part = |part: Option<Value>| text_of(state, &part.unwrap_or_default());
            let (text, old, new) = (plain(state, value)?, part(old)?, part(new)?);
            let count = match &count {
                Some(count) if !count.is_none() => int(&Some(count.clone()), -1)?,
                _ => -1,
            };
            let parts = [&text, &old, &new].map(|part| part.as_str().unwrap_or_default());
            methods::replaced(state, parts[0], parts[1], parts[2], count)
        }
        "reverse" => {
            if value.as_str().is_some() {
                let text = plain(state, value)?;
                let text = text.as_str().unwrap_or_default();
                charge(state, text.len())?;
                return Ok(text.chars().rev().collect::<String>().into());
            }
            if value.is_undefined() {
                return Err(unsupported("reversing what is undefined"));
            }
            let mut reversed = items(state, value)?;
            reversed.reverse();
            match kind(value) {
                Kind::Iterator if value.len().is_none() => Ok(list(reversed)),
                _ => Ok(once(reversed)),
            }
        }
        "round" => round(value, args),
        "safe" => {
            let text = text_of(state, value)?;
            Ok(Value::from_safe_string(
                text.as_str().unwrap_or_default().to_owned(),
            ))
        }
        "select" | "selectattr" | "reject" | "rejectattr" => select(state, name, value, args),
        "sort" => sort(state, value, args),
        "string" => text_of(state, value),
        "sum" => sum(state, value, args),
        "truncate" => truncate(state, value, args),
        "unique" => unique(state, value, args),
        _ => Err(unsupported(&format!("the filter `{name}`"))),
    }
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

/// A text for HTML, marked as safe.
pub(super) fn escaped(state: &State, value: &Value) -> Result<Value, Error> {
    if value.is_safe() {
        return Ok(value.clone());
    }
    let text = text_of(state, value)?;
    let mut out = Text::new(state);
    for character in text.as_str().unwrap_or_default().chars() {
        match character {
            '&' => out.push("&amp;")?,
            '<' => out.push("&lt;")?,
            '>' => out.push("&gt;")?,
            '\'' => out.push("&#39;")?,
            '"' => out.push("&#34;")?,
            other => out.push_char(other)?,
        }
    }
    Ok(Value::from_safe_string(out.into_string()))
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

fn round(value: &Value, args: &[Value]) -> Result<Value, Error> {
    let [precision, method] = bind(args, ["precision", "method"], 0)?;
    let precision = int(&precision, 0)?;
    let method = text(&method)?.unwrap_or("common");
    let (Some(number), 0..=15) = (kind(value).float(), precision) else {
        return Err(unsupported("rounding this value to these digits"));
    };
    let scale = 10_f64.powi(precision as i32);
    Ok(match (method, kind(value).int()) {
        ("common", Some(number)) => number.into(),
        ("common", None) if number.is_finite() => {
            // The decimal digits of the float decide, as in Python.
            let rounded = format!("{number:.*}", precision as usize);
            rounded.parse::<f64>().unwrap_or(number).into()
        }
        ("ceil", _) if (number * scale).is_finite() => {
            (((number * scale).ceil() + 0.0) / scale).into()
        }
        ("floor", _) if (number * scale).is_finite() => {
            (((number * scale).floor() + 0.0) / scale).into()
        }
        _ => {
            return Err(error(
                "round: expected a finite number and common, ceil or floor",
            ));
        }
    })
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

/// Follows a path such as `address.city`, or a number.
fn path(value: &Value, path: &Value, default: Option<&Value>) -> Result<Value, Error> {
    let or_default = |found: Value| match (found.is_undefined(), default) {
        (true, Some(default)) => default.clone(),
        _ => found,
    };
    let step = |value: &Value, key: &Value| {
        if value.is_undefined() {
            return Err(error("an undefined value has no attributes"));
        }
        Ok(or_default(item(value, key)))
    };
    let Some(parts) = path.as_str() else {
        return if path.is_none() {
            Ok(value.clone())
        } else {
            step(value, path)
        };
    };
    let mut found = value.clone();
    for part in parts.split('.') {
        let key = part
            .parse::<u32>()
            .map_or_else(|_| Value::from(part), Value::from);
        found = step(&found, &key)?;
    }
    Ok(found)
}

/// What a value is sorted or compared by: an attribute, without case if it is text.
fn key(
    state: &State,
    value: &Value,
    attribute: &Option<Value>,
    with_case: &Option<Value>,
) -> Result<Value, Error> {
    let key = match attribute {
        Some(attribute) => path(value, attribute, None)?,
        None => value.clone(),
    };
    match key.as_str() {
        Some(text) if !is_true(with_case) => methods::changed_case(state, text, "lower"),
        _ => Ok(key),
    }
}

fn sort(state: &State, value: &Value, args: &[Value]) -> Result<Value, Error> {
    let names = ["reverse", "case_sensitive", "attribute"];
    let [reverse, with_case, attribute] = bind(args, names, 0)?;
    let mut keyed = Vec::new();
    for item in items(state, value)? {
        let mut keys = Vec::new();
        match attribute.as_ref().and_then(Value::as_str) {
            Some(paths) => {
                for path in paths.split(',') {
                    keys.push(key(state, &item, &Some(path.into()), &with_case)?);
                }
            }
            None => keys.push(key(state, &item, &attribute, &with_case)?),
        }
        charge(state, 128)?;
        keyed.push((list(keys), item));
    }
    if is_true(&reverse) {
        keyed.reverse();
    }
    sort_by_key(state, &mut keyed)?;
    if is_true(&reverse) {
        keyed.reverse();
    }
    Ok(list(keyed.into_iter().map(|(_, item)| item).collect()))
}

/// Merges runs, as equal keys keep their order; a comparison may fail.
fn sort_by_key(state: &State, keyed: &mut Vec<(Value, Value)>) -> Result<(), Error> {
    let mut width = 1;
    while width < keyed.len() {
        let mut merged = Vec::with_capacity(keyed.len());
        for pair in keyed.chunks(2 * width) {
            let (mut left, mut right) = pair.split_at(width.min(pair.len()));
            while let (Some(first), Some(second)) = (left.first(), right.first()) {
                if order(state, &second.0, &first.0, "<")? == Some(Ordering::Less) {
                    merged.push(second.clone());
                    right = &right[1..];
                } else {
                    merged.push(first.clone());
                    left = &left[1..];
                }
            }
            merged.extend_from_slice(left);
            merged.extend_from_slice(right);
        }
        *keyed = merged;
        width *= 2;
    }
    Ok(())
}

fn extreme(state: &State, name: &str, value: &Value, args: &[Value]) -> Result<Value, Error> {
    let [with_case, attribute] = bind(args, ["case_sensitive", "attribute"], 0)?;
    let (wanted, symbol) = match name {
        "max" => (Ordering::Greater, ">"),
        _ => (Ordering::Less, "<"),
    };
    let mut best: Option<(Value, Value)> = None;
    for item in items(state, value)? {
        let key = key(state, &item, &attribute, &with_case)?;
        let is_better = match &best {
            Some((best, _)) => order(state, &key, best, symbol)? == Some(wanted),
            None => true,
        };
        if is_better {
            best = Some((key, item));
        }
    }
    Ok(best.map_or(Value::UNDEFINED, |(_, item)| item))
}

fn sum(state: &State, value: &Value, args: &[Value]) -> Result<Value, Error> {
    let [attribute, start] = bind(args, ["attribute", "start"], 0)?;
    let mut sum = start.unwrap_or_else(|| 0.into());
    if sum.as_str().is_some() {
        return Err(error("sum() can't sum strings"));
    }
    for item in items(state, value)? {
        let item = match &attribute {
            Some(attribute) => path(&item, attribute, None)?,
            None => item,
        };
        sum = binary(state, "+", &sum, &item)?;
    }
    Ok(sum)
}

fn unique(state: &State, value: &Value, args: &[Value]) -> Result<Value, Error> {
    let [with_case, attribute] = bind(args, ["case_sensitive", "attribute"], 0)?;
    let mut seen: Vec<Value> = Vec::new();
    let mut kept = Vec::new();
    'items: for item in items(state, value)? {
        let key = key(state, &item, &attribute, &with_case)?;
        check_key(&key)?;
        for other in &seen {
            if equal(state, &key, other)? {
                continue 'items;
            }
        }
        seen.push(key);
        kept.push(item);
    }
    Ok(once(kept))
}

fn join(state: &State, value: &Value, args: &[Value]) -> Result<Value, Error> {
    let [separator, attribute] = bind(args, ["d", "attribute"], 0)?;
    let separator = text_of(state, &separator.unwrap_or_else(|| "".into()))?;
    let mut out = Text::new(state);
    for (index, item) in items(state, value)?.into_iter().enumerate() {
        if index > 0 {
            out.push(separator.as_str().unwrap_or_default())?;
        }
        match &attribute {
            Some(attribute) => out.write(&path(&item, attribute, None)?)?,
            None => out.write(&item)?,
        }
    }
    Ok(out.value())
}

fn map(state: &mut State, value: &Value, args: &[Value]) -> Result<Value, Error> {
    let mut mapped = Vec::new();
    let is_empty = !value.is_true();
    let found = if is_empty {
        Vec::new()
    } else {
        items(state, value)?
    };
    match args.first().and_then(Value::as_str) {
        Some(name) => {
            for item in found {
                let mut all = vec![item];
                all.extend_from_slice(&args[1..]);
                mapped.push(state.apply_filter(name, &all)?);
            }
        }
        None if is_empty => {}
        None => {
            let names = ["attribute", "default"];
            let (positional, _): (&[Value], Kwargs) = from_args(args)?;
            if !positional.is_empty() {
                return Err(error("map: expected the name of a filter"));
            }
            let [attribute, default] = bind(args, names, 1)?;
            let default = default.filter(|default| !default.is_none());
            for item in found {
                mapped.push(path(
                    &item,
                    &attribute.clone().unwrap_or_default(),
                    default.as_ref(),
                )?);
            }
        }
    }
    Ok(once(mapped))
}

fn select(state: &mut State, name: &str, value: &Value, args: &[Value]) -> Result<Value, Error> {
    if !value.is_true() {
        return Ok(once(Vec::new()));
    }
    let (attribute, args) = match name.ends_with("attr") {
        true => {
            let missing = || error(format!("{name}: the attribute is missing"));
            let (attribute, args) = args.split_first().ok_or_else(missing)?;
            (Some(attribute), args)
        }
        false => (None, args),
    };
    let mut kept = Vec::new();
    for item in items(state, value)? {
        let tested = match attribute {
            Some(attribute) => path(&item, attribute, None)?,
            None => item.clone(),
        };
        let holds = match args.split_first() {
            Some((test, rest)) => {
                let mut all = vec![tested];
                all.extend_from_slice(rest);
                state.perform_test(test.as_str().unwrap_or_default(), &all)?
            }
            None => tested.is_true(),
        };
        if holds == name.starts_with("select") {
            kept.push(item);
        }
    }
    Ok(once(kept))
}
