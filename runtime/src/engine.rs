//! The engine: one thread that owns a model and answers requests, one after another.
//!
//! Handles are cheap to clone. The thread ends, and its reader with it, when the last
//! handle and the last stream are gone.

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use emel_loader::probe::Curve;
#[cfg(feature = "chat")]
use emel_model::chat::{ChatTemplate, Conversation};
use emel_model::kv_cache::KvType;
use emel_model::routing::LossyRouting;
use emel_model::routing_log::RoutingLog;
use emel_model::sampler::SamplerOptions;
use tokio::sync::{mpsc, oneshot};

use crate::blueprint::{Blueprint, Io, Settings};
use crate::budget::RamBudget;
use crate::description::Description;
use crate::error::Error;
use crate::experts::heat::Learning;
use crate::experts::prefetch::Prefetch;
use crate::job::{Evaluation, Generation, Job, SessionJob, SessionTask, Tracing};
use crate::notice::{Notice, NoticeListener};
use crate::open;
use crate::request::{Prompt, PromptLimits, Request, check_biases};
use crate::stream::TokenStream;

/// Requests that may wait for their turn before [`Engine::generate`] waits itself.
const QUEUE_LENGTH: usize = 16;

/// A loaded model. Clones share it.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    // `None` once the engine is being dropped.
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    description: Description,
}

/// Builds an [`Engine`].
#[derive(Default)]
#[must_use]
pub struct Builder {
    settings: Settings,
    listener: NoticeListener,
    on_progress: Option<OnProgress>,
}

/// Gets how many bytes of pinned weights are in memory, of how many.
type OnProgress = Box<dyn FnMut(u64, u64) + Send>;

impl Engine {
    /// A builder with the default settings.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Starts an engine on a blueprint; `progress` gets how many bytes of pinned weights are
    /// in memory, of how many, on the engine's thread. Loading stops when the future is
    /// dropped.
    ///
    /// # Errors
    /// When memory, threads or the reader are refused, the model's files have changed
    /// since the blueprint was made, or a read fails. What the user should know all
    /// the same is in [`Blueprint::notices`].
    pub async fn start(
        blueprint: Blueprint,
        progress: impl FnMut(u64, u64) + Send + 'static,
    ) -> Result<Self, Error> {
        Self::launch(|| Ok(blueprint), progress).await
    }

    /// Starts an engine's thread, which does all of the work, planning included: the caller's
    /// thread may be an executor's.
    async fn launch(
        plan: impl FnOnce() -> Result<Blueprint, Error> + Send + 'static,
        progress: impl FnMut(u64, u64) + Send + 'static,
    ) -> Result<Self, Error> {
        let (jobs, job_queue) = mpsc::channel(QUEUE_LENGTH);
        let (started, start) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("emel-engine".to_owned())
            .spawn(move || open::run(plan, progress, started, job_queue))
            .map_err(|error| Error::thread(&error))?;
        let description = start.await.map_err(|_| Error::Stopped)??;
        Ok(Self {
            shared: Arc::new(Shared {
                jobs: Some(jobs),
                thread: Some(thread),
                description,
            }),
        })
    }

    /// Continues a prompt; what it shares with the beginning of the last request and its
    /// answer is not computed again. Requests are answered one after another, and a stream that
    /// nobody reads holds up those behind it: read or drop it before you wait for another.
    ///
    /// # Errors
    /// When the prompt is empty, too long or not of this vocabulary, or the sampler's
    /// options make no sense, rule out every token or need more memory than the engine was opened for.
    pub async fn generate(&self, request: Request) -> Result<TokenStream, Error> {
        request.sampler.check()?;
        let description = self.description();
        let tokens = description.tokenizer.vocabulary_size();
        check_biases(&request.sampler, tokens, description.vocabulary)?;
        let ids = self.prompt_ids(request.prompt).await?;
        let (events, stream) = TokenStream::new(ids.len(), self.shared.clone());
        self.submit(Job::Generate(Generation {
            ids,
            max_tokens: request.max_tokens,
            sampler: request.sampler,
            ignore_eos: request.ignore_eos,
            events,
        }))
        .await?;
        Ok(stream)
    }

    /// The prompt that a conversation becomes, rendered on a thread of its own: the caller's may
    /// be an executor's, and a template may take seconds.
    ///
    /// # Errors
    /// When the template refuses the conversation, or takes too much work, time or memory.
    #[cfg(feature = "chat")]
    pub async fn render(
        &self,
        template: Arc<ChatTemplate>,
        conversation: Conversation,
    ) -> Result<Prompt, Error> {
        let render = move || template.render(&conversation);
        let text = on_a_thread("emel-render", render).await??;
        Ok(Prompt::Rendered(text))
    }

