//! The runner: one forward pass at a time, step by step, over whatever slots bring.
//!
//! Between steps it awaits the next unit; a step itself runs to completion on the
//! unit's bytes and never waits. Nothing is read or computed after the future that
//! runs a pass has been left: the ring starts over instead.

use std::sync::Arc;
use std::time::{Duration, Instant};

use emel_loader::files::OpenFiles;
use emel_loader::gguf::Extent;
use emel_loader::plan::Plan;
use emel_loader::reader::{Backend, ReadError};
use emel_loader::trace::{Activity, Subject, Trace};
use emel_loader::weights::{Pass, ReadStatistics, Weights};
use emel_model::forward::{Batch, Forward};
use emel_model::routing_log::RoutingLog;
use emel_model::state::SequenceState;
use emel_model::steps::{Step, steps_of};

use crate::blueprint::Blueprint;
use crate::error::Error;
use crate::experts::demand::{ExpertDemand, ExpertStatistics};
use crate::experts::heat::Heat;
use crate::live_budget::LiveBudget;

/// A model ready to compute.
pub struct PassRunner {
    weights: Weights,
    files: Arc<OpenFiles>,
    forward: Forward,
    steps: Vec<Step>,
    experts: ExpertDemand,
    /// The first row of the token embedding; the others follow.
    embedding: Extent,
    live_budget: Option<LiveBudget>,
    compute: Duration,
    trace: Option<Arc<Trace>>,
}

/// Why a pass ended early.
#[derive(Debug)]
pub enum PassEnd {
    /// Nobody wants its result any more.
    Cancelled,
    /// A read failed.
    Failed(ReadError),
}

/// Gets how many steps of a pass are done, of how many.
pub(crate) type OnStep<'a> = dyn FnMut(usize, usize) + 'a;

/// What a pass is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Tokens that were given.
    Prefill,
    /// A token that was generated.
    Decode,
}

