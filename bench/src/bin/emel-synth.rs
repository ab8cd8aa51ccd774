//! `emel-synth OUT.gguf`: a model of random weights, to measure speed with.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::anyhow;
use clap::{Parser, ValueEnum};
use emel_bench::options::format;
use emel_bench::synth::{Architecture, Experts, Routing, Synth};
use emel_cli as cli;
use emel_cli::named_files::{is_no_file, place_of_model};
use emel_kernels::Format;

/// Writes a GGUF model of random weights, of any shape and type
#[derive(Debug, Parser)]
#[command(name = "emel-synth", version)]
struct Options {
    /// The file to write; a model that is there already is not replaced
    output: PathBuf,

    /// A shape to start from; options below change it
    #[arg(long, value_enum)]
    preset: Option<Preset>,

    /// Architecture
    #[arg(long, value_enum)]
    arch: Option<ArchitectureName>,

    /// Layers
    #[arg(long, value_name = "N", value_parser = size)]
    layers: Option<usize>,

    /// Width of the residual stream
    #[arg(long, value_name = "N", value_parser = size)]
    embedding: Option<usize>,

    /// Width of the feed-forward network
    #[arg(long, value_name = "N", value_parser = size)]
    feed_forward: Option<usize>,

    /// Query heads
    #[arg(long, value_name = "N", value_parser = size)]
    heads: Option<usize>,

    /// Key and value heads
    #[arg(long, value_name = "N", value_parser = size)]
    kv_heads: Option<usize>,

    /// Width of a head
    #[arg(long, value_name = "N", value_parser = size)]
    head_dim: Option<usize>,

    /// Tokens in the vocabulary
    #[arg(long, value_name = "N", value_parser = size)]
    vocab: Option<usize>,

    /// Experts in a layer (qwen3moe)
    #[arg(long, value_name = "N", value_parser = size)]
    experts: Option<usize>,

    /// Experts that a token uses (qwen3moe)
    #[arg(long, value_name = "N", value_parser = size)]
    experts_used: Option<usize>,

    /// Width of an expert (qwen3moe)
    #[arg(long, value_name = "N", value_parser = size)]
    expert_feed_forward: Option<usize>,

    /// Type of the matrices, as Q8_0 or f16
    #[arg(long = "type", value_name = "TYPE", default_value = "Q4_K", value_parser = format)]
    format: Format,

    /// Type of the head, and of the embeddings if tied
    #[arg(long = "head-type", value_name = "TYPE", default_value = "Q6_K", value_parser = format)]
    head_format: Format,

    /// One matrix for embeddings and head [default: no, for the preset 3b yes]
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    tied: Option<bool>,

    /// Context length that the file states
    #[arg(long, value_name = "N", default_value = "32768", value_parser = size)]
    context: usize,

    /// Unequal experts: the deviation of their constant advantages, in those of tokens (qwen3moe)
    #[arg(long, value_name = "S", default_value_t = 0.0)]
    skew: f32,

    /// Share of a router that is common to all layers, 0 to 1 (qwen3moe)
    #[arg(long, value_name = "R", default_value_t = 0.0)]
    correlation: f32,

    /// Leave a hole in place of the weights: a file of kilobytes, for `emel plan`
    #[arg(long)]
    without_weights: bool,

