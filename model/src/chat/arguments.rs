//! The arguments of filters and methods, and how they meet parameters.

use minijinja::Error;
use minijinja::value::{Kwargs, Value, from_args};

use super::values::{Kind, error, kind, unsupported};

/// The arguments of these parameters, the first `required` of which have no default. A
/// parameter whose name begins with a dot cannot be named.
pub(super) fn bind<const COUNT: usize>(
    args: &[Value],
    parameters: [&str; COUNT],
    required: usize,
) -> Result<[Option<Value>; COUNT], Error> {
    let (positional, named): (&[Value], Kwargs) = from_args(args)?;
    let mut bound = [const { None }; COUNT];
    if positional.len() > COUNT {
        return Err(error(format!("at most {COUNT} arguments are taken")));
    }
    for (index, name) in parameters.into_iter().enumerate() {
        let by_name: Option<Value> = if named.has(name) {
            Some(named.get(name)?)
        } else {
            None
        };
        bound[index] = match (positional.get(index).cloned(), by_name) {
            (Some(_), Some(_)) => return Err(error(format!("two values for `{name}`"))),
            (None, None) if index < required => {
                let name = name.trim_start_matches('.');
                return Err(error(format!("the argument `{name}` is missing")));
            }
            (value, by_name) => value.or(by_name),
        };
    }
    named.assert_all_used()?;
    Ok(bound)
}

/// An integer argument.
pub(super) fn int(value: &Option<Value>, default: i128) -> Result<i128, Error> {
    let Some(value) = value else {
        return Ok(default);
    };
    let found = kind(value);
    found.int().ok_or_else(|| {
        let name = found.name();
        unsupported(&format!(
            "an argument of type {name} in place of an integer"
        ))
    })
}

/// An argument that is a string, or none where that means that it is absent.
pub(super) fn text(value: &Option<Value>) -> Result<Option<&str>, Error> {
    match value.as_ref().map(kind) {
        None | Some(Kind::None) => Ok(None),
        Some(Kind::Text(text)) => Ok(Some(text)),
        Some(other) => Err(error(format!(
            "expected a string, found '{}'",
            other.name()
        ))),
    }
}

pub(super) fn is_true(value: &Option<Value>) -> bool {
    value.as_ref().is_some_and(Value::is_true)
}
