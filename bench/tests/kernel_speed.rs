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
    for part in ["'FOO'", "expected one of F32, ", "Q4_K", "IQ4_XS", "MXFP4"] {
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
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(
        message.starts_with("error: EMEL_KERNELS=abacus: "),
        "{message}"
    );
    assert!(message.contains("scalar"), "{message}");
}

#[test]
fn a_number_of_threads_that_is_none_is_refused() {
    for threads in ["0", "many", "-1", "2000"] {
        let output = Command::new(env!("CARGO_BIN_EXE_kernel-speed"))
            .env("EMEL_THREADS", threads)
            .arg("F32")
            .output()
            .expect("the binary starts");
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{message}");
        let told = format!("error: EMEL_THREADS={threads}: expected 1 to 1024");
        assert!(message.starts_with(&told), "{message}");
    }
}
