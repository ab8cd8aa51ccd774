//! Which tensors and metadata a model has.

use emel_kernels::Format;
use emel_tests::gguf_writer::{Description, Field};

use super::{Architecture, Synth, SynthError, tokenizer};

/// What a tensor is filled with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    Ones,
    /// Of deviation `1/√columns`.
    Weights,
    /// Of deviation 1, with a common front if routing is skewed.
    Embeddings,
    Router,
}

/// A tensor to be written.
#[derive(Debug, Clone)]
pub(super) struct Tensor {
    name: String,
    dims: Vec<u64>,
    pub(super) format: Format,
    pub(super) content: Content,
    pub(super) columns: usize,
    pub(super) rows: usize,
    pub(super) row_bytes: usize,
}

impl Tensor {
    fn new(
        name: String,
        dims: &[usize],
        format: Format,
        content: Content,
    ) -> Result<Self, SynthError> {
        let columns = dims[0];
        let row_bytes = format.row_bytes(columns).filter(|&bytes| bytes > 0);
        let Some(row_bytes) = row_bytes else {
            return Err(SynthError::Columns {
                tensor: name,
                columns,
                format,
                block: format.block_elements(),
            });
        };
        Ok(Self {
            name,
            dims: dims.iter().map(|&dim| dim as u64).collect(),
            format,
            content,
            columns,
            rows: dims[1..].iter().product(),
            row_bytes,
        })
    }

    pub(super) fn bytes(&self) -> u64 {
        (self.rows * self.row_bytes) as u64
    }

    pub(super) fn description(&self) -> Description {
        Description {
            name: self.name.clone(),
            type_id: self.format.ggml_type(),
            dims: self.dims.clone(),
            bytes: self.bytes(),
            stated_offset: None,
        }
    }
}

impl Synth {
    /// The metadata.
    pub(super) fn fields(&self) -> Vec<(String, Field)> {
        let (architecture, pre_tokenizer, rope_base) = match self.architecture {
            Architecture::Llama => ("llama", "llama-bpe", 500_000.0),
            Architecture::Qwen3Moe(_) => ("qwen3moe", "qwen2", 1_000_000.0),
        };
        let mut fields = vec![
            (
                "general.architecture".to_owned(),
                Field::string(architecture),
            ),
            ("general.name".to_owned(), Field::string("random weights")),
            ("general.quantization_version".to_owned(), Field::U32(2)),
        ];
        let mut field = |key: &str, field| fields.push((format!("{architecture}.{key}"), field));
        let mut sizes = vec![
            ("vocab_size", self.vocabulary),
            ("context_length", self.context),
            ("embedding_length", self.embedding),
            ("block_count", self.layers),
            ("feed_forward_length", self.feed_forward),
            ("attention.head_count", self.heads),
            ("attention.head_count_kv", self.kv_heads),
            ("attention.key_length", self.head_dim),
            ("attention.value_length", self.head_dim),
            ("rope.dimension_count", self.head_dim),
        ];
        if let Architecture::Qwen3Moe(experts) = self.architecture {
            sizes.extend([
                ("expert_count", experts.count),
                ("expert_used_count", experts.used),
                ("expert_feed_forward_length", experts.feed_forward),
            ]);
        }
        for (key, size) in sizes {
            field(key, Field::U32(size as u32));
        }
        field("attention.layer_norm_rms_epsilon", Field::F32(1e-5));
        field("rope.freq_base", Field::F32(rope_base));
        fields.extend(tokenizer::fields(self.vocabulary, pre_tokenizer));
        fields
    }

    /// The tensors, in the order of the file.
    pub(super) fn tensors(&self) -> Result<Vec<Tensor>, SynthError> {
        let (embedding, vocabulary) = (self.embedding, self.vocabulary);
        let embeddings = if self.tied {
            (self.head_format, Content::Weights)
        } else {
            (self.format, Content::Embeddings)
        };
        let mut tensors = Vec::new();
        let mut add = |name: &str, dims: &[usize], format, content| {
            tensors.push(Tensor::new(
                format!("{name}.weight"),
                dims,
                format,
                content,
            )?);
            Ok::<(), SynthError>(())
        };
        add(
            "token_embd",
            &[embedding, vocabulary],
            embeddings.0,
            embeddings.1,
        )?;
        add("output_norm", &[embedding], Format::F32, Content::Ones)?;
        if !self.tied {
            let dims = [embedding, vocabulary];
            add("output", &dims, self.head_format, Content::Weights)?;
        }
        for layer in 0..self.layers {
            for (name, dims, content) in self.layer() {
                let format = match content {
                    Content::Ones | Content::Router => Format::F32,
                    Content::Weights | Content::Embeddings => self.format,
                };
                add(&format!("blk.{layer}.{name}"), &dims, format, content)?;
            }
        }
        Ok(tensors)
    }

    /// Names, dimensions and contents of one layer's tensors.
    fn layer(&self) -> Vec<(&'static str, Vec<usize>, Content)> {
        let width = self.embedding;
        let (query, key) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let norm = |name, size| (name, vec![size], Content::Ones);
        let matrix = |name, columns, rows| (name, vec![columns, rows], Content::Weights);
        let mut tensors = vec![
            norm("attn_norm", width),
            matrix("attn_q", width, query),
            matrix("attn_k", width, key),
            matrix("attn_v", width, key),
            matrix("attn_output", query, width),
            norm("ffn_norm", width),
        ];
        match self.architecture {
            Architecture::Llama => tensors.extend([
                matrix("ffn_gate", width, self.feed_forward),
                matrix("ffn_up", width, self.feed_forward),
                matrix("ffn_down", self.feed_forward, width),
            ]),
            Architecture::Qwen3Moe(experts) => {
                let stack = |name, columns, rows| {
                    (name, vec![columns, rows, experts.count], Content::Weights)
                };
                tensors.extend([
                    norm("attn_q_norm", self.head_dim),
                    norm("attn_k_norm", self.head_dim),
                    ("ffn_gate_inp", vec![width, experts.count], Content::Router),
                    stack("ffn_gate_exps", width, experts.feed_forward),
                    stack("ffn_up_exps", width, experts.feed_forward),
                    stack("ffn_down_exps", experts.feed_forward, width),
                ]);
            }
        }
        tensors
    }
}
