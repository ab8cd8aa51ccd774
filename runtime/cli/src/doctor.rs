//! `emel doctor`: what this machine allows, what its drive gives, and what runs make of it.
//!
//! The verdict comes first. Nothing here is fatal but a path that is not there or is not a
//! model: what a machine lacks or does not tell is said in its line.

pub mod machine;
mod verdict;

use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::bail;
use clap::Args;
use emel_kernels::{Format, Kernels};
use emel_loader::files::OpenFiles;
use emel_loader::gguf::Catalog;
use emel_loader::probe::{self, Curve, Limits, Point};
use emel_loader::reader::{Backend, registers_buffers};
use emel_model::arch;
use serde::Serialize;

use self::machine::{Machine, filesystem_type};
use self::verdict::Verdict;
use super::drive::{kept_curve, streaming_reader};
use super::units::in_gibibytes;
use super::{io_values, model_name, one_line, print, spinner};
use emel::Settings;
use emel::internals::blueprint::Io;
use emel::internals::budget::{RamBudget, available_bytes, in_binary_units};
use emel::internals::compute_probe;
use emel::internals::measurements::{ComputeRates, Measurements};

/// Files of a folder that are tried, the largest first.
const MODELS_MAX: usize = 16;

/// What measuring may take of the memory that is there, as a divisor.
const MEMORY_SHARE: u64 = 4;

/// Options of `emel doctor`.
#[derive(Debug, Args)]
pub struct DoctorOptions {
    /// A model, whose drive is measured; or a folder, of which the largest model on the
    /// folder's own filesystem is taken
    #[arg(default_value = ".")]
    path: PathBuf,

    /// Memory that the verdict is for, as for emel run [default: 85% of what the machine and the
    /// cgroup leave]
    #[arg(
        long,
        value_name = "SIZE",
        allow_hyphen_values = true,
        default_value = "auto",
        hide_default_value = true
    )]
    ram_budget: RamBudget,

    /// Threads that compute [default: one for each processor]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,

    /// How the drive is read: ring, uring, pread or mmap, as in emel run; auto takes the first
    /// of ring and pread that works. Results of mmap are not kept
    #[arg(long, value_parser = io_values(), hide_possible_values = true, default_value = "auto")]
    io: Io,

    /// Also print the drive's speed for each set of read buffers
    #[arg(short, long)]
    verbose: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    verdict: Verdict,
    machine: Machine,
    compute: Option<Compute>,
    drive: Drive,
    /// The reader that streams, and why.
    reader: &'static str,
    reader_reason: String,
    /// Files that later runs and `emel plan` go by.
    kept_in: Vec<PathBuf>,
    keep_problem: Option<String>,
}

#[derive(Serialize)]
struct Compute {
    threads: usize,
    rates: Vec<FormatRate>,
}

#[derive(Serialize)]
struct FormatRate {
    format: String,
    bytes_per_second: f64,
}

#[derive(Serialize, Default)]
struct Drive {
    file: Option<PathBuf>,
    filesystem: Option<String>,
    /// Whether reads bypass the page cache, and the alignment that they need.
    direct: Option<bool>,
    alignment_bytes: Option<usize>,
    points: Vec<CurvePoint>,
    chosen: Option<CurvePoint>,
    /// Whether the kernel takes the chosen ring's buffers beforehand.
    buffers_register: Option<bool>,
    problem: Option<String>,
}

#[derive(Serialize, Clone, Copy)]
struct CurvePoint {
    block_bytes: u64,
    depth: usize,
    bytes_per_second: f64,
}

/// Looks at the machine, measures the drive and the kernels, keeps what it finds for
/// later runs, and prints it.
///
/// # Errors
/// When there is nothing at the path or a file that is no model, or standard output does not
/// take it.
pub async fn run(options: &DoctorOptions) -> anyhow::Result<()> {
    let path = &options.path;
    if let Err(error) = std::fs::metadata(path) {
        let advice = model_name::advice(path);
        let advice = advice.unwrap_or("name a model, or a folder that has one".to_owned());
        bail!("{}: {error}; {advice}", path.display());
    }
    let spinner = spinner("measuring");
    let report = Report::make(options).await;
    spinner.finish_and_clear();
    if options.json {
        print(&(serde_json::to_string_pretty(&report)? + "\n"))?;
    } else {
        print(&report.text(options.verbose)?)?;
    }
    match report.drive {
        Drive {
            file: None,
            problem: Some(problem),
            ..
        } if !path.is_dir() => bail!(problem),
        _ => Ok(()),
    }
}

