//! Numeric kernels: block formats, matrix products, norms, RoPE, attention and the worker pool.
//!
//! No I/O, and no allocation inside a kernel call: constructors allocate and say how much, calls
//! reuse. Everything is safe to call; shapes are checked once per call and a mismatch panics.
//!
//! # Exactness
//!
//! The bits of every result are the same for any number of threads, any number of tokens computed
//! together, any split of rows, and any instruction set. The order of a sum depends on a row's
//! length and format only. Each kernel is written once over the vector vocabulary of `arch/`, whose
//! scalar implementation is the reference.
//!
//! # Where things are
//!
//! | file | what |
//! |---|---|
//! | `path.rs` | [`Kernels`]: the choice of instruction set, dispatched once per call |
//! | `arch/` | the vector vocabulary and its implementations |
//! | `block/` | [`Format`]: one file per weight format |
//! | `matrix.rs`, `activations.rs`, `matmul/` | the two operands and their product |
//! | `panel.rs` | sixteen rows unpacked side by side |
//! | `norm.rs`, `rope.rs`, `feed_forward.rs`, `gates.rs` | what happens between products |
//! | `convolution.rs`, `delta_rule.rs` | what recurrent layers add |
//! | `cache.rs`, `attention/` | KV cache rows and attention over them |
//! | `pool/` | [`Pool`]: fork and join |

mod activations;
mod arch;
mod attention;
mod block;
mod cache;
mod convolution;
mod delta_rule;
mod dequantise;
mod feed_forward;
mod gates;
mod matmul;
mod matrix;
mod norm;
mod path;
mod pool;
mod rope;
mod shared;
mod sync;

pub use activations::{Activations, Q8Activations, Q8View};
pub use attention::{AttentionInput, AttentionScratch, AttentionShape};
pub use block::{ActivationFormat, Format};
pub use cache::{KV_BLOCK_ELEMENTS, KvBlock, KvSlice, KvSliceMut, KvView};
pub use delta_rule::{DeltaRuleInput, DeltaRuleShape};
pub use matmul::{OutputView, Product};
pub use matrix::{Matrix, ShapeError};
pub use path::{Kernels, UnsupportedPath};
pub use pool::{Pool, PoolError};
pub use rope::{RopeFrequencies, RopeScaling, RopeStyle, RopeTable};
