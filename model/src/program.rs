//! A model as a program: the operations of a forward pass, in order.
//!
//! An architecture's file writes the program once, when the model is opened. The same
//! list then says in which order weights are read (the plan), how large activations
//! become (the memory), and what is computed (the forward pass), so the three cannot
//! disagree.

mod beside;
mod builder;
mod experts;
mod heads;
mod latent;
mod look_ahead;
mod recurrent;
mod unused;

use emel_kernels::{ActivationFormat, DeltaRuleShape, Format, RopeScaling, RopeStyle};
use emel_loader::expert_layout::ExpertUse;
use emel_loader::gguf::Catalog;
use emel_loader::unit::WeightUse;

pub use self::builder::ProgramBuilder;
pub use self::experts::{ExpertGroup, Mixture};
pub use self::heads::HeadColumns;
pub use self::latent::LatentShape;
pub use self::look_ahead::{LookAhead, RouterPath};
pub use self::unused::UnusedPart;
use crate::hyperparameters::Hyperparameters;
use crate::routing::Router;
use crate::state::StateShape;

/// The activations of the tokens in flight, by their role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Buffer {
    /// The residual stream.
    Residual,
    /// A norm's output.
    Normed,
    /// Queries of all heads.
    Query,
    /// Keys of all key-value heads.
    Key,
    /// Values of all key-value heads.
    Value,
    /// What attention has gathered.
    Attended,
    /// A block's contribution before it joins the residual stream.
    Branch,
    /// The gate of a feed-forward network.
    Gate,
    /// What the gate lets through or not.
    Up,
    /// What it has let through.
    Gated,
    /// A score for each expert.
    RouterLogits,
    /// The residual stream behind the norm of the next router.
    AheadNormed,
    /// A score for each expert of the next mixture.
    AheadLogits,
    /// A row for each expert that a token has chosen, in the order of the experts.
    Routed,
    /// What the experts of every token contribute.
    Shared,
    /// How much of that counts.
    SharedGate,
    /// Several projections in one, before they are taken apart.
    Fused,
    /// What a recurrent layer runs over the tokens.
    Mixed,
    /// How much of each input a recurrent layer takes in.
    InputGate,
    /// How much of each output a layer lets out.
    OutputGate,
    /// How much of each memory is kept.
    Decay,
    /// How strongly each memory is written.
    Strength,
    /// A short vector that queries, or keys and values, are projected from.
    Compressed,
    /// The short vector of keys and values, with the part of the keys that turns.
    Latent,
    /// The part of a buffer that belongs to one head.
    OneHead,
    /// A score for each token of the vocabulary.
    Logits,
}

/// The number of [`Buffer`]s.
pub const BUFFERS: usize = Buffer::Logits as usize + 1;

/// The activation function of a gated feed-forward network.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation {
    /// x · σ(x), which makes SwiGLU.
    Silu,
    /// The tanh form of GELU, which makes GeGLU.
    Gelu,
    /// The clamped SwiGLU of gpt-oss.
    ClampedSilu {
        /// Steepness of σ.
        alpha: f32,
        /// The greatest gate, and the greatest magnitude of what it gates.
        limit: f32,
    },
}

