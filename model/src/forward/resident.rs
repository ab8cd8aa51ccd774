//! What a forward pass reads before the first token: norms, biases, rotations.

use emel_kernels::{Format, Kernels, RopeFrequencies, RopeTable};
use emel_loader::files::OpenFiles;
use emel_loader::gguf::Catalog;
use emel_loader::reader::{ReadError, read_blocking};

use super::{Footprint, ForwardError};
use crate::program::{Op, Program, Rotation};

/// A rotation with its frequencies, and room for the turns of a chunk.
pub(super) fn turn(
    rotation: &Rotation,
    resident: &[Vec<f32>],
    footprint: Footprint,
) -> (Rotation, RopeFrequencies, RopeTable) {
    let factors = rotation.factors.of_context(footprint.context_wished);
    let factors = factors.map(|index| resident[index].as_slice());
    let frequencies = RopeFrequencies::new(
        rotation.scaling,
        f64::from(rotation.base),
        rotation.width,
        factors,
    );
    let table = RopeTable::new(footprint.chunk, rotation.width);
    (rotation.clone(), frequencies, table)
}

/// The tensors that are always in memory, as floats.
pub(super) fn read_resident(
    program: &Program,
    catalog: &Catalog,
    files: &OpenFiles,
    kernels: Kernels,
) -> Result<Vec<Vec<f32>>, ForwardError> {
    let read = |&index: &usize| {
        let tensor = &catalog.tensors()[index];
        let bytes = read_blocking(files, &tensor.extent)?;
        let format = Format::from_ggml_type(tensor.tensor_type.id())
            .expect("the builder checked the type of every tensor");
        let (columns, rows) = (tensor.columns() as usize, tensor.rows() as usize);
        let mut values = vec![0.0; rows * columns];
        let encoded = bytes.chunks_exact(bytes.len() / rows);
        for (bytes, row) in encoded.zip(values.chunks_exact_mut(columns)) {
            kernels.dequantise_row(format, bytes, row);
        }
        Ok(values)
    };
    let mut resident: Vec<Vec<f32>> = program
        .resident
        .iter()
        .map(read)
        .collect::<Result<_, ReadError>>()?;
    for op in &program.ops {
        if let Op::Convolution { weight, .. } = *op {
            let taps = catalog.tensors()[program.resident[weight]].columns() as usize;
            resident[weight] = transposed(&resident[weight], taps);
        }
    }
    Ok(resident)
}

/// `[rows, columns]` as `[columns, rows]`.
fn transposed(values: &[f32], columns: usize) -> Vec<f32> {
    let column = |column| values.iter().skip(column).step_by(columns).copied();
    (0..columns).flat_map(column).collect()
}
