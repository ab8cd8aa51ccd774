//! Filters of lists and other things that can be gone through.

use std::cmp::Ordering;

use minijinja::value::{Kwargs, Value, from_args};
use minijinja::{Error, State};

use super::super::arguments::{bind, is_true};
use super::super::methods;
use super::super::operators::{binary, item};
use super::super::text::{Text, plain, text_of};
use super::super::values::{
    Kind, charge, check_key, equal, error, items, kind, list, once, order, unsupported, view,
};

/// Applies the filter `name`.
pub(super) fn apply(
    state: &mut State,
    name: &str,
    value: &Value,
    args: &[Value],
) -> Result<Value, Error> {
    match name {
        "items" => match kind(value) {
            Kind::Undefined => Ok(once(Vec::new())),
            Kind::Dict => Ok(once(items(state, &view(state, value, "items")?)?)),
            _ => Err(error("Can only get item pairs from a mapping.")),
        },
        "join" => join(state, value, args),
        "list" => items(state, value).map(list),
        "map" => map(state, value, args),
        "max" | "min" => extreme(state, name, value, args),
        "reverse" => reversed(state, value),
        "sort" => sort(state, value, args),
        "sum" => sum(state, value, args),
        "unique" => unique(state, value, args),
        _ => select(state, name, value, args),
    }
}

fn reversed(state: &State, value: &Value) -> Result<Value, Error> {
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
