//! Models of random weights, of any shape and type, because speed needs gigabytes.
//!
//! A weight has the standard deviation `1/√columns`, so that a matrix keeps the magnitude of what
//! it multiplies; norms are ones. Bytes are drawn piece by piece, each piece from a seed of its
//! own, so the file depends on the seed alone, not on the threads.
//!
//! # Routing
//!
//! Untied embeddings have weights of deviation 1, so that a token and not the layers before
//! dominates what a router sees. With [`Routing::skew`] the first 256 numbers of all embeddings
//! are the same, and each expert's router row gets a random multiple of that direction: a constant
//! advantage or handicap, of `skew` times the deviation that tokens cause. It fades as layers add
//! to the residual stream. With [`Routing::correlation`] that share of the variance of a router's
//! rows is common to all layers, so that a token tends to the same experts everywhere.

mod blocks;
mod layout;
mod tokenizer;

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use emel_kernels::{Format, Kernels};
use emel_tests::gguf_writer::{ALIGNMENT_DEFAULT, Description, write_header};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

pub use blocks::RandomBlocks;
use blocks::uniform;
use layout::{Content, Tensor};

/// Bytes drawn and written at a time, unless a row has more.
const PIECE_BYTES: usize = 4 << 20;

/// Numbers at the front of every embedding that skewed routing makes the same.
const COMMON_COLUMNS: usize = 256;

/// The seeds of what all tensors share lie above those of tensors.
const SHARED_SEED: u64 = 1 << 32;

/// The family a model belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// Dense, `llama`.
    Llama,
    /// A mixture of experts, `qwen3moe`.
    Qwen3Moe(Experts),
}

/// The experts of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Experts {
    /// How many there are.
    pub count: usize,
    /// How many a token uses.
    pub used: usize,
    /// The width of one.
    pub feed_forward: usize,
}

/// How routers choose; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Routing {
    /// How unequal experts are, 0 for equal.
    pub skew: f32,
    /// How much layers agree, from 0 to 1.
    pub correlation: f32,
}

/// What model to make.
#[derive(Debug, Clone, PartialEq)]
pub struct Synth {
    /// The family.
    pub architecture: Architecture,
    /// Blocks.
    pub layers: usize,
    /// Width of the residual stream.
    pub embedding: usize,
    /// Width of a dense feed-forward network.
    pub feed_forward: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Tokens in the vocabulary.
    pub vocabulary: usize,
    /// The context length that the file states.
    pub context: usize,
    /// The format of the matrices.
    pub format: Format,
    /// The format of the head, and of the embeddings if they are the head.
    pub head_format: Format,
    /// Whether embeddings and head are one matrix.
    pub tied: bool,
    /// How routers choose.
    pub routing: Routing,
    /// What all random numbers follow from.
    pub seed: u64,
}

/// Why a model cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SynthError {
    /// A matrix is not whole blocks wide.
    #[error(
        "{tensor}: {columns} columns, expected a multiple of {block} for {format}; choose another size or type"
    )]
    Columns {
        /// The matrix.
        tensor: String,
        /// Its columns.
        columns: usize,
        /// Its format.
        format: Format,
        /// Weights in a block of it.
        block: usize,
    },
    /// A number does not go with the others.
    #[error("{setting} is {found}, expected {expected}")]
    Setting {
        /// Which number.
        setting: &'static str,
        /// What it is.
        found: String,
        /// What it may be.
        expected: String,
    },
    /// The file cannot be written.
    #[error("cannot write the model: {0}; check the folder, its permissions and the space left")]
    Write(#[from] io::Error),
}

