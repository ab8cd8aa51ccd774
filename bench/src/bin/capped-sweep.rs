//! `bench/capped.sh --memory-max=SIZE …`: emel and llama.cpp in turns on one model, each run
//! in a memory cgroup of its own, and a report of it.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use emel_bench::capped::cap::{Cap, SizedCap};
use emel_bench::capped::contender::{Contender, Task, Variant};
use emel_bench::capped::drive::{Drive, curve, evict_all};
use emel_bench::capped::environment::Environment;
use emel_bench::capped::report::{CapReport, Report, Settings};
use emel_bench::capped::run::{NO_CGROUP, NoCgroup, Runner};
use emel_bench::capped::sweep::{Contenders, Subject, run_cap};
use emel_bench::capped::under_way::UnderWay;
use emel_bench::options::temperature;
use emel_cli::interrupt::Interrupts;
use emel_cli::{self as cli, Interrupted, Kept, tell};
use emel_systemd::Memory;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// The sweep that shows where the page cache fails and where a model nearly fits.
const SWEEP: [Cap; 4] = [
    Cap::Percent(25.0),
    Cap::Percent(50.0),
    Cap::Percent(75.0),
    Cap::Percent(90.0),
];
/// The script finds the program, or builds it.
const USAGE: &str = "bench/capped.sh [--memory-max=SIZE] [--model FILE] [OPTIONS]\n       \
                     capped-sweep --capper bench/capped.sh [OPTIONS]";
const SPEED_PLOT: &str = "speed.svg";
const BYTES_PLOT: &str = "bytes.svg";

/// Runs emel and llama.cpp in turns on one model in capped memory, and writes a report
#[derive(Debug, Parser)]
#[command(name = "capped.sh", version, override_usage = USAGE)]
struct Options {
    /// The cap: bytes, 900M, 8G (powers of 1024), NN% of the model's files, or none
    #[arg(long, value_name = "SIZE")]
    memory_max: Option<Cap>,

    /// Several caps instead, or besides [default: 25%,50%,75%,90% without --memory-max]
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',')]
    budgets: Vec<Cap>,

    /// The model: a GGUF file, or the first of its shards [default: the small one that `make
    /// models` fetches]
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,

    /// Who takes part
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "CONTENDER,…",
        default_value = "emel,emel-mmap,llama"
    )]
    contenders: Vec<Contender>,

    /// Tokens to answer with, the first included
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(2..=8192))]
    tokens: u16,

    /// Tokens of the prompt
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=8192))]
    prompt_tokens: u16,

    /// Runs of each contender
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    runs: u16,

    /// How cgroups are made
    #[arg(long, default_value = "auto", value_parser = ["auto", "systemd", "cgroup2", "cgroup1"])]
    via: String,

    /// Folder for the report [default: target/capped-report]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// By how much emel's budget is less than the cap: bytes, or with K, M or G
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = margin)]
    margin: u64,

    /// Threads that compute [default: one for each processor]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,

    /// Temperature at which tokens are drawn; 0 takes the likeliest, which soon repeat in a
    /// model of random weights, 1000 draws from all nearly alike
    #[arg(long, value_name = "T", default_value = "0", value_parser = temperature)]
    temp: f32,

    /// Seed of the random ids of the prompt
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Seconds after which a run is ended
    #[arg(long, value_name = "S", default_value_t = 1800, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,

    /// A Python that has llama.cpp [default: the one that bench/versus_llama makes]
    #[arg(long, value_name = "FILE")]
    llama_python: Option<PathBuf>,

    /// The script that caps; bench/capped.sh names itself
    #[arg(long, value_name = "FILE")]
    capper: PathBuf,
}

fn margin(text: &str) -> Result<u64, String> {
    if text == "0" {
        return Ok(0);
    }
    match text.parse() {
        Ok(Cap::Bytes(bytes)) => Ok(bytes),
        _ => Err("expected bytes, or a number with K, M or G".to_owned()),
    }
}

fn main() -> ExitCode {
    cli::run(async {
        let done = run(cli::parse()).await;
        if let Err(error) = &done
            && error.is::<NoCgroup>()
        {
            tell(&format!("error: {error}"));
            std::process::exit(NO_CGROUP);
        }
        done
    })
}

async fn run(options: Options) -> anyhow::Result<()> {
    let root = options.capper.parent().and_then(Path::parent);
    let root = root
        .context("--capper names no script in a folder")?
        .to_owned();
    let small = root.join("models/SmolLM2-135M-Instruct.Q4_1.gguf");
    let model = options.model.clone().unwrap_or(small);
    let subject = Subject::read(&model)?;
    let caps = options.caps(&subject)?;
    let out = options.out.clone();
    let out = out.unwrap_or_else(|| root.join("target/capped-report"));
    std::fs::create_dir_all(&out)
        .with_context(|| format!("{}: cannot make the folder", out.display()))?;
    let mut runner = options.runner(&root, &model, &subject)?;
    let largest = caps.iter().filter_map(|cap| cap.bytes).max();
    runner.via = match largest {
        Some(cap_bytes) => runner.probe(cap_bytes)?,
        None => "none".to_owned(),
    };
    let contenders = Contenders::find(&options.contenders, &runner)?;
    evict_all(&subject.files)?;
    let curve = curve(&model, &subject.files).await;
    let report = Report {
        emel: env!("CARGO_PKG_VERSION"),
        llama: contenders.llama,
        model: subject.model,
        settings: options.settings(&runner),
        environment: Environment::look(&model, runner.drive.as_ref(), curve.as_ref())?,
        skipped: contenders.skipped,
        caps: Vec::new(),
    };
    let told = format!("the report is in {}", out.display());
    let turns = options.runs.into();
    let under_way = runner.under_way.clone();
    let sweep = move || run_caps(&runner, &contenders.variants, turns, &caps, report, &out);
    or_signal(&under_way, sweep).await?;
    tell(&told);
    Ok(())
}