impl PassRunner {
    /// Brings a blueprint's pinned weights into memory through `backend`. `files` are
    /// those of the blueprint's catalog.
    ///
    /// # Errors
    /// When memory, threads or the reader are refused, or a read fails.
    pub async fn build(
        blueprint: &Blueprint,
        files: &Arc<OpenFiles>,
        backend: Backend,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self, Error> {
        let failed = |source| Error::Weights {
            path: blueprint.path.clone(),
            source,
        };
        let plan: &Plan = &blueprint.plan;
        // The reader's threads first: the calling thread is pinned with the pool, and
        // they would inherit its processor.
        let mut weights = Weights::open(files, plan, backend, progress)
            .await
            .map_err(failed)?;
        if let Some(trace) = &blueprint.trace {
            weights.record(Arc::clone(trace));
        }
        // What was loaded is what was planned for.
        files.check_unchanged().map_err(ReadError::from)?;
        let forward = Forward::new(
            &blueprint.program,
            &blueprint.catalog,
            files,
            blueprint.footprint(),
        )?;
        let table = &blueprint.catalog.tensors()[blueprint.program.embedding];
        Ok(Self {
            weights,
            files: Arc::clone(files),
            forward,
            steps: steps_of(&blueprint.program, &plan.units),
            experts: ExpertDemand::new(
                &blueprint.program,
                plan,
                blueprint.settings.prefetch,
                blueprint.settings.lossy,
            ),
            embedding: Extent {
                bytes: table.row_bytes(),
                ..table.extent
            },
            live_budget: None,
            compute: Duration::ZERO,
            trace: blueprint.trace.clone(),
        })
    }

    /// Has weights given back and taken again from now on, as memory allows.
    pub(crate) fn follow(&mut self, live_budget: LiveBudget) {
        self.live_budget = Some(live_budget);
    }

    /// The weights of this runner.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Looks what memory allows, between two passes.
    pub(crate) fn follow_budget(&mut self) {
        match self.live_budget.as_mut().and_then(LiveBudget::poll) {
            Some(bytes) => self.set_kept_bytes(bytes),
            None => self.weights.give_back_landed(),
        }
    }

    /// Lets weights take so many bytes of what the plan gives them from the next pass on, as
    /// [`Weights::set_kept_bytes`] says.
    pub fn set_kept_bytes(&mut self, bytes: u64) {
        self.weights.set_kept_bytes(bytes);
        self.experts.follow_slots(&self.weights);
    }

    /// Runs one pass over `batch`; `next` is the pass expected after it. The logits
    /// are then in [`PassRunner::logits`]. `is_cancelled` is asked before anything is
    /// begun, and before every step but those that are joined to the one before.
    ///
    /// # Errors
    /// When a read fails, the model's files have changed or the pass is cancelled; the
    /// runner is then ready for another.
    pub async fn pass(
        &mut self,
        batch: Batch<'_>,
        next: Pass,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<(), PassEnd> {
        self.prefill(batch, next, is_cancelled, &mut |_, _| {})
            .await
    }

    /// As [`PassRunner::pass`]; before every step, `on_step` gets how many steps are done, of how
    /// many.
    ///
    /// # Errors
    /// As [`PassRunner::pass`].
    pub(crate) async fn prefill(
        &mut self,
        batch: Batch<'_>,
        next: Pass,
        is_cancelled: &dyn Fn() -> bool,
        on_step: &mut OnStep<'_>,
    ) -> Result<(), PassEnd> {
        self.pass_of(Phase::Prefill, batch, next, is_cancelled, on_step)
            .await
    }

    /// As [`PassRunner::pass`], of one token that has been generated: the next one is expected
    /// to follow, and lossy routing, if it is on, may change where the token goes.
    ///
    /// # Errors
    /// As [`PassRunner::pass`].
    pub async fn decode(
        &mut self,
        batch: Batch<'_>,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<(), PassEnd> {
        let on_step = &mut |_, _| {};
        self.pass_of(Phase::Decode, batch, Pass::Full, is_cancelled, on_step)
            .await
    }

    async fn pass_of(
        &mut self,
        phase: Phase,
        batch: Batch<'_>,
        next: Pass,
        is_cancelled: &dyn Fn() -> bool,
        on_step: &mut OnStep<'_>,
    ) -> Result<(), PassEnd> {
        if is_cancelled() {
            return Err(PassEnd::Cancelled);
        }
        self.follow_budget();
        let started = Instant::now();
        self.check_files()?;
        let mut outcome = self.run(phase, batch, next, is_cancelled, on_step).await;
        if outcome.is_ok() {
            // All that was read until now was the model that was planned for.
            outcome = self.check_files();
        }
        let length = outcome.is_ok().then(|| started.elapsed());
        self.experts.end_pass(length);
        if outcome.is_err() {
            self.weights.restart();
            self.forward.state_mut().abandon();
        }
        if let Some(trace) = &self.trace {
            let tokens = batch.tokens.len();
            let length = started.elapsed();
            trace.record(Activity::Pass { tokens }, Subject::Nothing, started, length);
        }
        outcome
    }

    /// The logits of the `index`th token of the last batch whose logits were wanted.
    pub fn logits(&self, index: usize) -> &[f32] {
        self.forward.logits(index)
    }

    /// The routing of the last pass, if the program logs it.
    pub fn routing_log(&self) -> Option<&RoutingLog> {
        self.forward.routing_log()
    }

    /// What the sequence so far has left behind.
    pub fn state(&self) -> &SequenceState {
        self.forward.state()
    }

    /// The same, to go back in it or to replace it.
    pub fn state_mut(&mut self) -> &mut SequenceState {
        self.forward.state_mut()
    }

    /// What reading has cost so far.
    pub fn read_statistics(&self) -> ReadStatistics {
        self.weights.statistics()
    }

    /// Time spent computing so far.
    pub fn compute(&self) -> Duration {
        self.compute
    }

    /// What the experts have cost so far.
    pub fn expert_statistics(&self) -> ExpertStatistics {
        self.experts.statistics()
    }

    /// Begins with what an earlier run has learnt about the experts.
    pub(crate) fn warm(&mut self, heat: Heat) {
        self.experts.warm(heat);
    }

    /// What was learnt about the experts, if that is worth keeping.
    pub(crate) fn learnt(&self) -> Option<Heat> {
        self.experts.learnt()
    }

    /// Reads experts that may be needed while nobody asks for anything. Never ends; may be
    /// dropped at any time.
    pub(crate) async fn read_ahead(&mut self) {
        self.experts.read_ahead_idle(&mut self.weights).await;
    }

    /// The kernels' instruction set.
    pub fn kernels_name(&self) -> &'static str {
        self.forward.kernels_name()
    }

    /// Whether the kernel knows the ring's buffers beforehand.
    pub fn has_registered_buffers(&self) -> bool {
        self.weights.has_registered_buffers()
    }

    fn check_files(&self) -> Result<(), PassEnd> {
        let unchanged = self.files.check_unchanged();
        unchanged.map_err(|change| PassEnd::Failed(change.into()))
    }

    async fn run(
        &mut self,
        phase: Phase,
        batch: Batch<'_>,
        next: Pass,
        is_cancelled: &dyn Fn() -> bool,
        on_step: &mut OnStep<'_>,
    ) -> Result<(), PassEnd> {
        let Self {
            weights,
            forward,
            steps,
            experts,
            embedding,
            compute,
            trace,
            ..
        } = self;
        let mut computed = |subject: Subject, started: Instant| {
            let length = started.elapsed();
            *compute += length;
            if let Some(trace) = trace {
                trace.record(Activity::Compute, subject, started, length);
            }
        };
        let with_head = batch.logit_tokens > 0;
        let pass = if with_head { Pass::Full } else { Pass::Body };
        weights.begin_pass(pass, next);
        experts.begin_pass(batch.tokens.len());
        let started = Instant::now();
        forward.begin(batch);
        computed(Subject::Nothing, started);
        let rows = batch.tokens.iter().map(|&token| Extent {
            offset: embedding.offset + u64::from(token) * embedding.bytes,
            ..*embedding
        });
        weights
            .with_rows(rows, |index, bytes| {
                let started = Instant::now();
                forward.embed(index, bytes);
                computed(Subject::Embedding, started);
            })
            .await
            .map_err(PassEnd::Failed)?;

        let mut rest = steps.as_slice();
        while let Some(step) = rest.first().filter(|step| with_head || !step.is_head) {
            if is_cancelled() {
                return Err(PassEnd::Cancelled);
            }
            on_step(steps.len() - rest.len(), steps.len());
            if let Some(group) = step.experts {
                let outcome = experts.run(group, weights, forward, &mut computed).await;
                outcome.map_err(PassEnd::Failed)?;
                rest = &rest[1..];
                continue;
            }
            let count = run_joined(rest, weights, forward, &mut computed)
                .await
                .map_err(PassEnd::Failed)?;
            let (done, later) = rest.split_at(count);
            rest = later;
            match done.last().and_then(|step| step.chooses) {
                Some(group) => {
                    if phase == Phase::Decode {
                        experts.relax(group, weights, forward);
                    }
                    experts.begin(group, weights, forward, &mut computed);
                }
                None => experts.read_ahead(weights).map_err(PassEnd::Failed)?,
            }
        }
        forward.finish();
        Ok(())
    }
}

/// Runs the first step, and those joined to it if the units of all are in memory to stay. Returns how
/// many it were.
async fn run_joined(
    steps: &[Step],
    weights: &mut Weights,
    forward: &mut Forward,
    computed: &mut impl FnMut(Subject, Instant),
) -> Result<usize, ReadError> {
    let step = &steps[0];
    let joined = &steps[..step.joined];
    let bytes = |step: &Step| step.unit.and_then(|unit| weights.pinned_unit(unit));
    if joined.len() > 1 && joined.iter().all(|step| bytes(step).is_some()) {
        let started = Instant::now();
        let together = joined.iter().map(|step| step.work.as_slice());
        forward.run_together(together.zip(joined.iter().filter_map(bytes)));
        let unit = |step: Option<&Step>| step.and_then(|it| it.unit).unwrap_or_default() as u32;
        let (first, last) = (unit(joined.first()), unit(joined.last()));
        computed(Subject::Units { first, last }, started);
        return Ok(joined.len());
    }
    let subject = step.unit.map_or(Subject::Nothing, Subject::Unit);
    let mut run = |bytes: &[u8]| {
        let started = Instant::now();
        forward.run(&step.work, bytes);
        computed(subject, started);
    };
    match step.unit {
        Some(unit) => weights.with_unit(unit, run).await?,
        None => run(&[]),
    }
    Ok(1)
}
