//! The GGUF container: header, metadata and tensor descriptions.

mod catalog;
mod cursor;
mod error;
mod foreign;
mod header;
mod identity;
mod metadata;
mod shard;
mod tensor_type;

pub use catalog::{Catalog, Extent, ModelFile, Tensor};
pub use error::GgufError;
pub use identity::FileIdentity;
pub use metadata::{Array, Metadata, MetadataError, StringTable, Value};
pub use tensor_type::TensorType;
