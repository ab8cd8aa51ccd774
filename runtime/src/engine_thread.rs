//! What the engine's thread does: takes requests in turn and runs their passes.

use std::future::{Future, poll_fn};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use emel_loader::trace::{Activity, Subject, Trace};
use emel_loader::weights::Pass;
use emel_model::forward::Batch;
use emel_model::kv_cache::KvType;
use emel_model::sampler::{Breakers, Sampler, SamplerOptions, Stage};
use emel_model::tokenizer::{DecodeOptions, Detokenizer, Tokenizer};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::blueprint::Blueprint;
use crate::error::Error;
use crate::experts::heat_file::HeatFile;
use crate::job::{Evaluation, Generation, Job, SessionTask, Tracing};
use crate::live_budget::POLL_INTERVAL;
use crate::meter::{self, Counts, FixedUsage, Meter, Metered};
use crate::pass_runner::{PassEnd, PassRunner};
use crate::session::{Identity, SessionError, SessionKind};
use crate::stream::{Dropped, Event, EventSender, Token};
use crate::usage::Usage;

/// Between two reports of a prompt's progress within a pass.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

pub(crate) struct EngineThread {
    pub(crate) runner: PassRunner,
    /// Time spent choosing tokens so far.
    sampling: Duration,
    trace: Option<Arc<Trace>>,
    tokenizer: Arc<Tokenizer>,
    context: usize,
    chunk: usize,
    logit_tokens: usize,
    vocabulary: usize,
    sampler_bytes: usize,
    /// The breakers of the last request that had some, and their texts.
    last_breakers: Option<(Vec<String>, Arc<Breakers>)>,
    kv_type: KvType,
    long_factors: Option<(usize, bool)>,
    is_lossy: bool,
    identity: Identity,
    fixed: FixedUsage,
    /// Where what was learnt is kept in the end, if it is.
    heat: Option<HeatFile>,
}

/// How a generation ended early.
enum Interruption {
    Cancelled,
    Failed(Error),
}

impl From<Error> for Interruption {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<Dropped> for Interruption {
    fn from(_: Dropped) -> Self {
        Self::Cancelled
    }
}

impl From<PassEnd> for Interruption {
    fn from(end: PassEnd) -> Self {
        match end {
            PassEnd::Cancelled => Self::Cancelled,
            PassEnd::Failed(error) => Self::Failed(error.into()),
        }
    }
}

impl EngineThread {
    /// That of a blueprint, with a runner that has been built from it. What was learnt is kept
    /// in `heat` in the end, if it is.
    pub(crate) fn new(
        blueprint: &Blueprint,
        runner: PassRunner,
        identity: Identity,
        fixed: FixedUsage,
        heat: Option<HeatFile>,
    ) -> Self {
        Self {
            runner,
            sampling: Duration::ZERO,
            trace: blueprint.trace.clone(),
            tokenizer: Arc::clone(&blueprint.tokenizer),
            context: blueprint.context,
            chunk: blueprint.chunk,
            logit_tokens: blueprint.logit_tokens,
            vocabulary: blueprint.program.vocabulary(),
            sampler_bytes: blueprint.sampler_bytes,
            last_breakers: None,
            kv_type: blueprint.settings.kv_type,
            long_factors: blueprint.long_factors(),
            is_lossy: blueprint.settings.lossy.is_on(),
            identity,
            fixed,
            heat,
        }
    }

    /// Serves jobs until none can come.
    pub(crate) async fn serve(mut self, mut jobs: mpsc::Receiver<Job>) {
        loop {
            let received = timeout(POLL_INTERVAL, self.next_job(&mut jobs)).await;
            // A limit may change while nobody asks for anything.
            self.runner.follow_budget();
            let Ok(received) = received else { continue };
            let Some(job) = received else {
                return self.keep_heat();
            };
            match job {
                Job::Generate(generation) => self.answer(generation).await,
                Job::Evaluate(evaluation) => self.evaluate(evaluation).await,
                Job::Trace(tracing) => self.trace(tracing).await,
                Job::Session(job) => {
                    let outcome = self
                        .session(&job.path, job.task)
                        .map_err(|source| Error::session(&job.path, source));
                    let _ = job.finished.send(outcome);
                }
            }
        }
    }

