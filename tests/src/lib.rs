//! Cross-crate tests and the tools they need.

#![forbid(unsafe_code)]