impl Report {
    async fn make(options: &DoctorOptions) -> Self {
        let io = options.io;
        let backend = streaming_reader(io);
        let memory_bytes = available_bytes().unwrap_or(u64::MAX) / MEMORY_SHARE;
        let machine = Machine::look();
        let subject = Subject::find(&options.path);
        let (drive, curve) = Drive::measure(&subject, backend, memory_bytes).await;
        let default = Settings::default();
        let threads = options.threads.map_or(default.threads, usize::from);
        let rates = measure_rates(&subject, threads, memory_bytes);
        let measured = curve.clone().filter(|curve| !curve.points.is_empty());
        let settings = Settings {
            ram_budget: options.ram_budget,
            threads,
            io,
            drive: measured.or_else(|| kept_curve(&options.path, io)),
            ..default
        };
        let mut report = Self {
            verdict: Verdict::new(subject.files.first(), &drive, settings, rates.as_ref()),
            reader: backend.name(),
            reader_reason: io.reason(backend, machine.io_uring.problem.as_deref()),
            compute: rates.as_ref().map(|rates| Compute::of(threads, rates)),
            machine,
            drive,
            kept_in: Vec::new(),
            keep_problem: None,
        };
        report.keep(&subject, backend, curve.as_ref(), threads, rates.as_ref());
        report
    }

    fn keep(
        &mut self,
        subject: &Subject,
        backend: Backend,
        curve: Option<&Curve>,
        threads: usize,
        rates: Option<&ComputeRates>,
    ) {
        let Some(kept) = Measurements::of_user() else {
            self.keep_problem = Some("neither XDG_CACHE_HOME nor HOME is set".to_owned());
            return;
        };
        let model = subject.files.first();
        let drive = model.zip(curve).filter(|_| backend.needs_buffers());
        let drive = drive.map(|(model, curve)| kept.keep_drive(model, backend, curve));
        let kernels = self.machine.kernels.name;
        let compute = rates.map(|rates| kept.keep_compute(kernels, threads, rates));
        for written in [drive, compute].into_iter().flatten() {
            match written {
                Ok(path) => self.kept_in.push(path),
                Err(error) => self.keep_problem = Some(error.to_string()),
            }
        }
    }
}

/// What is measured with: a model's files, and the formats of its weights.
#[derive(Default)]
struct Subject {
    files: Vec<PathBuf>,
    formats: Vec<Format>,
    problem: Option<String>,
}

impl Subject {
    /// The model at `path`, or the largest in the folder.
    fn find(path: &Path) -> Self {
        let found = match path.is_dir() {
            true => Self::in_folder(path),
            false => Self::of_model(path),
        };
        found.unwrap_or_else(|problem| Self {
            problem: Some(problem),
            ..Self::default()
        })
    }

    fn of_model(path: &Path) -> Result<Self, String> {
        let catalog = Catalog::open(path).map_err(|error| error.to_string())?;
        arch::check_kind(catalog.metadata())
            .map_err(|error| format!("{}: {error}", path.display()))?;
        let matrices = catalog.tensors().iter().filter(|it| it.dims.len() > 1);
        let mut formats: Vec<Format> = matrices
            .filter_map(|it| Format::from_ggml_type(it.tensor_type.id()))
            .collect();
        formats.sort_by_key(|format| format.ggml_type());
        formats.dedup();
        Ok(Self {
            files: catalog.files().iter().map(|it| it.path.clone()).collect(),
            formats,
            problem: None,
        })
    }

    /// Tells the drive of the folder only by models that are on it, and not by what links
    /// lead to.
    fn in_folder(folder: &Path) -> Result<Self, String> {
        let name = folder.display();
        let failed = |error: std::io::Error| format!("{name}: {error}");
        let device = std::fs::metadata(folder).map_err(failed)?.dev();
        let entries = std::fs::read_dir(folder).map_err(failed)?;
        let models = entries.filter_map(|entry| {
            let path = entry.ok()?.path();
            let is_named_so = path.extension().is_some_and(|it| it == "gguf");
            let found = std::fs::metadata(&path).ok().filter(|_| is_named_so)?;
            (found.is_file() && found.dev() == device).then_some((found.len(), path))
        });
        let mut models: Vec<(u64, PathBuf)> = models.collect();
        models.sort_unstable_by(|a, b| b.cmp(a));
        let mut problem = None;
        for (_, path) in models.iter().take(MODELS_MAX) {
            match Self::of_model(path) {
                Ok(found) if !found.formats.is_empty() => return Ok(found),
                // A vocabulary, or a shard that is not the first.
                Ok(_) => {}
                Err(error) => problem = problem.or(Some(error)),
            }
        }
        Err(problem.unwrap_or_else(|| {
            format!("{name}: no model on its filesystem here; name one to measure its drive")
        }))
    }
}

