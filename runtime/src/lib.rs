//! The engine: scheduler, generator and the API people use.

#![forbid(unsafe_code)]
