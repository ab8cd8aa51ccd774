//! The filters of jinja2 that minijinja does not have, or with other results. What jinja2
//! has beyond these and minijinja's is refused as unknown.

use std::cmp::Ordering;

use minijinja::value::{Kwargs, Rest, Value, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, ErrorKind, State, filters as builtin};

use super::arguments::{bind, int, is_true, text};
use super::operators::{binary, item};
use super::text::{Text, escaped, plain, text_of};
use super::values::{
    Kind, charge, check_key, equal, error, items, kind, list, once, order, unsupported, view,
};
use super::{attributes, methods, text_filters};

/// Filters that have minijinja's results for the values that Python takes.
const CHECKED: [&str; 11] = [
    "abs", "batch", "dictsort", "first", "float", "groupby", "int", "last", "length", "count",
    "slice",
];

const OURS: [&str; 34] = [
    "attr",
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
            let made = filter.call(state, &args);
            let made = made.map_err(|cause| match cause.kind() {
                ErrorKind::OutOfFuel => cause,
                _ => error(format!("the filter `{name}`")).with_source(cause),
            })?;
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
            let what = format!("the filter `{name}` with a count that is no integer");
            return Err(unsupported(&what));
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
        "attr" => {
            let [name] = bind(args, ["name"], 1)?;
            attributes::attr(value, &name.unwrap_or_default())
        }
        "capitalize" | "center" | "format" | "indent" | "lower" | "replace" | "title" | "trim"
        | "truncate" | "upper" | "wordcount" => text_filters::apply(state, name, value, args),
        "default" | "d" => default(value, args),
        "e" | "escape" => escaped(state, value),
        "forceescape" if value.is_safe() => Err(unsupported("escaping twice")),
        "forceescape" => escaped(state, value),
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
        "unique" => unique(state, value, args),
        _ => Err(unsupported(&format!("the filter `{name}`"))),
    }
}

fn default(value: &Value, args: &[Value]) -> Result<Value, Error> {
    let [default, also_false] = bind(args, ["default_value", "boolean"], 0)?;
    let is_missing = value.is_undefined() || (is_true(&also_false) && !value.is_true());
    Ok(match default {
        _ if !is_missing => value.clone(),
        Some(default) => default,
        None => "".into(),
    })
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
