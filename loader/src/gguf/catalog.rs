//! The catalog of a model: which tensors it has and where their bytes are.

use std::path::{Path, PathBuf};

use super::error::quote;
use super::header::{Header, RawTensor};
use super::identity::FileIdentity;
use super::shard::ShardName;
use super::{GgufError, Metadata, TensorType};

/// Where `general.alignment` is absent.
const ALIGNMENT_DEFAULT: u32 = 32;

/// No writer is known to use more than a page.
const ALIGNMENT_MAX: u32 = 1 << 20;

/// A range of bytes in one of the model's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Index into [`Catalog::files`].
    pub file: usize,
    /// From the start of the file.
    pub offset: u64,
    /// Length; never zero.
    pub bytes: u64,
}

/// One tensor: its type, its shape and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Unique in the model.
    pub name: String,
    /// How its elements are stored.
    pub tensor_type: TensorType,
    /// One to four dimensions, none of them zero, the fastest first.
    pub dims: Vec<u64>,
    /// Its bytes.
    pub extent: Extent,
}

impl Tensor {
    /// Elements of a row.
    pub fn columns(&self) -> u64 {
        self.dims[0]
    }

    /// Rows over all dimensions but the first.
    pub fn rows(&self) -> u64 {
        self.dims[1..].iter().product()
    }

    /// Bytes of a row; rows follow each other without gaps.
    pub fn row_bytes(&self) -> u64 {
        self.columns() / self.tensor_type.block_elements() * self.tensor_type.block_bytes()
    }
}

/// One file of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFile {
    /// Its path, as it was opened.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// What it was when its header was read.
    pub identity: FileIdentity,
}

/// The files, metadata and tensors of one model.
///
/// Opening reads the headers only. Every extent lies inside its file and no two
/// overlap, every row is a whole number of blocks, and every name is unique.
#[derive(Debug, Clone)]
pub struct Catalog {
    files: Vec<ModelFile>,
    metadata: Metadata,
    tensors: Vec<Tensor>,
    /// Indices into `tensors`, in the order of the names.
    by_name: Vec<usize>,
}

impl Catalog {
    /// Opens a model by its file, or by the first of its shards
    /// (`NAME-00001-of-0000N.gguf`). The metadata are those of the first shard.
    ///
    /// # Errors
    /// When a file cannot be read, is not a GGUF file of version 2 or 3, or says
    /// anything about itself that is not so.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, GgufError> {
        let path = path.as_ref();
        let header = Header::read(path)?;
        let shards = ShardName::of_first(path, &header.metadata)?;
        let tensors_expected = shards.as_ref().map(|shards| shards.tensors);

        let mut catalog = Self {
            files: Vec::new(),
            metadata: Metadata::default(),
            tensors: Vec::new(),
            by_name: Vec::new(),
        };
        catalog.metadata = catalog.add(path.to_owned(), header)?;
        if let Some(shards) = shards {
            for index in 1..shards.count {
                let (path, header) = shards.read(index)?;
                catalog.add(path, header)?;
            }
        }
        if let Some(expected) = tensors_expected
            && expected != catalog.tensors.len() as u64
        {
            return Err(GgufError::ShardMismatch {
                path: path.to_owned(),
                key: "split.tensors.count",
                found: expected,
                expected: catalog.tensors.len() as u64,
            });
        }
        catalog.tensors.shrink_to_fit();
        catalog.index_names()?;
        catalog.check_overlaps()?;
        Ok(catalog)
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        Some(&self.tensors[self.tensor_index(name)?])
    }

    /// The index of the tensor of this name among [`Catalog::tensors`].
    pub fn tensor_index(&self, name: &str) -> Option<usize> {
        let place = self
            .by_name
            .binary_search_by(|&index| self.tensors[index].name.as_str().cmp(name))
            .ok()?;
        Some(self.by_name[place])
    }

    /// All tensors, in the order of the files and their headers.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The files, in the order of the shards.
    pub fn files(&self) -> &[ModelFile] {
        &self.files
    }

    /// The metadata.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The metadata, for taking large values out.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }

    /// The size of all files together.
    pub fn file_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Takes up one file; returns its metadata.
    fn add(&mut self, path: PathBuf, header: Header) -> Result<Metadata, GgufError> {
        let alignment = alignment(&path, &header.metadata)?;
        let place = Place {
            path: &path,
            file: self.files.len(),
            file_bytes: header.file_bytes,
            // The header ends inside the file, which is far from 64 bits.
            data_start: header.end.next_multiple_of(alignment),
            alignment,
        };
        for raw in header.tensors {
            self.tensors.push(place.tensor(raw)?);
        }
        self.files.push(ModelFile {
            path,
            bytes: header.file_bytes,
            identity: header.identity,
        });
        Ok(header.metadata)
    }

    fn index_names(&mut self) -> Result<(), GgufError> {
        let tensors = &self.tensors;
        self.by_name = (0..tensors.len()).collect();
        self.by_name
            .sort_by(|&left, &right| tensors[left].name.cmp(&tensors[right].name));
        for pair in self.by_name.windows(2) {
            let second = &tensors[pair[1]];
            if tensors[pair[0]].name == second.name {
                return Err(GgufError::DuplicateTensor {
                    path: self.files[second.extent.file].path.clone(),
                    tensor: quote(second.name.as_bytes()),
                });
            }
        }
        Ok(())
    }

    fn check_overlaps(&self) -> Result<(), GgufError> {
        let mut by_offset: Vec<&Tensor> = self.tensors.iter().collect();
        by_offset.sort_by_key(|tensor| (tensor.extent.file, tensor.extent.offset));
        for pair in by_offset.windows(2) {
            let (first, second) = (pair[0], pair[1]);
            let same_file = first.extent.file == second.extent.file;
            if same_file && first.extent.offset + first.extent.bytes > second.extent.offset {
                return Err(GgufError::Overlap {
                    path: self.files[first.extent.file].path.clone(),
                    first: quote(first.name.as_bytes()),
                    second: quote(second.name.as_bytes()),
                    offset: second.extent.offset,
                });
            }
        }
        Ok(())
    }
}

