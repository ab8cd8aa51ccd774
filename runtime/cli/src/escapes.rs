//! Escapes in texts of the command line, as llama.cpp reads them.

use anyhow::bail;
use clap::Args;

/// Whether `\n` and the like in a text stand for characters.
#[derive(Debug, Clone, Default, Args)]
pub struct Escapes {
    /// In the text, \n, \r, \t, \', \", \\ and \xHH stand for characters; this is the default
    #[arg(short, long, overrides_with = "no_escape")]
    escape: bool,

    /// Take the text as it is
    #[arg(long, overrides_with = "escape")]
    no_escape: bool,
}

impl Escapes {
    /// The text, with the characters that its escapes stand for.
    ///
    /// # Errors
    /// When they make bytes that are not UTF-8.
    pub fn replace(&self, text: &str) -> anyhow::Result<String> {
        if self.no_escape {
            return Ok(text.to_owned());
        }
        match String::from_utf8(unescaped(text)) {
            Ok(text) => Ok(text),
            Err(error) => bail!(
                "\\x in the text makes byte {:#04x}, which is not UTF-8; expected escapes of whole characters, or --no-escape",
                error.as_bytes()[error.utf8_error().valid_up_to()]
            ),
        }
    }
}

/// What the escapes in a text stand for. Unknown ones stay as they are.
fn unescaped(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let (byte, after) = match after {
            _ if first != b'\\' => (first, after),
            [b'n', after @ ..] => (b'\n', after),
            [b'r', after @ ..] => (b'\r', after),
            [b't', after @ ..] => (b'\t', after),
            [quoted @ (b'\'' | b'"' | b'\\'), after @ ..] => (*quoted, after),
            [b'x', high, low, after @ ..] => match (digit(*high), digit(*low)) {
                (Some(high), Some(low)) => (high << 4 | low, after),
                _ => (first, &rest[1..]),
            },
            _ => (first, after),
        };
        bytes.push(byte);
        rest = after;
    }
    bytes
}

fn digit(byte: u8) -> Option<u8> {
    let value = char::from(byte).to_digit(16)?;
    u8::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ON: Escapes = Escapes {
        escape: false,
        no_escape: false,
    };

    #[test]
    fn escapes_stand_for_characters_and_unknown_ones_stay() {
        for (text, expected) in [
            (r"a\nb\tc\r", "a\nb\tc\r"),
            (r#"\'\"\\n"#, "'\"\\n"),
            (r"\x41\xe2\x82\xAC", "A€"),
            (r"\x4", r"\x4"),
            (r"\xzz\x", r"\xzz\x"),
            (r"\d\é\", r"\d\é\"),
        ] {
            assert_eq!(ON.replace(text).unwrap(), expected);
        }
        let off = Escapes {
            no_escape: true,
            ..ON
        };
        assert_eq!(off.replace(r"a\nb").unwrap(), r"a\nb");
    }

    #[test]
    fn escapes_that_make_no_utf8_are_refused() {
        let error = ON.replace(r"a\xffb").unwrap_err().to_string();
        assert!(
            error.contains("byte 0xff") && error.contains("--no-escape"),
            "{error}"
        );
    }
}
