//! The units that are there to be installed are what systemd takes. Without
//! `systemd-analyze` that is said, and the test passes.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::path::Path;
use std::process::Command;

#[test]
fn systemd_accepts_every_unit_without_a_warning() {
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("units");
    let runtime = tempfile::tempdir().unwrap();
    let mut checked = 0;
    for unit in std::fs::read_dir(units).unwrap() {
        let mut command = Command::new("systemd-analyze");
        // A service is a user's; the slice may be anybody's.
        command.args(["verify", "--user"]).arg(unit.unwrap().path());
        command.env("XDG_RUNTIME_DIR", runtime.path());
        let Ok(output) = command.output() else {
            eprintln!("skipped: systemd-analyze is not here");
            return;
        };
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{said}");
        checked += 1;
    }
    assert_eq!(checked, 2);
}
