//! Rows as plain `f32`: embedding look-ups and references.

use crate::block::{Block, FloatBlock, Format, FormatVisitor, QuantisedBlock};
use crate::path::Kernels;

impl Kernels {
    /// The weights of one row (or any run of whole blocks), exactly as the format defines them.
    ///
    /// # Panics
    ///
    /// If `out` is not whole blocks or `bytes` is not its size.
    pub fn dequantise_row(&self, format: Format, bytes: &[u8], out: &mut [f32]) {
        let expected = format.row_bytes(out.len());
        assert_eq!(
            expected,
            Some(bytes.len()),
            "{format} row of {} weights",
            out.len()
        );
        format.visit(Row { bytes, out });
    }
}

struct Row<'a> {
    bytes: &'a [u8],
    out: &'a mut [f32],
}

impl Row<'_> {
    fn dequantise<F: Block>(self) {
        for (raw, weights) in F::blocks(self.bytes)
            .iter()
            .zip(self.out.chunks_exact_mut(F::ELEMENTS))
        {
            F::dequantise(raw, weights);
        }
    }
}

impl FormatVisitor for Row<'_> {
    type Output = ();

    fn float<F: FloatBlock>(self) {
        self.dequantise::<F>();
    }

    fn quantised<F: QuantisedBlock>(self) {
        self.dequantise::<F>();
    }
}
