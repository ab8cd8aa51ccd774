//! Look-ahead: what the next mixture's router would choose, asked one mixture early.
//!
//! A block adds little to the residual stream, so a router mostly chooses the same for
//! the stream before the experts of the mixture ahead of it as for what it gets. That
//! says what to read while those compute. (Eliseev and Mazur, 2023,
//! <https://arxiv.org/abs/2312.17238>)

use super::{Buffer, Op, Program};

/// The way from the residual stream to the logits of a router.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RouterPath {
    /// Index of the norm's weight.
    pub norm: usize,
    /// Index of the router's matrix.
    pub matrix: usize,
    /// Index of the bias of its logits.
    pub bias: Option<usize>,
}

/// Routers that can be asked early, beside the program.
#[derive(Debug, Clone, PartialEq)]
pub struct LookAhead {
    /// The way to each router, in compute order.
    pub paths: Vec<RouterPath>,
    /// Experts that are guessed.
    pub guesses: usize,
}

impl Program {
    /// Lets routers be asked early for up to `guesses` experts, outside of the operations,
    /// by [`Forward::guess_experts`](crate::forward::Forward::guess_experts). Nothing
    /// changes for a model in which a router sees something else than the normed residual
    /// stream.
    pub fn look_ahead(&mut self, guesses: usize) {
        let (experts, _) = self.routing_max();
        let guesses = guesses.min(experts);
        self.look_ahead = self
            .router_paths()
            .filter(|paths| guesses > 0 && paths.len() > 1)
            .map(|paths| LookAhead { paths, guesses });
    }

    fn router_paths(&self) -> Option<Vec<RouterPath>> {
        (0..self.routers.len())
            .map(|router| self.router_path(router))
            .collect()
    }

    /// Has the routing of every pass logged ([`crate::routing_log::RoutingLog`]), and
    /// has each mixture guess, for every token, up to `guesses` experts of the next one.
    /// What is computed otherwise stays the same, to the bit.
    ///
    /// The next router's weights are used twice in a pass then, and are planned for and
    /// read like any others. A model in which a router sees something else than the
    /// normed residual stream is logged without guesses.
    pub fn log_routing(&mut self, guesses: usize) {
        let paths = self.router_paths();
        let (experts, _) = self.routing_max();
        let guesses = guesses.min(experts);
        self.logged_guesses = Some(guesses);
        let Some(paths) = paths.filter(|paths| guesses > 0 && paths.len() > 1) else {
            self.logged_guesses = Some(0);
            return;
        };

        self.widths[Buffer::AheadNormed as usize] = self.hyperparameters.width;
        self.widths[Buffer::AheadLogits as usize] = experts;
        let ops = std::mem::take(&mut self.ops);
        let matrices = std::mem::take(&mut self.matrices);
        let uses = std::mem::take(&mut self.uses);
        for mut op in ops {
            // Matrices are numbered in the order of their use.
            if let Some(matrix) = op.matrix_mut() {
                self.matrices.push(matrices[*matrix]);
                self.uses.push(uses[*matrix]);
                *matrix = self.matrices.len() - 1;
            }
            let router = match op {
                Op::Route { router } => Some(router),
                _ => None,
            };
            self.ops.push(op);
            if let Some(router) = router
                && let Some(next) = paths.get(router + 1)
            {
                let layer = uses[paths[router].matrix].layer;
                self.matrices.push(matrices[next.matrix]);
                self.uses.push(emel_loader::unit::WeightUse {
                    layer,
                    ..uses[next.matrix]
                });
                self.ask_ahead(router + 1, *next);
            }
        }
    }

    /// Appends what asks `router`, whose matrix here is the last one so far.
    fn ask_ahead(&mut self, router: usize, path: RouterPath) {
        self.ops.push(Op::Norm {
            input: Buffer::Residual,
            output: Buffer::AheadNormed,
            weight: path.norm,
        });
        self.ops.push(Op::Linear {
            matrix: self.matrices.len() - 1,
            input: Buffer::AheadNormed,
            output: Buffer::AheadLogits,
        });
        self.ops.extend(path.bias.map(|weight| Op::Bias {
            buffer: Buffer::AheadLogits,
            weight,
        }));
        self.ops.push(Op::LookAhead { router });
    }

    fn router_path(&self, router: usize) -> Option<RouterPath> {
        let route = |op: &Op| *op == Op::Route { router };
        let before = &self.ops[..self.ops.iter().position(route)?];
        let bias = match before.last()? {
            Op::Bias {
                buffer: Buffer::RouterLogits,
                weight,
            } => Some(*weight),
            _ => None,
        };
        let (linear, norms) = before[..before.len() - usize::from(bias.is_some())].split_last()?;
        let Op::Linear {
            matrix,
            input,
            output: Buffer::RouterLogits,
        } = *linear
        else {
            return None;
        };
        let norm = norms.iter().rev().find_map(|op| match *op {
            Op::Norm {
                input: from,
                output,
                weight,
            } if output == input => Some((from, weight)),
            _ => None,
        });
        let (from, norm) = norm?;
        (from == Buffer::Residual).then_some(RouterPath { norm, matrix, bias })
    }
}

impl Op {
    /// The index of the operation's matrix.
    fn matrix_mut(&mut self) -> Option<&mut usize> {
        match self {
            Op::Linear { matrix, .. } | Op::LinearHeads { matrix, .. } => Some(matrix),
            _ => None,
        }
    }
}
