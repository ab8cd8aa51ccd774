//! What an answer costs.

use anyhow::Context;
use emel::{Engine, Request, Usage};

/// The usage of an answer of `tokens` tokens to the prompt `ids`: greedy, and on after an
/// end-of-generation token.
///
/// # Errors
/// When the engine refuses the prompt or fails.
pub async fn usage(engine: &Engine, ids: &[u32], tokens: usize) -> anyhow::Result<Usage> {
    let mut request = Request::new(ids.to_vec()).greedy().max_tokens(tokens);
    request.ignore_eos = true;
    let mut stream = engine.generate(request).await?;
    while let Some(token) = stream.next().await {
        token?;
    }
    stream.usage().cloned().context("the stream has ended")
}
