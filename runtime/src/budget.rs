//! The RAM budget: how it is written, and what it is when nobody says.

use std::fmt;
use std::str::FromStr;

use emel_systemd::{Cgroup, Memory};

/// Part of the available memory that is used when no budget is given, in percent.
const DEFAULT_PERCENT: u64 = 85;

/// Fewer bytes than that without a unit are meant to have one.
const BARE_BYTES_MIN: u64 = 1 << 20;
/// As many GiB are more than machines have: MiB were meant, and with as many of these, KiB.
const GIBIBYTES_MAX: u64 = 256;
const MEBIBYTES_MAX: u64 = GIBIBYTES_MAX << 10;

/// How much memory the engine may use.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum RamBudget {
    /// 85 % of what the machine and the cgroup leave.
    #[default]
    Automatic,
    /// A number of bytes.
    Bytes(u64),
    /// A percentage of the model's files.
    Percent(f64),
}

/// A budget that cannot be understood or determined.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BudgetError {
    /// The text is no size.
    #[error(
        "`{found}` is not a memory size; write bytes, 512M, 8G (powers of 1024) or 60% (of the model file)"
    )]
    Syntax {
        /// The text.
        found: String,
    },
    /// The text is a number without a unit that no program fits in.
    #[error("`{found}` is {found} bytes; did you mean {found}{unit}?")]
    Unit {
        /// The text.
        found: String,
        /// What was probably meant: `K`, `M` or `G`.
        unit: char,
    },
    /// The machine does not say how much memory it has.
    #[error("cannot find out how much memory is available: {message}; set a RAM budget")]
    Unknown {
        /// What the system said.
        message: String,
    },
}

impl RamBudget {
    /// The budget in bytes for model files of `file_bytes`.
    ///
    /// # Errors
    /// When it is automatic and the machine does not say how much memory it has.
    pub fn bytes(self, file_bytes: u64) -> Result<u64, BudgetError> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Percent(percent) => Ok((file_bytes as f64 * percent / 100.0) as u64),
            Self::Automatic => Ok(available_bytes()? / 100 * DEFAULT_PERCENT),
        }
    }
}

/// The smaller of what the machine and the cgroup have left.
///
/// # Errors
/// When the machine does not say how much memory it has.
pub fn available_bytes() -> Result<u64, BudgetError> {
    let available = Memory::default()
        .available()
        .map_err(|error| BudgetError::Unknown {
            message: error.to_string(),
        })?;
    // No cgroup, or one that cannot be read, sets no limit that we could know of.
    let in_cgroup = Cgroup::own()
        .and_then(|cgroup| cgroup.memory_available())
        .unwrap_or(None);
    Ok(in_cgroup.map_or(available, |bytes| bytes.min(available)))
}

impl FromStr for RamBudget {
    type Err = BudgetError;

    fn from_str(text: &str) -> Result<Self, BudgetError> {
        let syntax = || BudgetError::Syntax {
            found: text.to_owned(),
        };
        if text == "auto" {
            return Ok(Self::Automatic);
        }
        if let Some(percent) = text.strip_suffix('%') {
            let percent: f64 = percent.trim_end().parse().map_err(|_| syntax())?;
            let is_sane = percent.is_finite() && percent > 0.0 && percent <= 1e6;
            return is_sane.then_some(Self::Percent(percent)).ok_or_else(syntax);
        }
        let bytes = parse_size(text).ok_or_else(syntax)?;
        let is_bare = text.ends_with(|end: char| end.is_ascii_digit() || end == '.');
        if is_bare && bytes < BARE_BYTES_MIN {
            return Err(BudgetError::Unit {
                found: text.to_owned(),
                unit: match bytes {
                    ..GIBIBYTES_MAX => 'G',
                    GIBIBYTES_MAX..MEBIBYTES_MAX => 'M',
                    _ => 'K',
                },
            });
        }
        Ok(Self::Bytes(bytes))
    }
}

/// A number of bytes with an optional unit of a power of 1024, as systemd reads it.
fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = number_and_unit(text)?;
    let shift = match unit.to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        _ => return None,
    };
    in_bytes(number, (1_u64 << shift) as f64)
}

/// A number, and what is behind it; there may be spaces between, as in what is printed.
pub fn number_and_unit(text: &str) -> Option<(f64, &str)> {
    let is_digit = |character: char| character.is_ascii_digit() || character == '.';
    let digits_end = text.find(|it| !is_digit(it)).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits_end);
    Some((number.parse().ok()?, unit.trim_start_matches(' ')))
}

