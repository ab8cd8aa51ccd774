//! Durations and numbers as a person reads them.

use std::time::Duration;

/// Bytes of a GiB, as rates count them.
pub(super) const GIBIBYTE: f64 = (1_u64 << 30) as f64;

/// Bytes in GiB.
pub(super) fn in_gibibytes(bytes: f64) -> f64 {
    bytes / GIBIBYTE
}

/// A duration in its two largest units: `340 ms`, `12.4 s`, `2 min 51 s`, `1 h 5 min`.
pub(super) fn duration(time: Duration) -> String {
    let tenths = (time.as_secs_f64() * 10.0).round() as u64;
    let seconds = time.as_secs_f64().round() as u64;
    match (time.as_millis(), seconds) {
        (0..1000, _) => format!("{} ms", time.as_millis()),
        (_, 0..60) => format!("{}.{} s", tenths / 10, tenths % 10),
        (_, 60..3600) => in_two(seconds, "min", "s"),
        _ => in_two(seconds / 60, "h", "min"),
    }
}

/// A duration that is guessed, in whole seconds at least: `12 s`, `2 min 51 s`.
pub(super) fn estimate(time: Duration) -> String {
    match time.as_secs_f64().ceil() as u64 {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds => duration(Duration::from_secs(seconds)),
    }
}

fn in_two(small: u64, large_unit: &str, small_unit: &str) -> String {
    match (small / 60, small % 60) {
        (large, 0) => format!("{large} {large_unit}"),
        (large, rest) => format!("{large} {large_unit} {rest} {small_unit}"),
    }
}

/// As [`duration`], of milliseconds.
pub(super) fn milliseconds(time: f64) -> String {
    duration(Duration::from_secs_f64(time.max(0.0) / 1e3))
}

/// A number with three digits or so: `5.8`, `64`, `210`.
pub(super) fn number(value: f64) -> String {
    let decimals = usize::from(value < 99.95);
    let shown = format!("{value:.decimals$}");
    match shown.strip_suffix(".0") {
        Some(whole) => whole.to_owned(),
        None => shown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_the_two_units_that_matter() {
        for (milliseconds, expected) in [
            (0, "0 ms"),
            (340, "340 ms"),
            (999, "999 ms"),
            (1000, "1.0 s"),
            (12_449, "12.4 s"),
            (59_449, "59.4 s"),
            (59_500, "1 min"),
            (171_000, "2 min 51 s"),
            (3_599_600, "1 h"),
            (3_900_000, "1 h 5 min"),
            (90_000_000, "25 h"),
        ] {
            let found = duration(Duration::from_millis(milliseconds));
            assert_eq!(found, expected, "{milliseconds} ms");
        }
    }

    #[test]
    fn a_guessed_duration_has_no_part_of_a_second() {
        for (milliseconds, expected) in [(0, "0 s"), (340, "1 s"), (59_500, "1 min")] {
            let found = estimate(Duration::from_millis(milliseconds));
            assert_eq!(found, expected, "{milliseconds} ms");
        }
        let long = estimate(Duration::from_secs(171));
        assert_eq!(long, "2 min 51 s");
    }
}
