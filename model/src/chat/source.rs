//! A template's source as minijinja has to see it to read what Python's jinja2 reads.

use std::ops::Range;
use std::sync::LazyLock;

use fancy_regex::Regex;
use minijinja::machinery::{Span, Token, tokenize};
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

/// Spaces that are all there is in a raw block, and the begin of its end.
static BLANK_RAW: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"\A[^\S\n]+\{%(?=\s*endraw\s*[-+]?%\})").expect("the expression is valid")
});

/// The source with what the two engines read in different ways written so that minijinja
/// reads it as Python does. Its lines keep their numbers.
///
/// # Errors
/// When minijinja would accept what Python does not, when a string has an escape that this
/// does not know, or when an expression is longer than that of any chat template: minijinja
/// takes quadratic time for a chain of operators.
pub(super) fn rewritten(source: &str, syntax: SyntaxConfig) -> Result<String, ChatError> {
    // As Python's lexer does.
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let source = GENERATION.replace_all(&source, "${1}${2}with${3}");
    let mut rewriting = Rewriting {
        source: &source,
        new: String::with_capacity(source.len()),
        copied: 0,
    };
    let mut expression_tokens = 0;
    let mut follows_literal = false;
    let mut test = Test::None;
    // What cannot be read is an error of the parser, which comes next.
    for (token, span) in tokenize(&source, false, syntax).map_while(Result::ok) {
        let refused = |message| ChatError::Syntax {
            line: span.start_line as usize,
            message,
        };
        expression_tokens = match token {
            Token::TemplateData(_) | Token::VariableStart | Token::BlockStart => 0,
            _ => expression_tokens + 1,
        };
        if expression_tokens > EXPRESSION_TOKENS_MAX {
            let message = format!("an expression of over {EXPRESSION_TOKENS_MAX} words and signs");
            return Err(refused(message));
        }
        test = test.then(&token).map_err(refused)?;
        match token {
            Token::TemplateData(_) => rewriting.raw(&span).map_err(refused)?,
            Token::String(_) => rewriting.string(&span).map_err(refused)?,
            _ if follows_literal && is_folded(&token) => rewriting.at_run_time(&span),
            _ => {}
        }
        follows_literal = ends_literal(&token);
    }
    Ok(rewriting.finished())
}

/// Where a test stands, as in `x is not divisibleby`.
enum Test {
    None,
    /// Its name follows.
    Is,
    Name,
}

impl Test {
    fn then(self, token: &Token) -> Result<Self, String> {
        Ok(match (self, token) {
            (Self::Name, Token::Ident("is")) => {
                return Err("two tests in a row (`is … is`)".to_owned());
            }
            (_, Token::Ident("is")) | (Self::Is, Token::Ident("not")) => Self::Is,
            (Self::Is, Token::Ident(_)) => Self::Name,
            (Self::Name, Token::Dot) => Self::Is,
            _ => Self::None,
        })
    }
}

/// Operators that minijinja computes with constants while it compiles.
fn is_folded(token: &Token) -> bool {
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

fn ends_literal(token: &Token) -> bool {
    matches!(
        token,
        Token::Str(_)
            | Token::String(_)
            | Token::Int(_)
            | Token::Int128(_)
            | Token::Float(_)
            | Token::BracketClose
            | Token::ParenClose
            | Token::BraceClose
    )
}

struct Rewriting<'s> {
    source: &'s str,
    new: String,
    /// Up to where the source is in `new`.
    copied: usize,
}

