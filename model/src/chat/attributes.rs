//! The attributes of Python's own types, beside the items of mappings.

use std::sync::Arc;

use minijinja::value::{Object, ObjectRepr, Value};
use minijinja::{Error, State};

use super::methods;
use super::values::{Kind, kind, unsupported};

const TEXT: [&str; 47] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "encode",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "maketrans",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "translate",
    "upper",
    "zfill",
];
const LIST: [&str; 3] = ["copy", "count", "index"];
const SEQUENCE: [&str; 2] = ["count", "index"];
const DICT: [&str; 6] = ["copy", "fromkeys", "get", "items", "keys", "values"];
const INT: [&str; 6] = [
    "as_integer_ratio",
    "bit_count",
    "bit_length",
    "conjugate",
    "from_bytes",
    "to_bytes",
];
const FLOAT: [&str; 5] = [
    "as_integer_ratio",
    "conjugate",
    "fromhex",
    "hex",
    "is_integer",
];
const FIELDS: [&str; 7] = [
    "real",
    "imag",
    "numerator",
    "denominator",
    "start",
    "stop",
    "step",
];

/// Methods that change a mapping: undefined in jinja2's sandbox, even if it has such a key.
const CHANGES_DICT: [&str; 5] = ["clear", "pop", "popitem", "setdefault", "update"];

/// Whether a type of Python's has an attribute of this name.
pub(super) fn is_name(name: &str) -> bool {
    let names: [&[&str]; 7] = [&TEXT, &LIST, &DICT, &INT, &FLOAT, &FIELDS, &CHANGES_DICT];
    names.iter().any(|names| names.contains(&name))
}

/// `value.name` for an attribute of the value's type.
pub(super) fn of_type(value: &Value, name: &str) -> Option<Value> {
    let methods: &[&'static str] = match (kind(value), name) {
        (Kind::Bool(_) | Kind::Int(_), "real" | "numerator") => {
            return kind(value).int().map(Value::from);
        }
        (Kind::Bool(_) | Kind::Int(_), "imag") => return Some(0.into()),
        (Kind::Bool(_) | Kind::Int(_), "denominator") => return Some(1.into()),
        (Kind::Float(_), "real") => return Some(value.clone()),
        (Kind::Float(_), "imag") => return Some(0.0.into()),
        (Kind::Range(range), "start") => return Some(range.start.into()),
        (Kind::Range(range), "stop") => return Some(range.stop.into()),
        (Kind::Range(range), "step") => return Some(range.step.into()),
        (Kind::Dict, _) if CHANGES_DICT.contains(&name) => return Some(Value::UNDEFINED),
        (Kind::Text(_), _) => &TEXT,
        (Kind::List, _) => &LIST,
        (Kind::Tuple | Kind::Range(_), _) => &SEQUENCE,
        (Kind::Dict, _) => &DICT,
        (Kind::Bool(_) | Kind::Int(_), _) => &INT,
        (Kind::Float(_), _) => &FLOAT,
        _ => &[],
    };
    let name = methods.iter().find(|method| **method == name)?;
    Some(Value::from_object(Method {
        receiver: value.clone(),
        name,
    }))
}

/// The filter `attr`, which does not look at items.
pub(super) fn attr(value: &Value, name: &Value) -> Result<Value, Error> {
    match (kind(value), name.as_str()) {
        (Kind::Undefined | Kind::Namespace | Kind::Other, _) => value.get_item(name),
        (_, Some(name)) => Ok(of_type(value, name).unwrap_or(Value::UNDEFINED)),
        (_, None) => Err(unsupported("the filter `attr` by what is no string")),
    }
}

/// A method that is not called yet.
#[derive(Debug)]
struct Method {
    receiver: Value,
    name: &'static str,
}

impl Object for Method {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        methods::call(state, &self.receiver, self.name, args)
    }
}
