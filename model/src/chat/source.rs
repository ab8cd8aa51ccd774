//! The text of a template, changed where minijinja would read it otherwise than jinja2.

use std::sync::LazyLock;

use fancy_regex::Regex;
use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;

use super::error::ChatError;

/// A filter that changes nothing.
pub(super) const SAME: &str = "emel_same";

/// Expressions with more words and signs are in no chat template; the time to compile one
/// grows with their square.
const EXPRESSION_TOKENS_MAX: usize = 8192;

/// `{% generation %}` marks what the assistant has said, for training. It opens a scope
/// of its own, as `{% with %}` does.
static GENERATION: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(\{%[-+]?\s*)(end)?generation(\s*[-+]?%\})").expect("the expression is valid")
});

/// A template that minijinja reads as jinja2 reads `source`:
///
/// - Literals before an operator are behind a filter. minijinja computes with constants while
///   it compiles, by its own rules, again for each operator of a chain, and without a bound on
///   the product of a list and a number.
/// - Escapes in strings are Python's.
/// - The line end after `{% raw %}` stays.
///
/// # Errors
/// When an expression is longer than that of any chat template, because minijinja takes
/// quadratic time for a chain of operators; where one test follows another; and for an escape
/// that is not supported.
pub(super) fn as_minijinja_reads(source: &str, syntax: SyntaxConfig) -> Result<String, ChatError> {
    // As Python's lexer does.
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let source = GENERATION.replace_all(&source, "${1}${2}with${3}");
    let mut new = String::with_capacity(source.len());
    let mut expression = Expression::default();
    let mut copied = 0;
    // What cannot be read is an error of the parser, which comes next.
    for (token, span) in tokenize(&source, false, syntax).map_while(Result::ok) {
        let (start, end) = (span.start_offset as usize, span.end_offset as usize);
        let refused = |message: String| ChatError::Syntax {
            line: span.start_line as usize,
            message,
        };
        let until = |copied: usize| source.get(copied..start).unwrap_or_default();
        if is_operator(&token) && expression.follows_literal {
            new.push_str(until(copied));
            new.push('|');
            new.push_str(SAME);
            new.push(' ');
            copied = start;
        }
        match &token {
            Token::String(_) => {
                new.push_str(until(copied));
                let literal = source.get(start..end).unwrap_or_default();
                new.push_str(&with_python_escapes(literal).map_err(refused)?);
                copied = end;
            }
            Token::TemplateData(_) => {
                new.push_str(&keeping_line_end(until(copied)));
                copied = start;
            }
            _ => {}
        }
        expression.take(&token).map_err(refused)?;
    }
    new.push_str(source.get(copied..).unwrap_or_default());
    Ok(new)
}

/// How far an expression has been read.
#[derive(Default)]
struct Expression {
    tokens: usize,
    follows_literal: bool,
    /// Whether the last word was `is` or `is not`, or the name of a test after it.
    test: Test,
}

#[derive(Default, PartialEq, Eq)]
enum Test {
    #[default]
    None,
    Begun,
    Named,
}

impl Expression {
    fn take(&mut self, token: &Token) -> Result<(), String> {
        self.tokens = match token {
            Token::TemplateData(_) | Token::VariableStart | Token::BlockStart => 0,
            _ => self.tokens + 1,
        };
        if self.tokens > EXPRESSION_TOKENS_MAX {
            return Err(format!(
                "an expression of over {EXPRESSION_TOKENS_MAX} words and signs"
            ));
        }
        self.test = match (token, &self.test) {
            (Token::Ident("is"), Test::Named) => {
                return Err("one test follows another, expected one \"is\" for a value".to_owned());
            }
            (Token::Ident("is"), _) | (Token::Ident("not"), Test::Begun) => Test::Begun,
            (Token::Ident(_), Test::Begun) => Test::Named,
            _ => Test::None,
        };
        self.follows_literal = matches!(
            token,
            Token::Str(_)
                | Token::String(_)
                | Token::Int(_)
                | Token::Int128(_)
                | Token::Float(_)
                | Token::BracketClose
                | Token::ParenClose
                | Token::BraceClose
        );
        Ok(())
    }
}

fn is_operator(token: &Token) -> bool {
    matches!(
        token,
        Token::Mul
            | Token::Tilde
            | Token::Eq
            | Token::Ne
            | Token::Lt
            | Token::Lte
            | Token::Gt
            | Token::Gte
    )
}

/// What lies before the text of a template: a `{% raw %}` at its end is marked so that the line
/// end after it stays.
fn keeping_line_end(before: &str) -> String {
    static RAW: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"(\{%[-+]?\s*raw\s*)(%\}\s*)$").expect("the expression is valid")
    });
    RAW.replace(before, "${1}+${2}").into_owned()
}

/// A string as the template has it, quotes included, with the escapes that Python knows as the
/// characters they stand for.
fn with_python_escapes(literal: &str) -> Result<String, String> {
    let mut new = String::with_capacity(literal.len());
    let mut rest = literal;
    while let Some((before, after)) = rest.split_once('\\') {
        new.push_str(before);
        let escape = after.chars().next().unwrap_or_default();
        let after = &after[escape.len_utf8().min(after.len())..];
        let digits = match escape {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => 0,
        };
        let character = match escape {
            'a' => '\u{7}',
            'v' => '\u{b}',
            'x' | 'u' | 'U' => {
                let code = after.get(..digits);
                let code = code.and_then(|code| u32::from_str_radix(code, 16).ok());
                code.and_then(char::from_u32).ok_or_else(|| {
                    format!("the escape \\{escape} in a string stands for no character")
                })?
            }
            'N' => return Err("the escape \\N in a string is not supported".to_owned()),
            '\n' => {
                // A line end behind a backslash is none.
                rest = after;
                continue;
            }
            // What minijinja reads as Python does.
            '"' | '\'' | '\\' | 'b' | 'f' | 'n' | 'r' | 't' | '0'..='7' => {
                new.push('\\');
                new.push(escape);
                rest = after;
                continue;
            }
            other => {
                new.push_str("\\\\");
                new.push(other);
                rest = after;
                continue;
            }
        };
        if matches!(character, '"' | '\'' | '\\') {
            new.push('\\');
        }
        new.push(character);
        rest = &after[digits..];
    }
    new.push_str(rest);
    Ok(new)
}
