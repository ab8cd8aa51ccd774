//! Writes a program, operation by operation, in the terms of an architecture's paper.

use emel_kernels::{Format, RopeScaling, RopeStyle};
use emel_loader::gguf::{Catalog, Tensor};
use emel_loader::unit::{Section, WeightUse};

use super::unused::unused_parts;
use super::{
    Activation, BUFFERS, Buffer, MatrixShape, Op, Program, Rotation, RotationFactors, Scores,
};
use crate::error::ModelError;
use crate::hyperparameters::Hyperparameters;
use crate::keys::Keys;
use crate::kv_cache::KvShape;
use crate::state::StateShape;

/// Architectures whose files may have divisors of the rotary frequencies.
const ROPE_FACTORS: [&str; 4] = ["granite", "granitemoe", "llama", "phi3"];

/// Writes a [`Program`], checking every tensor against the place it is put in.
pub struct ProgramBuilder<'a> {
    pub(super) catalog: &'a Catalog,
    pub(super) program: Program,
    /// Which of the catalog's tensors are used.
    is_used: Vec<bool>,
    /// Width of each buffer after the last operation.
    widths: [usize; BUFFERS],
    layer: usize,
    section: Section,
}

impl<'a> ProgramBuilder<'a> {
    /// Starts with the token embedding, `token_embd`.
    ///
    /// # Errors
    /// When the embedding is missing or does not fit the hyperparameters.
    pub fn new(catalog: &'a Catalog, hyperparameters: Hyperparameters) -> Result<Self, ModelError> {
        let embedding = index_of(catalog, "token_embd.weight")?;
        let tensor = &catalog.tensors()[embedding];
        let mut is_used = vec![false; catalog.tensors().len()];
        is_used[embedding] = true;
        let rows = tensor.rows() as usize;
        let shape = checked_shape(tensor, hyperparameters.width, rows)?;
        let mut widths = [0; BUFFERS];
        widths[Buffer::Residual as usize] = hyperparameters.width;
        Ok(Self {
            catalog,
            is_used,
            program: Program {
                hyperparameters,
                embedding,
                embedding_shape: shape,
                ops: Vec::new(),
                matrices: Vec::new(),
                uses: Vec::new(),
                expert_groups: Vec::new(),
                expert_uses: Vec::new(),
                resident: Vec::new(),
                rotations: Vec::new(),
                routers: Vec::new(),
                logged_guesses: None,
                look_ahead: None,
                states: Vec::new(),
                unused: Vec::new(),
                notes: Vec::new(),
                widths,
            },
            widths,
            layer: 0,
            section: Section::Body,
        })
    }

    /// The finished program.
    ///
    /// # Errors
    /// When the file has a tensor that no operation uses, and that is not one of those
    /// that no text model needs.
    pub fn finish(mut self) -> Result<Program, ModelError> {
        let shape = &self.program.hyperparameters;
        self.program.unused = unused_parts(self.catalog, shape, &self.is_used)?;
        Ok(self.program)
    }

