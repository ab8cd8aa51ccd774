//! The engine's thread: takes requests in turn and runs their passes.

use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use emel_loader::files::OpenFiles;
use emel_loader::plan::ExpertSlotsPlan;
use emel_loader::reader::Backend;
use emel_loader::trace::{Activity, Trace};
use emel_loader::weights::{Pass, WeightsError};
use emel_model::forward::Batch;
use emel_model::kv_cache::KvType;
use emel_model::routing_log::RoutingLog;
use emel_model::sampler::{Breakers, Sampler, SamplerOptions, Stage};
use emel_model::tokenizer::{DecodeOptions, Detokenizer, Tokenizer};
use emel_systemd::{Cgroup, Memory, MemoryWatch};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::blueprint::{Blueprint, Io};
use crate::budget::RamBudget;
use crate::engine::Description;
use crate::error::Error;
use crate::experts::demand::ExpertStatistics;
use crate::generator::{Generator, PassEnd};
use crate::live_budget::{LiveBudget, POLL_INTERVAL};
use crate::session::{Identity, SessionError, SessionKind};
use crate::stream::{Event, Token};
use crate::usage::{ExpertUsage, Spent, Usage, milliseconds, rate};

/// Something for the engine's thread to do.
pub(crate) enum Job {
    Generate(Generation),
    Evaluate(Evaluation),
    Trace(Tracing),
    Session(SessionJob),
}

/// A checked request: `ids` is not empty, fits the context and the vocabulary.
pub(crate) struct Generation {
    pub(crate) ids: Vec<u32>,
    pub(crate) max_tokens: usize,
    pub(crate) sampler: SamplerOptions,
    pub(crate) ignore_eos: bool,
    pub(crate) events: mpsc::Sender<Event>,
}

/// Takes a position and its row of logits.
pub(crate) type OnLogits = Box<dyn FnMut(usize, &[f32]) + Send>;

/// A checked evaluation.
pub(crate) struct Evaluation {
    pub(crate) ids: Vec<u32>,
    pub(crate) on_logits: OnLogits,
    pub(crate) finished: oneshot::Sender<Result<(), Error>>,
}

/// Takes the position of a pass's first token, how many tokens it had, and their routing.
pub(crate) type OnRouting = Box<dyn FnMut(usize, usize, &RoutingLog) + Send>;

/// Checked ids whose routing is wanted.
pub(crate) struct Tracing {
    pub(crate) ids: Vec<u32>,
    pub(crate) on_routing: OnRouting,
    pub(crate) finished: oneshot::Sender<Result<(), Error>>,
}

/// What to do with a session file.
pub(crate) enum SessionTask {
    Save,
    Restore,
}

/// A session to save or restore.
pub(crate) struct SessionJob {
    pub(crate) path: PathBuf,
    pub(crate) task: SessionTask,
    pub(crate) finished: oneshot::Sender<Result<usize, Error>>,
}

/// Builds the engine, says so through `started`, and serves jobs until none can come.
pub(crate) fn run(
    mut blueprint: Blueprint,
    progress: impl FnMut(u64, u64),
    mut started: oneshot::Sender<Result<Description, Error>>,
    jobs: mpsc::Receiver<Job>,
) {
    // Only a thread to park and wake, by a clock too: the reader has a runtime of its own.
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            let message = error.to_string();
            let _ = started.send(Err(Error::Thread { message }));
            return;
        }
    };
    runtime.block_on(async {
        let mut building = pin!(build(&mut blueprint, progress));
        let built = poll_fn(|context| {
            // Nobody waits for the engine any more.
            if started.poll_closed(context).is_ready() {
                return Poll::Ready(Err(Error::Stopped));
            }
            building.as_mut().poll(context)
        });
        match built.await {
            Err(error) => drop(started.send(Err(error))),
            Ok((scheduler, description)) => {
                if started.send(Ok(description)).is_ok() {
                    scheduler.serve(jobs).await;
                }
            }
        }
    });
}

