//! What the operating system allows: cgroup limits and usage.

#![forbid(unsafe_code)]
