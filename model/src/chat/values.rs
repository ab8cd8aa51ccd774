//! Values as Python sees them: their types, their equality and their order.

use std::cmp::Ordering;
use std::sync::Arc;

use minijinja::value::{Enumerator, Object, ObjectRepr, Tuple, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

/// Nesting that Python would refuse, too, at some depth.
pub(super) const DEPTH_MAX: usize = 200;

/// About what a place in a list takes.
const SLOT_BYTES: usize = 32;

/// Integers up to this all have an exact float.
const EXACT_FLOAT_MAX: u128 = 1 << 53;

pub(super) fn error(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// What Python can do and this does not.
pub(super) fn unsupported(what: &str) -> Error {
    error(format!("{what} is not supported"))
}

/// Pays for memory before it is taken.
pub(super) fn charge(state: &State, bytes: usize) -> Result<(), Error> {
    state.consume_fuel(1 + bytes as u64 / 64)
}

/// A value by its type in Python.
pub(super) enum Kind<'a> {
    Undefined,
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(&'a str),
    List,
    Tuple,
    Dict,
    Namespace,
    Range(&'a Range),
    /// A generator, or a view of a mapping.
    Iterator,
    Other,
}

pub(super) fn kind(value: &Value) -> Kind<'_> {
    match value.kind() {
        ValueKind::Undefined => Kind::Undefined,
        ValueKind::None => Kind::None,
        ValueKind::Bool => Kind::Bool(value.is_true()),
        ValueKind::Number if value.is_integer() => match i128::try_from(value.clone()) {
            Ok(number) => Kind::Int(number),
            Err(_) => Kind::Other,
        },
        ValueKind::Number => f64::try_from(value.clone()).map_or(Kind::Other, Kind::Float),
        ValueKind::String => Kind::Text(value.as_str().unwrap_or_default()),
        ValueKind::Seq => match value.downcast_object_ref::<Range>() {
            Some(range) => Kind::Range(range),
            None if value.is_tuple() => Kind::Tuple,
            None => Kind::List,
        },
        ValueKind::Map => {
            // These types are minijinja's own.
            let name = value.as_object().map_or("", |object| object.type_name());
            match name.rsplit("::").next() {
                Some("Namespace") => Kind::Namespace,
                Some("Loop" | "Macro") => Kind::Other,
                _ => Kind::Dict,
            }
        }
        ValueKind::Iterable => Kind::Iterator,
        _ => Kind::Other,
    }
}

impl Kind<'_> {
    pub(super) fn int(&self) -> Option<i128> {
        match self {
            Self::Int(number) => Some(*number),
            Self::Bool(flag) => Some(i128::from(*flag)),
            _ => None,
        }
    }

    pub(super) fn float(&self) -> Option<f64> {
        match self {
            Self::Float(number) => Some(*number),
            other => other.int().map(|number| number as f64),
        }
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Undefined => "Undefined",
            Self::None => "NoneType",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Float(_) => "float",
            Self::Text(_) => "str",
            Self::List => "list",
            Self::Tuple => "tuple",
            Self::Dict => "dict",
            Self::Namespace => "Namespace",
            Self::Range(_) => "range",
            Self::Iterator => "generator",
            Self::Other => "object",
        }
    }
}

/// `range(start, stop, step)`
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) start: i64,
    pub(super) stop: i64,
    pub(super) step: i64,
    pub(super) length: usize,
}

impl Range {
    fn at(&self, index: usize) -> i64 {
        self.start + self.step * index as i64
    }
}

impl Object for Range {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let index = key.as_usize().filter(|index| *index < self.length)?;
        Some(self.at(index).into())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.length)
    }
}

