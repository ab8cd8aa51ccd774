//! Why a model cannot be run.

use emel_loader::gguf::MetadataError;

/// A model that the file describes badly, or that this engine cannot compute.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A hyperparameter is missing or of the wrong type.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// The file belongs to a language model and is none itself.
    #[error("is {found}, expected a language model; {advice}")]
    Kind {
        /// What it is.
        found: &'static str,
        /// What to do instead.
        advice: &'static str,
    },
    /// The architecture has no file in `model/src/arch/`.
    #[error("architecture `{found}` is not supported; supported: {supported}")]
    Architecture {
        /// What the file says.
        found: String,
        /// All that would work.
        supported: String,
    },
    /// A hyperparameter holds a value no model can have.
    #[error("hyperparameter `{key}` is {found}, expected {expected}")]
    Hyperparameter {
        /// Its metadata key.
        key: String,
        /// What the file says.
        found: String,
        /// What would be right.
        expected: String,
    },
    /// A hyperparameter is missing that every model of the architecture has.
    #[error(
        "hyperparameter `{key}` is missing, expected in every model of the architecture; use a file that a current converter wrote"
    )]
    MissingHyperparameter {
        /// Its metadata key.
        key: String,
    },
    /// A tensor of the architecture is not in the file.
    #[error("tensor `{name}` is missing; the file is incomplete or its architecture mislabelled")]
    MissingTensor {
        /// Its name.
        name: String,
    },
    /// A tensor has other dimensions than its place in the model asks for.
    #[error("tensor `{name}` is {found}, expected {expected}")]
    Shape {
        /// Its name.
        name: String,
        /// Columns × rows in the file.
        found: String,
        /// Columns × rows wanted.
        expected: String,
    },
    /// A tensor is stored in a type that the kernels do not compute with.
    #[error("tensor `{name}` has type {found}, which is not supported; supported: {supported}")]
    TensorType {
        /// Its name.
        name: String,
        /// Its type.
        found: String,
        /// The types that would work.
        supported: String,
    },
    /// The file has tensors that no operation uses.
    #[error(
        "tensor `{name}`{} has no place in architecture `{architecture}`; answers without it could be \
         wrong, so convert the model again with a current converter",
        and_others(*others)
    )]
    UnusedTensor {
        /// The first of them.
        name: String,
        /// How many there are besides.
        others: usize,
        /// The architecture.
        architecture: String,
    },
}

fn and_others(count: usize) -> String {
    match count {
        0 => String::new(),
        1 => " (and another one)".to_owned(),
        count => format!(" (and {count} others)"),
    }
}
