//! A weight matrix as it lies in the file.

use crate::block::Format;

/// `rows × columns` weights in one format, row after row, as GGUF stores them.
///
/// The bytes need no alignment: a streamed view starts wherever its tensor does.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    format: Format,
    rows: usize,
    columns: usize,
    row_bytes: usize,
    bytes: &'a [u8],
}

/// A matrix whose bytes are not what its shape says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// A row does not consist of whole blocks, or is too long for this machine.
    #[error("a row of {columns} weights is not a whole number of {format} blocks of {block}")]
    Columns {
        /// The matrix's format.
        format: Format,
        /// Weights per row.
        columns: usize,
        /// Weights per block.
        block: usize,
    },
    /// The number of bytes differs from the shape's.
    #[error("{rows} × {columns} weights of {format} take {expected:?} bytes, found {found}")]
    Length {
        /// The matrix's format.
        format: Format,
        /// Number of rows.
        rows: usize,
        /// Weights per row.
        columns: usize,
        /// Bytes the shape needs; `None` if more than this machine can address.
        expected: Option<usize>,
        /// Bytes given.
        found: usize,
    },
}

impl<'a> Matrix<'a> {
    /// A view of `bytes`, which must be exactly the matrix's.
    pub fn new(
        format: Format,
        rows: usize,
        columns: usize,
        bytes: &'a [u8],
    ) -> Result<Self, ShapeError> {
        let row_bytes = format.row_bytes(columns).ok_or(ShapeError::Columns {
            format,
            columns,
            block: format.block_elements(),
        })?;
        let expected = row_bytes.checked_mul(rows);
        if expected != Some(bytes.len()) {
            let found = bytes.len();
            return Err(ShapeError::Length {
                format,
                rows,
                columns,
                expected,
                found,
            });
        }
        Ok(Self {
            format,
            rows,
            columns,
            row_bytes,
            bytes,
        })
    }

    /// The weights' format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Number of rows: outputs of the product.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Weights per row: inputs of the product.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Bytes per row.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// The bytes of one row.
    ///
    /// # Panics
    ///
    /// If there is no such row.
    pub fn row(&self, row: usize) -> &'a [u8] {
        assert!(row < self.rows, "row {row} of a matrix of {}", self.rows);
        &self.bytes[row * self.row_bytes..][..self.row_bytes]
    }

    /// The bytes of one row and of all that follow it.
    ///
    /// # Panics
    ///
    /// If there is no such row.
    pub(crate) fn rows_from(&self, row: usize) -> &'a [u8] {
        assert!(row < self.rows, "row {row} of a matrix of {}", self.rows);
        &self.bytes[row * self.row_bytes..]
    }

    /// The matrix of some of the rows.
    ///
    /// # Panics
    ///
    /// If the range reaches past the last row.
    pub fn row_range(&self, rows: std::ops::Range<usize>) -> Self {
        let bytes = &self.bytes[rows.start * self.row_bytes..rows.end * self.row_bytes];
        Self {
            rows: rows.len(),
            bytes,
            ..*self
        }
    }
}
