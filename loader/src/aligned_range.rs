//! The bytes of a file that a read has to take to get those that are wanted.

/// A range of a file widened to an alignment: that which O_DIRECT asks for, or pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AlignedRange {
    /// File offset of the first byte to read.
    pub offset: u64,
    /// Bytes to read; at the end of the file fewer arrive.
    pub bytes: usize,
    /// Where the wanted bytes start inside the range.
    pub skip: usize,
}

impl AlignedRange {
    /// Widens `bytes` at `offset` to multiples of `alignment`.
    pub fn around(offset: u64, bytes: usize, alignment: usize) -> Self {
        let step = alignment as u64;
        let start = offset - offset % step;
        let end = (offset + bytes as u64).next_multiple_of(step);
        Self {
            offset: start,
            bytes: (end - start) as usize,
            skip: (offset - start) as usize,
        }
    }
}
