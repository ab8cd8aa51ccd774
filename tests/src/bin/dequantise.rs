//! `emel-dequantise IN.gguf OUT.gguf`: the same model with every weight in F32.
//!
//! The result is the exact model that the quantised one stands for, and so the
//! measure of its accuracy. Rows are converted a few at a time, so a model of any
//! size passes through in a few megabytes.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use emel_cli::named_files::place_of_model;
use emel_kernels::{Format, Kernels};
use emel_loader::gguf::{Catalog, Tensor, TensorType};
use emel_tests::gguf_writer::{ALIGNMENT_DEFAULT, Description, Field, padding, write_header};

/// Weights converted at a time, unless a single row has more.
const CHUNK_WEIGHTS: u64 = 256 << 10;

/// What `general.file_type` says of a model in F32.
const FILE_TYPE_F32: u32 = 0;

fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let [input, output] = arguments.as_slice() else {
        bail!("expected two paths: emel-dequantise IN.gguf OUT.gguf");
    };
    let (input, output) = (Path::new(input), Path::new(output));
    let output = &place_of_model(output)?;
    let catalog = Catalog::open(input)?;
    // Under its own name only once it is whole.
    let partial = output.with_extension("gguf.partial");
    write_model(&catalog, &partial)
        .and_then(|()| Ok(std::fs::rename(&partial, output)?))
        .inspect_err(|_| drop(std::fs::remove_file(&partial)))
        .with_context(|| format!("{}: not written", output.display()))
}

fn write_model(catalog: &Catalog, output: &Path) -> Result<()> {
    let alignment = match catalog.metadata().u32("general.alignment")? {
        Some(alignment) => alignment.into(),
        None => ALIGNMENT_DEFAULT,
    };
    let fields = fields(catalog)?;
    let sources: Vec<Source> = catalog
        .tensors()
        .iter()
        .map(Source::of)
        .collect::<Result<_>>()?;
    let descriptions: Vec<Description> = sources.iter().map(Source::description).collect();

    let mut out = BufWriter::new(File::create(output)?);
    write_header(&mut out, 3, &fields, &descriptions, alignment)?;
    let files: Vec<File> = catalog
        .files()
        .iter()
        .map(|file| File::open(&file.path))
        .collect::<Result<_, _>>()?;
    let kernels = Kernels::detect();
    for source in &sources {
        source
            .write_to(&mut out, &files[source.tensor.extent.file], kernels)
            .with_context(|| format!("tensor {}", source.tensor.name))?;
        out.write_all(&padding(source.bytes(), alignment))?;
    }
    out.into_inner()?.sync_all()?;
    Ok(())
}

/// All metadata but those of the shards, for the result is one file.
fn fields(catalog: &Catalog) -> Result<Vec<(String, Field)>> {
    let mut fields = Vec::new();
    for (key, value) in catalog.metadata().iter() {
        let field = match key {
            "general.file_type" => Field::U32(FILE_TYPE_F32),
            key if key.starts_with("split.") => continue,
            key => Field::from_value(value)
                .with_context(|| format!("metadata key {key} is an array of arrays"))?,
        };
        fields.push((key.to_owned(), field));
    }
    Ok(fields)
}

/// A tensor and how it is carried over.
struct Source<'a> {
    tensor: &'a Tensor,
    /// `None` for integers, which are not weights and stay as they are.
    format: Option<Format>,
}

impl<'a> Source<'a> {
    fn of(tensor: &'a Tensor) -> Result<Self> {
        let kept = matches!(
            tensor.tensor_type,
            TensorType::I8 | TensorType::I16 | TensorType::I32 | TensorType::I64
        );
        let format = Format::from_ggml_type(tensor.tensor_type.id());
        ensure!(
            kept || format.is_some(),
            "tensor {} is {}, which cannot be dequantised yet",
            tensor.name,
            tensor.tensor_type
        );
        Ok(Self { tensor, format })
    }

    fn bytes(&self) -> u64 {
        match self.format {
            Some(_) => self.tensor.columns() * self.tensor.rows() * size_of::<f32>() as u64,
            None => self.tensor.extent.bytes,
        }
    }

    fn description(&self) -> Description {
        let tensor_type = match self.format {
            Some(_) => TensorType::F32,
            None => self.tensor.tensor_type,
        };
        Description {
            name: self.tensor.name.clone(),
            type_id: tensor_type.id(),
            dims: self.tensor.dims.clone(),
            bytes: self.bytes(),
            stated_offset: None,
        }
    }

    fn write_to(&self, out: &mut impl Write, file: &File, kernels: Kernels) -> Result<()> {
        let tensor = self.tensor;
        let rows_each = (CHUNK_WEIGHTS / tensor.columns()).max(1);
        let mut weights = Vec::new();
        let mut raw = Vec::new();
        let mut first = 0;
        while first < tensor.rows() {
            let rows = rows_each.min(tensor.rows() - first);
            raw.resize(usize::try_from(rows * tensor.row_bytes())?, 0);
            file.read_exact_at(&mut raw, tensor.extent.offset + first * tensor.row_bytes())?;
            match self.format {
                Some(format) => {
                    weights.resize(usize::try_from(rows * tensor.columns())?, 0.0);
                    kernels.dequantise_row(format, &raw, &mut weights);
                    for weight in &weights {
                        out.write_all(&weight.to_le_bytes())?;
                    }
                }
                None => out.write_all(&raw)?,
            }
            first += rows;
        }
        Ok(())
    }
}