    /// The metadata keys of the architecture.
    pub fn keys(&self) -> Keys<'_> {
        Keys::new(self.catalog, &self.program.hyperparameters.architecture)
    }

    /// Whether the file has a tensor.
    pub fn has(&self, name: &str) -> bool {
        self.catalog.tensor(name).is_some()
    }

    /// Sees to it that the file has a tensor.
    ///
    /// # Errors
    /// When it has not.
    pub fn require(&self, name: &str) -> Result<(), ModelError> {
        index_of(self.catalog, name).map(|_| ())
    }

    /// Operations from here on belong to the next layer.
    pub fn begin_layer(&mut self, layer: usize) {
        self.layer = layer;
    }

    /// Appends an operation.
    pub fn push(&mut self, op: Op) {
        self.program.ops.push(op);
    }

    /// RMS norm over the whole width of `input`.
    ///
    /// # Errors
    /// When the weight is missing or of another size.
    pub fn norm(&mut self, name: &str, input: Buffer, output: Buffer) -> Result<(), ModelError> {
        let width = self.width(input);
        self.widen(output, width);
        let weight = self.resident(name, width)?;
        self.push(Op::Norm {
            input,
            output,
            weight,
        });
        Ok(())
    }

    /// RMS norm of each `width` values of `buffer` by themselves.
    ///
    /// # Errors
    /// When the weight is missing or of another size, or the buffer is no multiple of it.
    pub fn norm_heads(
        &mut self,
        name: &str,
        buffer: Buffer,
        width: usize,
    ) -> Result<(), ModelError> {
        let weight = self.resident(name, width)?;
        let whole = self.width(buffer);
        // Else a row would reach into the next token.
        if !whole.is_multiple_of(width) {
            return Err(ModelError::Shape {
                name: name.to_owned(),
                found: width.to_string(),
                expected: format!("a divisor of the {whole} values that it norms"),
            });
        }
        self.push(Op::Norm {
            input: buffer,
            output: buffer,
            weight,
        });
        Ok(())
    }

    /// `output = name.weight · input`, times `name.scale` and plus `name.bias` if the file
    /// has them and the architecture takes them. In feed-forward networks the scale is that of
    /// the sum.
    ///
    /// # Errors
    /// When the matrix is missing, or is not `rows` × the width of `input`, or one of the
    /// others is of another size.
    pub fn linear(
        &mut self,
        name: &str,
        rows: usize,
        input: Buffer,
        output: Buffer,
    ) -> Result<(), ModelError> {
        self.matrix(&format!("{name}.weight"), rows, input, output)?;
        self.scale_and_bias(name, output)
    }

    /// `buffer += bias`, if the file has one of this name.
    ///
    /// # Errors
    /// When it is of another size.
    pub fn bias(&mut self, name: &str, buffer: Buffer) -> Result<(), ModelError> {
        if self.has(name) {
            let weight = self.resident(name, self.width(buffer))?;
            self.push(Op::Bias { buffer, weight });
        }
        Ok(())
    }

    /// Projects the normed stream to queries, keys and values: `{block}.attn_{q,k,v}`,
    /// or all three in `{block}.attn_qkv`, which may have the biases of the three.
    ///
    /// # Errors
    /// When one of the matrices is missing or of another size.
    pub fn query_key_value(&mut self, block: &str) -> Result<(), ModelError> {
        let shape = &self.program.hyperparameters;
        let kv_heads = self.kv_heads()?;
        let projections = [
            ("attn_q", Buffer::Query, shape.heads * shape.key_width),
            ("attn_k", Buffer::Key, kv_heads * shape.key_width),
            ("attn_v", Buffer::Value, kv_heads * shape.value_width),
        ];
        let fused = format!("{block}.attn_qkv");
        if self.has(&format!("{fused}.weight")) {
            let parts = projections.map(|(_, output, rows)| (output, rows));
            self.fused(&fused, &parts)?;
            // llama.cpp adds those of the three where it has all, and no other.
            let biases = projections.map(|(name, ..)| format!("{block}.{name}.bias"));
            let has_all = biases.iter().all(|bias| self.has(bias));
            if has_all && !self.has(&format!("{fused}.bias")) {
                for (bias, (_, output, _)) in biases.iter().zip(projections) {
                    self.bias(bias, output)?;
                }
            }
            return Ok(());
        }
        if !self.has(&format!("{block}.attn_q.weight")) {
            return Err(ModelError::MissingTensor {
                name: format!("{block}.attn_q.weight` or `{fused}.weight"),
            });
        }
        for (name, output, rows) in projections {
            self.linear(&format!("{block}.{name}"), rows, Buffer::Normed, output)?;
        }
        Ok(())
    }

    /// One matrix that projects the normed stream to several buffers, one after the other.
    pub(super) fn fused(
        &mut self,
        name: &str,
        parts: &[(Buffer, usize)],
    ) -> Result<(), ModelError> {
        let rows = parts.iter().map(|(_, rows)| rows).sum();
        self.linear(name, rows, Buffer::Normed, Buffer::Fused)?;
        self.split(Buffer::Fused, parts);
        Ok(())
    }

    /// Rotates the heads of queries and keys.
    pub fn rope(&mut self, rotation: usize) {
        let heads = self.program.hyperparameters.heads;
        let kv_heads = self.width(Buffer::Key) / self.program.hyperparameters.key_width;
        for (buffer, heads) in [(Buffer::Query, heads), (Buffer::Key, kv_heads)] {
            self.push(Op::Rope {
                buffer,
                heads,
                start: 0,
                rotation,
            });
        }
    }

    /// Attention of the queries over the layer's keys and values.
    ///
    /// # Errors
    /// When the sinks are missing or of another size.
    pub fn attention(&mut self, scores: Scores<'_>) -> Result<(), ModelError> {
        let shape = &self.program.hyperparameters;
        let kept = KvShape {
            kv_heads: self.kv_heads()?,
            key_width: shape.key_width,
            value_width: Some(shape.value_width),
            window: scores.window,
        };
        self.attention_over(kept, scores)
    }

    /// Attention of the queries over keys and values of this shape.
    pub(super) fn attention_over(
        &mut self,
        kept: KvShape,
        scores: Scores<'_>,
    ) -> Result<(), ModelError> {
        let heads = self.program.hyperparameters.heads;
        let value_width = kept.value_width.unwrap_or(kept.key_width);
        self.widen(Buffer::Attended, heads * value_width);
        let sinks = scores
            .sinks
            .map(|name| self.resident(name, heads))
            .transpose()?;
        let state = self.keep(StateShape::Attention(kept));
        self.push(Op::Attention {
            state,
            scale: scores.scale,
            softcap: scores.softcap,
            sinks,
        });
        Ok(())
    }

    /// Key and value heads of the layer at hand.
    pub(super) fn kv_heads(&self) -> Result<usize, ModelError> {
        match self.program.hyperparameters.layer_kv_heads.of(self.layer) {
            0 => Err(self.keys().refuse(
                "attention.head_count_kv",
                format!("0 for layer {}", self.layer),
                "key and value heads for every layer with attention",
            )),
            kv_heads => Ok(kv_heads),
        }
    }

    /// The index of a state that the next operation uses.
    pub(super) fn keep(&mut self, shape: StateShape) -> usize {
        self.program.states.push(shape);
        self.program.states.len() - 1
    }

    /// Takes columns of `input` out, `widths` of them for each of `outputs`, in order.
    pub fn split(&mut self, input: Buffer, outputs: &[(Buffer, usize)]) {
        let mut start = 0;
        for &(output, width) in outputs {
            self.widen(output, width);
            self.push(Op::Columns {
                input,
                start,
                width,
                output,
            });
            start += width;
        }
    }

    /// `buffer *= factor`, unless that changes nothing.
    pub fn scale(&mut self, buffer: Buffer, factor: f32) {
        if factor != 1.0 {
            self.push(Op::Scale { buffer, factor });
        }
    }

    /// `to += from`.
    pub fn add(&mut self, from: Buffer, to: Buffer) {
        self.push(Op::Add { from, to });
    }

    /// The gated feed-forward network `down · (activation(gate · x) ⊙ (up · x))` of the
    /// normed stream (Shazeer, 2020), into the branch: `{block}.ffn_{gate,up,down}`.
    ///
    /// # Errors
    /// When one of its matrices is missing or of another size.
    pub fn feed_forward(&mut self, block: &str, activation: Activation) -> Result<(), ModelError> {
        let inner = self.program.hyperparameters.feed_forward;
        let names = ["ffn_gate", "ffn_up", "ffn_down"].map(|name| format!("{block}.{name}"));
        self.feed_forward_into(&names, inner, activation, Buffer::Branch)
    }

    /// A gated feed-forward network `inner` wide, into `output`. Without a matrix for
    /// the gate, its rows are the first half of `up`.
    pub(super) fn feed_forward_into(
        &mut self,
        [gate, up, down]: &[String; 3],
        inner: usize,
        activation: Activation,
        output: Buffer,
    ) -> Result<(), ModelError> {
        let width = self.program.hyperparameters.width;
        let (_, up_tensor) = self.take(&format!("{up}.weight"))?;
        let is_alone = up_tensor.rows() == inner as u64;
        if !is_alone && !self.has(&format!("{gate}.weight")) {
            self.fused(up, &[(Buffer::Gate, inner), (Buffer::Up, inner)])?;
        } else {
            self.linear(gate, inner, Buffer::Normed, Buffer::Gate)?;
            self.linear(up, inner, Buffer::Normed, Buffer::Up)?;
        }
        self.widen(Buffer::Gated, inner);
        self.push(Op::Gated { activation });
        self.linear(down, width, Buffer::Gated, output)
    }

    /// Declares the model's rotary embedding, with the factors that the file has, if the
    /// architecture knows any:
    /// `rope_freqs`, or `rope_factors_short` and `rope_factors_long`.
    ///
    /// # Errors
    /// When the factors are of another size than the pairs.
    pub fn rotation(&mut self, style: RopeStyle) -> Result<usize, ModelError> {
        let shape = &self.program.hyperparameters;
        let (base, scaling) = (shape.rope_base, shape.rope_scaling);
        let (pairs, original_context) = (shape.rope_width / 2, shape.original_context);
        let [long, short] = ["rope_factors_long.weight", "rope_factors_short.weight"];
        let may_have = ROPE_FACTORS.contains(&shape.architecture.as_str());
        let factors = if !may_have {
            RotationFactors::None
        } else if self.has("rope_freqs.weight") {
            RotationFactors::Always(self.resident("rope_freqs.weight", pairs)?)
        } else if self.has(long) || self.has(short) {
            RotationFactors::ByContext {
                short: self.resident(short, pairs)?,
                long: self.resident(long, pairs)?,
                original_context,
            }
        } else {
            RotationFactors::None
        };
        Ok(self.rotation_with(style, base, scaling, factors))
    }

    /// Declares a rotary embedding of another base or scaling.
    pub fn rotation_with(
        &mut self,
        style: RopeStyle,
        base: f32,
        scaling: RopeScaling,
        factors: RotationFactors,
    ) -> usize {
        self.program.rotations.push(Rotation {
            style,
            base,
            width: self.program.hyperparameters.rope_width,
            scaling,
            factors,
        });
        self.program.rotations.len() - 1
    }

    /// The final norm, `output_norm`, and the output head: `output.weight`, or the
    /// embedding where the two are tied.
    ///
    /// # Errors
    /// When a tensor is missing or of another size.
    pub fn head(&mut self) -> Result<(), ModelError> {
        self.head_after("output_norm.weight")
    }

    /// [`ProgramBuilder::head`] after the norm of another name.
    ///
    /// # Errors
    /// When a tensor is missing or of another size.
    pub fn head_after(&mut self, norm: &str) -> Result<(), ModelError> {
        let name = if self.has("output.weight") {
            "output.weight"
        } else {
            "token_embd.weight"
        };
        self.head_of(norm, name)
    }

    /// [`ProgramBuilder::head`] of a family whose output head is always the embedding.
    ///
    /// # Errors
    /// When a tensor is missing or of another size.
    pub fn tied_head(&mut self) -> Result<(), ModelError> {
        self.head_of("output_norm.weight", "token_embd.weight")
    }

    fn head_of(&mut self, norm: &str, matrix: &str) -> Result<(), ModelError> {
        self.section = Section::Head;
        self.layer = self.program.hyperparameters.layers;
        self.push(Op::KeepLogitTokens);
        self.norm(norm, Buffer::Residual, Buffer::Normed)?;
        let vocabulary = self.program.vocabulary();
        self.matrix(matrix, vocabulary, Buffer::Normed, Buffer::Logits)
    }

    /// The tensor of this name, which is used from now on, and its index.
    pub(super) fn take(&mut self, name: &str) -> Result<(usize, &'a Tensor), ModelError> {
        let index = index_of(self.catalog, name)?;
        self.is_used[index] = true;
        Ok((index, &self.catalog.tensors()[index]))
    }

    /// Says how wide a buffer is that the next operation writes.
    pub(super) fn widen(&mut self, buffer: Buffer, width: usize) {
        self.widths[buffer as usize] = width;
        let greatest = &mut self.program.widths[buffer as usize];
        *greatest = width.max(*greatest);
    }

    pub(super) fn matrix(
        &mut self,
        name: &str,
        rows: usize,
        input: Buffer,
        output: Buffer,
    ) -> Result<(), ModelError> {
        let (index, tensor) = self.take(name)?;
        let shape = checked_shape(tensor, self.width(input), rows)?;
        self.widen(output, rows);
        let matrix = self.declare(index, shape);
        self.push(Op::Linear {
            matrix,
            input,
            output,
        });
        Ok(())
    }

    /// The index of a matrix that the next operation uses.
    pub(super) fn declare(&mut self, tensor: usize, shape: MatrixShape) -> usize {
        self.program.matrices.push(shape);
        self.program.uses.push(WeightUse {
            tensor,
            // No unit is needed on both sides of a mixture's experts.
            layer: self.layer + self.program.expert_groups.len(),
            section: self.section,
        });
        self.program.matrices.len() - 1
    }

    /// The index of a tensor among the resident ones; a vector of `length`.
    pub(super) fn resident(&mut self, name: &str, length: usize) -> Result<usize, ModelError> {
        self.resident_rows(name, length, 1)
    }

    /// The index of a tensor among the resident ones; `rows` vectors of `length`.
    pub(super) fn resident_rows(
        &mut self,
        name: &str,
        length: usize,
        rows: usize,
    ) -> Result<usize, ModelError> {
        let (index, tensor) = self.take(name)?;
        if tensor.columns() != length as u64 || tensor.rows() != rows as u64 {
            return Err(wrong_shape(tensor, length, rows));
        }
        checked_format(tensor)?;
        let known = self
            .program
            .resident
            .iter()
            .position(|&known| known == index);
        Ok(known.unwrap_or_else(|| {
            self.program.resident.push(index);
            self.program.resident.len() - 1
        }))
    }

    /// Tokens that the embedding has rows for.
    pub(crate) fn vocabulary(&self) -> usize {
        self.program.vocabulary()
    }

    /// How wide a buffer is after the last operation.
    pub(crate) fn width(&self, buffer: Buffer) -> usize {
        self.widths[buffer as usize]
    }
}

