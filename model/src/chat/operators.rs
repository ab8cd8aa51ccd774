//! Python's operators.

use std::cmp::Ordering;

use minijinja::{Error, State, Value};

use super::text::{Text, escaped, text_of};
use super::values::{
    Kind, charge, check_key, contains, equal, error, items, kind, list, order, tuple, unsupported,
};
use super::{attributes, format};

/// The names under which [`apply`] is in the environment. Those with an open bracket are
/// comparisons in a chain, whose result comes with the right operand.
pub(super) const OPERATORS: [&str; 30] = [
    "+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", "<=", ">", ">=", "[in]", "[-]",
    "[]", "[:]", "[for]", "[list]", "[==", "[!=", "[<", "[<=", "[>", "[>=", "[in", "[notin", "[.]",
    "[key]",
];

pub(super) fn apply(state: &State, name: &str, operands: &[Value]) -> Result<Value, Error> {
    match (name, operands) {
        ("[-]", [value]) => negative(value),
        ("[for]", [value]) => match kind(value) {
            Kind::List | Kind::Tuple | Kind::Range(_) => Ok(value.clone()),
            _ => items(state, value).map(list),
        },
        ("[list]", [value]) => items(state, value).map(list),
        ("[key]", [dict]) => {
            for key in dict.try_iter()? {
                check_key(&key)?;
            }
            Ok(dict.clone())
        }
        ("[.]", [container, name]) => {
            let name = name.as_str().unwrap_or_default();
            let found = attributes::of_type(container, name);
            found.map_or_else(|| container.get_attr(name), Ok)
        }
        ("[]", [container, _]) if container.is_undefined() => {
            Err(error("an undefined value has no items"))
        }
        ("[]", [container, key]) => Ok(item(container, key)),
        ("[:]", [value, start, stop, step]) => slice(state, value, [start, stop, step]),
        (_, [left, right]) => match name.strip_prefix('[') {
            Some("in]") => contains(state, right, left).map(Value::from),
            Some(chained) => {
                let holds = comparison(state, chained, left, right)?;
                Ok(tuple(vec![holds.into(), right.clone()]))
            }
            None => binary(state, name, left, right),
        },
        _ => Err(error(format!("{name}: wrong operands"))),
    }
}

pub(super) fn comparison(
    state: &State,
    name: &str,
    left: &Value,
    right: &Value,
) -> Result<bool, Error> {
    let order = || order(state, left, right, name);
    Ok(match name {
        "==" => equal(state, left, right)?,
        "!=" => !equal(state, left, right)?,
        "<" => order()? == Some(Ordering::Less),
        "<=" => matches!(order()?, Some(Ordering::Less | Ordering::Equal)),
        ">" => order()? == Some(Ordering::Greater),
        ">=" => matches!(order()?, Some(Ordering::Greater | Ordering::Equal)),
        "in" => contains(state, right, left)?,
        _ => !contains(state, right, left)?,
    })
}

pub(super) fn binary(
    state: &State,
    name: &str,
    left: &Value,
    right: &Value,
) -> Result<Value, Error> {
    match (name, kind(left), kind(right)) {
        ("==" | "!=" | "<" | "<=" | ">" | ">=", ..) => {
            comparison(state, name, left, right).map(Value::from)
        }
        ("~", ..) => concatenated(state, left, right),
        ("+", Kind::Text(_), Kind::Text(_)) => added(state, left, right),
        ("+", Kind::List, Kind::List) => Ok(list(joined(state, left, right)?)),
        ("+", Kind::Tuple, Kind::Tuple) => Ok(tuple(joined(state, left, right)?)),
        ("%", Kind::Text(text), _) => format::percent(state, text, right),
        ("*", Kind::Text(_) | Kind::List | Kind::Tuple, times) => repeated(state, left, &times),
        ("*", times, Kind::Text(_) | Kind::List | Kind::Tuple) => repeated(state, right, &times),
        (_, left, right) => arithmetic(name, &left, &right),
    }
}

fn concatenated(state: &State, left: &Value, right: &Value) -> Result<Value, Error> {
    let (first, second) = (text_of(state, left)?, text_of(state, right)?);
    let parts = [&first, &second].map(|part| part.as_str().unwrap_or_default());
    let mut text = Text::new(state);
    text.reserve(parts[0].len() + parts[1].len())?;
    text.push(parts[0])?;
    text.push(parts[1])?;
    Ok(text.value())
}

