//! A forward pass: runs a program's operations on a batch of tokens.
//!
//! All memory is allocated when the pass is made ready; running it allocates nothing
//! and waits for nothing. The bytes of a matrix come in from outside, some rows at a
//! time, from wherever the plan has them.

mod experts;
mod guess;
mod heads;
mod recurrent;

use std::ops::Range;

use emel_kernels::{
    ActivationFormat, AttentionInput, AttentionScratch, AttentionShape, Format, Kernels, Matrix,
    OutputView, Pool, PoolError, Product, Q8Activations, RopeFrequencies, RopeTable,
    UnsupportedPath,
};
use emel_loader::files::OpenFiles;
use emel_loader::gguf::Catalog;
use emel_loader::reader::ReadError;
use emel_loader::unit::Part;

use crate::activations::Activations;
use crate::kv_cache::KvType;
use crate::program::{
    Activation, BUFFERS, Buffer, ExpertGroup, MatrixShape, Op, Program, Rotation,
};
use crate::routing::{Router, Routing};
use crate::routing_log::RoutingLog;
use crate::schedule::Work;
use crate::state::SequenceState;
use experts::LoggedRouting;
use guess::Guessing;

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

/// The sizes that a forward pass is made ready for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footprint {
    /// Positions in the KV cache.
    pub context: usize,
    /// The positions that were asked for, of which a budget may leave less. Frequencies
    /// that depend on the context go by this, so that a budget does not change them.
    pub context_wished: usize,
    /// Tokens in a batch.
    pub chunk: usize,
    /// Tokens of a batch whose logits are wanted.
    pub logit_tokens: usize,
    /// Threads that compute.
    pub threads: usize,
    /// How keys and values are kept.
    pub kv_type: KvType,
}

impl Footprint {
    /// Bytes of the KV cache.
    pub fn kv_bytes(&self, program: &Program) -> u64 {
        SequenceState::kv_bytes(&program.states, self.context, self.chunk, self.kv_type)
    }

    /// Bytes of what else a sequence keeps: memories of recurrent layers, its tokens.
    pub fn recurrent_bytes(&self, program: &Program) -> u64 {
        SequenceState::recurrent_bytes(&program.states, self.context)
    }

    /// Bytes of everything else that a pass works in.
    pub fn activation_bytes(&self, program: &Program) -> u64 {
        // Saturating: a plan for absurd sizes is to be refused, not to overflow.
        let floats_bytes = (0..BUFFERS)
            .map(|buffer| {
                self.tokens_in(buffer)
                    .saturating_mul(program.widths[buffer])
            })
            .fold(0, usize::saturating_add)
            .saturating_mul(size_of::<f32>());
        let turns = program
            .rotations
            .iter()
            .map(|rotation| RopeTable::required_bytes(self.chunk, rotation.width))
            .fold(0, usize::saturating_add);
        let [of_tokens, of_experts] = program.quantised_columns();
        let scores = AttentionScratch::required_bytes(self.threads, self.context);
        let (experts, used) = program.routing_max();
        let quantised = Q8Activations::required_bytes(self.chunk, of_tokens).saturating_add(
            Q8Activations::required_bytes(self.chunk.saturating_mul(used), of_experts),
        );
        let routing = Routing::required_bytes(self.chunk, experts, used);
        let logged = program.logged_guesses.map_or(0, |guesses| {
            let layers = program.routers.len();
            RoutingLog::required_bytes(self.chunk, layers, [used, guesses])
                .saturating_add(Routing::required_bytes(self.chunk, experts, guesses))
        });
        // Two for each token, and one for each of its experts.
        let positions = (2 + used).saturating_mul(self.chunk * size_of::<usize>());
        [
            floats_bytes,
            turns,
            quantised,
            scores,
            routing,
            logged,
            Guessing::required_bytes(program),
            positions,
        ]
        .into_iter()
        .fold(0, usize::saturating_add) as u64
    }