/// One operation. Sizes are those of a single token.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// RMS norm of every run of values as long as the weight: x / √(mean(x²) + ε) · weight.
    Norm {
        /// What is normed.
        input: Buffer,
        /// Where it goes; may be the input.
        output: Buffer,
        /// Index of the resident weight.
        weight: usize,
    },
    /// output = matrix · input.
    Linear {
        /// Index of the matrix among [`Program::matrices`].
        matrix: usize,
        /// A vector as wide as the matrix's columns.
        input: Buffer,
        /// A vector as long as the matrix has rows.
        output: Buffer,
    },
    /// buffer *= the only number of a weight.
    WeightScale {
        /// What is scaled.
        buffer: Buffer,
        /// Index of the resident weight.
        weight: usize,
    },
    /// buffer += bias.
    Bias {
        /// What it is added to.
        buffer: Buffer,
        /// Index of the resident weight.
        weight: usize,
    },
    /// Rotates every head of the buffer by its token's position.
    Rope {
        /// Queries or keys.
        buffer: Buffer,
        /// Heads in it.
        heads: usize,
        /// Elements of a head before those that turn.
        start: usize,
        /// Index among [`Program::rotations`].
        rotation: usize,
    },
    /// buffer *= 1 + growth.scale · ln(⌊position / growth.length⌋ + 1), by the token's position.
    ScaleByPosition {
        /// What is scaled.
        buffer: Buffer,
        /// How the factor grows.
        growth: PositionGrowth,
    },
    /// Keeps this token's keys and values, then gathers the values of all positions it
    /// may look at.
    Attention {
        /// Index among [`Program::states`].
        state: usize,
        /// What scores are multiplied with.
        scale: f32,
        /// Scores become `cap · tanh(score / cap)`.
        softcap: Option<f32>,
        /// Index of the resident weight: a score per head that has no value.
        sinks: Option<usize>,
    },
    /// gated = activation(gate) · up.
    Gated {
        /// The activation function.
        activation: Activation,
    },
    /// to += from.
    Add {
        /// What is added.
        from: Buffer,
        /// What it is added to.
        to: Buffer,
    },
    /// output = some of the input's columns.
    Columns {
        /// Where they come from.
        input: Buffer,
        /// The first of them.
        start: usize,
        /// How many.
        width: usize,
        /// Where they go.
        output: Buffer,
    },
    /// buffer *= σ(gate); a value of the gate counts for a run of the buffer's.
    SigmoidGate {
        /// What is let through.
        buffer: Buffer,
        /// How much, before σ.
        gate: Buffer,
    },
    /// buffer = cap · tanh(buffer / cap).
    Softcap {
        /// What is capped.
        buffer: Buffer,
        /// The limit.
        cap: f32,
    },
    /// Chooses the experts of every token from the router's logits.
    Route {
        /// Index among [`Program::routers`].
        router: usize,
    },
    /// Guesses the experts that a router will choose, from its logits ahead of time.
    LookAhead {
        /// Index among [`Program::routers`].
        router: usize,
    },
    /// routed = a row of the normed stream for each expert that its token has chosen, if
    /// the experts want floats; quantised ones are found by their tokens.
    Dispatch {
        /// The experts: index among [`Program::expert_groups`].
        group: usize,
    },
    /// routed = the answer of each row's expert to it.
    Experts {
        /// Index among [`Program::expert_groups`].
        group: usize,
    },
    /// branch = the routed rows of each token, weighted and summed.
    Combine,
    /// buffer *= factor.
    Scale {
        /// What is scaled.
        buffer: Buffer,
        /// By how much.
        factor: f32,
    },
    /// RMS norm of the first columns, as many as the weight has.
    NormColumns {
        /// What is normed.
        buffer: Buffer,
        /// Index of the resident weight.
        weight: usize,
    },
    /// to = from, head by head; one head goes to all.
    CopyHeads {
        /// Where they come from.
        from: HeadColumns,
        /// Where they go.
        to: HeadColumns,
    },
    /// to = each head's own rows of the matrix · from.
    LinearHeads {
        /// Index of the matrix among [`Program::matrices`].
        matrix: usize,
        /// As wide as the matrix's columns.
        from: HeadColumns,
        /// As wide as a head has rows.
        to: HeadColumns,
    },
    /// buffer *= by, element by element.
    Multiply {
        /// What is multiplied.
        buffer: Buffer,
        /// With what.
        by: Buffer,
    },
    /// buffer = silu(buffer).
    Silu {
        /// What is activated.
        buffer: Buffer,
    },
    /// buffer *= silu(gate), element by element.
    SiluGate {
        /// What is let through.
        buffer: Buffer,
        /// How much, before its activation.
        gate: Buffer,
    },
    /// What is mixed goes through a short causal convolution, a filter for each channel.
    Convolution {
        /// Index among [`Program::states`].
        state: usize,
        /// Index of the resident weight, `[taps, channels]` as it is held.
        weight: usize,
    },
    /// attended = what the gated delta rule reads for the mixed queries, keys and values.
    DeltaRule {
        /// Index among [`Program::states`].
        state: usize,
        /// Heads and their widths.
        shape: DeltaRuleShape,
        /// Index of the resident weight: how fast each memory fades.
        rate: usize,
        /// Index of the resident weight that is added to the decay.
        bias: usize,
    },
    /// From here on only tokens whose logits are wanted go on.
    KeepLogitTokens,
}

/// Scores that grow with the logarithm of the position, in steps
/// (<https://arxiv.org/abs/2501.19399>, as in Llama 4 and Mistral Large 3).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PositionGrowth {
    /// How strongly.
    pub scale: f32,
    /// Positions of a step.
    pub length: usize,
}

impl PositionGrowth {
    /// The factor at a position.
    pub fn factor(&self, position: usize) -> f32 {
        let steps = (position / self.length) as f64;
        ((steps + 1.0).ln() * f64::from(self.scale) + 1.0) as f32
    }
}

/// How attention scores its positions.
#[derive(Debug, Clone, Copy, Default)]
pub struct Scores<'a> {
    /// What the products of queries and keys are multiplied with.
    pub scale: f32,
    /// Positions looked back on, itself included; all if there is none.
    pub window: Option<usize>,
    /// Scores become `cap · tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// The tensor with a score per head that takes part and has no value.
    pub sinks: Option<&'a str>,
}

/// A matrix of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatrixShape {
    /// How its weights are stored.
    pub format: Format,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub columns: usize,
}

impl MatrixShape {
    pub(crate) fn new(format: Format, rows: usize, columns: usize) -> Self {
        Self {
            format,
            rows,
            columns,
        }
    }
}