/// So many units in whole bytes.
pub fn in_bytes(number: f64, unit_bytes: f64) -> Option<u64> {
    let bytes = number * unit_bytes;
    (bytes >= 1.0 && bytes < 2_f64.powi(63)).then_some(bytes as u64)
}

impl fmt::Display for RamBudget {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Automatic => write!(formatter, "auto"),
            Self::Bytes(bytes) => write!(formatter, "{}", in_binary_units(*bytes)),
            Self::Percent(percent) => write!(formatter, "{percent}%"),
        }
    }
}

/// Bytes for people, in units of powers of 1024 and three digits or so: `1.5 GiB`, `210 MiB`.
pub fn in_binary_units(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} bytes");
    }
    let mut units = ["KiB", "MiB", "GiB", "TiB"].into_iter();
    let mut value = bytes as f64;
    let mut unit = "bytes";
    // What would be rounded to 1024 is one of the next unit.
    while value >= 1023.5
        && let Some(next) = units.next()
    {
        value /= 1024.0;
        unit = next;
    }
    let decimals = usize::from(value < 99.95);
    format!("{value:.decimals$} {unit}")
}

/// A budget in the unit of the smallest that works, rounded down so that it never looks
/// large enough.
pub fn in_mebibytes(bytes: u64) -> String {
    match (bytes >> 20, (bytes % (1 << 20) * 10) >> 20) {
        (0, 0) => "less than 0.1M".to_owned(),
        (whole, 0) => format!("{whole}M"),
        (whole, tenths) => format!("{whole}.{tenths}M"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_powers_of_1024() {
        let bytes = |text: &str| text.parse::<RamBudget>().unwrap();
        assert_eq!(bytes("8G"), RamBudget::Bytes(8 << 30));
        assert_eq!(bytes("64M"), RamBudget::Bytes(64 << 20));
        assert_eq!(bytes("1.5g"), RamBudget::Bytes(3 << 29));
        assert_eq!(bytes("1T"), RamBudget::Bytes(1 << 40));
        assert_eq!(bytes("67108864"), RamBudget::Bytes(64 << 20));
        assert_eq!(bytes("60%"), RamBudget::Percent(60.0));
        for text in [
            "8G", "8g", "8GB", "8gb", "8GiB", "8 G", "8 GiB", "8.0 GiB", "8192M",
        ] {
            assert_eq!(bytes(text), RamBudget::Bytes(8 << 30), "{text}");
        }
        for text in ["64K", "64kB", "64 KiB", "65536B"] {
            assert_eq!(bytes(text), RamBudget::Bytes(64 << 10), "{text}");
        }
        for text in ["60%", "60 %", "60.0%"] {
            assert_eq!(bytes(text), RamBudget::Percent(60.0), "{text}");
        }
    }

    #[test]
    fn a_small_number_without_a_unit_is_asked_for_one() {
        for (text, meant) in [
            ("8", "8G"),
            ("64.5", "64.5G"),
            ("512", "512M"),
            ("8192", "8192M"),
            ("1000000", "1000000K"),
        ] {
            let refused = text.parse::<RamBudget>().unwrap_err().to_string();
            assert_eq!(
                refused,
                format!("`{text}` is {text} bytes; did you mean {meant}?")
            );
        }
        assert_eq!("8B".parse(), Ok(RamBudget::Bytes(8)));
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in [
            "",
            "G",
            "-1G",
            "8X",
            "0",
            "0%",
            "-5%",
            "1..2M",
            "nan%",
            "1e3M",
            "8 X",
            "8G 1M",
            "99999999999T",
        ] {
            assert!(text.parse::<RamBudget>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_size_has_three_digits_or_so() {
        const MIB: u64 = 1 << 20;
        for (bytes, expected) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (1024, "1.0 KiB"),
            (2400, "2.3 KiB"),
            (MIB - 1, "1.0 MiB"),
            (64 * MIB, "64.0 MiB"),
            (65_339_904, "62.3 MiB"),
            (210 * MIB, "210 MiB"),
            (1000 * MIB, "1000 MiB"),
            (5 << 28, "1.2 GiB"),
            (3 << 40, "3.0 TiB"),
        ] {
            assert_eq!(in_binary_units(bytes), expected, "{bytes} bytes");
        }
    }

    #[test]
    fn a_percentage_is_of_the_model() {
        assert_eq!(RamBudget::Percent(60.0).bytes(1000).unwrap(), 600);
    }
}
