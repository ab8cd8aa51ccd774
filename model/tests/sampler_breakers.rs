//! Sequence breakers of DRY, found in a vocabulary by their texts.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use emel_loader::gguf::{Array, Metadata, StringTable, Value};
use emel_model::sampler::{Breakers, Sampler, SamplerOptions};
use emel_model::tokenizer::{EncodeOptions, Tokenizer};

/// One token a byte, and `y\n`, which ends with the beginning of a breaker.
fn tokenizer() -> Tokenizer {
    let mut tokens = StringTable::default();
    for byte in 0..=255 {
        tokens.push(format!("\\x{byte:02x}").as_bytes());
    }
    tokens.push(b"y\\n");
    let mut metadata = Metadata::default();
    let model = Value::String(b"rwkv".to_vec());
    metadata.insert("tokenizer.ggml.model".to_owned(), model);
    let tokens = Value::Array(Array::String(tokens));
    metadata.insert("tokenizer.ggml.tokens".to_owned(), tokens);
    Tokenizer::from_metadata(&mut metadata).unwrap()
}

/// Whether `q`, whose logit is 4 where all others have 0, is drawn after `text`.
fn goes_on_with_q(text: &str, breakers: &[&str]) -> bool {
    goes_on_with(b'q', text, breakers)
}

fn goes_on_with(byte: u8, text: &str, breakers: &[&str]) -> bool {
    let tokenizer = tokenizer();
    let options = SamplerOptions {
        temperature: 0.0,
        dry_multiplier: 1.0,
        dry_base: 2.0,
        dry_sequence_breakers: breakers.iter().map(|&text| text.to_owned()).collect(),
        ..SamplerOptions::default()
    };
    let breakers = Breakers::new(&options, &tokenizer);
    let mut logits = vec![0.0; tokenizer.vocabulary_size()];
    logits[usize::from(byte)] = 4.0;
    let mut sampler = Sampler::new(options, logits.len(), 64, breakers).unwrap();
    for id in tokenizer.encode(text, EncodeOptions::default()) {
        sampler.accept(id);
    }
    sampler.sample(&logits) == u32::from(byte)
}

#[test]
fn a_breaker_of_several_tokens_bounds_the_repetition() {
    // Five tokens are repeated: the penalty is 2^3; after the breaker only two: 2^0.
    let text = "z\n\nxxqz\n\nxx";
    assert!(!goes_on_with_q(text, &[]));
    assert!(goes_on_with_q(text, &["\n\n"]));
    assert!(goes_on_with_q(text, &["\n"]));
    assert!(!goes_on_with_q(text, &["\n\n\n", ""]));
}

#[test]
fn a_breaker_may_begin_within_a_token() {
    let text = "zzy\n\nxxqzzy\n\nxx";
    assert!(!goes_on_with_q(text, &[]));
    assert!(goes_on_with_q(text, &["\n\n"]));
    assert!(goes_on_with_q(text, &["y"]));
    assert!(!goes_on_with_q(text, &["zx"]));
}

#[test]
fn a_token_that_holds_a_whole_breaker_is_never_penalised() {
    // The ten tokens of "first name" also stand before the first two colons: 2^8.
    let text = "first name: a\nfirst name: b\nfirst name";
    assert!(!goes_on_with(b':', text, &["\n"]));
    assert!(goes_on_with(b':', text, &["\n", ":"]));
    // The first token of a longer breaker is no breaker.
    assert!(!goes_on_with(b':', text, &["\n", ": "]));
}