/// Two strings in one. Beside one that is marked as safe, the other is escaped.
fn added(state: &State, left: &Value, right: &Value) -> Result<Value, Error> {
    if !left.is_safe() && !right.is_safe() {
        return concatenated(state, left, right);
    }
    let both = concatenated(state, &escaped(state, left)?, &escaped(state, right)?)?;
    Ok(Value::from_safe_string(
        both.as_str().unwrap_or_default().to_owned(),
    ))
}

fn joined(state: &State, left: &Value, right: &Value) -> Result<Vec<Value>, Error> {
    let mut all = items(state, left)?;
    all.extend(items(state, right)?);
    Ok(all)
}

fn repeated(state: &State, value: &Value, times: &Kind) -> Result<Value, Error> {
    const SLOT_BYTES: usize = 32;
    let Some(times) = times.int() else {
        let (left, right) = (kind(value).name(), times.name());
        return Err(error(format!(
            "unsupported operand type(s) for *: '{left}' and '{right}'"
        )));
    };
    let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
    if let Some(text) = value.as_str() {
        if value.is_safe() {
            return Err(unsupported("repeating a string that is marked as safe"));
        }
        let mut out = Text::new(state);
        out.push_times(text, times)?;
        return Ok(out.value());
    }
    let one = items(state, value)?;
    let bytes = one.len().saturating_mul(times).saturating_mul(SLOT_BYTES);
    charge(state, bytes)?;
    let count = one.len() * times.min(bytes);
    let all: Vec<Value> = one.into_iter().cycle().take(count).collect();
    Ok(if value.is_tuple() {
        tuple(all)
    } else {
        list(all)
    })
}

fn arithmetic(name: &str, left: &Kind, right: &Kind) -> Result<Value, Error> {
    let is_division = matches!(name, "/" | "//" | "%");
    if let (Some(left), Some(right)) = (left.int(), right.int())
        && !(name == "**" && right < 0)
    {
        return integers(name, left, right);
    }
    let (Some(left), Some(right)) = (left.float(), right.float()) else {
        let (left, right) = (left.name(), right.name());
        return Err(error(format!(
            "unsupported operand type(s) for {name}: '{left}' and '{right}'"
        )));
    };
    if right == 0.0 && is_division {
        return Err(error("division by zero"));
    }
    let number = match name {
        "+" => left + right,
        "-" => left - right,
        "*" => left * right,
        "/" => left / right,
        "//" => float_division(left, right).0,
        "%" => float_division(left, right).1,
        _ => {
            let number = left.powf(right);
            if (left == 0.0 && right < 0.0) || !number.is_finite() {
                return Err(error(format!(
                    "{left:?} ** {right:?} is not a finite number"
                )));
            }
            number
        }
    };
    Ok(number.into())
}

/// Python's floor division of floats, and what is left.
fn float_division(left: f64, right: f64) -> (f64, f64) {
    let mut rest = left % right;
    let mut quotient = (left - rest) / right;
    if rest == 0.0 {
        rest = 0.0_f64.copysign(right);
    } else if (right < 0.0) != (rest < 0.0) {
        rest += right;
        quotient -= 1.0;
    }
    let floor = if quotient == 0.0 {
        0.0_f64.copysign(left / right)
    } else {
        let floor = quotient.floor();
        floor + f64::from(u8::from(quotient - floor > 0.5))
    };
    (floor, rest)
}