    fn tokens_in(&self, buffer: usize) -> usize {
        if buffer == Buffer::Logits as usize {
            self.logit_tokens
        } else {
            self.chunk
        }
    }
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
    /// Their rows in the cache of the layer at hand.
    rows: Vec<usize>,
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
            scratch: AttentionScratch::new(footprint.threads, footprint.context),
            activations: Activations::new(program.widths, |buffer| footprint.tokens_in(buffer)),
            quantised: Q8Activations::new(footprint.chunk, of_tokens),
            quantised_of: None,
            quantised_rows: Q8Activations::new(footprint.chunk * used, of_experts),
            positions: Vec::with_capacity(footprint.chunk),
            rows: Vec::with_capacity(footprint.chunk),
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

    /// Does a step's work; `bytes` are those of its unit.
    pub fn run(&mut self, work: &[Work], bytes: &[u8]) {
        for piece in work {
            match *piece {
                Work::Op(op) => self.apply(op),
                Work::Rows(op, part) => {
                    self.multiply(op, part, &bytes[part.offset..part.offset + part.bytes]);
                }
            }
        }
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

    fn multiply(&mut self, op: usize, part: Part, bytes: &[u8]) {
        let (matrix, input, output) = match self.ops[op] {
            Op::Linear {
                matrix,
                input,
                output,
            } => (matrix, input, output),
            Op::LinearHeads { matrix, from, to } => {
                return self.multiply_heads(matrix, part, bytes, [from, to]);
            }
            _ => unreachable!("only products have rows"),
        };
        let shape = self.matrices[matrix];
        let weights = Matrix::new(shape.format, part.rows, shape.columns, bytes)
            .expect("units hold whole rows of checked tensors");
        self.quantise(input, shape.format, shape.columns);
        self.multiply_all(&shape, part.first_row, &weights, [input, output]);
        self.changed(output);
    }

    /// Some rows of a matrix, from `first_row` on, against every token.
    fn multiply_all(
        &mut self,
        shape: &MatrixShape,
        first_row: usize,
        weights: &Matrix<'_>,
        [input, output]: [Buffer; 2],
    ) {
        let tokens = self.activations.tokens;
        let (columns, stride) = (shape.columns, shape.rows);
        self.activations.set_width(output, stride);
        let [values, out] = self.activations.several([input, output]);
        let activations = match shape.format.activations() {
            ActivationFormat::F32 => emel_kernels::Activations::F32 { values, columns },
            ActivationFormat::Q8 => (&self.quantised).into(),
        };
        let product = Product {
            weights: *weights,
            activations,
            tokens,
            output: OutputView::new(out, stride, first_row),
        };
        self.kernels.matmul_batch(&self.pool, &mut [product]);
    }

    /// Sees to it that the input is there in the form that the format wants.
    fn quantise(&mut self, input: Buffer, format: Format, columns: usize) {
        if format.activations() == ActivationFormat::Q8 && self.quantised_of != Some(input) {
            let values = self.activations.all(input);
            self.quantised
                .quantise(&self.kernels, &self.pool, values, columns);
            self.quantised_of = Some(input);
        }
    }

    fn changed(&mut self, buffer: Buffer) {
        if self.quantised_of == Some(buffer) {
            self.quantised_of = None;
        }
    }

    fn apply(&mut self, op: usize) {
        match self.ops[op] {
            Op::Norm {
                input,
                output,
                weight,
            } => self.norm(input, output, weight),
            Op::Linear { .. } | Op::LinearHeads { .. } => {
                unreachable!("products come with rows")
            }
            Op::Experts { .. } => unreachable!("experts come with their weights"),
            Op::Bias { buffer, weight } => self.add_bias(buffer, weight),
            Op::Rope {
                buffer,
                heads,
                start,
                rotation,
            } => self.rotate(buffer, heads, start, rotation),
            Op::Attention { .. } => self.attend(op),
            Op::Gated { activation } => self.gate(activation),
            Op::Add { from, to } => {
                let [sum, values] = self.activations.several([to, from]);
                self.kernels.add(sum, values);
                self.changed(to);
            }
            Op::Columns {
                input,
                start,
                width,
                output,
            } => self.take_columns(input, start..start + width, output),
            Op::Scale { buffer, factor } => {
                self.kernels.scale(self.activations.all_mut(buffer), factor);
                self.changed(buffer);
            }
            Op::SigmoidGate { buffer, gate } => {
                let [values, gates] = self.activations.several([buffer, gate]);
                self.kernels.sigmoid_gate(values, gates);
                self.changed(buffer);
            }
            Op::Softcap { buffer, cap } => {
                self.kernels.softcap(self.activations.all_mut(buffer), cap);
                self.changed(buffer);
            }
            Op::Route { router } => self.route(router),
            Op::LookAhead { router } => self.look_ahead(router),
            Op::Dispatch { group } => self.dispatch(group),
            Op::Combine => self.combine(),
            Op::NormColumns { buffer, weight } => self.norm_columns(buffer, weight),
            Op::CopyHeads { from, to } => self.copy_heads(from, to),
            Op::Multiply { buffer, by } => {
                let [values, factors] = self.activations.several([buffer, by]);
                self.kernels.multiply(values, factors);
                self.changed(buffer);
            }
            Op::Silu { buffer } => {
                self.kernels.silu(self.activations.all_mut(buffer));
                self.changed(buffer);
            }
            Op::SiluGate { buffer, gate } => {
                let [values, gates] = self.activations.several([buffer, gate]);
                self.kernels.gate_by_silu(values, gates);
                self.changed(buffer);
            }
            Op::Convolution { state, weight } => self.convolve(state, weight),
            Op::DeltaRule {
                state,
                shape,
                rate,
                bias,
            } => self.delta_rule(state, &shape, [rate, bias]),
            Op::KeepLogitTokens => {
                self.activations
                    .keep_last(Buffer::Residual, self.logit_tokens);
                self.quantised_of = None;
            }
        }
    }

    fn norm(&mut self, input: Buffer, output: Buffer, weight: usize) {
        let weight = &self.resident[weight];
        if input == output {
            let values = self.activations.all_mut(input);
            self.kernels
                .rms_norm_in_place(values, weight, self.norm_epsilon);
        } else {
            let width = self.activations.width(input);
            self.activations.set_width(output, width);
            let [values, out] = self.activations.several([input, output]);
            self.kernels
                .rms_norm(values, weight, self.norm_epsilon, out);
        }
        self.changed(output);
    }

    fn add_bias(&mut self, buffer: Buffer, weight: usize) {
        let bias = &self.resident[weight];
        for row in self
            .activations
            .all_mut(buffer)
            .chunks_exact_mut(bias.len())
        {
            self.kernels.add(row, bias);
        }
        self.changed(buffer);
    }

    fn rotate(&mut self, buffer: Buffer, heads: usize, start: usize, rotation: usize) {
        let (rotation, _, table) = &self.rotations[rotation];
        let head_width = self.activations.width(buffer) / heads;
        let values = self.activations.all_mut(buffer);
        self.kernels
            .rope_from(rotation.style, table, values, heads, head_width, start);
        self.changed(buffer);
    }

    /// The attention operation at index `op`.
    fn attend(&mut self, op: usize) {
        let Op::Attention {
            state,
            scale,
            softcap,
            sinks,
        } = self.ops[op]
        else {
            unreachable!("called for attention");
        };
        let cache = self.state.cache_mut(state);
        let tokens = [Buffer::Key, Buffer::Value].map(|buffer| self.activations.all(buffer));
        let position = self.positions.first().copied().unwrap_or(0);
        cache.store(&self.kernels, position, self.positions.len(), tokens);
        self.rows.clear();
        self.rows.extend(
            self.positions
                .iter()
                .map(|position| position - cache.first()),
        );
        let kept = cache.shape();
        let shape = AttentionShape {
            heads: self.heads,
            kv_heads: kept.kv_heads,
            head_dim_k: kept.key_width,
            head_dim_v: kept.value_width.unwrap_or(kept.key_width),
            scale,
            window: kept.window,
            softcap,
        };
        self.activations
            .set_width(Buffer::Attended, shape.heads * shape.head_dim_v);
        let [queries, out] = self.activations.several([Buffer::Query, Buffer::Attended]);
        let input = AttentionInput {
            queries,
            kv: cache.view(),
            positions: &self.rows,
            sinks: sinks.map(|index| self.resident[index].as_slice()),
        };
        self.kernels
            .attention(&self.pool, &shape, &input, out, &mut self.scratch);
        self.changed(Buffer::Attended);
    }

    fn gate(&mut self, activation: Activation) {
        let width = self.activations.width(Buffer::Gate);
        self.activations.set_width(Buffer::Gated, width);
        let [gate, up, out] = self
            .activations
            .several([Buffer::Gate, Buffer::Up, Buffer::Gated]);
        activate(&self.kernels, activation, gate, up, out);
        self.changed(Buffer::Gated);
    }

    fn take_columns(&mut self, input: Buffer, columns: Range<usize>, output: Buffer) {
        self.activations.set_width(output, columns.len());
        let (from, to) = (self.activations.width(input), columns.len());
        let [values, out] = self.activations.several([input, output]);
        for (row, out) in values.chunks_exact(from).zip(out.chunks_exact_mut(to)) {
            out.copy_from_slice(&row[columns.clone()]);
        }
        self.changed(output);
    }
}

/// out = activation(gate) · up.
fn activate(kernels: &Kernels, activation: Activation, gate: &[f32], up: &[f32], out: &mut [f32]) {
    match activation {
        Activation::Silu => kernels.swiglu(gate, up, out),
        Activation::Gelu => kernels.geglu(gate, up, out),
        Activation::ClampedSilu { alpha, limit } => {
            kernels.swiglu_clamped(gate, up, alpha, limit, out);
        }
    }
}

fn turn(
    rotation: &Rotation,
    resident: &[Vec<f32>],
    footprint: Footprint,
) -> (Rotation, RopeFrequencies, RopeTable) {
    let factors = rotation.factors.of_context(footprint.context_wished);
    let factors = factors.map(|index| resident[index].as_slice());
    let frequencies = RopeFrequencies::new(
        rotation.scaling,
        f64::from(rotation.base),
        rotation.width,
        factors,
    );
    let table = RopeTable::new(footprint.chunk, rotation.width);
    (rotation.clone(), frequencies, table)
}

fn read_resident(
    program: &Program,
    catalog: &Catalog,
    files: &OpenFiles,
    kernels: Kernels,
) -> Result<Vec<Vec<f32>>, ForwardError> {
    let read = |&index: &usize| {
        let tensor = &catalog.tensors()[index];
        let bytes = files.read(&tensor.extent)?;
        let format = Format::from_ggml_type(tensor.tensor_type.id())
            .expect("the builder checked the type of every tensor");
        let (columns, rows) = (tensor.columns() as usize, tensor.rows() as usize);
        let mut values = vec![0.0; rows * columns];
        let encoded = bytes.chunks_exact(bytes.len() / rows);
        for (bytes, row) in encoded.zip(values.chunks_exact_mut(columns)) {
            kernels.dequantise_row(format, bytes, row);
        }
        Ok(values)
    };
    let mut resident: Vec<Vec<f32>> = program
        .resident
        .iter()
        .map(read)
        .collect::<Result<_, ReadError>>()?;
    for op in &program.ops {
        if let Op::Convolution { weight, .. } = *op {
            let taps = catalog.tensors()[program.resident[weight]].columns() as usize;
            resident[weight] = transposed(&resident[weight], taps);
        }
    }
    Ok(resident)
}

/// `[rows, columns]` as `[columns, rows]`.
fn transposed(values: &[f32], columns: usize) -> Vec<f32> {
    let column = |column| values.iter().skip(column).step_by(columns).copied();
    (0..columns).flat_map(column).collect()
}
