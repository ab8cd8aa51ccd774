//! A router asked early, beside the pass: the same as [`Program::log_routing`] has in the
//! program, but only when somebody wants to know, for one token, and with the matrix where
//! the pass has it anyway.
//!
//! [`Program::log_routing`]: crate::program::Program::log_routing

use emel_kernels::{ActivationFormat, Activations, Matrix, OutputView, Product, Q8Activations};
use emel_loader::unit::Part;

use super::Forward;
use crate::program::{Buffer, LookAhead, Program};
use crate::routing::{Choice, Router, Routing};

/// What a router that is asked early works in.
pub(super) struct Guessing {
    routers: LookAhead,
    normed: Vec<f32>,
    logits: Vec<f32>,
    quantised: Q8Activations,
    routing: Routing,
}

impl Guessing {
    pub(super) fn new(program: &Program) -> Option<Self> {
        let routers = program.look_ahead.clone()?;
        let width = program.hyperparameters.width;
        let (experts, _) = program.routing_max();
        let columns = quantised_columns(program, &routers);
        Some(Self {
            normed: vec![0.0; width],
            logits: vec![0.0; experts],
            quantised: Q8Activations::new(usize::from(columns > 0), columns),
            routing: Routing::new(1, experts, routers.guesses),
            routers,
        })
    }

    /// The bytes that [`Guessing::new`] allocates.
    pub(super) fn required_bytes(program: &Program) -> usize {
        let Some(routers) = &program.look_ahead else {
            return 0;
        };
        let (experts, _) = program.routing_max();
        let columns = quantised_columns(program, routers);
        size_of_val(&*routers.paths)
            + (program.hyperparameters.width + experts) * size_of::<f32>()
            + Q8Activations::required_bytes(usize::from(columns > 0), columns)
            + Routing::required_bytes(1, experts, routers.guesses)
    }
}

/// Columns of the routers that take a quantised input; 0 if none does.
fn quantised_columns(program: &Program, routers: &LookAhead) -> usize {
    let matrices = routers
        .paths
        .iter()
        .map(|path| program.matrices[path.matrix]);
    matrices
        .filter(|matrix| matrix.format.activations() == ActivationFormat::Q8)
        .map(|matrix| matrix.columns)
        .max()
        .unwrap_or(0)
}

impl Forward {
    /// The experts that a router further on would choose for the batch's only token if it
    /// saw the residual stream as it is, the likeliest first. `rows` are the parts of its
    /// matrix, and the bytes of the unit that each is in. What the pass computes does not
    /// change. Nothing for several tokens, or where the program does not
    /// [look ahead](crate::program::Program::look_ahead).
    pub fn guess_experts<'a>(
        &mut self,
        router: usize,
        rows: impl Iterator<Item = (Part, &'a [u8])>,
    ) -> &[Choice] {
        let Some(guessing) = self.guessing.as_mut().filter(|_| self.positions.len() == 1) else {
            return &[];
        };
        let path = guessing.routers.paths[router];
        let shape = self.matrices[path.matrix];
        let residual = self.activations.all(Buffer::Residual);
        let norm = &self.resident[path.norm];
        let normed = &mut guessing.normed;
        self.kernels
            .rms_norm(residual, norm, self.norm_epsilon, normed);
        let is_quantised = shape.format.activations() == ActivationFormat::Q8;
        if is_quantised {
            guessing
                .quantised
                .quantise(&self.kernels, &self.pool, normed, shape.columns);
        }
        let logits = &mut guessing.logits[..shape.rows];
        for (part, bytes) in rows {
            let bytes = &bytes[part.offset..part.offset + part.bytes];
            let product = Product {
                weights: Matrix::new(shape.format, part.rows, shape.columns, bytes)
                    .expect("units hold whole rows of checked tensors"),
                activations: match is_quantised {
                    true => (&guessing.quantised).into(),
                    false => Activations::F32 {
                        values: normed,
                        columns: shape.columns,
                    },
                },
                tokens: 1,
                output: OutputView::new(logits, shape.rows, part.first_row),
            };
            self.kernels.matmul_batch(&self.pool, &mut [product]);
        }
        if let Some(bias) = path.bias {
            self.kernels.add(logits, &self.resident[bias]);
        }
        let router = Router {
            used: guessing.routers.guesses.min(shape.rows),
            ..self.routers[router].clone()
        };
        let bias = router.bias.map(|index| self.resident[index].as_slice());
        guessing.routing.route(&router, logits, bias);
        guessing.routing.choices(0)
    }
}
