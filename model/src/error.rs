//! Why a model cannot be run.

use emel_loader::gguf::MetadataError;

/// A model that the file describes badly, or that this engine cannot compute.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A hyperparameter is missing or of the wrong type.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
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
}