fn index_of(catalog: &Catalog, name: &str) -> Result<usize, ModelError> {
    catalog
        .tensor_index(name)
        .ok_or_else(|| ModelError::MissingTensor {
            name: name.to_owned(),
        })
}

pub(super) fn checked_shape(
    tensor: &Tensor,
    columns: usize,
    rows: usize,
) -> Result<MatrixShape, ModelError> {
    if tensor.columns() != columns as u64 || tensor.rows() != rows as u64 {
        return Err(wrong_shape(tensor, columns, rows));
    }
    Ok(MatrixShape {
        format: checked_format(tensor)?,
        rows,
        columns,
    })
}

fn wrong_shape(tensor: &Tensor, columns: usize, rows: usize) -> ModelError {
    ModelError::Shape {
        name: tensor.name.clone(),
        found: format!("{} × {}", tensor.columns(), tensor.rows()),
        expected: format!("{columns} × {rows}"),
    }
}

pub(super) fn checked_format(tensor: &Tensor) -> Result<Format, ModelError> {
    Format::from_ggml_type(tensor.tensor_type.id()).ok_or_else(|| {
        let supported: Vec<&str> = Format::ALL.iter().map(|format| format.name()).collect();
        ModelError::TensorType {
            name: tensor.name.clone(),
            found: tensor.tensor_type.name().to_owned(),
            supported: supported.join(", "),
        }
    })
}
