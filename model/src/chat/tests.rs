//! The tests of jinja2: what may follow `is`.

use minijinja::value::{Rest, Value};
use minijinja::{Environment, Error, State};

use super::methods;
use super::operators::{binary, comparison};
use super::text::text_of;
use super::values::{Kind, equal, error, kind, unsupported};

const TESTS: [&str; 37] = [
    "!=",
    "<",
    "<=",
    "==",
    ">",
    ">=",
    "boolean",
    "callable",
    "defined",
    "divisibleby",
    "eq",
    "equalto",
    "escaped",
    "even",
    "false",
    "float",
    "ge",
    "greaterthan",
    "gt",
    "in",
    "integer",
    "iterable",
    "le",
    "lessthan",
    "lower",
    "lt",
    "mapping",
    "ne",
    "none",
    "number",
    "odd",
    "sameas",
    "sequence",
    "string",
    "true",
    "undefined",
    "upper",
];

/// Tests that jinja2 does not have, or that templates do not need.
const OTHERS: [&str; 6] = [
    "safe",
    "int",
    "startingwith",
    "endingwith",
    "filter",
    "test",
];

pub(super) fn add_to(environment: &mut Environment) {
    for name in TESTS {
        environment.add_test(name, move |state: &State, args: Rest<Value>| {
            match &args[..] {
                [value] => plain(state, name, value),
                [value, other] => binary_test(state, name, value, other),
                _ => Err(error(format!("`is {name}`: too many arguments"))),
            }
        });
    }
    for name in OTHERS {
        environment.remove_test(name);
    }
}

fn binary_test(state: &State, name: &str, value: &Value, other: &Value) -> Result<bool, Error> {
    let operator = match name {
        "eq" | "equalto" => "==",
        "ne" => "!=",
        "lt" | "lessthan" => "<",
        "le" => "<=",
        "gt" | "greaterthan" => ">",
        "ge" => ">=",
        "divisibleby" => return rest_is(state, value, other, 0),
        "sameas" => return same(state, value, other),
        "in" | "==" | "!=" | "<" | "<=" | ">" | ">=" => name,
        _ => return Err(error(format!("`is {name}` takes no argument"))),
    };
    comparison(state, operator, value, other)
}

/// A test without an argument.
fn plain(state: &State, name: &str, value: &Value) -> Result<bool, Error> {
    let found = kind(value);
    Ok(match name {
        "boolean" => matches!(found, Kind::Bool(_)),
        "callable" => matches!(found, Kind::Other | Kind::Undefined),
        "defined" => !matches!(found, Kind::Undefined),
        "undefined" => matches!(found, Kind::Undefined),
        "escaped" => value.is_safe(),
        "even" => rest_is(state, value, &2.into(), 0)?,
        "odd" => rest_is(state, value, &2.into(), 1)?,
        "false" => matches!(found, Kind::Bool(false)),
        "true" => matches!(found, Kind::Bool(true)),
        "float" => matches!(found, Kind::Float(_)),
        "integer" => matches!(found, Kind::Int(_)),
        "number" => matches!(found, Kind::Int(_) | Kind::Float(_) | Kind::Bool(_)),
        "iterable" => !matches!(
            found,
            Kind::None
                | Kind::Bool(_)
                | Kind::Int(_)
                | Kind::Float(_)
                | Kind::Namespace
                | Kind::Other
        ),
        "mapping" => matches!(found, Kind::Dict),
        "none" => matches!(found, Kind::None),
        "string" => matches!(found, Kind::Text(_)),
        "sequence" => matches!(
            found,
            Kind::Undefined
                | Kind::Text(_)
                | Kind::List
                | Kind::Tuple
                | Kind::Dict
                | Kind::Range(_)
        ),
        "lower" | "upper" => {
            let text = text_of(state, value)?;
            methods::has_case(text.as_str().unwrap_or_default(), name)?
        }
        _ => return Err(error(format!("`is {name}`: an argument is missing"))),
    })
}

fn rest_is(state: &State, value: &Value, divisor: &Value, rest: i64) -> Result<bool, Error> {
    let found = binary(state, "%", value, divisor)?;
    equal(state, &found, &rest.into())
}

/// `is` in Python, where it does not depend on how values are kept.
fn same(state: &State, left: &Value, right: &Value) -> Result<bool, Error> {
    Ok(match (kind(left), kind(right)) {
        (Kind::None, Kind::None) => true,
        (Kind::Bool(left), Kind::Bool(right)) => left == right,
        (first, second) if first.name() != second.name() => false,
        _ if !equal(state, left, right)? => false,
        _ => return Err(unsupported("the test `sameas` of equal values")),
    })
}