/// Runs all caps, and writes what is known after each.
fn run_caps(
    runner: &Runner,
    variants: &[Variant],
    turns: usize,
    caps: &[SizedCap],
    mut report: Report,
    out: &Path,
) -> anyhow::Result<()> {
    for cap in caps {
        let contenders = run_cap(runner, variants, turns, cap)?;
        let drive = report.environment.drive_bytes_per_second();
        let cap = CapReport::new(cap, contenders, &report.model, drive);
        report.caps.push(cap);
        // What there is, should a later cap be interrupted.
        write(&report, out)?;
    }
    Ok(())
}

/// What the sweep comes to. A signal ends the run that is under way first, and then the sweep.
async fn or_signal(
    under_way: &UnderWay,
    sweep: impl FnOnce() -> anyhow::Result<()> + Send + 'static,
) -> anyhow::Result<()> {
    let mut interrupts = Interrupts::listen().context("cannot be told of signals (Ctrl-C)")?;
    let mut sweep = tokio::task::spawn_blocking(sweep);
    let done = interrupts.or(|context| Pin::new(&mut sweep).poll(context));
    match done.await {
        Ok(done) => done.context("the sweep has failed")?,
        Err(signal) => {
            under_way.end();
            // Whatever it comes to: it was ended.
            let _ = Interrupts::or_exit(Some(&mut interrupts), sweep).await;
            let kept = Kept::NoSession;
            Err(Interrupted { signal, kept }.into())
        }
    }
}

fn write(report: &Report, out: &Path) -> anyhow::Result<()> {
    let files = [
        ("report.json", serde_json::to_string_pretty(report)? + "\n"),
        ("report.md", report.markdown(SPEED_PLOT, BYTES_PLOT)),
        (SPEED_PLOT, report.speed_plot()?),
        (BYTES_PLOT, report.bytes_plot()?),
    ];
    for (name, text) in files {
        let path = out.join(name);
        std::fs::write(&path, text).with_context(|| format!("{}: cannot write", path.display()))?;
    }
    Ok(())
}

impl Options {
    fn caps(&self, subject: &Subject) -> anyhow::Result<Vec<SizedCap>> {
        let mut asked: Vec<Cap> = self.memory_max.into_iter().collect();
        asked.extend(&self.budgets);
        if asked.is_empty() {
            asked = SWEEP.to_vec();
        }
        let ram_bytes = Memory::default().total()?;
        let file_bytes = subject.model.file_bytes;
        let sized = |cap| SizedCap::new(cap, file_bytes, ram_bytes, self.margin);
        let mut caps: Vec<SizedCap> = asked.into_iter().map(sized).collect::<Result<_, _>>()?;
        // The report has them in this order, whatever order they were given in.
        caps.sort_by_key(|cap| cap.bytes.unwrap_or(u64::MAX));
        Ok(caps)
    }

    fn runner(&self, root: &Path, model: &Path, subject: &Subject) -> anyhow::Result<Runner> {
        let programs = std::env::current_exe().context("this program's own path is not known")?;
        let mut random = Pcg64Mcg::seed_from_u64(self.seed);
        let vocabulary = subject.vocabulary.max(1) as u64;
        let ids = (0..self.prompt_tokens).map(|_| (random.next_u64() % vocabulary) as u32);
        let default = emel::Settings::default().threads;
        let python = root.join("target/versus-llama-venv/bin/python");
        Ok(Runner {
            capper: self.capper.clone(),
            via: self.via.clone(),
            task: Task {
                model: model.to_owned(),
                ids: ids.collect(),
                tokens: self.tokens.into(),
                temperature: self.temp,
                threads: self.threads.map_or(default, usize::from),
                emel: programs.with_file_name("capped-run"),
                llama_python: self.llama_python.clone().unwrap_or(python),
                llama_script: root.join("bench/versus_llama"),
            },
            files: subject.files.clone(),
            timeout_seconds: self.timeout,
            drive: Drive::of(model),
            under_way: UnderWay::default(),
        })
    }

    fn settings(&self, runner: &Runner) -> Settings {
        Settings {
            via: runner.via.clone(),
            prompt_tokens: runner.task.ids.len(),
            tokens: runner.task.tokens,
            temperature: runner.task.temperature,
            context: runner.task.context(),
            runs: self.runs.into(),
            threads: runner.task.threads,
            seed: self.seed,
            margin_bytes: self.margin,
        }
    }
}
