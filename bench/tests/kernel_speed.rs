//! What `kernel-speed` says of what it does not know.

use std::process::Command;

#[test]
fn an_unknown_format_is_refused_with_those_that_are_known() {
    let output = Command::new(env!("CARGO_BIN_EXE_kernel-speed"))
        .args(["Q4_K", "FOO"])
        .output()
        .expect("the binary starts");
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    for part in ["\"FOO\" is no weight format", "Q4_K", "IQ4_XS", "MXFP4"] {
        assert!(message.contains(part), "no {part} in: {message}");
    }
    assert!(output.stdout.is_empty());
}

#[test]
fn unknown_kernels_are_refused_with_those_that_are_there() {
    let output = Command::new(env!("CARGO_BIN_EXE_kernel-speed"))
        .env("EMEL_KERNELS", "abacus")
        .output()
        .expect("the binary starts");
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(
        message.starts_with("error: EMEL_KERNELS=abacus: "),
        "{message}"
    );
    assert!(message.contains("scalar"), "{message}");
}