/// The function `range`, bounded as in jinja2's sandbox.
pub(super) fn range(
    first: &Value,
    stop: Option<&Value>,
    step: Option<&Value>,
) -> Result<Value, Error> {
    const LENGTH_MAX: i64 = 100_000;
    let int = |value: &Value| {
        let number = kind(value).int().map(i64::try_from);
        number.and_then(Result::ok).filter(|n| n.abs() < 1 << 40)
    };
    let bound = |value: &Value| {
        int(value).ok_or_else(|| {
            error(format!(
                "range: expected a small integer, found '{}'",
                kind(value).name()
            ))
        })
    };
    let (start, stop) = match stop {
        Some(stop) => (bound(first)?, bound(stop)?),
        None => (0, bound(first)?),
    };
    let step = step.map_or(Ok(1), bound)?;
    let length = match step {
        0 => return Err(error("range() arg 3 must not be zero")),
        1.. => (stop - start + step - 1) / step,
        _ => (start - stop - step - 1) / -step,
    };
    if length > LENGTH_MAX {
        return Err(error(format!("range: more than {LENGTH_MAX} numbers")));
    }
    let length = length.max(0) as usize;
    Ok(Value::from_object(Range {
        start,
        stop,
        step,
        length,
    }))
}

/// What going through a value gives.
pub(super) fn items(state: &State, value: &Value) -> Result<Vec<Value>, Error> {
    match kind(value) {
        Kind::Undefined => Ok(Vec::new()),
        Kind::Text(text) => {
            charge(state, text.len().saturating_mul(SLOT_BYTES))?;
            Ok(text.chars().map(Value::from).collect())
        }
        Kind::List | Kind::Tuple | Kind::Range(_) | Kind::Iterator | Kind::Dict => {
            let length = value.len();
            charge(state, length.unwrap_or_default().saturating_mul(SLOT_BYTES))?;
            let mut found = Vec::new();
            for item in value.try_iter()?.checked() {
                if length.is_none() {
                    charge(state, SLOT_BYTES)?;
                }
                found.push(item?);
            }
            Ok(found)
        }
        other => Err(error(format!("'{}' object is not iterable", other.name()))),
    }
}

pub(super) fn list(items: Vec<Value>) -> Value {
    Value::from_object(items)
}

pub(super) fn tuple(items: Vec<Value>) -> Value {
    Value::from(Tuple::from(items))
}

/// What can be gone through once, as what Python's generators yield.
pub(super) fn once(items: Vec<Value>) -> Value {
    Value::make_one_shot_iterator(items.into_iter())
}

/// The keys, values or items of a mapping.
pub(super) fn view(state: &State, dict: &Value, what: &str) -> Result<Value, Error> {
    let mut found = Vec::new();
    for key in items(state, dict)? {
        let value = |key: &Value| dict.get_item(key);
        found.push(match what {
            "keys" => key,
            "values" => value(&key)?,
            _ => {
                charge(state, 2 * SLOT_BYTES)?;
                let value = value(&key)?;
                tuple(vec![key, value])
            }
        });
    }
    Ok(Value::make_object_iterable(found, |found| {
        Box::new(found.iter().cloned())
    }))
}