impl Synth {
    /// Writes the model with this many threads and gives its size in bytes. What was written is
    /// left behind when it fails.
    ///
    /// # Errors
    /// When the shape is impossible or the file cannot be written.
    pub fn write(&self, path: &Path, threads: usize) -> Result<u64, SynthError> {
        let layout = self.begin(path)?;
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let work = || self.write_pieces(&layout, &next);
            let workers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work)).collect();
            workers
                .into_iter()
                .try_for_each(|worker| worker.join().expect("drawing numbers does not panic"))
        })?;
        Ok(layout.bytes)
    }

    /// Writes the model's description and leaves a hole in place of its weights: enough for
    /// `emel plan`, and a few kilobytes on the drive. Gives the size that the file states.
    ///
    /// # Errors
    /// As [`Synth::write`].
    pub fn write_without_weights(&self, path: &Path) -> Result<u64, SynthError> {
        Ok(self.begin(path)?.bytes)
    }

    /// Writes the header, and makes the file as long as it will be.
    fn begin(&self, path: &Path) -> Result<Layout, SynthError> {
        self.check()?;
        let tensors = self.tensors()?;
        let mut header = Vec::new();
        let descriptions: Vec<Description> = tensors.iter().map(Tensor::description).collect();
        write_header(
            &mut header,
            3,
            &self.fields(),
            &descriptions,
            ALIGNMENT_DEFAULT,
        )?;
        let mut file = File::create(path)?;
        file.write_all(&header)?;
        let pieces = pieces(&tensors, header.len() as u64);
        let end = pieces
            .last()
            .map_or(0, |piece| piece.offset + piece.bytes as u64);
        let bytes = end.next_multiple_of(ALIGNMENT_DEFAULT);
        file.set_len(bytes)?;
        Ok(Layout {
            file,
            tensors,
            pieces,
            bytes,
        })
    }

    fn check(&self) -> Result<(), SynthError> {
        let refuse = |setting, found: &dyn ToString, expected: &str| {
            Err(SynthError::Setting {
                setting,
                found: found.to_string(),
                expected: expected.to_owned(),
            })
        };
        if self.kv_heads == 0 || !self.heads.is_multiple_of(self.kv_heads) {
            return refuse("kv-heads", &self.kv_heads, "a divisor of heads");
        }
        if self.head_dim == 0 || !self.head_dim.is_multiple_of(2) {
            return refuse("head-dim", &self.head_dim, "an even number");
        }
        if self.vocabulary < tokenizer::TOKENS_MIN {
            let expected = format!("at least {}", tokenizer::TOKENS_MIN);
            return refuse("vocab", &self.vocabulary, &expected);
        }
        if let Architecture::Qwen3Moe(experts) = self.architecture
            && (experts.used == 0 || experts.used > experts.count)
        {
            return refuse("experts-used", &experts.used, "from 1 to experts");
        }
        let Routing { skew, correlation } = self.routing;
        if !(0.0..=1.0).contains(&correlation) {
            return refuse("correlation", &correlation, "from 0 to 1");
        }
        if !(0.0..=100.0).contains(&skew) {
            return refuse("skew", &skew, "from 0 to 100");
        }
        if self.architecture == Architecture::Llama && self.routing != Routing::default() {
            return refuse("skew or correlation", &"set", "0 without experts");
        }
        if skew > 0.0 && (self.tied || self.embedding <= COMMON_COLUMNS) {
            let expected = "0 for embeddings that are tied or up to 256 wide";
            return refuse("skew", &skew, expected);
        }
        Ok(())
    }

    /// Takes pieces until none is left.
    fn write_pieces(&self, layout: &Layout, next: &AtomicUsize) -> io::Result<()> {
        let mut bytes = Vec::new();
        while let Some(piece) = layout.pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
            bytes.resize(piece.bytes, 0);
            let tensor = &layout.tensors[piece.tensor];
            let seed = (piece.tensor as u64) << 40 | piece.index;
            self.draw(tensor, piece, &mut self.random(seed), &mut bytes);
            layout.file.write_all_at(&bytes, piece.offset)?;
        }
        Ok(())
    }

    fn draw(&self, tensor: &Tensor, piece: &Piece, random: &mut Pcg64Mcg, bytes: &mut [u8]) {
        let deviation = 1.0 / (tensor.columns as f32).sqrt();
        match tensor.content {
            Content::Ones => put_floats(bytes, std::iter::repeat(1.0)),
            Content::Weights => self.blocks(tensor.format, deviation).fill(bytes, random),
            Content::Embeddings => {
                self.blocks(tensor.format, 1.0).fill(bytes, random);
                if self.routing.skew > 0.0 {
                    let common = self.common_blocks();
                    for row in bytes.chunks_exact_mut(tensor.row_bytes) {
                        row[..common.len()].copy_from_slice(&common);
                    }
                }
            }
            Content::Router => {
                let rows = bytes.chunks_exact_mut(tensor.row_bytes);
                for (expert, row) in (piece.first_row..).zip(rows) {
                    put_floats(row, self.router_row(expert, random).into_iter());
                }
            }
        }
    }

    /// What moves a token's logit for this expert in one layer, whose own numbers are `random`.
    fn router_row(&self, expert: usize, random: &mut Pcg64Mcg) -> Vec<f32> {
        let Routing { skew, correlation } = self.routing;
        let (shared, own) = (correlation.sqrt(), (1.0 - correlation).sqrt());
        let mut common = self.random(SHARED_SEED + 1 + expert as u64);
        let mut mixed = || shared * uniform(&mut common) + own * uniform(random);
        let advantage = skew * mixed();
        let deviation = 1.0 / (self.embedding as f32).sqrt();
        let mut row: Vec<f32> = (0..self.embedding).map(|_| deviation * mixed()).collect();
        if skew > 0.0 {
            let direction = self.common_direction();
            // Its product with itself: what an embedding's is with it.
            let square: f32 = direction.iter().map(|it| it * it).sum();
            for (weight, along) in row.iter_mut().zip(&direction) {
                *weight += advantage / square * along;
            }
        }
        row
    }

    /// The front of every embedding, as blocks.
    fn common_blocks(&self) -> Vec<u8> {
        let blocks = COMMON_COLUMNS / self.format.block_elements();
        let mut bytes = vec![0; blocks * self.format.block_bytes()];
        let random = &mut self.random(SHARED_SEED);
        self.blocks(self.format, 1.0).fill(&mut bytes, random);
        bytes
    }

    /// The front of every embedding, as numbers.
    fn common_direction(&self) -> Vec<f32> {
        let mut numbers = vec![0.0; COMMON_COLUMNS];
        Kernels::scalar().dequantise_row(self.format, &self.common_blocks(), &mut numbers);
        numbers
    }

    fn blocks(&self, format: Format, deviation: f32) -> RandomBlocks {
        RandomBlocks::new(format, deviation, &mut self.random(SHARED_SEED << 1))
    }

    fn random(&self, part: u64) -> Pcg64Mcg {
        // Two draws, so that neighbouring seeds of neighbouring parts do not meet.
        let base = Pcg64Mcg::seed_from_u64(self.seed).next_u64();
        Pcg64Mcg::seed_from_u64(base ^ part)
    }
}