fn measure_rates(subject: &Subject, threads: usize, memory_bytes: u64) -> Option<ComputeRates> {
    let kernels = Kernels::from_environment().ok()?;
    let memory_bytes = usize::try_from(memory_bytes).unwrap_or(usize::MAX);
    let rates = compute_probe::measure(kernels, threads, &subject.formats, memory_bytes).ok()?;
    (!rates.bytes_per_second.is_empty()).then_some(rates)
}

impl Compute {
    fn of(threads: usize, rates: &ComputeRates) -> Self {
        let rates = rates
            .bytes_per_second
            .iter()
            .map(|(format, rate)| FormatRate {
                format: format.clone(),
                bytes_per_second: *rate,
            });
        Self {
            threads,
            rates: rates.collect(),
        }
    }
}

impl Drive {
    async fn measure(
        subject: &Subject,
        backend: Backend,
        memory_bytes: u64,
    ) -> (Self, Option<Curve>) {
        let mut drive = Self {
            problem: subject.problem.clone(),
            ..Self::default()
        };
        let Some(file) = subject.files.first() else {
            return (drive, None);
        };
        drive.file = Some(file.clone());
        drive.filesystem = filesystem_type(file);
        let paths = subject.files.iter().map(PathBuf::as_path);
        let files = match OpenFiles::open(paths, backend.needs_buffers()) {
            Ok(files) => Arc::new(files),
            Err(error) => {
                drive.problem = Some(error.to_string());
                return (drive, None);
            }
        };
        if backend.needs_buffers() {
            drive.direct = Some(files.all_direct());
            drive.alignment_bytes = files.iter().map(|it| it.alignment()).max();
        }
        let limits = Limits {
            memory_bytes: Limits::THOROUGH.memory_bytes.min(memory_bytes),
            ..Limits::THOROUGH
        };
        match probe::measure(&files, backend, limits).await {
            Ok(curve) => {
                drive.take(&curve, backend);
                (drive, Some(curve))
            }
            Err(error) => {
                drive.problem = Some(error.to_string());
                (drive, None)
            }
        }
    }

    fn take(&mut self, curve: &Curve, backend: Backend) {
        let of = |point: Point| CurvePoint {
            block_bytes: point.block_bytes,
            depth: point.depth,
            bytes_per_second: point.bytes_per_second,
        };
        self.points = curve.points.iter().copied().map(of).collect();
        let knee = curve.knee();
        self.chosen = knee.map(of);
        // A pool of threads has nothing to register them with.
        self.buffers_register = knee.filter(|_| backend.uses_io_uring()).and_then(|point| {
            registers_buffers(backend, point.depth, point.block_bytes as usize).ok()
        });
    }
}

impl Report {
    fn text(&self, is_verbose: bool) -> Result<String, std::fmt::Error> {
        let mut out = one_line(&self.verdict.text) + "\n\n";
        let lines = self.machine.lines().into_iter();
        for (name, value) in lines.chain(self.lines(is_verbose)) {
            writeln!(out, "{name:<14}{}", one_line(&value))?;
        }
        Ok(out)
    }

    fn lines(&self, is_verbose: bool) -> Vec<(&'static str, String)> {
        let mut lines = Vec::new();
        if let Some(compute) = &self.compute {
            let rates = compute.rates.iter().map(|rate| {
                let gibibytes = in_gibibytes(rate.bytes_per_second);
                format!("{} {gibibytes:.1}", rate.format)
            });
            let rates: Vec<String> = rates.collect();
            let threads = compute.threads;
            lines.push((
                "compute",
                format!("{} GiB/s of weights, {threads} threads", rates.join(", ")),
            ));
        }
        lines.extend(self.drive.lines(is_verbose));
        lines.push(("reader", format!("{}: {}", self.reader, self.reader_reason)));
        let kept = self.kept_in.iter().map(|path| path.display().to_string());
        let kept: Vec<String> = kept.collect();
        if !kept.is_empty() {
            lines.push(("kept in", kept.join(", ")));
        }
        if let Some(problem) = &self.keep_problem {
            lines.push(("not kept", problem.clone()));
        }
        lines
    }
}

