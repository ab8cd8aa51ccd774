//! Where the fixtures and the real models are.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

/// The two real models that `scripts/fetch_models.py` downloads.
pub const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
/// See [`SMOLLM2`].
pub const GEMMA3: &str = "gemma3-270m-q4_k_m.gguf";

/// Every architecture with experts, as `arch/{name}.gguf`.
pub const MIXTURES: [&str; 11] = [
    "mixtral",
    "qwen2moe",
    "qwen3moe",
    "qwen35moe",
    "olmoe",
    "granitemoe",
    "glm4moe",
    "minimax-m2",
    "gpt-oss",
    "lfm2moe",
    "deepseek2",
];

/// A file in `tests/fixtures/`.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures")
        .join(name)
}

/// A JSON file in `tests/fixtures/`.
///
/// # Panics
/// When it is missing or not of this shape.
pub fn json<T: DeserializeOwned>(name: &str) -> T {
    let path = fixture(name);
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A real model, or `None`, said on standard error, where it has not been downloaded.
///
/// # Panics
/// When it is missing and `EMEL_REQUIRE_MODELS=1`.
pub fn real_model(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../models")
        .join(name);
    if path.exists() {
        return Some(path);
    }
    let required = std::env::var("EMEL_REQUIRE_MODELS").is_ok_and(|value| value == "1");
    assert!(!required, "models/{name} is missing; run `make models`");
    eprintln!("skipped: models/{name} is missing; run `make models`");
    None
}