/// A file whose header is written, and what belongs where.
struct Layout {
    file: File,
    tensors: Vec<Tensor>,
    pieces: Vec<Piece>,
    bytes: u64,
}

/// Rows of a tensor that are drawn together.
struct Piece {
    tensor: usize,
    /// Its number within the tensor.
    index: u64,
    first_row: usize,
    offset: u64,
    bytes: usize,
}

/// All tensors in pieces, in the order of the file, whose data begin at `start`.
fn pieces(tensors: &[Tensor], start: u64) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut offset = start;
    for (number, tensor) in tensors.iter().enumerate() {
        let rows_each = (PIECE_BYTES / tensor.row_bytes).max(1);
        for (index, first_row) in (0..tensor.rows).step_by(rows_each).enumerate() {
            pieces.push(Piece {
                tensor: number,
                index: index as u64,
                first_row,
                offset: offset + (first_row * tensor.row_bytes) as u64,
                bytes: rows_each.min(tensor.rows - first_row) * tensor.row_bytes,
            });
        }
        offset = (offset + tensor.bytes()).next_multiple_of(ALIGNMENT_DEFAULT);
    }
    pieces
}

fn put_floats(bytes: &mut [u8], numbers: impl Iterator<Item = f32>) {
    for (place, number) in bytes.as_chunks_mut().0.iter_mut().zip(numbers) {
        *place = number.to_le_bytes();
    }
}
