//! emel runs a language model larger than RAM from its GGUF file, inside a hard memory
//! budget, with the same bits as if it fitted.
//!
//! ```no_run
//! # async fn example() -> Result<(), emel::Error> {
//! let engine = emel::Engine::builder()
//!     .ram_budget("8G".parse()?)
//!     .open("model.gguf")
//!     .await?;
//! let mut stream = engine.generate(emel::Request::new("Once upon a time")).await?;
//! while let Some(token) = stream.next().await {
//!     print!("{}", token?.text);
//! }
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]
// What only the commands use is there without them, and seen by nobody.
#![cfg_attr(not(feature = "internals"), allow(dead_code, unreachable_pub))]

mod blueprint;
mod budget;
mod compute_probe;
mod description;
mod engine;
mod engine_thread;
mod error;
mod experts;
mod hashing;
mod job;
mod live_budget;
mod lossy;
mod measurements;
mod meter;
mod notice;
mod open;
mod pass_runner;
mod prediction;
mod request;
mod session;
mod stop_texts;
mod stream;
mod text_limit;
mod token_text;
mod usage;
mod weights_change;
mod whole_file;

pub use blueprint::{ContextRoom, Io, Settings};
pub use budget::RamBudget;
pub use description::Description;
pub use emel_loader::reader::Backend;
#[cfg(feature = "chat")]
pub use emel_model::chat;
pub use emel_model::kv_cache::KvType;
pub use emel_model::routing::{CacheRouting, LossyRouting};
pub use emel_model::sampler::{Mirostat, SamplerOptions, Stage};
pub use engine::{Builder, Engine};
pub use error::{Error, Instead, Setting};
pub use experts::heat::Learning;
pub use experts::prefetch::Prefetch;
pub use notice::{LossyEffect, Notice, NoticeListener};
pub use request::{Prompt, Request};
pub use session::{SessionError, session_attachment};
pub use stop_texts::{Checked, StopTexts};
pub use stream::{PromptProgress, StreamEvent, Token, TokenStream};
pub use text_limit::TextLimit;
pub use token_text::TokenText;
pub use usage::{ExpertUsage, ExpertWait, LossyUsage, PrefetchUsage, Spent, Usage};
pub use weights_change::WeightsChange;

/// For the commands, tests and benchmarks of this repository; it changes without notice.
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals {
    pub mod blueprint {
        pub use crate::blueprint::*;
    }
    pub mod budget {
        pub use crate::budget::*;
    }
    pub mod compute_probe {
        pub use crate::compute_probe::*;
    }
    pub mod experts {
        pub use crate::experts::*;
    }
    pub mod pass_runner {
        pub use crate::pass_runner::*;
    }
    pub mod measurements {
        pub use crate::measurements::*;
    }
    pub mod prediction {
        pub use crate::prediction::*;
    }
    pub mod request {
        pub use crate::request::*;
    }
    pub mod session {
        pub use crate::session::*;
    }
    pub mod stop_texts {
        pub use crate::stop_texts::*;
    }
    pub mod whole_file {
        pub use crate::whole_file::*;
    }
}
