//! Architectures: one file each, which writes the model's forward pass in the order of
//! its paper. To add one, add its file and its row to `ARCHITECTURES`.

mod gemma3;
mod llama;
mod pre_norm;
mod qwen2;
mod qwen3;
mod qwen3moe;

use emel_loader::gguf::Catalog;

use crate::error::ModelError;
use crate::hyperparameters::Hyperparameters;
use crate::program::{Program, ProgramBuilder};

type Describe = fn(&mut ProgramBuilder<'_>, &Hyperparameters) -> Result<(), ModelError>;

/// `general.architecture` and who describes it.
const ARCHITECTURES: &[(&str, Describe)] = &[
    ("llama", llama::describe),
    ("qwen2", qwen2::describe),
    ("qwen3", qwen3::describe),
    ("qwen3moe", qwen3moe::describe),
    ("gemma3", gemma3::describe),
];

/// The program of the model that the catalog holds.
///
/// # Errors
/// When the architecture is not supported, or the file does not have what it needs.
pub fn program(catalog: &Catalog) -> Result<Program, ModelError> {
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
    Ok(builder.finish())
}

/// The names of the supported architectures.
pub fn supported() -> impl Iterator<Item = &'static str> {
    ARCHITECTURES.iter().map(|(name, _)| *name)
}