async fn build(
    blueprint: &mut Blueprint,
    mut progress: impl FnMut(u64, u64),
) -> Result<(Scheduler, Description), Error> {
    let total = blueprint.plan.pinned_bytes();
    let mut on_bytes = |bytes| progress(bytes, total);
    let mut notices = std::mem::take(&mut blueprint.notices);
    let candidates = candidates(blueprint);
    blueprint.check_memory()?;
    let with_buffers = candidates[0].needs_buffers();
    let mut files = OpenFiles::open_model(blueprint.catalog.files(), with_buffers)?;
    if let Some(faults) = blueprint.faults.take() {
        files = files.with_faults(faults);
    }
    let files = Arc::new(files);
    let Loaded {
        mut generator,
        backend,
        io_reason,
        fallback,
    } = load(blueprint, &files, candidates, &mut on_bytes).await?;
    notices.extend(fallback);
    generator.follow(LiveBudget::new(
        &blueprint.plan,
        MemoryWatch::own(),
        blueprint.settings.ram_budget == RamBudget::Automatic,
        std::mem::take(&mut blueprint.listener),
    ));
    if backend.needs_buffers() && !files.all_direct() {
        notices.push(
            "the filesystem refuses O_DIRECT; reads go through the page cache and are dropped from it"
                .to_owned(),
        );
    }
    let tokenizer = Arc::clone(&blueprint.tokenizer);
    let description = Description {
        tokenizer: Arc::clone(&tokenizer),
        #[cfg(feature = "chat")]
        chat_templates: blueprint.chat_templates.clone(),
        context: blueprint.context,
        vocabulary: blueprint.program.vocabulary(),
        text_limit: blueprint.text_limit(),
        backend,
        notices,
    };
    let scheduler = Scheduler {
        tokenizer,
        context: blueprint.context,
        chunk: blueprint.chunk,
        logit_tokens: blueprint.logit_tokens,
        vocabulary: blueprint.program.vocabulary(),
        sampler_bytes: blueprint.sampler_bytes,
        last_breakers: None,
        kv_type: blueprint.settings.kv_type,
        long_factors: blueprint.long_factors(),
        fixed: FixedUsage::new(blueprint, (backend, io_reason), &files, &generator),
        identity: Identity::new(
            &blueprint.catalog,
            blueprint.tokenizer.vocabulary_size(),
            files,
        )
        .known(blueprint.identity.get().copied()),
        generator,
        sampling: Duration::ZERO,
        trace: blueprint.trace.clone(),
    };
    Ok((scheduler, description))
}

/// A generator and its reader.
struct Loaded {
    generator: Generator,
    backend: Backend,
    io_reason: String,
    /// What the system said to a faster reader, and what to do about it.
    fallback: Option<String>,
}

/// Loads through the first of `candidates` that the system does not refuse.
async fn load(
    blueprint: &Blueprint,
    files: &Arc<OpenFiles>,
    candidates: &[Backend],
    on_bytes: &mut impl FnMut(u64),
) -> Result<Loaded, Error> {
    let mut refused = Vec::new();
    let (built, backend) = loop {
        let backend = candidates[refused.len()];
        match Generator::build(blueprint, files, backend, on_bytes).await {
            Err(Error::Weights {
                source: WeightsError::Reader { source, .. },
                ..
            }) if refused.len() + 1 < candidates.len() => refused.push(source),
            built => break (built, backend),
        }
    };
    let refusal = refused.last().map(ToString::to_string);
    let io_reason = blueprint.settings.io.reason(backend, refusal.as_deref());
    let fallback = refused.last().map(|error| {
        let name = backend.name();
        let remedy = candidates[refused.len() - 1].remedy(error);
        format!("reading with {name}, because {io_reason}: {remedy}")
    });
    match (built, fallback) {
        (Ok(generator), fallback) => Ok(Loaded {
            generator,
            backend,
            io_reason,
            fallback,
        }),
        (Err(source), Some(notice)) => Err(Error::Fallback {
            source: Box::new(source),
            notice,
        }),
        (Err(source), None) => Err(source),
    }
}