impl Rewriting<'_> {
    fn replace(&mut self, range: Range<usize>, text: &str) {
        let kept = self.source.get(self.copied..range.start);
        self.new.push_str(kept.unwrap_or_default());
        self.new.push_str(text);
        self.copied = range.end;
    }

    fn finished(mut self) -> String {
        self.replace(self.source.len()..self.source.len(), "");
        self.new
    }

    /// minijinja computes with constants by its own rules, again for each operator of a
    /// chain, and without a bound on the product of a list and a number. Behind a filter,
    /// a literal is no constant.
    fn at_run_time(&mut self, operator: &Span) {
        let at = operator.start_offset as usize;
        self.replace(at..at, &format!("|{SAME} "));
    }

    /// A string with escapes, which minijinja knows others of.
    fn string(&mut self, span: &Span) -> Result<(), String> {
        let range = span.start_offset as usize..span.end_offset as usize;
        let quoted = self.source.get(range.clone()).unwrap_or_default();
        let inner = quoted.get(1..quoted.len().saturating_sub(1));
        let mut literal = "\"".to_owned();
        for character in unescaped(inner.unwrap_or_default())?.chars() {
            match character {
                '\\' => literal.push_str(r"\\"),
                '"' => literal.push_str("\\\""),
                '\n' => literal.push_str(r"\n"),
                other => literal.push(other),
            }
        }
        literal.push('"');
        literal.push_str(&"\n".repeat(quoted.matches('\n').count()));
        self.replace(range, &literal);
        Ok(())
    }

    /// The text of a raw block: Python keeps the line end that it begins with, and spaces
    /// if they are all there is.
    fn raw(&mut self, text: &Span) -> Result<(), String> {
        let before = &self.source[..text.start_offset as usize];
        let before = before.strip_suffix('\n').unwrap_or(before);
        let Some(tag) = before.strip_suffix("%}") else {
            return Ok(());
        };
        let start = tag.trim_end_matches('+').trim_end().strip_suffix("raw");
        let start = start.map(|start| start.trim_end().trim_end_matches(['-', '+']));
        if !start.is_some_and(|start| start.ends_with("{%")) {
            return Ok(());
        }
        if tag.ends_with('+') {
            return Err("a tag `raw +%}`".to_owned());
        }
        self.replace(tag.len()..tag.len(), "+");
        let body = &self.source[before.len()..];
        if let Ok(Some(blank)) = BLANK_RAW.find(body) {
            let at = before.len() + blank.end();
            self.replace(at..at, "+");
        }
        Ok(())
    }
}

/// What Python reads in a string literal.
fn unescaped(literal: &str) -> Result<String, String> {
    let mut text = String::with_capacity(literal.len());
    let mut rest = literal;
    while let Some((before, escape)) = rest.split_once('\\') {
        text.push_str(before);
        let mut characters = escape.chars();
        let kind = characters.next().unwrap_or_default();
        rest = characters.as_str();
        let unknown = |escape: &str| format!("the escape `\\{escape}` in a string");
        let (is_digit, radix, digits): (fn(&char) -> bool, _, _) = match kind {
            '0'..='7' => (|digit| matches!(digit, '0'..='7'), 8, 3),
            'x' => (char::is_ascii_hexdigit, 16, 2),
            'u' => (char::is_ascii_hexdigit, 16, 4),
            'U' => (char::is_ascii_hexdigit, 16, 8),
            'N' => return Err(unknown("N")),
            other if !other.is_ascii() => return Err(unknown(&other.to_string())),
            other => {
                match simple_escape(other) {
                    Some(character) => text.extend(character),
                    None => text.extend(['\\', other]),
                }
                continue;
            }
        };
        let code = if radix == 8 { escape } else { rest };
        let count = code.chars().take(digits).take_while(is_digit).count();
        let (code, after) = code.split_at(count);
        let character = u32::from_str_radix(code, radix).ok();
        let character = character.and_then(char::from_u32);
        let character = character.filter(|_| radix == 8 || count == digits);
        text.push(character.ok_or_else(|| unknown(&escape[..escape.len() - after.len()]))?);
        rest = after;
    }
    text.push_str(rest);
    Ok(text)
}

/// What a backslash and a character stand for, if it is not themselves. A line end behind a
/// backslash is nothing.
fn simple_escape(character: char) -> Option<Option<char>> {
    Some(Some(match character {
        '\n' => return Some(None),
        '\\' | '\'' | '"' => character,
        'a' => '\x07',
        'b' => '\x08',
        'f' => '\x0c',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'v' => '\x0b',
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::unescaped;

    #[test]
    fn escapes_are_those_of_python() {
        for (literal, expected) in [
            (r"\U0001f600\u00e9\xe9\351\0", "😀ééé\0"),
            (r"\a\b\f\n\r\t\v\\\'\x22", "\x07\x08\x0c\n\r\t\x0b\\'\""),
            ("a\\\nb", "ab"),
            (r"\/\d\8 \4007 \1012", "\\/\\d\\8 Ā7 A2"),
        ] {
            assert_eq!(unescaped(literal).as_deref(), Ok(expected), "{literal}");
        }
    }

    #[test]
    fn escapes_that_python_refuses_or_that_are_not_known_are_named() {
        for (literal, named) in [
            (r"\x4", r"`\x4`"),
            (r"\u12", r"`\u12`"),
            (r"\ud83d\ude00", r"`\ud83d`"),
            (r"\U00110000", r"`\U00110000`"),
            (r"\N{DASH}", r"`\N`"),
            (r"\é", r"`\é`"),
        ] {
            let error = unescaped(literal).expect_err(literal);
            assert!(error.contains(named), "{error}");
        }
    }
}
