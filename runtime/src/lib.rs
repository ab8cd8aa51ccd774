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

pub mod blueprint;
pub mod budget;
#[cfg(feature = "cli")]
pub mod cli;
pub mod compute_probe;
mod engine;
mod error;
pub mod experts;
pub mod generator;
mod hashing;
mod job;
mod live_budget;
mod lossy;
pub mod measurements;
mod meter;
mod notice;
mod open;
pub mod prediction;
mod request;
mod scheduler;
mod session;
mod stop_texts;
mod stream;
mod token_text;
mod usage;
mod whole_file;

pub use blueprint::{ContextRoom, Io, Settings};
pub use budget::RamBudget;
pub use emel_loader::reader::Backend;
#[cfg(feature = "chat")]
pub use emel_model::chat;
pub use emel_model::kv_cache::KvType;
pub use emel_model::routing::{CacheRouting, LossyRouting};
pub use emel_model::sampler::{Mirostat, SamplerOptions, Stage};
pub use engine::{Builder, Description, Engine};
pub use error::{Error, Instead, Setting};
pub use experts::heat::Learning;
pub use experts::prefetch::Prefetch;
pub use live_budget::WeightsChange;
pub use notice::{LossyEffect, Notice, NoticeListener};
pub use request::{Prompt, Request, TextLimit};
pub use session::{SessionError, session_attachment};
pub use stop_texts::{Checked, StopTexts};
pub use stream::{PromptProgress, StreamEvent, Token, TokenStream};
pub use token_text::TokenText;
pub use usage::{ExpertUsage, ExpertWait, LossyUsage, PrefetchUsage, Spent, Usage};