/// The readers to try, in turn.
fn candidates(blueprint: &Blueprint) -> &'static [Backend] {
    match blueprint.settings.io {
        Io::Only(Backend::Ring) => &[Backend::Ring],
        Io::Only(Backend::Uring) => &[Backend::Uring],
        Io::Only(Backend::Pread) => &[Backend::Pread],
        Io::Only(Backend::Mmap) => &[Backend::Mmap],
        Io::Auto if blueprint.plan.is_mapped => &[Backend::Mmap],
        Io::Auto => &Backend::FASTEST_FIRST,
    }
}

/// What is the same in every request's usage.
struct FixedUsage {
    pinned_bytes: u64,
    ring_bytes: u64,
    slot_bytes: u64,
    expert_slots: Option<ExpertSlotsPlan>,
    kv_bytes: u64,
    budget_bytes: u64,
    planned_bytes: u64,
    io_backend: &'static str,
    io_reason: String,
    direct_io: bool,
    registered_buffers: bool,
    threads: usize,
    kernels: &'static str,
}

impl FixedUsage {
    fn new(
        blueprint: &Blueprint,
        (backend, io_reason): (Backend, String),
        files: &OpenFiles,
        generator: &Generator,
    ) -> Self {
        let plan = &blueprint.plan;
        Self {
            pinned_bytes: plan.pinned_bytes(),
            ring_bytes: plan.ring_bytes(),
            slot_bytes: plan.slot_bytes as u64,
            expert_slots: plan.expert_slots.clone(),
            kv_bytes: blueprint.kv_bytes(),
            budget_bytes: plan.budget_bytes,
            planned_bytes: plan.total_bytes(),
            io_backend: backend.name(),
            io_reason,
            direct_io: backend.needs_buffers() && files.all_direct(),
            registered_buffers: generator.has_registered_buffers(),
            threads: blueprint.settings.threads,
            kernels: generator.kernels_name(),
        }
    }
}

