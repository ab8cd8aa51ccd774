//! What Hugging Face's transformers adds to jinja2, and what Python's strings have that
//! minijinja's do not.

use std::sync::LazyLock;

use fancy_regex::Regex;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ZonedDateTime};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Value, ValueKind, from_args};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Template, escape_formatter};
use minijinja_contrib::pycompat;

use super::error::{ChatError, Raised};
use super::json::{self, DEPTH_MAX};

const NAME: &str = "chat template";

/// Templates longer than this are no chat templates; those of the large families have
/// some 20 kB.
const SOURCE_BYTES_MAX: usize = 128 << 10;

/// The parser calls itself for each term of a chain such as `1 + 1 + …`, which takes two
/// bytes of the source, and so does what frees the tree. This is several times what they
/// were seen to use unoptimised, and only what is touched is memory.
const STACK_BYTES_PER_SOURCE_BYTE: usize = 1024;

/// Macros that call each other, at most. It is far above what templates need, and the
/// stack of any thread holds it.
const RECURSION_MAX: usize = 100;

/// `{% generation %}` marks what the assistant has said, for training. It opens a scope
/// of its own, as `{% with %}` does.
static GENERATION: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(\{%[-+]?\s*)(end)?generation(\s*[-+]?%\})").expect("the expression is valid")
});

/// An environment with one template.
pub(super) fn compiled(source: &str) -> Result<Environment<'static>, ChatError> {
    if source.len() > SOURCE_BYTES_MAX {
        return Err(ChatError::Syntax {
            line: 1,
            message: format!(
                "the template has {} bytes, over the {SOURCE_BYTES_MAX} of any chat template",
                source.len()
            ),
        });
    }
    let stack_bytes = (1 << 20) + source.len() * STACK_BYTES_PER_SOURCE_BYTE;
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("emel-chat".to_owned())
            .stack_size(stack_bytes)
            .spawn_scoped(scope, || compile(source))
            .map_err(|error| ChatError::Thread {
                message: error.to_string(),
            })?;
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// As [`compiled`], on a thread whose stack is large enough.
fn compile(source: &str) -> Result<Environment<'static>, ChatError> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
        .map_err(|error| ChatError::syntax(&error))?;
    environment.set_syntax(syntax);
    environment.set_debug(true);
    environment.set_recursion_limit(RECURSION_MAX);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(method);
    environment.set_formatter(|out, state, value| {
        charge(state, value, 0)?;
        escape_formatter(out, state, value)
    });
    environment.add_filter("string", |state: &State, value: &Value| {
        charge(state, value, 0)?;
        Ok::<_, Error>(value.to_string())
    });
    environment.add_filter("tojson", json::tojson);
    environment.add_test("sequence", is_sequence);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", |format: &str| {
        strftime(&ZonedDateTime::now(), format)
    });
    let source = GENERATION.replace_all(source, "${1}${2}with${3}");
    environment
        .add_template_owned(NAME, source.into_owned())
        .map_err(|error| ChatError::syntax(&error))?;
    Ok(environment)
}

/// The template of an environment made by [`compiled`].
pub(super) fn template<'a>(environment: &'a Environment<'_>) -> Result<Template<'a, 'a>, Error> {
    environment.get_template(NAME)
}

/// Makes `strftime_now` show one moment, in UTC.
pub(super) fn fix_time(environment: &mut Environment<'static>, unix_seconds: i64) {
    environment.add_function("strftime_now", move |format: &str| {
        let time = Timestamp::from_second(unix_seconds)
            .map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))?;
        strftime(&time.to_zoned_datetime(TimeZone::UTC), format)
    });
}

fn strftime(time: &ZonedDateTime, format: &str) -> Result<String, Error> {
    jiff::fmt::strtime::format(format, time).map_err(|error| {
        Error::new(
            ErrorKind::InvalidOperation,
            format!("strftime_now({format:?}): {error}"),
        )
    })
}

fn raise_exception(message: String) -> Result<Value, Error> {
    let raised = Raised { message };
    Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(raised))
}

/// Pays for the text of a list or mapping before it is made: lists that hold each other
/// many times have a text far larger than they are.
fn charge(state: &State, value: &Value, depth: usize) -> Result<(), Error> {
    let is_map = value.kind() == ValueKind::Map;
    if !is_map && !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
        return Ok(());
    }
    if depth > DEPTH_MAX {
        let message = format!("a list nested over {DEPTH_MAX} levels has no text");
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    for item in value.try_iter()? {
        let item = if is_map { value.get_item(&item)? } else { item };
        let bytes = item.as_str().map_or(0, str::len);
        state.consume_fuel(1 + bytes as u64 / 64)?;
        charge(state, &item, depth + 1)?;
    }
    Ok(())
}

/// In Python a string and a mapping are sequences, as jinja2 sees them.
fn is_sequence(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Undefined | ValueKind::String | ValueKind::Seq | ValueKind::Map
    )
}

/// Python's methods of strings, lists and dictionaries.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    match (name, value.as_str()) {
        ("removeprefix", Some(text)) => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(text.strip_prefix(prefix).unwrap_or(text).into())
        }
        ("removesuffix", Some(text)) => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(text.strip_suffix(suffix).unwrap_or(text).into())
        }
        _ => pycompat::unknown_method_callback(state, value, name, args),
    }
}
