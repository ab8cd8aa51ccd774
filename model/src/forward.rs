//! A forward pass: runs a program's operations on a batch of tokens.
//!
//! All memory is allocated when the pass is made ready; running it allocates nothing
//! and waits for nothing. The bytes of a matrix come in from outside, some rows at a
//! time, from wherever the plan has them.

mod experts;
mod footprint;
mod guess;
mod heads;
mod operations;
mod products;
mod recurrent;
mod resident;

use emel_kernels::{
    AttentionScratch, Kernels, Pool, PoolError, Q8Activations, RopeFrequencies, RopeTable,
    UnsupportedPath,
};
use emel_loader::files::OpenFiles;
use emel_loader::gguf::Catalog;
use emel_loader::reader::ReadError;

pub use self::footprint::Footprint;
use crate::activations::Activations;
use crate::program::{Buffer, ExpertGroup, MatrixShape, Op, Program, Rotation};
use crate::routing::{Router, Routing};
use crate::routing_log::RoutingLog;
use crate::state::SequenceState;
use experts::LoggedRouting;
use guess::Guessing;
use resident::{read_resident, turn};

/// Why a forward pass cannot be made ready.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ForwardError {
    /// The worker threads were refused.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The environment asks for kernels that the processor cannot run.
    #[error(transparent)]
    Kernels(#[from] UnsupportedPath),
    /// A norm or a bias could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// Tokens of one sequence that go through a pass together.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// Their ids.
    pub tokens: &'a [u32],
    /// The position of the first; the others follow it.
    pub position: usize,
    /// How many tokens at the end of the batch have their logits computed.
    pub logit_tokens: usize,
}

/// A program with the memory to run it.
pub struct Forward {
    kernels: Kernels,
    pool: Pool,
    ops: Vec<Op>,
    matrices: Vec<MatrixShape>,
    embedding: MatrixShape,
    /// Query heads.
    heads: usize,
    norm_epsilon: f32,
    resident: Vec<Vec<f32>>,
    rotations: Vec<(Rotation, RopeFrequencies, RopeTable)>,
    routers: Vec<Router>,
    routing: Routing,
    expert_groups: Vec<ExpertGroup>,
    /// The rows of the experts being computed.
    expert_rows: Vec<usize>,
    logged: Option<LoggedRouting>,
    guessing: Option<Guessing>,
    state: SequenceState,
    scratch: AttentionScratch,
    activations: Activations,
    quantised: Q8Activations,
    /// Whose activations `quantised` holds.
    quantised_of: Option<Buffer>,
    /// The inputs of experts' last matrices, a row for each expert of a token.
    quantised_rows: Q8Activations,
    /// Positions of the batch's tokens.
    positions: Vec<usize>,
    logit_tokens: usize,
}

impl Forward {
    /// Makes `program` ready to run: reads its norms and biases, allocates its memory
    /// and starts its threads, of which the calling thread is one.
    ///
    /// # Errors
    /// When a read fails or the system refuses the threads.
    pub fn new(
        program: &Program,
        catalog: &Catalog,
        files: &OpenFiles,
        footprint: Footprint,
    ) -> Result<Self, ForwardError> {
        let kernels = Kernels::from_environment()?;
        let resident = read_resident(program, catalog, files, kernels)?;
        let rotations = program
            .rotations
            .iter()
            .map(|rotation| turn(rotation, &resident, footprint))
            .collect();
        let shape = &program.hyperparameters;
        let (experts, used) = program.routing_max();
        let [of_tokens, of_experts] = program.quantised_columns();
        Ok(Self {
            kernels,
            pool: Pool::new(footprint.threads, true)?,
            ops: program.ops.clone(),
            matrices: program.matrices.clone(),
            embedding: program.embedding_shape,
            heads: shape.heads,
            norm_epsilon: shape.norm_epsilon,
            resident,
            rotations,
            routers: program.routers.clone(),
            routing: Routing::new(footprint.chunk, experts, used),
            expert_groups: program.expert_groups.clone(),
            expert_rows: Vec::with_capacity(footprint.chunk * used),
            logged: program
                .logged_guesses
                .map(|guesses| LoggedRouting::new(program, footprint.chunk, guesses)),
            guessing: Guessing::new(program),
            state: SequenceState::new(
                &program.states,
                footprint.context,
                footprint.chunk,
                footprint.kv_type,
            ),
            scratch: AttentionScratch::new(footprint.threads),
            activations: Activations::new(program.widths, |buffer| footprint.tokens_in(buffer)),
            quantised: Q8Activations::new(footprint.chunk, of_tokens),
            quantised_of: None,
            quantised_rows: Q8Activations::new(footprint.chunk * used, of_experts),
            positions: Vec::with_capacity(footprint.chunk),
            logit_tokens: 0,
        })
    }

    /// The kernels' instruction set.
    pub fn kernels_name(&self) -> &'static str {
        self.kernels.name()
    }

    /// What the sequence so far has left behind.
    pub fn state(&self) -> &SequenceState {
        &self.state
    }

    /// The same, to go back in it or to replace it.
    pub fn state_mut(&mut self) -> &mut SequenceState {
        &mut self.state
    }

    /// Begins a pass over `batch`. Every token's embedding follows, then the work, then
    /// [`Forward::finish`].
    ///
    /// # Panics
    /// When the batch is larger than the footprint, or does not follow the tokens that
    /// the state stands for.
    pub fn begin(&mut self, batch: Batch<'_>) {
        let count = batch.tokens.len();
        assert!(
            count <= self.positions.capacity(),
            "batch of {count} tokens"
        );
        assert!(batch.logit_tokens <= count, "more logits than tokens");
        self.state.begin(batch.position, batch.tokens);
        self.positions.clear();
        self.positions
            .extend(batch.position..batch.position + count);
        self.activations.tokens = count;
        self.logit_tokens = batch.logit_tokens;
        self.quantised_of = None;
        if let Some(logged) = &mut self.logged {
            logged.log.begin(count);
        }
        for (_, frequencies, table) in &mut self.rotations {
            table.fill(frequencies, &self.positions);
        }
    }

    /// Takes the embedding row of the batch's token `index`.
    pub fn embed(&mut self, index: usize, row: &[u8]) {
        let out = self.activations.row_mut(Buffer::Residual, index);
        self.kernels.dequantise_row(self.embedding.format, row, out);
    }

    /// All work of the pass is done: the batch is part of the sequence.
    pub fn finish(&mut self) {
        self.state.finish();
    }

    /// The logits, `[vocabulary]`, of the `index`th of the tokens whose logits were wanted.
    pub fn logits(&self, index: usize) -> &[f32] {
        self.activations.row(Buffer::Logits, index)
    }

    /// Where the tokens of the batch go in the mixture of experts that was routed last.
    pub fn routing(&self) -> &Routing {
        &self.routing
    }

    /// The routing of the last pass, if the program logs it.
    pub fn routing_log(&self) -> Option<&RoutingLog> {
        self.logged.as_ref().map(|logged| &logged.log)
    }
}
