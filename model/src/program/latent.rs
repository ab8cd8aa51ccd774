//! Multi-head latent attention (DeepSeek-V2, <https://arxiv.org/abs/2405.04434>) as
//! operations: keys and values of all heads are projections of one short vector.

use super::{Buffer, HeadColumns, Op, PositionGrowth, ProgramBuilder, Scores};
use crate::error::ModelError;
use crate::kv_cache::KvShape;

/// Widths of latent attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatentShape {
    /// Width of the latent vector of keys and values.
    pub latent: usize,
    /// Width of the latent vector of queries; `None` projects them directly.
    pub query_latent: Option<usize>,
    /// Part of a query or key head that has no position.
    pub nope: usize,
    /// Part of a query or key head that turns with the position.
    pub rope: usize,
    /// Width of a value head.
    pub value: usize,
    /// How scores grow with the position, if they do.
    pub growth: Option<PositionGrowth>,
}

impl ProgramBuilder<'_> {
    /// Latent attention of the normed stream, into the branch; its names begin with
    /// `{block}.attn_`. Files have the projections of each head (`attn_k_b`, `attn_v_b`),
    /// which let attention work on the latent vectors themselves, or all of them in one
    /// matrix (`attn_kv_b`), as older converters wrote it.
    ///
    /// # Errors
    /// When a tensor is missing or of another size.
    pub fn latent_attention(
        &mut self,
        block: &str,
        shape: LatentShape,
        rotation: usize,
        scale: f32,
    ) -> Result<(), ModelError> {
        let (heads, width) = {
            let model = &self.program.hyperparameters;
            (model.heads, model.width)
        };
        let name = |part: &str| format!("{block}.attn_{part}");
        let scores = Scores {
            scale,
            ..Scores::default()
        };
        let key = shape.nope + shape.rope;
        let is_absorbed = !self.has(&name("kv_b.weight"));
        let (queries, keys) = if is_absorbed {
            (Buffer::Fused, Buffer::Key)
        } else {
            (Buffer::Query, Buffer::Latent)
        };
        match shape.query_latent {
            Some(latent) => {
                let compressed = Buffer::Compressed;
                self.linear(&name("q_a"), latent, Buffer::Normed, compressed)?;
                self.norm(&name("q_a_norm.weight"), compressed, compressed)?;
                self.linear(&name("q_b"), heads * key, compressed, queries)?;
            }
            None => self.linear(&name("q"), heads * key, Buffer::Normed, queries)?,
        }
        self.rope_from(queries, heads, shape.nope, rotation);
        self.program
            .ops
            .extend(shape.growth.map(|growth| Op::ScaleByPosition {
                buffer: queries,
                growth,
            }));
        let latent_key = shape.latent + shape.rope;
        self.linear(&name("kv_a_mqa"), latent_key, Buffer::Normed, keys)?;
        let weight = self.resident(&name("kv_a_norm.weight"), shape.latent)?;
        self.push(Op::NormColumns {
            buffer: keys,
            weight,
        });
        self.rope_from(keys, 1, shape.latent, rotation);

        let attended = if is_absorbed {
            self.attend_absorbed(block, shape, scores)?
        } else {
            self.attend_expanded(block, shape, scores)?
        };
        self.linear(&name("output"), width, attended, Buffer::Branch)
    }

    /// `q · (W c) = (Wᵀ q) · c`: queries go to the latent vectors, which all heads share
    /// as keys and as values, and what is gathered goes through the values' projection.
    fn attend_absorbed(
        &mut self,
        block: &str,
        shape: LatentShape,
        scores: Scores<'_>,
    ) -> Result<Buffer, ModelError> {
        let heads = self.program.hyperparameters.heads;
        let (nope, latent, rope) = (shape.nope, shape.latent, shape.rope);
        let of = |buffer, head_width| HeadColumns::all(buffer, heads, head_width);
        let key_width = latent + rope;
        let queries = of(Buffer::Fused, nope + rope);
        let latent_queries = of(Buffer::Query, key_width);
        self.linear_heads(
            &format!("{block}.attn_k_b.weight"),
            queries.columns(0, nope),
            latent_queries.columns(0, latent),
        )?;
        self.copy_heads(
            queries.columns(nope, rope),
            latent_queries.columns(latent, rope),
        );
        let kept = KvShape {
            kv_heads: 1,
            key_width,
            value_width: None,
            window: None,
        };
        self.attention_over(kept, scores)?;
        self.linear_heads(
            &format!("{block}.attn_v_b.weight"),
            of(Buffer::Attended, key_width).columns(0, latent),
            of(Buffer::Value, shape.value),
        )?;
        Ok(Buffer::Value)
    }

    /// Keys and values of every head, projected from the latent vectors.
    fn attend_expanded(
        &mut self,
        block: &str,
        shape: LatentShape,
        scores: Scores<'_>,
    ) -> Result<Buffer, ModelError> {
        let heads = self.program.hyperparameters.heads;
        let (nope, latent, rope) = (shape.nope, shape.latent, shape.rope);
        let of = HeadColumns::all;
        self.split(Buffer::Latent, &[(Buffer::Compressed, latent)]);
        let rows = heads * (nope + shape.value);
        let name = format!("{block}.attn_kv_b");
        self.linear(&name, rows, Buffer::Compressed, Buffer::Fused)?;
        let projected = of(Buffer::Fused, heads, nope + shape.value);
        let keys = of(Buffer::Key, heads, nope + rope);
        self.copy_heads(projected.columns(0, nope), keys.columns(0, nope));
        self.copy_heads(
            of(Buffer::Latent, 1, latent + rope).columns(latent, rope),
            keys.columns(nope, rope),
        );
        self.copy_heads(
            projected.columns(nope, shape.value),
            of(Buffer::Value, heads, shape.value),
        );
        let kept = KvShape {
            kv_heads: heads,
            key_width: nope + rope,
            value_width: Some(shape.value),
            window: None,
        };
        self.attention_over(kept, scores)?;
        Ok(Buffer::Attended)
    }
}