    /// The next job; what may be needed for it is read meanwhile.
    async fn next_job(&mut self, jobs: &mut mpsc::Receiver<Job>) -> Option<Job> {
        let mut receiving = pin!(jobs.recv());
        let mut reading = pin!(self.runner.read_ahead());
        poll_fn(|context| {
            let received = receiving.as_mut().poll(context);
            if received.is_pending() {
                let _ = reading.as_mut().poll(context);
            }
            received
        })
        .await
    }

    /// Keeps what was learnt for another run.
    fn keep_heat(&mut self) {
        if let Some(heat) = &self.heat
            && let Some(learnt) = self.runner.learnt()
        {
            heat.save(&learnt, self.identity.get());
        }
    }

    fn session(&mut self, path: &Path, task: SessionTask) -> Result<usize, SessionError> {
        let kind = SessionKind {
            identity: self.identity.get()?,
            kv_type: self.kv_type,
            long_factors: self.long_factors,
            is_lossy: self.is_lossy,
        };
        match task {
            SessionTask::Save(attachment) => kind.save(path, self.runner.state(), &attachment),
            SessionTask::Restore => kind.restore(path, self.runner.state_mut(), self.vocabulary),
        }
    }

    async fn answer(&mut self, generation: Generation) {
        let events = generation.events.clone();
        let last = match self.generate(generation).await {
            Ok(usage) => Event::Finished(Box::new(usage)),
            Err(Interruption::Failed(error)) => Event::Failed(error),
            Err(Interruption::Cancelled) => return,
        };
        // A receiver that has gone has cancelled, which is not an error.
        let _ = events.send(last).await;
    }

    async fn generate(&mut self, generation: Generation) -> Result<Usage, Interruption> {
        let Generation {
            ids,
            max_tokens,
            sampler,
            ignore_eos,
            events,
        } = generation;
        let seed = sampler.seed;
        let mut sampler = self.sampler(sampler)?;
        let meter = Meter::start(self.metered());
        let is_cancelled = || events.is_cancelled();
        let resumed = self.runner.state_mut().resume(&ids);
        events.resumed(resumed);
        let computed = self.prefill(&ids, resumed, &events).await?;
        let prefill = meter.started.elapsed();

        self.timed(|_| ids.iter().for_each(|&id| sampler.accept(id)));
        let mut detokenizer = Detokenizer::new(&self.tokenizer, DecodeOptions::default());
        let room = (self.context - ids.len()).saturating_add(1);
        let limit = max_tokens.min(room);
        let mut decode = meter.clone();
        let mut generated = 0;
        let mut passes = 0;
        // The logits are there once the whole prompt has been computed.
        while computed == ids.len() && generated < limit && !events.stops() {
            let id = self.timed(|runner| {
                let id = sampler.sample(runner.logits(0));
                sampler.accept(id);
                id
            });
            if !ignore_eos && self.tokenizer.is_end_of_generation(id) {
                break;
            }
            generated += 1;
            if generated == 1 {
                decode = Meter::start(self.metered());
            }
            let text = detokenizer.push(&self.tokenizer, id).into();
            events.send(Event::Token(Token { id, text })).await?;
            if generated < limit {
                let position = ids.len() + generated - 1;
                let batch = Batch {
                    tokens: &[id],
                    position,
                    logit_tokens: 1,
                };
                self.runner.decode(batch, &is_cancelled).await?;
                passes += 1;
            }
        }
        let counts = Counts {
            seed,
            prompt: computed,
            resumed,
            generated,
            passes,
        };
        Ok(meter::usage(
            self.metered(),
            &meter,
            prefill,
            &decode,
            counts,
        ))
    }

    fn metered(&self) -> Metered<'_> {
        Metered {
            runner: &self.runner,
            fixed: &self.fixed,
            sampling: self.sampling,
        }
    }

    /// The breakers of the options; those of the last request, if it named the same.
    fn breakers(&mut self, options: &SamplerOptions) -> Arc<Breakers> {
        if !options.is_active(Stage::Dry) {
            // What is not used is not kept: it is planned for one sampler.
            self.last_breakers = None;
            return Arc::default();
        }
        let texts = &options.dry_sequence_breakers;
        if let Some((_, breakers)) = self.last_breakers.as_ref().filter(|last| last.0 == *texts) {
            return Arc::clone(breakers);
        }
        self.last_breakers = None;
        let breakers = Arc::new(Breakers::new(options, &self.tokenizer));
        self.last_breakers = Some((texts.clone(), Arc::clone(&breakers)));
        breakers
    }