/// A rotary embedding: which pairs turn together, and how fast.
#[derive(Debug, Clone, PartialEq)]
pub struct Rotation {
    /// Which dimensions form a pair.
    pub style: RopeStyle,
    /// Base of the frequencies.
    pub base: f32,
    /// Dimensions of a head that turn.
    pub width: usize,
    /// Stretching to longer contexts.
    pub scaling: RopeScaling,
    /// What the frequencies are divided by.
    pub factors: RotationFactors,
}

/// A divisor for the frequency of each pair, by the index of a resident weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RotationFactors {
    /// None: the frequencies are as they are.
    None,
    /// The same for any context.
    Always(usize),
    /// LongRoPE (<https://arxiv.org/abs/2402.13753>): others for a context that is longer
    /// than the original one.
    ByContext {
        /// Up to the original context.
        short: usize,
        /// Beyond it.
        long: usize,
        /// Positions that the model knew before it was stretched.
        original_context: usize,
    },
}

impl RotationFactors {
    /// The resident weight for a session of `context` positions.
    pub fn of_context(self, context: usize) -> Option<usize> {
        match self {
            Self::None => None,
            Self::Always(index) => Some(index),
            Self::ByContext {
                long,
                original_context,
                ..
            } if context > original_context => Some(long),
            Self::ByContext { short, .. } => Some(short),
        }
    }
}

/// A forward pass.
#[derive(Debug, Clone)]
pub struct Program {
    /// The hyperparameters it was written from.
    pub hyperparameters: Hyperparameters,
    /// The tensor whose rows tokens are looked up in.
    pub embedding: usize,
    /// Shape of that tensor: vocabulary × width.
    pub embedding_shape: MatrixShape,
    /// The operations, in order.
    pub ops: Vec<Op>,
    /// The matrices' shapes, in compute order.
    pub matrices: Vec<MatrixShape>,
    /// Where the matrices are, for the plan; as long as `matrices`.
    pub uses: Vec<WeightUse>,
    /// The experts of each mixture, in compute order.
    pub expert_groups: Vec<ExpertGroup>,
    /// Where the experts are, for the plan; as long as `expert_groups`.
    pub expert_uses: Vec<ExpertUse>,
    /// Tensors that are always in memory, as `f32`: norms and biases.
    pub resident: Vec<usize>,
    /// The rotary embeddings in use.
    pub rotations: Vec<Rotation>,
    /// The routers in use.
    pub routers: Vec<Router>,
    /// Experts of the next mixture that are guessed for each token, if the routing is
    /// logged.
    pub logged_guesses: Option<usize>,
    /// Routers that can be asked early, if that is wanted.
    pub look_ahead: Option<LookAhead>,
    /// What a sequence keeps, layer by layer.
    pub states: Vec<StateShape>,
    /// What the file has besides, which no text model needs.
    pub unused: Vec<UnusedPart>,
    /// What a user should know of the file, a sentence each.
    pub notes: Vec<String>,
    /// Greatest width of each [`Buffer`], 0 for one that is not used.
    pub widths: [usize; BUFFERS],
}

impl Program {
    /// Bytes of the resident tensors, as they are held.
    pub fn resident_bytes(&self, catalog: &Catalog) -> u64 {
        self.resident
            .iter()
            .map(|&tensor| catalog.tensors()[tensor].dims.iter().product::<u64>() * 4)
            .sum()
    }

    /// Number of tokens in the vocabulary.
    pub fn vocabulary(&self) -> usize {
        self.embedding_shape.rows
    }

    /// Columns of the widest inputs that are quantised: of matrices that take one for each
    /// token, and of those that take one for each expert of a token.
    pub fn quantised_columns(&self) -> [usize; 2] {
        let widest = |matrices: &mut dyn Iterator<Item = &MatrixShape>| {
            matrices
                .filter(|matrix| matrix.format.activations() == ActivationFormat::Q8)
                .map(|matrix| matrix.columns)
                .max()
                .unwrap_or(0)
        };
        let groups = || self.expert_groups.iter().map(|group| &group.matrices);
        let of_tokens = groups().flat_map(|[gate, up, _]| [gate, up]);
        [
            widest(&mut self.matrices.iter().chain(of_tokens)),
            widest(&mut groups().map(|[.., down]| down)),
        ]
    }

    /// Where the model has other rotary factors beyond its original context: that
    /// context, and whether a session of `context` positions uses those.
    pub fn long_factors(&self, context: usize) -> Option<(usize, bool)> {
        let of_rotation = |rotation: &Rotation| match rotation.factors {
            RotationFactors::ByContext {
                original_context, ..
            } => Some((original_context, context > original_context)),
            _ => None,
        };
        self.rotations.iter().find_map(of_rotation)
    }

    /// The most experts that any router chooses among, and the most it chooses.
    pub fn routing_max(&self) -> (usize, usize) {
        self.routers.iter().fold((0, 0), |(experts, used), router| {
            (experts.max(router.experts), used.max(router.used))
        })
    }
}
