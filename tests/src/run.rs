//! Runs models through the public API, for tests that look at the numbers.

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use emel_loader::files::OpenFiles;
use emel_loader::reader::{self, ReadLimits};

use emel::internals::blueprint;
use emel::{Backend, Engine, Error, Io, KvType, RamBudget, Request, Settings, Usage};

/// The readers that this machine allows: containers often refuse io_uring.
pub static READERS: LazyLock<Vec<Backend>> = LazyLock::new(|| {
    let starts = |backend: &Backend| {
        let files = Arc::new(OpenFiles::default());
        let outcome = reader::open(*backend, &files, Vec::new(), ReadLimits::at_once(1, None));
        if let Err(error) = &outcome {
            eprintln!("skipped: the {} reader: {error}", backend.name());
        }
        outcome.is_ok()
    };
    Backend::all().filter(starts).collect()
});

/// Settings for a test: nothing is taken from the machine but that it may have no
/// io_uring, where `pread` takes its place.
pub fn settings(budget_bytes: u64, context: usize) -> Settings {
    Settings {
        ram_budget: RamBudget::Bytes(budget_bytes),
        context: Some(context),
        threads: 2,
        io: Io::Only(READERS[0]),
        kv_type: KvType::F16,
        ..Settings::default()
    }
}

/// The smallest budget that works for `settings`.
///
/// # Panics
/// When the model cannot be opened at all, or opens with a budget of one byte.
pub fn smallest_budget(model: &Path, settings: &Settings) -> u64 {
    let mut settings = settings.clone();
    settings.ram_budget = RamBudget::Bytes(1);
    match blueprint::Blueprint::new(model, settings) {
        Err(Error::BudgetTooSmall { needed_bytes, .. }) => needed_bytes,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("a byte is enough?"),
    }
}

/// The logits of every position, row after row, in a context that holds them at least.
///
/// # Errors
/// As [`Engine::evaluate`].
pub fn logits(model: &Path, mut settings: Settings, ids: &[u32]) -> Result<Vec<Vec<f32>>, Error> {
    settings.all_logits = true;
    settings.context = settings.context.max(Some(ids.len()));
    block_on(async {
        let engine = open(model, settings).await?;
        logits_of(&engine, ids).await
    })
}

/// The logits of every position on an engine that is open already.
///
/// # Errors
/// As [`Engine::evaluate`].
pub async fn logits_of(engine: &Engine, ids: &[u32]) -> Result<Vec<Vec<f32>>, Error> {
    let rows = Arc::new(Mutex::new(Vec::new()));
    let taken = Arc::clone(&rows);
    engine
        .evaluate(ids.to_vec(), move |_, row| {
            taken
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(row.to_vec());
        })
        .await?;
    let mut rows = rows.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(std::mem::take(&mut *rows))
}

/// The greedy continuation of `ids`, and what it cost.
///
/// # Errors
/// As [`Engine::generate`].
pub fn greedy(
    model: &Path,
    settings: Settings,
    ids: &[u32],
    count: usize,
) -> Result<(Vec<u32>, Usage), Error> {
    block_on(async {
        let engine = open(model, settings).await?;
        let mut request = Request::new(ids.to_vec()).max_tokens(count).greedy();
        request.ignore_eos = true;
        let mut stream = engine.generate(request).await?;
        let mut tokens = Vec::new();
        while let Some(token) = stream.next().await {
            tokens.push(token?.id);
        }
        let usage = stream.usage().ok_or(Error::Stopped)?.clone();
        Ok((tokens, usage))
    })
}

/// An engine with these settings.
///
/// # Errors
/// As [`Engine::start`].
pub async fn open(model: &Path, settings: Settings) -> Result<Engine, Error> {
    let blueprint = blueprint::Blueprint::new(model, settings)?;
    Engine::start(blueprint, |_, _| {}).await
}

/// Runs a future to its end on this thread.
///
/// # Panics
/// When the system refuses what an executor needs.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("an executor on this thread")
        .block_on(future)
}

/// Whether this is the process of its own that the test named `test` runs in; if it is
/// not, runs that process and expects it to succeed.
///
/// # Panics
/// When it does not.
pub fn in_process_of_its_own(test: &str) -> bool {
    const NAME: &str = "EMEL_TEST_PROCESS";
    if std::env::var(NAME).is_ok_and(|name| name == test) {
        return true;
    }
    let program = std::env::current_exe().expect("tests know their program");
    let output = Command::new(program)
        .args(["--exact", test, "--nocapture"])
        .env(NAME, test)
        .output()
        .expect("a program that runs can be started");
    assert!(
        output.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    false
}
