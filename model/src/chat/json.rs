//! The `tojson` filter of Hugging Face's templates: the text of Python's `json.dumps`,
//! with `ensure_ascii` off. Models are trained on its spaces.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, Rest, Value, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Error, ErrorKind, State};

use super::text::float;
use super::values::{DEPTH_MAX, Kind, charge, kind};

/// `tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(super) fn tojson(
    state: &State,
    value: &Value,
    arguments: Rest<ValueOrKwargs>,
) -> Result<String, Error> {
    let arguments = arguments.into_values();
    let (positional, named): (&[Value], Kwargs) = from_args(&arguments)?;
    let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
    if positional.len() > names.len() {
        let message = "tojson: at most four arguments";
        return Err(Error::new(ErrorKind::TooManyArguments, message));
    }
    let argument = |index: usize| match positional.get(index) {
        Some(value) => Ok::<_, Error>(value.clone()),
        None if named.has(names[index]) => named.get(names[index]),
        None => Ok(().into()),
    };
    let ensure_ascii = argument(0)?.is_true();
    let indent = indent_text(&argument(1)?)?;
    let separators = argument(2)?;
    let sort_keys = argument(3)?.is_true();
    named.assert_all_used()?;
    let (comma, colon) = if separators.is_none() {
        let comma = if indent.is_some() { "," } else { ", " };
        (comma.to_owned(), ": ".to_owned())
    } else {
        let part = |index: usize| match separators.get_item_by_index(index) {
            Ok(part) if part.as_str().is_some() && separators.len() == Some(2) => {
                Ok(part.as_str().unwrap_or_default().to_owned())
            }
            _ => {
                let message = "tojson: expected two strings as separators";
                Err(Error::new(ErrorKind::InvalidOperation, message))
            }
        };
        (part(0)?, part(1)?)
    };
    let mut writer = Writer {
        state,
        text: String::new(),
        charged: 0,
        ensure_ascii,
        sort_keys,
        indent,
        comma,
        colon,
    };
    writer.value(value, 0)?;
    Ok(writer.text)
}

/// A number of spaces, or the text itself.
fn indent_text(indent: &Value) -> Result<Option<String>, Error> {
    if indent.is_none() {
        return Ok(None);
    }
    if let Some(text) = indent.as_str() {
        return Ok(Some(text.to_owned()));
    }
    let spaces = u8::try_from(indent.clone()).map_err(|_| {
        let found = format!("tojson: indent is {indent}, expected at most 255 spaces");
        Error::new(ErrorKind::InvalidOperation, found)
    })?;
    Ok(Some(" ".repeat(spaces.into())))
}

struct Writer<'a, 'env> {
    state: &'a State<'a, 'env>,
    text: String,
    /// Bytes of `text` that the template's fuel has paid for.
    charged: usize,
    ensure_ascii: bool,
    sort_keys: bool,
    indent: Option<String>,
    comma: String,
    colon: String,
}

impl Writer<'_, '_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        // Lists that hold each other many times make a text far larger than they are.
        let new = self.text.len() - self.charged;
        self.charged = self.text.len();
        self.state.consume_fuel(1 + new as u64 / 64)?;
        if depth > DEPTH_MAX {
            let message = format!("tojson: nested over {DEPTH_MAX} levels");
            return Err(Error::new(ErrorKind::BadSerialization, message));
        }
        match value.kind() {
            ValueKind::None => self.text.push_str("null"),
            ValueKind::Bool => self
                .text
                .push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value)?,
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq if !matches!(kind(value), Kind::Range(_)) => {
                let items = value.try_iter()?;
                self.list('[', ']', depth, items, |writer, item| {
                    writer.value(&item, depth + 1)
                })?;
            }
            ValueKind::Map if matches!(kind(value), Kind::Dict) => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    let is_text = |key: &Value| key.as_str().is_some();
                    if !keys.iter().all(is_text) && !keys.iter().all(Value::is_integer) {
                        let message = "tojson: keys of several types have no order";
                        return Err(Error::new(ErrorKind::InvalidOperation, message));
                    }
                    keys.sort();
                }
                self.list('{', '}', depth, keys.into_iter(), |writer, key| {
                    writer.key(&key)?;
                    writer.text += &writer.colon;
                    writer.value(&value.get_item(&key)?, depth + 1)
                })?;
            }
            other => {
                let message = format!("tojson: a value of type {other} is no JSON");
                return Err(Error::new(ErrorKind::BadSerialization, message));
            }
        }
        Ok(())
    }

    fn list(
        &mut self,
        open: char,
        close: char,
        depth: usize,
        items: impl Iterator<Item = Value>,
        mut write: impl FnMut(&mut Self, Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.text.push(open);
        let mut is_empty = true;
        for item in items {
            if !is_empty {
                self.text += &self.comma;
            }
            is_empty = false;
            self.line_break(depth + 1)?;
            write(self, item)?;
        }
        if !is_empty {
            self.line_break(depth)?;
        }
        self.text.push(close);
        Ok(())
    }

    fn line_break(&mut self, depth: usize) -> Result<(), Error> {
        if let Some(indent) = &self.indent {
            charge(self.state, depth * indent.len())?;
            self.text.push('\n');
            for _ in 0..depth {
                self.text += indent;
            }
        }
        Ok(())
    }

    /// Python writes keys that are no strings as the text of their JSON.
    fn key(&mut self, key: &Value) -> Result<(), Error> {
        match key.kind() {
            ValueKind::String => self.string(key.as_str().unwrap_or_default()),
            _ => {
                self.text.push('"');
                self.value(key, DEPTH_MAX)?;
                self.text.push('"');
            }
        }
        Ok(())
    }

    fn number(&mut self, value: &Value) -> Result<(), Error> {
        if value.is_integer() {
            self.text += &value.to_string();
        } else {
            let number = f64::try_from(value.clone())?;
            let infinite = if number < 0.0 {
                "-Infinity"
            } else {
                "Infinity"
            };
            match number {
                _ if number.is_nan() => self.text.push_str("NaN"),
                _ if number.is_infinite() => self.text.push_str(infinite),
                _ => self.text += &float(number),
            }
        }
        Ok(())
    }

    fn string(&mut self, string: &str) {
        self.text.push('"');
        for character in string.chars() {
            match character {
                '"' => self.text.push_str("\\\""),
                '\\' => self.text.push_str("\\\\"),
                '\n' => self.text.push_str("\\n"),
                '\r' => self.text.push_str("\\r"),
                '\t' => self.text.push_str("\\t"),
                '\u{8}' => self.text.push_str("\\b"),
                '\u{c}' => self.text.push_str("\\f"),
                '\0'..='\x1f' => self.escape(character),
                _ if self.ensure_ascii && character > '~' => self.escape(character),
                _ => self.text.push(character),
            }
        }
        self.text.push('"');
    }

    fn escape(&mut self, character: char) {
        for unit in character.encode_utf16(&mut [0; 2]) {
            // Writing to a string cannot fail.
            let _ = write!(self.text, "\\u{unit:04x}");
        }
    }
}
