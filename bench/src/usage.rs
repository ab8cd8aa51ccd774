//! A request for an answer, and what it costs.

use anyhow::Context;
use emel::{Engine, Request, SamplerOptions, Stage, Usage};

/// A request for an answer of `tokens` tokens to the prompt `ids`, on after an
/// end-of-generation token.
///
/// Temperature 0 takes the likeliest token. The likeliest ones of a model of random weights soon
/// repeat, and with them its experts; a temperature of 1000 draws from all tokens nearly alike.
pub fn request(ids: &[u32], tokens: usize, temperature: f32) -> Request {
    Request::new(ids.to_vec())
        .max_tokens(tokens)
        .sampler(SamplerOptions {
            temperature,
            stages: vec![Stage::Temperature],
            ..SamplerOptions::default()
        })
        .ignore_eos()
}

/// The usage of such an answer.
///
/// # Errors
/// When the engine refuses the prompt or fails.
pub async fn usage(
    engine: &Engine,
    ids: &[u32],
    tokens: usize,
    temperature: f32,
) -> anyhow::Result<Usage> {
    let mut stream = engine.generate(request(ids, tokens, temperature)).await?;
    while let Some(token) = stream.next().await {
        token?;
    }
    stream.usage().cloned().context("the stream has ended")
}
