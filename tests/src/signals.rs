//! Signals, for tests of how processes end.

use tokio::signal::unix::{SignalKind, signal};

/// Sees to it that commands begun from now on are ended by signals, also where whoever runs the
/// tests has them ignored, as a shell does for what runs in the background, and `nohup`.
///
/// # Panics
/// When the system does not tell which are ignored, or refuses to have them handled.
#[expect(clippy::unwrap_used, reason = "a helper of a test may fail it")]
pub fn undo_ignored() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = u64::from_str_radix(mask.unwrap().trim(), 16).unwrap();
    let kinds = [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::hangup(),
    ];
    for kind in kinds {
        if mask & 1 << (kind.as_raw_value() - 1) != 0 {
            // What is ignored is inherited, and what has a handler is not.
            tokio::runtime::Builder::new_current_thread()
                .enable_io()
                .build()
                .unwrap()
                .block_on(async {
                    let _ = signal(kind).unwrap();
                });
        }
    }
}