struct Scheduler {
    generator: Generator,
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
    identity: Identity,
    fixed: FixedUsage,
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

impl From<PassEnd> for Interruption {
    fn from(end: PassEnd) -> Self {
        match end {
            PassEnd::Cancelled => Self::Cancelled,
            PassEnd::Failed(error) => Self::Failed(error.into()),
        }
    }
}

impl Scheduler {
    async fn serve(mut self, mut jobs: mpsc::Receiver<Job>) {
        loop {
            let received = timeout(POLL_INTERVAL, jobs.recv()).await;
            // A limit may change while nobody asks for anything.
            self.generator.follow_budget();
            let Ok(received) = received else { continue };
            let Some(job) = received else { return };
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

    fn session(&mut self, path: &Path, task: SessionTask) -> Result<usize, SessionError> {
        let kind = SessionKind::new(self.identity.get()?, self.kv_type, self.long_factors);
        match task {
            SessionTask::Save => kind.save(path, self.generator.state()),
            SessionTask::Restore => kind.restore(path, self.generator.state_mut(), self.vocabulary),
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
        let meter = Meter::start(self);
        let is_cancelled = || events.is_closed();
        let resumed = self.generator.state_mut().resume(&ids);
        self.prefill(&ids, resumed, &is_cancelled).await?;
        let prefill = meter.started.elapsed();

        self.timed(|_| ids.iter().for_each(|&id| sampler.accept(id)));
        let mut detokenizer = Detokenizer::new(&self.tokenizer, DecodeOptions::default());
        let room = (self.context - ids.len()).saturating_add(1);
        let limit = max_tokens.min(room);
        let mut decode = meter.clone();
        let mut generated = 0;
        let mut passes = 0;
        while generated < limit {
            let id = self.timed(|generator| {
                let id = sampler.sample(generator.logits(0));
                sampler.accept(id);
                id
            });
            if !ignore_eos && self.tokenizer.is_end_of_generation(id) {
                break;
            }
            generated += 1;
            if generated == 1 {
                decode = Meter::start(self);
            }
            let text = detokenizer.push(&self.tokenizer, id).into();
            send(&events, Token { id, text }).await?;
            if generated < limit {
                let position = ids.len() + generated - 1;
                let batch = Batch {
                    tokens: &[id],
                    position,
                    logit_tokens: 1,
                };
                self.generator
                    .pass(batch, Pass::Full, &is_cancelled)
                    .await?;
                passes += 1;
            }
        }
        let counts = Counts {
            seed,
            prompt: ids.len(),
            resumed,
            generated,
            passes,
        };
        Ok(self.usage(&meter, prefill, &decode, counts))
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
    fn timed<R>(&mut self, sample: impl FnOnce(&Generator) -> R) -> R {
        let started = Instant::now();
        let result = sample(&self.generator);
        let length = started.elapsed();
        self.sampling += length;
        if let Some(trace) = &self.trace {
            trace.record(Activity::Sample, None, started, length);
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
    /// of its last token are then there.
    async fn prefill(
        &mut self,
        ids: &[u32],
        mut position: usize,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<(), PassEnd> {
        for tokens in ids[position..].chunks(self.chunk) {
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
            self.generator.pass(batch, next, is_cancelled).await?;
            position += tokens.len();
        }
        Ok(())
    }

    async fn evaluate(&mut self, evaluation: Evaluation) {
        let Evaluation {
            ids,
            mut on_logits,
            finished,
        } = evaluation;
        // Every position's logits are wanted, so all are computed.
        self.generator.state_mut().clear();
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
            if let Err(end) = self.generator.pass(batch, Pass::Full, &is_cancelled).await {
                outcome = Err(match end {
                    PassEnd::Failed(error) => error.into(),
                    PassEnd::Cancelled => Error::Stopped,
                });
                break;
            }
            for index in 0..tokens.len() {
                on_logits(position + index, self.generator.logits(index));
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
        self.generator.state_mut().clear();
        let mut position = 0;
        let mut outcome = Ok(());
        for tokens in ids.chunks(self.chunk) {
            let batch = Batch {
                tokens,
                position,
                logit_tokens: 0,
            };
            let is_cancelled = || finished.is_closed();
            if let Err(end) = self.generator.pass(batch, Pass::Body, &is_cancelled).await {
                outcome = Err(match end {
                    PassEnd::Failed(error) => error.into(),
                    PassEnd::Cancelled => Error::Stopped,
                });
                break;
            }
            if let Some(log) = self.generator.routing_log() {
                on_routing(position, tokens.len(), log);
            }
            position += tokens.len();
        }
        drop(on_routing);
        let _ = finished.send(outcome);
    }

    fn usage(&self, meter: &Meter, prefill: Duration, decode: &Meter, counts: Counts) -> Usage {
        let total = meter.read(self);
        let after_first = decode.read(self);
        let first_token = decode.started - meter.started;
        let decode_seconds = after_first.time.as_secs_f64();
        let fixed = &self.fixed;
        Usage {
            seed: counts.seed,
            prompt_tokens: counts.prompt,
            resumed_tokens: counts.resumed,
            generated_tokens: counts.generated,
            prefill_tokens_per_second: rate(counts.prompt - counts.resumed, prefill),
            decode_tokens_per_second: rate(counts.passes, after_first.time),
            first_token_ms: milliseconds(first_token),
            bytes_read: total.bytes_read,
            retries: total.retries,
            streamed_bytes_per_token: after_first
                .bytes_read
                .checked_div(counts.passes as u64)
                .unwrap_or(0),
            pinned_bytes: self.generator.pinned_bytes(),
            given_back_bytes: fixed.pinned_bytes - self.generator.pinned_bytes(),
            ring_bytes: fixed.ring_bytes,
            slot_bytes: fixed.slot_bytes,
            experts: fixed.expert_slots.as_ref().map(|planned| ExpertUsage {
                slots: planned.slots,
                slot_bytes: planned.layout.slot_bytes as u64,
                of_experts: planned.layout.experts(),
                hits: after_first.experts.hits,
                misses: after_first.experts.misses,
                missed_bytes_per_token: (after_first.experts.missed_bytes)
                    .checked_div(counts.passes as u64)
                    .unwrap_or(0),
                wait_ms: milliseconds(total.experts.wait),
            }),
            kv_bytes: fixed.kv_bytes,
            budget_bytes: fixed.budget_bytes,
            planned_bytes: fixed.planned_bytes,
            spent: total.spent(),
            decode: after_first.spent(),
            decode_bytes_per_second: if decode_seconds > 0.0 {
                after_first.bytes_read as f64 / decode_seconds
            } else {
                0.0
            },
            major_faults: Memory::default().own_major_faults().unwrap_or(0),
            peak_memory_bytes: peak_memory_bytes(),
            io_backend: fixed.io_backend,
            io_reason: fixed.io_reason.clone(),
            direct_io: fixed.direct_io,
            registered_buffers: fixed.registered_buffers,
            threads: fixed.threads,
            kernels: fixed.kernels,
        }
    }
}

/// The seed and tokens of a request, and passes after its first token.
struct Counts {
    seed: u64,
    prompt: usize,
    resumed: usize,
    generated: usize,
    passes: usize,
}

async fn send(events: &mpsc::Sender<Event>, token: Token) -> Result<(), Interruption> {
    events
        .send(Event::Token(token))
        .await
        .map_err(|_| Interruption::Cancelled)
}

/// Costs since a moment.
#[derive(Clone)]
struct Meter {
    started: Instant,
    costs: Costs,
}

/// What has been spent so far.
#[derive(Clone)]
struct Costs {
    bytes_read: u64,
    retries: u64,
    wait: Duration,
    compute: Duration,
    sampling: Duration,
    experts: ExpertStatistics,
}

/// What a stretch of time was spent on.
struct Reading {
    time: Duration,
    bytes_read: u64,
    retries: u64,
    wait: Duration,
    compute: Duration,
    sampling: Duration,
    experts: ExpertStatistics,
}

impl Costs {
    fn so_far(scheduler: &Scheduler) -> Self {
        let reading = scheduler.generator.reading();
        Self {
            bytes_read: reading.bytes_read,
            retries: reading.retries,
            wait: reading.wait,
            compute: scheduler.generator.compute(),
            sampling: scheduler.sampling,
            experts: scheduler.generator.expert_statistics(),
        }
    }
}

impl Meter {
    fn start(scheduler: &Scheduler) -> Self {
        Self {
            started: Instant::now(),
            costs: Costs::so_far(scheduler),
        }
    }

    fn read(&self, scheduler: &Scheduler) -> Reading {
        let (before, now) = (&self.costs, Costs::so_far(scheduler));
        Reading {
            time: self.started.elapsed(),
            bytes_read: now.bytes_read - before.bytes_read,
            retries: now.retries - before.retries,
            wait: now.wait - before.wait,
            compute: now.compute - before.compute,
            sampling: now.sampling - before.sampling,
            experts: now.experts.since(&before.experts),
        }
    }
}

impl Reading {
    fn spent(&self) -> Spent {
        let known = self.wait + self.compute + self.sampling;
        Spent {
            total_ms: milliseconds(self.time),
            wait_ms: milliseconds(self.wait),
            compute_ms: milliseconds(self.compute),
            sampling_ms: milliseconds(self.sampling),
            other_ms: milliseconds(self.time.saturating_sub(known)),
        }
    }
}

/// The cgroup's peak if the process is alone in it, else the process's own; 0 if the
/// system tells neither.
fn peak_memory_bytes() -> u64 {
    let of_cgroup = || {
        let cgroup = Cgroup::own().ok()?;
        let is_alone = cgroup.only_process(std::process::id()).ok()?;
        cgroup.memory_peak().ok()?.filter(|_| is_alone)
    };
    let of_process = || Some(Memory::default().own().ok()?.resident_bytes_max);
    of_cgroup().or_else(of_process).unwrap_or(0)
}
