//! The numbers of a saved state: how they are written and read, and what may be wrong with them.

use std::io::{self, Read, Write};

/// A saved state that cannot be taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// It cannot be read, or ends early.
    #[error(transparent)]
    Read(#[from] io::Error),
    /// It contradicts itself.
    #[error("it contradicts itself")]
    Damaged,
    /// The sequence is longer than what there is room for.
    #[error("it holds {tokens} tokens and the context {context}")]
    TooLong {
        /// Tokens of the sequence.
        tokens: u64,
        /// Positions there is room for.
        context: usize,
    },
}

/// Numbers that are converted together.
const NUMBERS: usize = 1024;

pub(crate) fn write_numbers<T: Copy, const N: usize>(
    numbers: &[T],
    to_bytes: impl Fn(T) -> [u8; N],
    out: &mut impl Write,
) -> io::Result<()> {
    let mut bytes = [[0; N]; NUMBERS];
    for numbers in numbers.chunks(NUMBERS) {
        for (bytes, &number) in bytes.iter_mut().zip(numbers) {
            *bytes = to_bytes(number);
        }
        out.write_all(bytes[..numbers.len()].as_flattened())?;
    }
    Ok(())
}

pub(crate) fn read_numbers<T, const N: usize>(
    numbers: &mut [T],
    from_bytes: impl Fn([u8; N]) -> T,
    input: &mut impl Read,
) -> io::Result<()> {
    let mut bytes = [[0; N]; NUMBERS];
    for numbers in numbers.chunks_mut(NUMBERS) {
        input.read_exact(bytes[..numbers.len()].as_flattened_mut())?;
        for (number, &bytes) in numbers.iter_mut().zip(&bytes) {
            *number = from_bytes(bytes);
        }
    }
    Ok(())
}
