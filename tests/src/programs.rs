//! Programs that tests write and run, and what running takes.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};

/// Writes a program.
///
/// Another process does: a file that is open for writing anywhere cannot be run, and what
/// another test begins meanwhile has our files open until it runs its own program.
///
/// # Panics
/// When it cannot be written.
#[expect(clippy::unwrap_used, reason = "a helper of a test may fail it")]
pub fn write(path: &Path, text: &str) {
    let mut shell = Command::new("sh")
        .args(["-c", "cat >\"$0\" && chmod 755 \"$0\""])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = shell.stdin.take().unwrap();
    input.write_all(text.as_bytes()).unwrap();
    drop(input);
    assert!(shell.wait().unwrap().success(), "{}", path.display());
}

/// Seconds that a processor works for this thread at something, whatever else the machine has
/// to do.
///
/// # Panics
/// When the system does not tell.
pub fn thread_seconds(work: impl FnOnce()) -> f64 {
    let started = thread_time();
    work();
    (thread_time() - started).as_secs_f64()
}

#[expect(clippy::unwrap_used, reason = "a helper of a test may fail it")]
fn thread_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_THREAD).unwrap();
    [usage.user_time(), usage.system_time()]
        .iter()
        .map(|time| Duration::new(time.tv_sec() as u64, time.tv_usec() as u32 * 1000))
        .sum()
}
