//! Python's two ways of formatting: `'%s' % value` and `'{}'.format(value)`.
//!
//! minijinja writes numbers; what it writes otherwise than Python (values of other types,
//! floats without a precision) is made into a string first.

use minijinja::formatting::{self, FormatStyle};
use minijinja::value::{Kwargs, Value, from_args};
use minijinja::{Error, State};

use super::text::{Text, plain, text_of};
use super::values::{Kind, error, items, kind, unsupported};

/// The digits of a width or a precision, at most.
const DIGITS_MAX: usize = 3;

/// Fails at a width or precision that would make more than a conversation needs.
fn check_digits(spec: &str) -> Result<(), Error> {
    let mut digits = 0;
    for byte in spec.bytes() {
        digits = if byte.is_ascii_digit() { digits + 1 } else { 0 };
        if digits > DIGITS_MAX || byte == b'*' {
            return Err(unsupported(
                "a width or precision of more than 3 digits, or `*`,",
            ));
        }
    }
    Ok(())
}

/// `format % value`
pub(super) fn percent(state: &State, format: &str, value: &Value) -> Result<Value, Error> {
    let values = match kind(value) {
        Kind::Tuple => items(state, value)?,
        Kind::Dict => return Err(unsupported("`%` with a mapping")),
        _ => vec![value.clone()],
    };
    let mut values = values.iter();
    let mut out = Text::new(state);
    let mut rest = format;
    while let Some((before, after)) = rest.split_once('%') {
        out.push(before)?;
        let end = after.find(|c: char| !"-+ #0123456789.*hlL".contains(c));
        let Some((end, conversion)) = end.and_then(|end| Some((end, after[end..].chars().next()?)))
        else {
            return Err(error("incomplete format"));
        };
        rest = &after[end + conversion.len_utf8()..];
        let spec = &after[..end];
        check_digits(spec)?;
        if conversion == '%' && spec.is_empty() {
            out.push("%")?;
            continue;
        }
        let Some(value) = values.next() else {
            return Err(error("not enough arguments for format string"));
        };
        let (value, conversion) = match (conversion, kind(value)) {
            ('s', _) => (text_of(state, value)?, 's'),
            ('r', _) => {
                let mut text = Text::new(state);
                text.write_repr(value, 0)?;
                (text.value(), 's')
            }
            ('d' | 'i' | 'u', Kind::Float(number)) if number.abs() < 1e37 => {
                (Value::from(number.trunc() as i128), 'd')
            }
            ('d' | 'i' | 'u' | 'x' | 'X' | 'o', found) => match found.int() {
                Some(number) => (number.into(), conversion),
                None => return Err(wrong(conversion, &found)),
            },
            ('e' | 'E' | 'f' | 'F' | 'g' | 'G', found) => match found.float() {
                Some(number) => (number.into(), conversion),
                None => return Err(wrong(conversion, &found)),
            },
            _ => return Err(unsupported(&format!("the conversion `%{conversion}`"))),
        };
        let one = format!("%{spec}{conversion}");
        let written = formatting::format(FormatStyle::Printf, &one, &[value])?;
        out.push(&written)?;
    }
    out.push(rest)?;
    if values.next().is_some()
        && !matches!(kind(value), Kind::List | Kind::Range(_) | Kind::Undefined)
    {
        return Err(error(
            "not all arguments converted during string formatting",
        ));
    }
    Ok(out.value())
}

fn wrong(conversion: char, found: &Kind) -> Error {
    let found = found.name();
    error(format!(
        "%{conversion} format: expected a number, found '{found}'"
    ))
}

/// `format.format(*args, **kwargs)`
pub(super) fn braces(state: &State, format: &str, args: &[Value]) -> Result<Value, Error> {
    let (positional, named): (&[Value], Kwargs) = from_args(args)?;
    let mut next = Some(0);
    let mut out = Text::new(state);
    let mut rest = format;
    while let Some(at) = rest.find(['{', '}']) {
        out.push(&rest[..at])?;
        let (brace, after) = rest[at..].split_at(1);
        if after.starts_with(brace) {
            out.push(brace)?;
            rest = &after[1..];
            continue;
        }
        let Some((field, after)) = after.split_once('}').filter(|_| brace == "{") else {
            return Err(error("a single brace in the format string"));
        };
        rest = after;
        let (field, spec) = field.split_once(':').unwrap_or((field, ""));
        let (name, conversion) = field.split_once('!').unwrap_or((field, ""));
        let value = match (name.parse::<usize>(), next) {
            (Err(_), Some(index)) if name.is_empty() => {
                next = Some(index + 1);
                positional.get(index).cloned()
            }
            (Ok(index), None | Some(0)) => {
                next = None;
                positional.get(index).cloned()
            }
            (Err(_), _) if !name.is_empty() && !name.contains(['.', '[', '{']) => {
                named.get::<Option<Value>>(name)?
            }
            _ => return Err(unsupported(&format!("the field `{field}` of a format"))),
        };
        let Some(value) = value else {
            return Err(error(format!(
                "the format's field `{field}` has no argument"
            )));
        };
        write(state, &mut out, &value, conversion, spec)?;
    }
    out.push(rest)?;
    Ok(out.value())
}

fn write(
    state: &State,
    out: &mut Text,
    value: &Value,
    conversion: &str,
    spec: &str,
) -> Result<(), Error> {
    let value = match conversion {
        "" => value.clone(),
        "s" => text_of(state, value)?,
        "r" => {
            let mut text = Text::new(state);
            text.write_repr(value, 0)?;
            text.value()
        }
        _ => return Err(unsupported(&format!("the conversion `!{conversion}`"))),
    };
    check_digits(spec)?;
    let is_plain = match kind(&value) {
        Kind::Text(_) => !spec.contains([',', '_', '+', '#', '=']),
        Kind::Int(_) => true,
        Kind::Float(_) => spec.ends_with(['e', 'E', 'f', 'F', 'g', 'G', '%']),
        _ => false,
    };
    if spec.is_empty() {
        let text = plain(state, &value)?;
        return out.push(text.as_str().unwrap_or_default());
    }
    if !is_plain {
        let name = kind(&value).name();
        return Err(unsupported(&format!(
            "the format `{spec}` of a value of type {name}"
        )));
    }
    let one = format!("{{:{spec}}}");
    out.push(&formatting::format(FormatStyle::StrFormat, &one, &[value])?)
}