fn alignment(path: &Path, metadata: &Metadata) -> Result<u64, GgufError> {
    let stated = metadata
        .u32("general.alignment")
        .map_err(|source| GgufError::Metadata {
            path: path.to_owned(),
            source,
        })?;
    let found = stated.unwrap_or(ALIGNMENT_DEFAULT);
    if !found.is_power_of_two() || !(8..=ALIGNMENT_MAX).contains(&found) {
        return Err(GgufError::Alignment {
            path: path.to_owned(),
            found,
            max: ALIGNMENT_MAX,
        });
    }
    Ok(found.into())
}

/// The file a tensor's description is judged against.
struct Place<'a> {
    path: &'a Path,
    file: usize,
    file_bytes: u64,
    data_start: u64,
    alignment: u64,
}

impl Place<'_> {
    fn tensor(&self, raw: RawTensor) -> Result<Tensor, GgufError> {
        let quoted = || quote(raw.name.as_bytes());
        let Some(tensor_type) = TensorType::from_id(raw.type_id) else {
            return Err(GgufError::TensorType {
                path: self.path.to_owned(),
                tensor: quoted(),
                id: raw.type_id,
            });
        };
        let bytes = tensor_bytes(tensor_type, &raw.dims).map_err(|problem| GgufError::Shape {
            path: self.path.to_owned(),
            tensor: quoted(),
            problem,
        })?;
        if !raw.data_offset.is_multiple_of(self.alignment) {
            return Err(GgufError::Misaligned {
                path: self.path.to_owned(),
                tensor: quoted(),
                offset: raw.data_offset,
                alignment: self.alignment,
            });
        }
        let offset = self.data_start.saturating_add(raw.data_offset);
        let found = self.file_bytes.saturating_sub(offset);
        if bytes > found {
            return Err(GgufError::TensorPastEnd {
                path: self.path.to_owned(),
                tensor: quoted(),
                offset,
                wanted: bytes,
                found,
                file_bytes: self.file_bytes,
            });
        }
        let extent = Extent {
            file: self.file,
            offset,
            bytes,
        };
        Ok(Tensor {
            name: raw.name,
            tensor_type,
            dims: raw.dims,
            extent,
        })
    }
}

fn tensor_bytes(tensor_type: TensorType, dims: &[u64]) -> Result<u64, String> {
    if dims.contains(&0) {
        return Err(format!("shape {dims:?}, expected no dimension of zero"));
    }
    let block = tensor_type.block_elements();
    if !dims[0].is_multiple_of(block) {
        return Err(format!(
            "rows of {} elements, expected a multiple of the {block} in a block of {tensor_type}",
            dims[0]
        ));
    }
    let too_large = || format!("shape {dims:?} of {tensor_type}, expected under 2^63 elements");
    let elements = dims
        .iter()
        .try_fold(1_u64, |product, &dim| product.checked_mul(dim))
        .filter(|&elements| elements <= i64::MAX as u64)
        .ok_or_else(too_large)?;
    (elements / block)
        .checked_mul(tensor_type.block_bytes())
        .ok_or_else(too_large)
}
