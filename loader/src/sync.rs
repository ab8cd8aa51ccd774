//! What the slots' threads meet by: the standard library, or loom in its place, which
//! runs a model in every order that the threads' steps can come in (`make loom`).

#[cfg(all(emel_loom, test))]
pub(crate) use loom::sync::{Mutex, MutexGuard, atomic::AtomicU64};
#[cfg(not(all(emel_loom, test)))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic::AtomicU64};
