//! The keys and values of past positions, layer by layer.

use emel_kernels::{KvSlice, KvSliceMut, KvView};
use half::f16;
use half::vec::HalfBitsVecExt;

use crate::hyperparameters::Hyperparameters;

/// How keys and values are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvType {
    /// Half precision.
    F16,
    /// Single precision.
    F32,
}

impl KvType {
    /// The name that `--kv` takes.
    pub fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::F32 => "f32",
        }
    }

    fn bytes(self) -> usize {
        match self {
            Self::F16 => size_of::<f16>(),
            Self::F32 => size_of::<f32>(),
        }
    }
}

/// Rows of one head width each, for every position: `[context, kv_heads, width]`.
#[derive(Debug, Clone)]
enum Rows {
    F16(Vec<f16>),
    F32(Vec<f32>),
}

/// The cache of one sequence.
#[derive(Debug, Clone)]
pub struct KvCache {
    layers: Vec<(Rows, Rows)>,
}

impl KvCache {
    /// An empty cache for `context` positions.
    pub fn new(shape: &Hyperparameters, context: usize, kv_type: KvType) -> Self {
        let rows = |width: usize| Rows::new(context * shape.kv_heads * width, kv_type);
        let layers = (0..shape.layers)
            .map(|_| (rows(shape.key_width), rows(shape.value_width)))
            .collect();
        Self { layers }
    }

    /// The bytes that [`KvCache::new`] allocates.
    pub fn required_bytes(shape: &Hyperparameters, context: usize, kv_type: KvType) -> u64 {
        // Saturating: a plan for absurd sizes is to be refused, not to overflow.
        [
            shape.key_width + shape.value_width,
            kv_type.bytes(),
            shape.layers,
            context,
        ]
        .iter()
        .fold(shape.kv_heads as u64, |bytes, &factor| {
            bytes.saturating_mul(factor as u64)
        })
    }

    /// The keys and values of a layer, to read.
    pub fn view(&self, layer: usize) -> KvView<'_> {
        let (keys, values) = &self.layers[layer];
        KvView {
            keys: keys.slice(),
            values: values.slice(),
        }
    }

    /// The keys and values of a layer, to write.
    pub fn layer_mut(&mut self, layer: usize) -> [KvSliceMut<'_>; 2] {
        let (keys, values) = &mut self.layers[layer];
        [keys.slice_mut(), values.slice_mut()]
    }
}

impl Rows {
    // Zeroed pages are not touched until they are written, so an unused context is free.
    fn new(length: usize, kv_type: KvType) -> Self {
        match kv_type {
            // Of bits, because only a vector of integers comes zeroed from the system.
            KvType::F16 => Self::F16(vec![0_u16; length].reinterpret_into()),
            KvType::F32 => Self::F32(vec![0.0; length]),
        }
    }

    fn slice(&self) -> KvSlice<'_> {
        match self {
            Self::F16(rows) => KvSlice::F16(rows),
            Self::F32(rows) => KvSlice::F32(rows),
        }
    }

    fn slice_mut(&mut self) -> KvSliceMut<'_> {
        match self {
            Self::F16(rows) => KvSliceMut::F16(rows),
            Self::F32(rows) => KvSliceMut::F32(rows),
        }
    }
}
