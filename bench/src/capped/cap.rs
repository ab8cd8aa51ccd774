//! The memory that a contender may take.

use std::fmt;
use std::str::FromStr;

use anyhow::ensure;
use emel::internals::budget::in_binary_units;
use emel_loader::page::PageSize;

/// The kernel keeps limits in whole pages.
fn page_bytes() -> u64 {
    PageSize::of_system().bytes() as u64
}

/// A cap as it is asked for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Cap {
    /// None, for the speed in memory.
    Uncapped,
    /// A number of bytes.
    Bytes(u64),
    /// A percentage of the model's files.
    Percent(f64),
}

/// A cap that is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CapError {
    /// The text is no size.
    #[error(
        "`{found}`: expected bytes, a number with K, M or G (powers of 1024), a percentage of the model's file up to 100%, or `none`"
    )]
    Syntax {
        /// The text.
        found: String,
    },
    /// Nothing fits into less than a page.
    #[error("`{found}`: expected at least one page of {} bytes", page_bytes())]
    Nothing {
        /// The text.
        found: String,
    },
    /// More than the machine has.
    #[error(
        "`{found}`: this machine has {} of memory, so nothing would be capped; expected less, or `none`",
        in_binary_units(*ram_bytes)
    )]
    MoreThanMemory {
        /// The cap.
        found: String,
        /// The machine's memory.
        ram_bytes: u64,
    },
}

impl Cap {
    /// The limit in whole pages for a model of `file_bytes` on a machine with
    /// `ram_bytes`; none where there is to be no limit.
    ///
    /// # Errors
    /// When that is less than a page, or more than the machine has.
    pub fn bytes(self, file_bytes: u64, ram_bytes: u64) -> Result<Option<u64>, CapError> {
        let bytes = match self {
            Self::Uncapped => return Ok(None),
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => (file_bytes as f64 * percent / 100.0) as u64,
        };
        let found = self.to_string();
        match bytes - bytes % page_bytes() {
            0 => Err(CapError::Nothing { found }),
            bytes if bytes > ram_bytes => Err(CapError::MoreThanMemory { found, ram_bytes }),
            bytes => Ok(Some(bytes)),
        }
    }
}

impl FromStr for Cap {
    type Err = CapError;

    fn from_str(text: &str) -> Result<Self, CapError> {
        let syntax = || CapError::Syntax {
            found: text.to_owned(),
        };
        if text == "none" {
            return Ok(Self::Uncapped);
        }
        if let Some(percent) = text.strip_suffix('%') {
            let percent = percent.parse().ok().filter(|it| (0.0..=100.0).contains(it));
            return percent.map(Self::Percent).ok_or_else(syntax);
        }
        let (number, shift) = match text.char_indices().last() {
            Some((end, 'K')) => (&text[..end], 10),
            Some((end, 'M')) => (&text[..end], 20),
            Some((end, 'G')) => (&text[..end], 30),
            _ => (text, 0),
        };
        let is_number = !number.is_empty() && number.bytes().all(|it| it.is_ascii_digit());
        let number: Option<u64> = number.parse().ok().filter(|_| is_number);
        let bytes = number.and_then(|number| number.checked_mul(1 << shift));
        match bytes {
            Some(bytes) if bytes < page_bytes() => Err(CapError::Nothing {
                found: text.to_owned(),
            }),
            Some(bytes) => Ok(Self::Bytes(bytes)),
            None => Err(syntax()),
        }
    }
}

impl fmt::Display for Cap {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uncapped => write!(formatter, "none"),
            Self::Bytes(bytes) => write!(formatter, "{}", in_binary_units(*bytes)),
            Self::Percent(percent) => write!(formatter, "{percent}%"),
        }
    }
}

/// A cap for a model on this machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SizedCap {
    /// As it is asked for.
    pub asked: Cap,
    /// The limit; none where there is to be none.
    pub bytes: Option<u64>,
    /// What emel is told to keep to; nothing without a limit.
    pub budget_bytes: Option<u64>,
}

impl SizedCap {
    /// The cap for a model of `file_bytes`, and a budget in it that is less by a margin.
    ///
    /// # Errors
    /// When there can be no such cap, or the margin leaves nothing of it.
    pub fn new(
        asked: Cap,
        file_bytes: u64,
        ram_bytes: u64,
        margin_bytes: u64,
    ) -> anyhow::Result<Self> {
        let bytes = asked.bytes(file_bytes, ram_bytes)?;
        let budget_bytes = bytes.map(|bytes| bytes.saturating_sub(margin_bytes));
        ensure!(
            budget_bytes != Some(0),
            "a margin of {} leaves nothing of the cap {asked}; lower --margin",
            in_binary_units(margin_bytes),
        );
        Ok(Self {
            asked,
            bytes,
            budget_bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_systemd_reads_them() {
        let read = |text: &str| text.parse::<Cap>();
        assert_eq!(read("8G"), Ok(Cap::Bytes(8 << 30)));
        assert_eq!(read("512M"), Ok(Cap::Bytes(512 << 20)));
        assert_eq!(read("123456"), Ok(Cap::Bytes(123_456)));
        assert_eq!(read("none"), Ok(Cap::Uncapped));
        assert_eq!(read("25%"), Ok(Cap::Percent(25.0)));
        assert_eq!(read("12.5%"), Ok(Cap::Percent(12.5)));
    }

    #[test]
    fn what_is_no_size_is_refused_with_what_would_be_one() {
        for text in [
            "",
            "G",
            "8X",
            "-1",
            "+8G",
            "8 G",
            "1.5G",
            "%",
            "101%",
            "-1%",
            "nan%",
            "inf%",
            "99999999999999999999",
            "99999999999999G",
            "none%",
            "é",
        ] {
            let error = text.parse::<Cap>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{text}`: expected")), "{error}");
        }
    }

    #[test]
    fn nothing_is_no_cap() {
        for text in ["0", "0G", "4095"] {
            let error = text.parse::<Cap>().unwrap_err().to_string();
            assert!(error.contains("at least one page"), "{error}");
        }
        let nothing = "0%".parse::<Cap>().unwrap().bytes(1 << 30, 1 << 40);
        assert!(matches!(nothing, Err(CapError::Nothing { .. })));
    }

    #[test]
    fn a_percentage_is_of_the_file_in_whole_pages() {
        let bytes = |text: &str| text.parse::<Cap>().unwrap().bytes(1_000_000, 1 << 40);
        assert_eq!(bytes("25%"), Ok(Some(61 * 4096)));
        assert_eq!(bytes("100%"), Ok(Some(244 * 4096)));
        assert_eq!(bytes("none"), Ok(None));
    }

    #[test]
    fn more_than_the_machine_has_is_refused() {
        let error = Cap::Bytes(9 << 30).bytes(1, 8 << 30).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("has 8.0 GiB of memory"), "{error}");
        assert!(error.contains("or `none`"), "{error}");
        assert_eq!(Cap::Bytes(8 << 30).bytes(1, 8 << 30), Ok(Some(8 << 30)));
    }
}
