//! The text of a token, without an allocation.

use std::fmt;
use std::ops::Deref;

use arrayvec::ArrayString;

/// The longest text that is held in place. Tokens of the usual vocabularies have up to
/// 128 bytes, and the bytes of an incomplete character may precede one.
const INLINE_BYTES: usize = 160;

/// A text, which is used as a `&str`. Up to 160 bytes are held in place.
#[derive(Clone)]
pub struct TokenText(Content);

#[derive(Clone)]
enum Content {
    Inline(ArrayString<INLINE_BYTES>),
    Long(Box<str>),
}

impl From<&str> for TokenText {
    fn from(text: &str) -> Self {
        Self(match ArrayString::from(text) {
            Ok(inline) => Content::Inline(inline),
            Err(_) => Content::Long(text.into()),
        })
    }
}

impl Deref for TokenText {
    type Target = str;

    fn deref(&self) -> &str {
        match &self.0 {
            Content::Inline(text) => text,
            Content::Long(text) => text,
        }
    }
}

impl AsRef<str> for TokenText {
    fn as_ref(&self) -> &str {
        self
    }
}

impl PartialEq for TokenText {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for TokenText {}

impl PartialEq<&str> for TokenText {
    fn eq(&self, other: &&str) -> bool {
        **self == **other
    }
}

impl fmt::Debug for TokenText {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, formatter)
    }
}

impl fmt::Display for TokenText {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&**self, formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_any_length_are_what_they_were_made_of() {
        for length in [0, 1, 23, 24, INLINE_BYTES, INLINE_BYTES + 1, 4096] {
            let text = "x".repeat(length);
            let token = TokenText::from(text.as_str());
            assert_eq!(token, text.as_str());
            assert_eq!(format!("{token} {token:?}"), format!("{text} {text:?}"));
            let is_inline = matches!(token.0, Content::Inline(_));
            assert_eq!(is_inline, length <= INLINE_BYTES, "{length}");
        }
    }
}
