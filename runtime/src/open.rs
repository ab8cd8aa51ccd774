//! Opening: from a blueprint, which only decides, to an engine that serves. What is asked of the
//! system and of files beside the model before any weights are read is here, too.

use std::future::{Future, poll_fn};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use emel_loader::files::OpenFiles;
use emel_loader::reader::Backend;
use emel_loader::weights::WeightsError;
use emel_systemd::MemoryWatch;
use tokio::sync::{mpsc, oneshot};

use crate::blueprint::{Blueprint, Io};
use crate::budget::{RamBudget, available_bytes};
use crate::description::Description;
use crate::engine_thread::EngineThread;
use crate::error::Error;
use crate::experts::MixtureShape;
use crate::experts::heat::{self, Heat};
use crate::experts::heat_file::HeatFile;
use crate::job::Job;
use crate::live_budget::LiveBudget;
use crate::meter::FixedUsage;
use crate::notice::Notice;
use crate::pass_runner::PassRunner;
use crate::session::{Identity, SessionKind};

impl Blueprint {
    /// A budget may be more than the machine has; the plan is made for it all the same.
    /// Memory that the system would refuse later, where the process aborts, is asked
    /// for once and given back untouched. [`crate::Engine::start`] begins with it.
    ///
    /// # Errors
    /// When the system refuses it.
    pub fn check_memory(&self) -> Result<(), Error> {
        let plan = &self.plan;
        let mapped_bytes = if plan.is_mapped { plan.file_bytes } else { 0 };
        let planned_bytes = plan.total_bytes();
        let allocated = usize::try_from(planned_bytes - mapped_bytes).unwrap_or(usize::MAX);
        match Vec::<u8>::new().try_reserve_exact(allocated) {
            Ok(()) => Ok(()),
            Err(_) => Err(Error::Memory {
                path: self.path.clone(),
                planned_bytes,
                available_bytes: available_bytes().unwrap_or(u64::MAX),
            }),
        }
    }

    /// Checks, before any weights are read, that a session can be kept at `path`, and, if
    /// there is one, that it can be restored, as far as its beginning tells.
    ///
    /// # Errors
    /// When the folder takes no files, or the file is no session, or one of another model,
    /// KV type or version, or is longer than the context.
    pub fn check_session(&self, path: &Path) -> Result<(), Error> {
        let mut identity = self.identity_to_read()?;
        let mut check = || {
            let identity = identity.get()?;
            let identity = *self.identity.get_or_init(|| identity);
            let kind = SessionKind {
                identity,
                kv_type: self.settings.kv_type,
                long_factors: self.long_factors(),
                is_lossy: self.settings.lossy.is_on(),
            };
            kind.check(path, self.context)
        };
        check().map_err(|source| Error::session(path, source))
    }

    /// Tells the model from others: a hash of what its header says, and of samples of its
    /// weights.
    ///
    /// # Errors
    /// When its files cannot be read.
    pub fn identity(&self) -> Result<u64, Error> {
        Ok(self.identity_to_read()?.get()?)
    }

    fn identity_to_read(&self) -> Result<Identity, Error> {
        let paths = self.catalog.files().iter().map(|file| file.path.as_path());
        let files = Arc::new(OpenFiles::open(paths, false)?);
        let vocabulary = self.tokenizer.vocabulary_size();
        Ok(Identity::new(&self.catalog, vocabulary, files))
    }

    /// What earlier runs have learnt about the model's experts and left beside it.
    ///
    /// # Errors
    /// When it cannot be used, in words.
    pub fn learnt(&self) -> Result<Option<Heat>, String> {
        let path = heat::place(&self.path);
        if !path.exists() {
            return Ok(None);
        }
        let identity = self.identity().map_err(|error| error.to_string())?;
        let shape = MixtureShape::of(&self.program);
        Heat::load(&path, identity, shape).map_err(|error| error.to_string())
    }
}

/// Plans and builds the engine, says so through `started`, and serves jobs until none can come.
pub(crate) fn run(
    plan: impl FnOnce() -> Result<Blueprint, Error>,
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
            let _ = started.send(Err(Error::thread(&error)));
            return;
        }
    };
    let mut blueprint = match plan() {
        Ok(blueprint) => blueprint,
        Err(error) => {
            let _ = started.send(Err(error));
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
            Ok((thread, description)) => {
                if started.send(Ok(description)).is_ok() {
                    thread.serve(jobs).await;
                }
            }
        }
    });
}