    /// Seed of the random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Preset {
    /// llama, 3 billion weights: 1.7 GB in Q4_K
    #[value(name = "3b")]
    ThreeBillion,
    /// qwen3moe, 64 experts a layer, 8 used: 4.3 GB in Q4_K
    Moe,
    /// The shape of Llama 3.1 8B
    #[value(name = "8b")]
    EightBillion,
    /// The shape of Llama 3.3 70B
    #[value(name = "70b")]
    SeventyBillion,
    /// The shape of Qwen3 30B-A3B: qwen3moe, 128 experts a layer, 8 used
    #[value(name = "30b-a3b")]
    ThirtyBillionMoe,
    /// The shape of Qwen3 235B-A22B: qwen3moe, 128 experts a layer, 8 used
    #[value(name = "235b-a22b")]
    TwoHundredBillionMoe,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ArchitectureName {
    Llama,
    Qwen3moe,
}

/// A shape; what a preset does not have is `None`.
struct Shape {
    architecture: ArchitectureName,
    /// Layers, embedding, feed-forward, heads, key-value heads, head width, vocabulary.
    sizes: [usize; 7],
    experts: Option<Experts>,
    tied: bool,
}

impl Preset {
    fn shape(self) -> Shape {
        match self {
            Self::ThreeBillion => Shape {
                architecture: ArchitectureName::Llama,
                sizes: [28, 3072, 8192, 24, 8, 128, 49_152],
                experts: None,
                tied: true,
            },
            Self::Moe => Shape {
                architecture: ArchitectureName::Qwen3moe,
                sizes: [24, 2048, 6144, 16, 4, 128, 32_768],
                experts: Some(Experts {
                    count: 64,
                    used: 8,
                    feed_forward: 768,
                }),
                tied: false,
            },
            Self::EightBillion => Shape {
                architecture: ArchitectureName::Llama,
                sizes: [32, 4096, 14_336, 32, 8, 128, 128_256],
                experts: None,
                tied: false,
            },
            Self::SeventyBillion => Shape {
                architecture: ArchitectureName::Llama,
                sizes: [80, 8192, 28_672, 64, 8, 128, 128_256],
                experts: None,
                tied: false,
            },
            Self::ThirtyBillionMoe => Shape {
                architecture: ArchitectureName::Qwen3moe,
                sizes: [48, 2048, 6144, 32, 4, 128, 151_936],
                experts: Some(Experts {
                    count: 128,
                    used: 8,
                    feed_forward: 768,
                }),
                tied: false,
            },
            Self::TwoHundredBillionMoe => Shape {
                architecture: ArchitectureName::Qwen3moe,
                sizes: [94, 4096, 12_288, 64, 4, 128, 151_936],
                experts: Some(Experts {
                    count: 128,
                    used: 8,
                    feed_forward: 1536,
                }),
                tied: false,
            },
        }
    }
}

fn main() -> ExitCode {
    let options: Options = cli::parse();
    cli::run(async { write(&options) })
}

fn write(options: &Options) -> anyhow::Result<()> {
    let model = options.model().map_err(|missing| {
        anyhow!("--{missing} is missing; give it, or a --preset that has it; see --help")
    })?;
    let start = Instant::now();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let path = &options.output;
    if path == Path::new("-") {
        return Err(is_no_file("OUTPUT").into());
    }
    let path = &place_of_model(path)?;
    // Under its own name only once it is whole.
    let partial = path.with_extension("gguf.partial");
    let written = match options.without_weights {
        true => model.write_without_weights(&partial),
        false => model.write(&partial, threads),
    };
    let bytes = written
        .and_then(|bytes| {
            std::fs::rename(&partial, path)?;
            Ok(bytes)
        })
        .inspect_err(|_| drop(std::fs::remove_file(&partial)))
        .map_err(|error| anyhow!("{}: {error}", path.display()))?;
    let (gigabytes, seconds) = (bytes as f64 / 1e9, start.elapsed().as_secs_f64());
    cli::print(&format!(
        "{}: {gigabytes:.2} GB in {seconds:.1} s\n",
        path.display()
    ))?;
    Ok(())
}

impl Options {
    /// The model, or the name of an option that is missing.
    fn model(&self) -> Result<Synth, &'static str> {
        let preset = self.preset.map(Preset::shape);
        let size = |given: Option<usize>, index: usize, name| {
            given
                .or_else(|| preset.as_ref().map(|shape| shape.sizes[index]))
                .ok_or(name)
        };
        let architecture = self
            .arch
            .or_else(|| preset.as_ref().map(|shape| shape.architecture))
            .ok_or("arch")?;
        let architecture = match architecture {
            ArchitectureName::Llama => Architecture::Llama,
            ArchitectureName::Qwen3moe => {
                let experts = preset.as_ref().and_then(|shape| shape.experts);
                Architecture::Qwen3Moe(self.experts(experts)?)
            }
        };
        Ok(Synth {
            architecture,
            layers: size(self.layers, 0, "layers")?,
            embedding: size(self.embedding, 1, "embedding")?,
            feed_forward: size(self.feed_forward, 2, "feed-forward")?,
            heads: size(self.heads, 3, "heads")?,
            kv_heads: size(self.kv_heads, 4, "kv-heads")?,
            head_dim: size(self.head_dim, 5, "head-dim")?,
            vocabulary: size(self.vocab, 6, "vocab")?,
            context: self.context,
            format: self.format,
            head_format: self.head_format,
            tied: self
                .tied
                .unwrap_or_else(|| preset.as_ref().is_some_and(|shape| shape.tied)),
            routing: Routing {
                skew: self.skew,
                correlation: self.correlation,
            },
            seed: self.seed,
        })
    }

    fn experts(&self, preset: Option<Experts>) -> Result<Experts, &'static str> {
        let used = preset.map(|it| it.used);
        let count = preset.map(|it| it.count);
        let feed_forward = preset.map(|it| it.feed_forward);
        Ok(Experts {
            count: self.experts.or(count).ok_or("experts")?,
            used: self.experts_used.or(used).ok_or("experts-used")?,
            feed_forward: self
                .expert_feed_forward
                .or(feed_forward)
                .ok_or("expert-feed-forward")?,
        })
    }
}

/// A size; with this limit no product of sizes overflows.
fn size(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|size| (1..=1 << 20).contains(size))
        .ok_or_else(|| "expected a number from 1 to 1048576".to_owned())
}