    /// Computes the logits of every position of `ids` and hands each row, `[vocabulary]`
    /// floats, to `on_logits` with its position. An engine opened with
    /// [`Settings::all_logits`] takes many positions in a pass, others one.
    ///
    /// # Errors
    /// When `ids` is empty, too long or not of this vocabulary, or a read fails.
    pub async fn evaluate(
        &self,
        ids: Vec<u32>,
        on_logits: impl FnMut(usize, &[f32]) + Send + 'static,
    ) -> Result<(), Error> {
        let ids = self.prompt_ids(Prompt::Tokens(ids)).await?;
        let (finished, outcome) = oneshot::channel();
        self.submit(Job::Evaluate(Evaluation {
            ids,
            on_logits: Box::new(on_logits),
            finished,
        }))
        .await?;
        outcome.await.map_err(|_| Error::Stopped)?
    }

    /// Computes `ids` as a context of their own and hands the routing of every pass to
    /// `on_routing`, with the position of its first token and how many it has. Nothing is
    /// handed over by an engine opened without [`Settings::logged_guesses`].
    ///
    /// # Errors
    /// When `ids` is empty, too long or not of this vocabulary, or a read fails.
    pub async fn trace(
        &self,
        ids: Vec<u32>,
        on_routing: impl FnMut(usize, usize, &RoutingLog) + Send + 'static,
    ) -> Result<(), Error> {
        let ids = self.prompt_ids(Prompt::Tokens(ids)).await?;
        let (finished, outcome) = oneshot::channel();
        self.submit(Job::Trace(Tracing {
            ids,
            on_routing: Box::new(on_routing),
            finished,
        }))
        .await?;
        outcome.await.map_err(|_| Error::Stopped)?
    }

    /// Saves what the last request has left behind, and says how many tokens that is. A
    /// request whose ids begin with these, here or on another engine that has
    /// [restored](Engine::restore_session) the file, computes only the rest, to the same
    /// bits. The file appears whole or not at all; one that is there is replaced if it
    /// is a session, unless there is nothing to save (0 tokens).
    ///
    /// # Errors
    /// When the path holds something else or cannot be written.
    pub async fn save_session(&self, path: impl AsRef<Path>) -> Result<usize, Error> {
        self.save_session_with(path, "").await
    }

    /// As [`Engine::save_session`], with a text of the caller's in the same file, such as
    /// the messages of a conversation; [`session_attachment`](crate::session_attachment)
    /// reads it.
    ///
    /// # Errors
    /// As [`Engine::save_session`].
    pub async fn save_session_with(
        &self,
        path: impl AsRef<Path>,
        attachment: &str,
    ) -> Result<usize, Error> {
        let task = SessionTask::Save(attachment.to_owned());
        self.session(path.as_ref(), task).await
    }

    /// Goes back to a saved session, and says how many tokens it stands for.
    ///
    /// # Errors
    /// When the file cannot be read, is damaged, or is of another model, KV type or
    /// version; the engine then goes on without. What [`Builder::lossy`] has changed in a
    /// session is used only by an engine that is lossy itself; others compute it again.
    pub async fn restore_session(&self, path: impl AsRef<Path>) -> Result<usize, Error> {
        self.session(path.as_ref(), SessionTask::Restore).await
    }

    async fn session(&self, path: &Path, task: SessionTask) -> Result<usize, Error> {
        let (finished, outcome) = oneshot::channel();
        let path = path.to_owned();
        self.submit(Job::Session(SessionJob {
            path,
            task,
            finished,
        }))
        .await?;
        outcome.await.map_err(|_| Error::Stopped)?
    }

    /// The tokenizer, the context length and the like.
    pub fn description(&self) -> &Description {
        &self.shared.description
    }

    async fn submit(&self, job: Job) -> Result<(), Error> {
        let jobs = self.shared.jobs.as_ref().ok_or(Error::Stopped)?;
        jobs.send(job).await.map_err(|_| Error::Stopped)
    }

    /// The checked ids of a prompt. A text may be megabytes long and is tokenised on a thread
    /// of its own: the caller's may be an executor's, and the engine's may have hours to go.
    async fn prompt_ids(&self, prompt: Prompt) -> Result<Vec<u32>, Error> {
        let description = self.description();
        let limits = PromptLimits {
            context: description.context,
            held: description.context_room.limit(description.context),
            vocabulary: description.vocabulary,
            text: description.text_limit,
        };
        let tokenizer = Arc::clone(&description.tokenizer);
        if let Prompt::Tokens(_) = &prompt {
            return prompt.ids(&tokenizer, &limits);
        }
        on_a_thread("emel-tokenize", move || prompt.ids(&tokenizer, &limits)).await?
    }
}