async fn build(
    blueprint: &mut Blueprint,
    mut progress: impl FnMut(u64, u64),
) -> Result<(EngineThread, Description), Error> {
    let total = blueprint.plan.pinned_bytes();
    let mut on_bytes = |bytes| progress(bytes, total);
    let listener = std::mem::take(&mut blueprint.listener);
    let mut notices = std::mem::take(&mut blueprint.notices);
    // Before anything is loaded, which may fail for what they say.
    notices.iter().for_each(|notice| listener.tell(notice));
    let mut on_notice = |notice| {
        listener.tell(&notice);
        notices.push(notice);
    };
    let candidates = &candidates(blueprint);
    blueprint.check_memory()?;
    let with_buffers = candidates[0].needs_buffers();
    let mut files = OpenFiles::open_model(blueprint.catalog.files(), with_buffers)?;
    if let Some(faults) = blueprint.faults.take() {
        files = files.with_faults(faults);
    }
    let files = Arc::new(files);
    let Loaded {
        mut runner,
        backend,
        io_reason,
        fallback,
    } = load(blueprint, &files, candidates, &mut on_bytes).await?;
    fallback.into_iter().for_each(&mut on_notice);
    let heat = HeatFile::new(blueprint, &listener, &mut runner, &mut on_notice);
    if backend.needs_buffers() && !files.all_direct() {
        on_notice(Notice::NoDirectIo);
    }
    runner.follow(LiveBudget::new(
        &blueprint.plan,
        runner.weights(),
        MemoryWatch::own(),
        blueprint.settings.ram_budget == RamBudget::Automatic,
        listener.clone(),
    ));
    let tokenizer = Arc::clone(&blueprint.tokenizer);
    let description = Description {
        tokenizer: Arc::clone(&tokenizer),
        #[cfg(feature = "chat")]
        chat_templates: blueprint.chat_templates.clone(),
        context: blueprint.context,
        context_room: blueprint.context_room,
        vocabulary: blueprint.program.vocabulary(),
        text_limit: blueprint.text_limit(),
        backend,
        keeps_heat: heat.is_some(),
        notices,
    };
    let fixed = FixedUsage::new(blueprint, (backend, io_reason), &files, &runner);
    let vocabulary = blueprint.tokenizer.vocabulary_size();
    let identity = Identity::new(&blueprint.catalog, vocabulary, files)
        .known(blueprint.identity.get().copied());
    let thread = EngineThread::new(blueprint, runner, identity, fixed, heat);
    Ok((thread, description))
}

/// A runner and its reader.
struct Loaded {
    runner: PassRunner,
    backend: Backend,
    io_reason: String,
    /// What the system said to a faster reader, and what to do about it.
    fallback: Option<Notice>,
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
        match PassRunner::build(blueprint, files, backend, on_bytes).await {
            Err(Error::Weights {
                source: WeightsError::Reader { source, .. },
                ..
            }) if refused.len() + 1 < candidates.len() => refused.push(source),
            built => break (built, backend),
        }
    };
    let refusal = refused.last().map(ToString::to_string);
    let io_reason = blueprint.settings.io.reason(backend, refusal.as_deref());
    let fallback = refused.last().map(|error| Notice::SlowerReader {
        backend: backend.name(),
        reason: io_reason.clone(),
        remedy: candidates[refused.len() - 1].remedy(error),
    });
    match (built, fallback) {
        (Ok(runner), fallback) => Ok(Loaded {
            runner,
            backend,
            io_reason,
            fallback,
        }),
        (Err(source), Some(notice)) => Err(Error::Fallback {
            source: Box::new(source),
            notice: Box::new(notice),
        }),
        (Err(source), None) => Err(source),
    }
}

/// The readers to try, in turn.
fn candidates(blueprint: &Blueprint) -> Vec<Backend> {
    match blueprint.settings.io {
        Io::Only(backend) => vec![backend],
        Io::Auto if blueprint.plan.is_mapped => vec![Backend::Mmap],
        Io::Auto | Io::Unmapped => Backend::FASTEST_FIRST.to_vec(),
    }
}
