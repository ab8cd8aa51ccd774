//! Copies of a small model with something changed.

use std::path::{Path, PathBuf};

use emel_loader::gguf::Catalog;
use emel_tests::gguf_writer::{Field, GgufWriter};
use tempfile::TempDir;

struct Tensor {
    name: String,
    type_id: u32,
    dims: Vec<u64>,
    data: Vec<u8>,
}

/// A model that can be changed before it is written.
pub(crate) struct Model {
    fields: Vec<(String, Field)>,
    tensors: Vec<Tensor>,
}

impl Model {
    /// The model in `path`.
    pub(crate) fn read(path: &Path) -> Self {
        let catalog = Catalog::open(path).unwrap();
        let bytes = std::fs::read(path).unwrap();
        let fields = catalog
            .metadata()
            .iter()
            .filter_map(|(key, value)| Some((key.to_owned(), Field::from_value(value)?)))
            .collect();
        let tensors = catalog.tensors().iter().map(|tensor| Tensor {
            name: tensor.name.clone(),
            type_id: tensor.tensor_type.id(),
            dims: tensor.dims.clone(),
            data: bytes[tensor.extent.offset as usize..][..tensor.extent.bytes as usize].to_vec(),
        });
        Self {
            fields,
            tensors: tensors.collect(),
        }
    }

    /// The small llama.
    pub(crate) fn llama() -> Self {
        Self::read(&crate::llama())
    }

    pub(crate) fn with(mut self, key: &str, field: Field) -> Self {
        self = self.without(key);
        self.fields.push((key.to_owned(), field));
        self
    }

    pub(crate) fn without(mut self, key: &str) -> Self {
        self.fields.retain(|(found, _)| found != key);
        self
    }

    pub(crate) fn without_tensor(mut self, name: &str) -> Self {
        self.tensors.retain(|tensor| tensor.name != name);
        self
    }

    /// Puts F32 zeros of another shape in a tensor's place.
    pub(crate) fn reshaped(mut self, name: &str, dims: &[u64]) -> Self {
        let tensor = self.tensor(name);
        tensor.dims = dims.to_owned();
        tensor.data = vec![0; dims.iter().product::<u64>() as usize * 4];
        self
    }

    /// Gives a tensor another type id and as many bytes as asked.
    pub(crate) fn retyped(mut self, name: &str, type_id: u32, bytes: usize) -> Self {
        let tensor = self.tensor(name);
        tensor.type_id = type_id;
        tensor.data = vec![0; bytes];
        self
    }

    /// Fills an F32 tensor with one number.
    pub(crate) fn filled(mut self, name: &str, number: f32) -> Self {
        let data = &mut self.tensor(name).data;
        *data = number.to_le_bytes().repeat(data.len() / 4);
        self
    }

    fn tensor(&mut self, name: &str) -> &mut Tensor {
        let found = self.tensors.iter_mut().find(|tensor| tensor.name == name);
        found.unwrap()
    }

    pub(crate) fn writer(&self) -> GgufWriter {
        let mut fields = self.fields.clone();
        let place = fields
            .iter()
            .position(|(key, _)| key == "general.architecture")
            .unwrap();
        let Field::String(architecture) = fields.remove(place).1 else {
            panic!("the architecture is a string");
        };
        let mut writer = GgufWriter::new(std::str::from_utf8(&architecture).unwrap());
        for (key, field) in fields {
            writer = writer.field(&key, field);
        }
        for tensor in &self.tensors {
            writer = writer.tensor_of_type_id(
                &tensor.name,
                tensor.type_id,
                &tensor.dims,
                tensor.data.clone(),
            );
        }
        writer
    }

    pub(crate) fn write(&self, folder: &TempDir) -> PathBuf {
        let path = folder.path().join("model.gguf");
        self.writer().write(&path).unwrap();
        path
    }
}
