//! The filters of jinja2 that minijinja does not have, or with other results. What jinja2
//! has beyond these and minijinja's is refused as unknown.

mod sequences;
mod texts;

use minijinja::value::{Rest, Value, ValueOrKwargs};
use minijinja::{Environment, Error, State, filters as builtin};

use super::arguments::{bind, int, is_true, text};
use super::text::{escaped, text_of};
use super::values::{Kind, charge, error, items, kind, once, order, unsupported, view};

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
        "capitalize" | "center" | "format" | "indent" | "lower" | "replace" | "title" | "trim"
        | "truncate" | "upper" | "wordcount" => texts::apply(state, name, value, args),
        "items" | "join" | "list" | "map" | "max" | "min" | "reject" | "rejectattr" | "reverse"
        | "select" | "selectattr" | "sort" | "sum" | "unique" => {
            sequences::apply(state, name, value, args)
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
        "round" => round(value, args),
        "safe" => {
            let text = text_of(state, value)?;
            Ok(Value::from_safe_string(
                text.as_str().unwrap_or_default().to_owned(),
            ))
        }
        "string" => text_of(state, value),
        _ => Err(unsupported(&format!("the filter `{name}`"))),
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
