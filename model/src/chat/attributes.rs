//! Attributes of Python's own types. Their methods can be called; taken without a call they
//! have no value here, and neither have the numbers that some types have as attributes.

use minijinja::{Error, Value};

use super::values::{Kind, kind, unsupported};

/// Refuses an attribute that the value has in Python. Any other is looked for among the items
/// of the value.
pub(super) fn check(value: &Value, name: &str) -> Result<(), Error> {
    let kind = kind(value);
    if of(&kind).contains(&name) {
        let owner = kind.name();
        return Err(unsupported(&format!(
            "'{name}' of a value of type {owner}, without a call,"
        )));
    }
    Ok(())
}

/// What jinja2's sandbox lets a template see of a type.
fn of(kind: &Kind) -> &'static [&'static str] {
    match kind {
        Kind::Bool(_) | Kind::Int(_) => &[
            "as_integer_ratio",
            "bit_count",
            "bit_length",
            "conjugate",
            "denominator",
            "from_bytes",
            "imag",
            "is_integer",
            "numerator",
            "real",
            "to_bytes",
        ],
        Kind::Float(_) => &[
            "as_integer_ratio",
            "conjugate",
            "fromhex",
            "hex",
            "imag",
            "is_integer",
            "real",
        ],
        Kind::Text(_) => STR,
        Kind::List => &["copy", "count", "index"],
        Kind::Tuple => &["count", "index"],
        Kind::Dict => &["copy", "fromkeys", "get", "items", "keys", "values"],
        Kind::Range(_) => &["count", "index", "start", "step", "stop"],
        Kind::Iterator => &["close", "isdisjoint", "mapping", "send", "throw"],
        Kind::Undefined | Kind::None | Kind::Namespace | Kind::Other => &[],
    }
}

const STR: &[&str] = &[
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