impl Machine {
    fn lines(&self) -> Vec<(&'static str, String)> {
        let size = in_binary_units;
        let unknown = || "the kernel does not say".to_owned();
        let kernels = &self.kernels;
        let asked = kernels.asked.as_ref();
        let path = kernels.problem.clone().unwrap_or_else(|| {
            let why = asked.map_or("the fastest", |_| "as EMEL_KERNELS asks");
            let available = kernels.available.join(", ");
            format!("{}, {why} of {available}", kernels.name)
        });
        let io_uring = match (&self.io_uring.problem, &self.io_uring.remedy) {
            (Some(problem), Some(remedy)) => format!("refused: {problem}; {remedy}"),
            _ => "available".to_owned(),
        };
        vec![
            (
                "system",
                format!("Linux {}, {}", self.kernel, self.architecture),
            ),
            (
                "processor",
                format!(
                    "{} of {}: {}",
                    self.processors,
                    self.processor.as_deref().unwrap_or("an unknown kind"),
                    self.features.join(" ")
                ),
            ),
            ("kernels", path),
            ("io_uring", io_uring),
            ("cgroup", self.cgroup.line()),
            (
                "memory",
                self.available_bytes
                    .map_or_else(unknown, |bytes| format!("{} available", size(bytes))),
            ),
            (
                "huge pages",
                self.huge_pages.as_deref().map_or_else(unknown, huge_pages),
            ),
            (
                "locked memory",
                self.locked_memory_limit_bytes.map_or_else(
                    || "no limit".to_owned(),
                    |bytes| format!("limited to {} (ulimit -l)", size(bytes)),
                ),
            ),
        ]
    }
}

/// The kernel's word, and what it means here.
fn huge_pages(chosen: &str) -> String {
    let meaning = match chosen {
        "always" => "given to every program",
        "madvise" => "given to programs that ask, as emel does",
        "never" => "not given; computing is a little faster with them",
        _ => return chosen.to_owned(),
    };
    format!("{chosen}: {meaning}")
}

impl machine::CgroupState {
    fn line(&self) -> String {
        let Some(version) = self.version else {
            return self.problem.clone().unwrap_or_default();
        };
        let limit = match (self.limit_bytes, &self.problem) {
            (_, Some(problem)) => problem.clone(),
            (Some(bytes), _) => format!("limit {}", in_binary_units(bytes)),
            (None, _) => "no limit".to_owned(),
        };
        let usage = self.usage_bytes.map_or_else(
            || "use is not known".to_owned(),
            |bytes| format!("{} in use", in_binary_units(bytes)),
        );
        format!("version {version}, {limit}, {usage}")
    }
}

impl Drive {
    fn lines(&self, is_verbose: bool) -> Vec<(&'static str, String)> {
        let mut lines = Vec::new();
        if let Some(file) = &self.file {
            let filesystem = self.filesystem.as_deref().unwrap_or("unknown filesystem");
            let direct = match (self.direct, self.alignment_bytes) {
                (Some(true), Some(bytes)) => format!("O_DIRECT aligned to {bytes} bytes"),
                (Some(_), _) => {
                    "O_DIRECT refused: reads go through the page cache and are dropped from it"
                        .to_owned()
                }
                (None, _) => "read through the mapping".to_owned(),
            };
            lines.push((
                "drive",
                format!("{} on {filesystem}, {direct}", file.display()),
            ));
        }
        if let Some(problem) = &self.problem {
            lines.push(("not measured", problem.clone()));
        }
        if is_verbose {
            lines.extend(self.table());
        }
        if let Some(point) = self.chosen {
            lines.push(("chosen", chosen(point)));
        }
        match self.buffers_register {
            Some(true) => lines.push(("buffers", "registered with the kernel".to_owned())),
            Some(false) => lines.push((
                "buffers",
                "not registered, which takes a little more processor time; raise ulimit -l"
                    .to_owned(),
            )),
            None => {}
        }
        lines
    }

    /// Sizes of slots down, their number across.
    fn table(&self) -> Vec<(&'static str, String)> {
        let mut sizes: Vec<u64> = self.points.iter().map(|it| it.block_bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let mut depths: Vec<usize> = self.points.iter().map(|it| it.depth).collect();
        depths.sort_unstable();
        depths.dedup();
        if sizes.is_empty() {
            return Vec::new();
        }
        let head = depths.iter().map(|depth| format!("{depth:>6}"));
        let mut lines = vec![(
            "GiB/s",
            format!(
                "{:>9}{} buffers in the ring",
                "of",
                head.collect::<String>()
            ),
        )];
        for size in sizes {
            let cells = depths.iter().map(|&depth| {
                let mut points = self.points.iter();
                let found = points.find(|it| (it.block_bytes, it.depth) == (size, depth));
                found.map_or("     -".to_owned(), |point| {
                    format!("{:>6.2}", in_gibibytes(point.bytes_per_second))
                })
            });
            let cells: String = cells.collect();
            lines.push(("", format!("{:>9}{cells}", in_binary_units(size))));
        }
        lines
    }
}

fn chosen(point: CurvePoint) -> String {
    format!(
        "a ring of {} read buffers of {}: {:.2} GiB/s; a plan takes what suits its budget",
        point.depth,
        in_binary_units(point.block_bytes),
        in_gibibytes(point.bytes_per_second)
    )
}
