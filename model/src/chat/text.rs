//! The text of values, as Python's `str` and `repr` write it.

use std::sync::LazyLock;

use fancy_regex::Regex;
use minijinja::{Error, State, Value};

use super::values::{DEPTH_MAX, Kind, charge, error, kind, unsupported};

/// A text that is paid for before it grows.
pub(super) struct Text<'a, 'env> {
    state: &'a State<'a, 'env>,
    text: String,
}

impl<'a, 'env> Text<'a, 'env> {
    pub(super) fn new(state: &'a State<'a, 'env>) -> Self {
        let text = String::new();
        Self { state, text }
    }

    /// Makes room for `bytes` more.
    pub(super) fn reserve(&mut self, bytes: usize) -> Result<(), Error> {
        let length = self.text.len();
        let needed = length.checked_add(bytes);
        let needed = needed.ok_or_else(|| error("a text beyond all memory"))?;
        if needed > self.text.capacity() {
            let room = needed.max(self.text.capacity() * 2).max(64);
            charge(self.state, room)?;
            self.text.reserve_exact(room - length);
        }
        Ok(())
    }

    pub(super) fn push(&mut self, text: &str) -> Result<(), Error> {
        self.reserve(text.len())?;
        self.text.push_str(text);
        Ok(())
    }

    pub(super) fn push_char(&mut self, character: char) -> Result<(), Error> {
        self.push(character.encode_utf8(&mut [0; 4]))
    }

    pub(super) fn push_times(&mut self, text: &str, times: usize) -> Result<(), Error> {
        self.reserve(text.len().saturating_mul(times))?;
        for _ in 0..if text.is_empty() { 0 } else { times } {
            self.text.push_str(text);
        }
        Ok(())
    }

    pub(super) fn into_string(self) -> String {
        self.text
    }

    pub(super) fn value(self) -> Value {
        self.text.into()
    }

    /// Appends `str(value)`.
    pub(super) fn write(&mut self, value: &Value) -> Result<(), Error> {
        match kind(value) {
            Kind::Text(text) => self.push(text),
            Kind::Undefined => Ok(()),
            _ => self.write_repr(value, 0),
        }
    }

    /// Appends `repr(value)`.
    pub(super) fn write_repr(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.state.consume_fuel(1)?;
        if depth > DEPTH_MAX {
            return Err(error(format!(
                "a list nested over {DEPTH_MAX} levels has no text"
            )));
        }
        match kind(value) {
            Kind::Undefined => self.push("Undefined"),
            Kind::None => self.push("None"),
            Kind::Bool(flag) => self.push(if flag { "True" } else { "False" }),
            Kind::Int(number) => self.push(&number.to_string()),
            Kind::Float(number) => self.push(&float(number)),
            Kind::Text(text) if value.is_safe() => {
                self.push("Markup(")?;
                self.quote(text)?;
                self.push(")")
            }
            Kind::Text(text) => self.quote(text),
            Kind::List => self.sequence("[", value, "]", depth),
            Kind::Tuple if value.len() == Some(1) => self.sequence("(", value, ",)", depth),
            Kind::Tuple => self.sequence("(", value, ")", depth),
            Kind::Dict => {
                self.push("{")?;
                for (index, key) in value.try_iter()?.enumerate() {
                    self.push(if index > 0 { ", " } else { "" })?;
                    self.write_repr(&key, depth + 1)?;
                    self.push(": ")?;
                    self.write_repr(&value.get_item(&key)?, depth + 1)?;
                }
                self.push("}")
            }
            Kind::Range(range) => {
                let (start, stop) = (range.start, range.stop);
                match range.step {
                    1 => self.push(&format!("range({start}, {stop})")),
                    step => self.push(&format!("range({start}, {stop}, {step})")),
                }
            }
            other => {
                let name = other.name();
                Err(unsupported(&format!("the text of a value of type {name}")))
            }
        }
    }

    fn sequence(
        &mut self,
        open: &str,
        value: &Value,
        close: &str,
        depth: usize,
    ) -> Result<(), Error> {
        self.push(open)?;
        for (index, item) in value.try_iter()?.enumerate() {
            self.push(if index > 0 { ", " } else { "" })?;
            self.write_repr(&item, depth + 1)?;
        }
        self.push(close)
    }

    /// Appends a text in quotes: single ones, unless only those are within.
    fn quote(&mut self, text: &str) -> Result<(), Error> {
        let quote = if text.contains('\'') && !text.contains('"') {
            '"'
        } else {
            '\''
        };
        self.push_char(quote)?;
        for character in text.chars() {
            match (character, u32::from(character)) {
                ('\n', _) => self.push("\\n")?,
                ('\r', _) => self.push("\\r")?,
                ('\t', _) => self.push("\\t")?,
                ('\\', _) => self.push("\\\\")?,
                _ if character == quote => {
                    self.push("\\")?;
                    self.push_char(quote)?;
                }
                _ if is_printable(character) => self.push_char(character)?,
                (_, code @ ..=0xff) => self.push(&format!("\\x{code:02x}"))?,
                (_, code @ ..=0xffff) => self.push(&format!("\\u{code:04x}"))?,
                (_, code) => self.push(&format!("\\U{code:08x}"))?,
            }
        }
        self.push_char(quote)
    }
}

/// A character that `repr` shows as it is.
fn is_printable(character: char) -> bool {
    static PRINTABLE: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"[^\p{C}\p{Z}]").expect("the expression is valid"));
    if character.is_ascii() {
        return matches!(character, ' '..='~');
    }
    let text = character.encode_utf8(&mut [0; 4]).to_owned();
    PRINTABLE.is_match(&text).unwrap_or(false)
}

/// `str(value)`; a string stays what it is.
pub(super) fn text_of(state: &State, value: &Value) -> Result<Value, Error> {
    if value.as_str().is_some() {
        return Ok(value.clone());
    }
    let mut text = Text::new(state);
    text.write(value)?;
    Ok(text.value())
}

/// `str(value)` for what is not marked as safe: Python's methods of such texts escape.
pub(super) fn plain(state: &State, value: &Value) -> Result<Value, Error> {
    if value.is_safe() {
        return Err(unsupported("changing a string that is marked as safe"));
    }
    text_of(state, value)
}

/// A text for HTML, marked as safe.
pub(super) fn escaped(state: &State, value: &Value) -> Result<Value, Error> {
    if value.is_safe() {
        return Ok(value.clone());
    }
    let text = text_of(state, value)?;
    let mut out = Text::new(state);
    for character in text.as_str().unwrap_or_default().chars() {
        match character {
            '&' => out.push("&amp;")?,
            '<' => out.push("&lt;")?,
            '>' => out.push("&gt;")?,
            '\'' => out.push("&#39;")?,
            '"' => out.push("&#34;")?,
            other => out.push_char(other)?,
        }
    }
    Ok(Value::from_safe_string(out.into_string()))
}

/// A number as Python writes it: the shortest digits that read back the same, with an
/// exponent below 1e-4 and from 1e16.
pub(super) fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number < 0.0 { "-inf" } else { "inf" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..16).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        _ => format!("{number:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::float;

    #[test]
    fn numbers_are_written_as_python_writes_them() {
        for (number, expected) in [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (-1.25e-7, "-1.25e-07"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(float(number), expected);
        }
    }
}