/// Fails for what cannot be the key of a mapping.
pub(super) fn check_key(value: &Value) -> Result<(), Error> {
    match kind(value) {
        Kind::List | Kind::Dict => {
            let name = kind(value).name();
            Err(error(format!("unhashable type: '{name}'")))
        }
        Kind::Tuple => {
            for item in value.try_iter()? {
                check_key(&item)?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

pub(super) fn equal(state: &State, left: &Value, right: &Value) -> Result<bool, Error> {
    equal_at(state, left, right, 0)
}

fn equal_at(state: &State, left: &Value, right: &Value, depth: usize) -> Result<bool, Error> {
    state.consume_fuel(1)?;
    if depth > DEPTH_MAX {
        return Err(error(format!(
            "comparing lists nested over {DEPTH_MAX} levels"
        )));
    }
    let same = |left: &Value, right: &Value| equal_at(state, left, right, depth + 1);
    Ok(match (kind(left), kind(right)) {
        (Kind::Undefined, Kind::Undefined) | (Kind::None, Kind::None) => true,
        (Kind::Text(left), Kind::Text(right)) => {
            charge(state, left.len().min(right.len()))?;
            left == right
        }
        (Kind::List, Kind::List) | (Kind::Tuple, Kind::Tuple) => {
            if left.len() != right.len() {
                return Ok(false);
            }
            for (left, right) in left.try_iter()?.zip(right.try_iter()?) {
                if !same(&left, &right)? {
                    return Ok(false);
                }
            }
            true
        }
        (Kind::Dict, Kind::Dict) => {
            if left.len() != right.len() {
                return Ok(false);
            }
            for key in left.try_iter()? {
                let other = right.get_item(&key)?;
                if other.is_undefined() || !same(&left.get_item(&key)?, &other)? {
                    return Ok(false);
                }
            }
            true
        }
        (Kind::Range(left), Kind::Range(right)) => {
            left.length == right.length
                && (left.length == 0 || left.start == right.start)
                && (left.length < 2 || left.step == right.step)
        }
        (Kind::Iterator, Kind::Iterator) => {
            return Err(unsupported("comparing generators or views of mappings"));
        }
        (Kind::Namespace, Kind::Namespace) | (Kind::Other, Kind::Other) => {
            return Err(unsupported("comparing namespaces, functions or macros"));
        }
        (left, right) => numbers(&left, &right)? == Some(Some(Ordering::Equal)),
    })
}

/// The order of two numbers, if both are numbers; a NaN has none.
fn numbers(left: &Kind, right: &Kind) -> Result<Option<Option<Ordering>>, Error> {
    if let (Some(left), Some(right)) = (left.int(), right.int()) {
        return Ok(Some(Some(left.cmp(&right))));
    }
    let (Some(left_float), Some(right_float)) = (left.float(), right.float()) else {
        return Ok(None);
    };
    let is_exact = |number: &Kind| {
        let int = number.int();
        int.is_none_or(|int| int.unsigned_abs() <= EXACT_FLOAT_MAX)
    };
    if !is_exact(left) || !is_exact(right) {
        return Err(unsupported(
            "comparing a float with an integer beyond 53 bits",
        ));
    }
    Ok(Some(left_float.partial_cmp(&right_float)))
}

/// The order of two values, if they have one.
pub(super) fn order(
    state: &State,
    left: &Value,
    right: &Value,
    operator: &str,
) -> Result<Option<Ordering>, Error> {
    state.consume_fuel(1)?;
    match (kind(left), kind(right)) {
        (Kind::Text(left), Kind::Text(right)) => Ok(Some(left.cmp(right))),
        (Kind::List, Kind::List) | (Kind::Tuple, Kind::Tuple) => {
            for (left, right) in left.try_iter()?.zip(right.try_iter()?) {
                if !equal(state, &left, &right)? {
                    return order(state, &left, &right, operator);
                }
            }
            Ok(Some(left.len().cmp(&right.len())))
        }
        (left, right) => numbers(&left, &right)?.ok_or_else(|| {
            error(format!(
                "'{operator}' not supported between instances of '{}' and '{}'",
                left.name(),
                right.name()
            ))
        }),
    }
}

/// `item in container`
pub(super) fn contains(state: &State, container: &Value, item: &Value) -> Result<bool, Error> {
    match (kind(container), kind(item)) {
        (Kind::Text(text), Kind::Text(part)) => {
            charge(state, text.len())?;
            Ok(text.contains(part))
        }
        (Kind::Text(_), other) => Err(error(format!(
            "'in <string>' requires string as left operand, not {}",
            other.name()
        ))),
        (Kind::Dict, _) => {
            check_key(item)?;
            Ok(!container.get_item(item)?.is_undefined())
        }
        _ => {
            for found in items(state, container)? {
                if equal(state, &found, item)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
    }
}