/// Does `work` on a thread of its own.
///
/// # Errors
/// When the thread cannot be started.
async fn on_a_thread<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    let (finished, outcome) = oneshot::channel();
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || drop(finished.send(work())))
        .map_err(|error| Error::thread(&error))?;
    outcome.await.map_err(|_| Error::Stopped)
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.jobs = None;
        // The last handle may go on the engine's own thread, with a caller's closure.
        let other = |thread: &JoinHandle<()>| thread.thread().id() != std::thread::current().id();
        if let Some(thread) = self.thread.take().filter(other) {
            let _ = thread.join();
        }
    }
}

impl Builder {
    /// Memory for everything. Default: 85 % of what the machine and the cgroup leave.
    pub fn ram_budget(mut self, ram_budget: RamBudget) -> Self {
        self.settings.ram_budget = ram_budget;
        self
    }

    /// Tokens a request may have, prompt included. Default: as many as the model was trained
    /// for, and 512 and more of these as the budget has room.
    pub fn context(mut self, context: usize) -> Self {
        self.settings.context = Some(context);
        self
    }

    /// Threads that compute. Default: one for each processor.
    pub fn threads(mut self, threads: usize) -> Self {
        self.settings.threads = threads;
        self
    }

    /// How weights are read. Default: whatever works best.
    pub fn io(mut self, io: Io) -> Self {
        self.settings.io = io;
        self
    }

    /// What the drive gives, if it has been measured. Default: unknown.
    pub fn drive(mut self, curve: Curve) -> Self {
        self.settings.drive = Some(curve);
        self
    }

    /// How keys and values are kept. Default: F16.
    pub fn kv_type(mut self, kv_type: KvType) -> Self {
        self.settings.kv_type = kv_type;
        self
    }

    /// Lets tokens that are decoded leave their router's choice, for fewer reads: answers are
    /// then no longer the model's. Default: off.
    pub fn lossy(mut self, lossy: LossyRouting) -> Self {
        self.settings.lossy = lossy;
        self
    }

    /// Whether experts that do not all fit are read before they are needed. Default: while
    /// it makes tokens faster.
    pub fn prefetch(mut self, prefetch: Prefetch) -> Self {
        self.settings.prefetch = prefetch;
        self
    }

    /// What becomes of what is learnt about such experts: it can be kept in a file beside
    /// the model, which is written when the engine ends. Default: it is forgotten.
    pub fn learning(mut self, learning: Learning) -> Self {
        self.settings.learning = learning;
        self
    }

    /// The most demanding sampler that requests will use; memory is planned for it, and
    /// a request that needs more is refused. Default: room for any.
    pub fn sampler(mut self, sampler: SamplerOptions) -> Self {
        self.settings.sampler = Some(sampler);
        self
    }

    /// Plans for [`Engine::evaluate`], which wants the logits of all positions.
    pub fn all_logits(mut self) -> Self {
        self.settings.all_logits = true;
        self
    }

    /// Has `on_notice` called, on the engine's thread, with what the user should know though
    /// nothing has failed: while the model is opened, and as long as the engine runs. Those of
    /// the opening are in [`Description::notices`], too.
    pub fn on_notice(mut self, on_notice: impl FnMut(&Notice) + Send + 'static) -> Self {
        self.listener = NoticeListener::new(on_notice);
        self
    }

    /// Has `on_progress` called, on the engine's thread, with the bytes of weights that have
    /// been brought into memory to stay there, and how many that will be.
    pub fn on_progress(mut self, on_progress: impl FnMut(u64, u64) + Send + 'static) -> Self {
        self.on_progress = Some(Box::new(on_progress));
        self
    }

    /// Opens a GGUF file (of shards, the first), plans, and loads what is pinned. All of it is
    /// done on the engine's own thread; it stops when the future is dropped.
    ///
    /// # Errors
    /// When the file is broken, the model not supported, the budget too small, or
    /// something is refused by the system.
    pub async fn open(self, path: impl AsRef<Path>) -> Result<Engine, Error> {
        let path = path.as_ref().to_owned();
        let Self {
            settings,
            listener,
            on_progress,
        } = self;
        let plan = move || {
            let mut blueprint = Blueprint::new(&path, settings)?;
            blueprint.listener = listener;
            Ok(blueprint)
        };
        let on_progress = on_progress.unwrap_or_else(|| Box::new(|_, _| {}));
        Engine::launch(plan, on_progress).await
    }
}