    /// Runs the sampler and notes the time that it takes.
    fn timed<R>(&mut self, sample: impl FnOnce(&PassRunner) -> R) -> R {
        let started = Instant::now();
        let result = sample(&self.runner);
        let length = started.elapsed();
        self.sampling += length;
        if let Some(trace) = &self.trace {
            trace.record(Activity::Sample, Subject::Nothing, started, length);
        }
        result
    }

    /// A sampler for a request, within what was planned for it.
    fn sampler(&mut self, options: SamplerOptions) -> Result<Sampler, Error> {
        let breakers = self.breakers(&options);
        // The last token of an answer has no place in the context.
        let tokens_max = self.context.saturating_add(1);
        let needed_bytes =
            Sampler::required_bytes(&options, self.vocabulary, tokens_max, &breakers);
        let planned_bytes = self.sampler_bytes;
        if needed_bytes > planned_bytes {
            return Err(Error::SamplerTooLarge {
                needed_bytes,
                planned_bytes,
            });
        }
        Ok(Sampler::new(
            options,
            self.vocabulary,
            tokens_max,
            breakers,
        )?)
    }

    /// Runs the prompt from `position` on through the model, chunk by chunk; the logits
    /// of its last token are then there. Returns how many of its tokens have been computed,
    /// which are all unless the request is to stop.
    async fn prefill(
        &mut self,
        ids: &[u32],
        mut position: usize,
        events: &EventSender,
    ) -> Result<usize, PassEnd> {
        let is_cancelled = || events.is_cancelled();
        for tokens in ids[position..].chunks(self.chunk) {
            if events.stops() {
                break;
            }
            let left = ids.len() - position - tokens.len();
            let batch = Batch {
                tokens,
                position,
                logit_tokens: usize::from(left == 0),
            };
            let next = if left > self.chunk {
                Pass::Body
            } else {
                Pass::Full
            };
            let mut reported = Instant::now();
            let on_step = &mut |steps: usize, of_steps: usize| {
                if reported.elapsed() >= PROGRESS_INTERVAL {
                    events.computed(position + tokens.len() * steps / of_steps);
                    reported = Instant::now();
                }
            };
            self.runner
                .prefill(batch, next, &is_cancelled, on_step)
                .await?;
            position += tokens.len();
            events.computed(position);
        }
        Ok(position)
    }

    async fn evaluate(&mut self, evaluation: Evaluation) {
        let Evaluation {
            ids,
            mut on_logits,
            finished,
        } = evaluation;
        // Every position's logits are wanted, so all are computed.
        self.runner.state_mut().clear();
        let mut position = 0;
        let mut outcome = Ok(());
        // An engine that was not opened for it keeps one row of logits: slow, but right.
        for tokens in ids.chunks(self.chunk.min(self.logit_tokens)) {
            let batch = Batch {
                tokens,
                position,
                logit_tokens: tokens.len(),
            };
            let is_cancelled = || finished.is_closed();
            if let Err(end) = self.runner.pass(batch, Pass::Full, &is_cancelled).await {
                outcome = Err(match end {
                    PassEnd::Failed(error) => error.into(),
                    PassEnd::Cancelled => Error::Stopped,
                });
                break;
            }
            for index in 0..tokens.len() {
                on_logits(position + index, self.runner.logits(index));
            }
            position += tokens.len();
        }
        // The caller's own state ends before it is told.
        drop(on_logits);
        let _ = finished.send(outcome);
    }

    async fn trace(&mut self, tracing: Tracing) {
        let Tracing {
            ids,
            mut on_routing,
            finished,
        } = tracing;
        self.runner.state_mut().clear();
        let mut position = 0;
        let mut outcome = Ok(());
        for tokens in ids.chunks(self.chunk) {
            let batch = Batch {
                tokens,
                position,
                logit_tokens: 0,
            };
            let is_cancelled = || finished.is_closed();
            if let Err(end) = self.runner.pass(batch, Pass::Body, &is_cancelled).await {
                outcome = Err(match end {
                    PassEnd::Failed(error) => error.into(),
                    PassEnd::Cancelled => Error::Stopped,
                });
                break;
            }
            if let Some(log) = self.runner.routing_log() {
                on_routing(position, tokens.len(), log);
            }
            position += tokens.len();
        }
        drop(on_routing);
        let _ = finished.send(outcome);
    }
}
