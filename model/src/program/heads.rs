//! Operations on the heads of a buffer.

use super::builder::checked_shape;
use super::{Buffer, Op, ProgramBuilder};
use crate::error::ModelError;

/// Some columns of every head of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadColumns {
    /// The buffer.
    pub buffer: Buffer,
    /// Heads in it.
    pub heads: usize,
    /// Elements of a head in it.
    pub head_width: usize,
    /// The first column of each.
    pub start: usize,
    /// How many of each.
    pub width: usize,
}

impl HeadColumns {
    /// Floats that a token has in the buffer.
    pub fn buffer_width(&self) -> usize {
        self.heads * self.head_width
    }

    /// All columns of a buffer of `heads` heads.
    pub(super) fn all(buffer: Buffer, heads: usize, head_width: usize) -> Self {
        Self {
            buffer,
            heads,
            head_width,
            start: 0,
            width: head_width,
        }
    }

    /// Some of these columns.
    pub(super) fn columns(self, start: usize, width: usize) -> Self {
        Self {
            start,
            width,
            ..self
        }
    }
}

impl ProgramBuilder<'_> {
    /// Projects the normed stream to queries, keys and values, where the rows of a
    /// query's head in `{block}.attn_q` are followed by as many for the gate of what it
    /// attends to.
    ///
    /// # Errors
    /// When one of the matrices is missing or of another size.
    pub fn gated_query_key_value(&mut self, block: &str) -> Result<(), ModelError> {
        let shape = &self.program.hyperparameters;
        let (heads, key, value) = (shape.heads, shape.key_width, shape.value_width);
        let kv_heads = self.kv_heads()?;
        let normed = Buffer::Normed;
        let name = |part: &str| format!("{block}.{part}");
        // A gate goes with what is attended to, so it is as wide as a value.
        let rows = heads * (key + value);
        self.linear(&name("attn_q"), rows, normed, Buffer::Fused)?;
        let fused = HeadColumns::all(Buffer::Fused, heads, key + value);
        let query = HeadColumns::all(Buffer::Query, heads, key);
        let gate = HeadColumns::all(Buffer::OutputGate, heads, value);
        self.copy_heads(fused.columns(0, key), query);
        self.copy_heads(fused.columns(key, value), gate);
        self.linear(&name("attn_k"), kv_heads * key, normed, Buffer::Key)?;
        self.linear(&name("attn_v"), kv_heads * value, normed, Buffer::Value)
    }

    /// `to = from`, head by head; one head goes to all.
    pub(super) fn copy_heads(&mut self, from: HeadColumns, to: HeadColumns) {
        self.widen(to.buffer, to.buffer_width());
        self.push(Op::CopyHeads { from, to });
    }

    /// Rotates the elements of every head from `start` on.
    pub(super) fn rope_from(
        &mut self,
        buffer: Buffer,
        heads: usize,
        start: usize,
        rotation: usize,
    ) {
        self.push(Op::Rope {
            buffer,
            heads,
            start,
            rotation,
        });
    }

    /// The tensor `name`, `[heads, to.width, from.width]`: each head's own matrix.
    pub(super) fn linear_heads(
        &mut self,
        name: &str,
        from: HeadColumns,
        to: HeadColumns,
    ) -> Result<(), ModelError> {
        let (index, tensor) = self.take(name)?;
        let shape = checked_shape(tensor, from.width, to.heads * to.width)?;
        self.widen(Buffer::OneHead, from.width);
        self.widen(to.buffer, to.buffer_width());
        let matrix = self.declare(index, shape);
        self.push(Op::LinearHeads { matrix, from, to });
        Ok(())
    }
}
