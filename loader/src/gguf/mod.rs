//! The GGUF container: header, metadata and tensor descriptions.

mod metadata;

pub use metadata::{Array, Metadata, MetadataError, StringTable, Value};
