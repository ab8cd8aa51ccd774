//! The RAM budget: how it is written, and what it is when nobody says.

use std::fmt;
use std::str::FromStr;

use emel_systemd::{Cgroup, Memory};

/// Part of the available memory that is used when no budget is given, in percent.
const DEFAULT_PERCENT: u64 = 85;

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
            let percent: f64 = percent.parse().map_err(|_| syntax())?;
            let is_sane = percent.is_finite() && percent > 0.0 && percent <= 1e6;
            return is_sane.then_some(Self::Percent(percent)).ok_or_else(syntax);
        }
        parse_size(text).map(Self::Bytes).ok_or_else(syntax)
    }
}

/// A number of bytes with an optional unit of a power of 1024, as systemd reads it.
pub(crate) fn parse_size(text: &str) -> Option<u64> {
    let digits_end = text
        .find(|character: char| !character.is_ascii_digit() && character != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits_end);
    let shift = match unit.to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        _ => return None,
    };
    let bytes = number.parse::<f64>().ok()?
        * f64::from(1_u32 << shift.min(30))
        * if shift == 40 { 1024.0 } else { 1.0 };
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
        assert_eq!(bytes("4096"), RamBudget::Bytes(4096));
        assert_eq!(bytes("60%"), RamBudget::Percent(60.0));
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
