//! Architectures: one file each, which writes the model's forward pass in the order of
//! its paper. To add one, add its file and its row to `ARCHITECTURES`.

mod deepseek2;
mod experts;
mod gemma;
mod gemma2;
mod gemma3;
mod glm4moe;
mod gpt_oss;
mod granite;
pub mod known_keys;
mod lfm2;
mod llama;
mod minimax_m2;
mod olmoe;
mod phi3;
mod pre_norm;
mod qwen2;
mod qwen2moe;
mod qwen3;
mod qwen35moe;
mod qwen3moe;
mod sections;
mod window;

use emel_loader::gguf::{Catalog, Metadata};

use crate::error::ModelError;
use crate::hyperparameters::Hyperparameters;
use crate::keys::Keys;
use crate::program::{Program, ProgramBuilder};

type Describe = fn(&mut ProgramBuilder<'_>, &Hyperparameters) -> Result<(), ModelError>;

/// `general.architecture` and who describes it.
const ARCHITECTURES: &[(&str, Describe)] = &[
    ("llama", llama::describe),
    ("qwen2", qwen2::describe),
    ("qwen2moe", qwen2moe::describe),
    ("qwen3", qwen3::describe),
    ("qwen3moe", qwen3moe::describe),
    ("gemma2", gemma2::describe),
    ("gemma3", gemma3::describe),
    ("phi3", phi3::describe),
    ("olmoe", olmoe::describe),
    ("granite", granite::describe),
    ("granitemoe", granite::describe),
    ("glm4moe", glm4moe::describe),
    ("minimax-m2", minimax_m2::describe),
    ("gpt-oss", gpt_oss::describe),
    ("lfm2", lfm2::describe),
    ("lfm2moe", lfm2::describe),
    ("qwen35moe", qwen35moe::describe),
    ("deepseek2", deepseek2::describe),
];

/// The program of the model that the catalog holds.
///
/// # Errors
/// When the architecture is not supported, or the file does not have what it needs, or
/// has a tensor that it does not use.
pub fn program(catalog: &Catalog) -> Result<Program, ModelError> {
    check_kind(catalog.metadata())?;
    let found = catalog.metadata().str("general.architecture")?;
    let describe = ARCHITECTURES
        .iter()
        .find(|(name, _)| Some(*name) == found)
        .map(|(_, describe)| describe);
    let Some(describe) = describe else {
        return Err(ModelError::Architecture {
            found: found.unwrap_or("(none)").to_owned(),
            supported: supported().collect::<Vec<_>>().join(", "),
        });
    };
    let hyperparameters = Hyperparameters::read(catalog)?;
    let mut builder = ProgramBuilder::new(catalog, hyperparameters.clone())?;
    describe(&mut builder, &hyperparameters)?;
    let mut program = builder.finish()?;
    program.notes = Keys::new(catalog, &hyperparameters.architecture).notes();
    Ok(program)
}

/// Refuses files that go with a language model and are none themselves.
///
/// # Errors
/// When the file is one of them.
pub fn check_kind(metadata: &Metadata) -> Result<(), ModelError> {
    let text = |key| metadata.str(key).ok().flatten().unwrap_or("");
    let (found, advice) = match (text("general.type"), text("general.architecture")) {
        ("adapter", _) => (
            "a LoRA adapter",
            "merge it into its base model (llama-export-lora) and run that",
        ),
        ("imatrix", _) => (
            "an importance matrix (imatrix)",
            "pass the model that it was made for",
        ),
        ("mmproj", _) | (_, "clip") => (
            "a vision or audio tower (mmproj)",
            "pass the language model that it belongs to",
        ),
        (_, "controlvector") => (
            "a control vector",
            "pass the model that it was made for, without it",
        ),
        _ => return Ok(()),
    };
    Err(ModelError::Kind { found, advice })
}

/// The names of the supported architectures.
pub fn supported() -> impl Iterator<Item = &'static str> {
    ARCHITECTURES.iter().map(|(name, _)| *name)
}