fn integers(name: &str, left: i128, right: i128) -> Result<Value, Error> {
    /// Integers up to this all have an exact float.
    const EXACT_FLOAT_MAX: u128 = 1 << 53;
    if right == 0 && matches!(name, "/" | "//" | "%") {
        return Err(error("division by zero"));
    }
    let rounds_up = |rest: i128| rest != 0 && (rest < 0) != (right < 0);
    let result = match name {
        "+" => left.checked_add(right),
        "-" => left.checked_sub(right),
        "*" => left.checked_mul(right),
        "//" => left
            .checked_div(right)
            .map(|quotient| quotient - i128::from(rounds_up(left % right))),
        "%" => left
            .checked_rem(right)
            .map(|rest| if rounds_up(rest) { rest + right } else { rest }),
        "/" if left.unsigned_abs().max(right.unsigned_abs()) <= EXACT_FLOAT_MAX => {
            return Ok((left as f64 / right as f64).into());
        }
        "**" => u32::try_from(right)
            .ok()
            .and_then(|exponent| left.checked_pow(exponent)),
        _ => None,
    };
    let result = result.map(Value::from);
    result.ok_or_else(|| unsupported(&format!("`{name}` of integers as large as these")))
}

fn negative(value: &Value) -> Result<Value, Error> {
    match (kind(value).int(), kind(value)) {
        (Some(number), _) => match number.checked_neg() {
            Some(number) => Ok(number.into()),
            None => Err(unsupported("an integer beyond 128 bits")),
        },
        (None, Kind::Float(number)) => Ok((-number).into()),
        (None, other) => Err(error(format!(
            "bad operand type for unary -: '{}'",
            other.name()
        ))),
    }
}

/// `container[key]`, or else the attribute of this name; undefined where Python fails.
pub(super) fn item(container: &Value, key: &Value) -> Value {
    let found = own_item(container, key).filter(|found| !found.is_undefined());
    let attribute = || attributes::of_type(container, key.as_str()?);
    found.or_else(attribute).unwrap_or(Value::UNDEFINED)
}

fn own_item(container: &Value, key: &Value) -> Option<Value> {
    match (kind(container), kind(key)) {
        (Kind::Text(_) | Kind::List | Kind::Tuple | Kind::Range(_), key) => {
            let index = key.int()?;
            let length = container.len().unwrap_or_default() as i128;
            let index = if index < 0 { index + length } else { index };
            match (usize::try_from(index), container.as_str()) {
                (Ok(index), Some(text)) => text.chars().nth(index).map(Value::from),
                (Ok(index), None) => container.get_item(&Value::from(index)).ok(),
                (Err(_), _) => None,
            }
        }
        (Kind::Iterator, _) => None,
        (Kind::Dict, _) if check_key(key).is_err() => None,
        _ => container.get_item(key).ok(),
    }
}

fn slice(state: &State, value: &Value, bounds: [&Value; 3]) -> Result<Value, Error> {
    let mut numbers = [None; 3];
    for (number, bound) in numbers.iter_mut().zip(bounds) {
        *number = match kind(bound) {
            Kind::None => None,
            other => match other.int().map(i64::try_from) {
                Some(Ok(number)) => Some(number),
                _ => return Err(unsupported("a slice by what is no integer")),
            },
        };
    }
    let [start, stop, step] = numbers;
    let step = step.unwrap_or(1);
    let is_text = value.as_str().is_some();
    if !is_text && !matches!(kind(value), Kind::List | Kind::Tuple) || step == 0 {
        let name = kind(value).name();
        return Err(error(format!(
            "a value of type {name} cannot be sliced by {step}"
        )));
    }
    let length = value.len().unwrap_or_default() as i64;
    // As `slice.indices` in Python.
    let (low, high) = if step > 0 {
        (0, length)
    } else {
        (-1, length - 1)
    };
    let bound = |bound: Option<i64>, default: i64| match bound {
        None => default,
        Some(bound) if bound < 0 => bound.saturating_add(length).max(low),
        Some(bound) => bound.min(high),
    };
    let (first, last) = if step > 0 { (low, high) } else { (high, low) };
    let (mut index, stop) = (bound(start, first), bound(stop, last));
    let all = items(state, value)?;
    let mut kept = Vec::new();
    while (step > 0 && index < stop) || (step < 0 && index > stop) {
        kept.extend(all.get(index as usize).cloned());
        index = index.saturating_add(step);
    }
    match kind(value) {
        Kind::Text(_) if value.is_safe() => {
            Err(unsupported("slicing a string that is marked as safe"))
        }
        Kind::Text(_) => Ok(kept
            .iter()
            .filter_map(Value::as_str)
            .collect::<String>()
            .into()),
        Kind::Tuple => Ok(tuple(kept)),
        _ => Ok(list(kept)),
    }
}
