//! The environment of chat templates: jinja2's, with what Hugging Face's transformers adds.

use jiff::tz::TimeZone;
use jiff::{Timestamp, ZonedDateTime};
use minijinja::functions::dict;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, Value, ValueOrKwargs, from_args};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State};

use super::error::{ChatError, Raised};
use super::json;
use super::operators::{self, OPERATORS};
use super::source::{SAME, rewritten};
use super::text::text_of;
use super::values::{Kind, kind, range, unsupported};
use super::{filters, machine, methods, tests};

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
    environment.set_unknown_method_callback(methods::call);
    environment.set_formatter(|out, state, value| {
        let text = text_of(state, value)?;
        Ok(out.write_str(text.as_str().unwrap_or_default())?)
    });
    for name in OPERATORS {
        environment.add_filter(name, move |state: &State, operands: Rest<Value>| {
            operators::apply(state, name, &operands)
        });
    }
    environment.add_filter(SAME, |value: Value| value);
    environment.add_function("dict", |args: Rest<ValueOrKwargs>| {
        let args = args.into_values();
        let (positional, named): (&[Value], Kwargs) = from_args(&args)?;
        match positional.first().map(kind) {
            None | Some(Kind::Dict) => dict(positional.first().cloned(), named),
            Some(other) => Err(unsupported(&format!("dict of a {}", other.name()))),
        }
    });
    filters::add_to(&mut environment);
    tests::add_to(&mut environment);
    environment.add_filter("tojson", json::tojson);
    environment.add_function(
        "range",
        |first: Value, stop: Option<Value>, step: Option<Value>| {
            range(&first, stop.as_ref(), step.as_ref())
        },
    );
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", |format: &str| {
        strftime(&ZonedDateTime::now(), format)
    });
    let source = rewritten(source, environment.syntax().clone())?;
    environment
        .add_template_owned(NAME, source)
        .map_err(|error| ChatError::syntax(&error))?;
    Ok(environment)
}

/// Renders the template of an environment made by [`compiled`].
pub(super) fn render(environment: &Environment<'_>, variables: Value) -> Result<String, Error> {
    let template = environment.get_template(NAME)?;
    machine::render(environment, &template, variables)
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
    /// What Python's `strftime` and jiff's write alike.
    const DIRECTIVES: &str = "aAbBdeHIjmMpSUWwyYuGVDFTRhntkl%";
    let mut rest = format;
    while let Some((_, after)) = rest.split_once('%') {
        let after = after.strip_prefix('-').unwrap_or(after);
        let found = after
            .chars()
            .next()
            .filter(|found| DIRECTIVES.contains(*found));
        let Some(directive) = found else {
            return Err(unsupported(&format!("strftime_now({format:?})")));
        };
        rest = &after[directive.len_utf8()..];
    }
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
