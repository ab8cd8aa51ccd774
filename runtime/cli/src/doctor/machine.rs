//! What the system says of itself. Whatever it does not say is left out.

use std::fs::read_to_string;
use std::path::Path;

use emel_kernels::Kernels;
use emel_loader::reader;
use emel_systemd::{Cgroup, Version};
use serde::Serialize;

use emel::internals::budget::available_bytes;

/// The kernel, the processor and the memory.
#[derive(Serialize)]
pub(super) struct Machine {
    pub(super) kernel: String,
    pub(super) architecture: &'static str,
    pub(super) processors: usize,
    pub(super) processor: Option<String>,
    /// Those that the kernels can make use of.
    pub(super) features: Vec<&'static str>,
    pub(super) kernels: KernelPath,
    pub(super) io_uring: IoUring,
    pub(super) cgroup: CgroupState,
    pub(super) available_bytes: Option<u64>,
    pub(super) huge_pages: Option<String>,
    /// `None` where there is no limit, or none that is known.
    pub(super) locked_memory_limit_bytes: Option<u64>,
}

/// The instruction set in use.
#[derive(Serialize)]
pub(super) struct KernelPath {
    pub(super) name: &'static str,
    pub(super) available: Vec<&'static str>,
    /// What `EMEL_KERNELS` asks for, if it is set.
    pub(super) asked: Option<String>,
    pub(super) problem: Option<String>,
}

/// Whether io_uring can be used, and if not, why.
#[derive(Serialize)]
pub(super) struct IoUring {
    pub(super) available: bool,
    pub(super) problem: Option<String>,
    pub(super) remedy: Option<String>,
}

/// The memory cgroup.
#[derive(Serialize, Default)]
pub(super) struct CgroupState {
    pub(super) version: Option<u8>,
    pub(super) limit_bytes: Option<u64>,
    pub(super) usage_bytes: Option<u64>,
    pub(super) problem: Option<String>,
}

impl Machine {
    pub(super) fn look() -> Self {
        Self {
            kernel: kernel(),
            architecture: std::env::consts::ARCH,
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            processor: processor(),
            features: features(),
            kernels: KernelPath::look(),
            io_uring: IoUring::look(),
            cgroup: CgroupState::look(),
            available_bytes: available_bytes().ok(),
            huge_pages: huge_pages(),
            locked_memory_limit_bytes: locked_memory_limit(),
        }
    }
}

impl KernelPath {
    fn look() -> Self {
        let chosen = Kernels::from_environment();
        let asked = std::env::var(Kernels::ENVIRONMENT_VARIABLE);
        Self {
            name: chosen.as_ref().map_or("none", Kernels::name),
            available: Kernels::all().iter().map(Kernels::name).collect(),
            asked: asked.ok().filter(|name| !name.is_empty()),
            problem: chosen.err().map(|error| error.to_string()),
        }
    }
}

impl IoUring {
    fn look() -> Self {
        let (backend, refused) = reader::fastest();
        let uses_it = backend.uses_io_uring();
        let refused = refused.last();
        Self {
            available: uses_it,
            problem: refused.map(|(_, error)| error.to_string()),
            remedy: refused.map(|(backend, error)| backend.remedy(error)),
        }
    }
}

impl CgroupState {
    fn look() -> Self {
        let cgroup = match Cgroup::own() {
            Ok(cgroup) => cgroup,
            Err(error) => {
                return Self {
                    problem: Some(error.to_string()),
                    ..Self::default()
                };
            }
        };
        let limit = cgroup.memory_limit();
        Self {
            version: Some(match cgroup.version() {
                Version::V1 => 1,
                Version::V2 => 2,
            }),
            problem: limit.as_ref().err().map(ToString::to_string),
            limit_bytes: limit.unwrap_or(None),
            usage_bytes: cgroup.memory_usage().unwrap_or(None),
        }
    }
}

/// The first word of a file of the kernel's.
fn word_of(path: &str) -> Option<String> {
    let text = read_to_string(path).ok()?;
    text.split_whitespace().next().map(str::to_owned)
}

/// The kernel's release.
pub fn kernel() -> String {
    word_of("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".to_owned())
}

/// The processor's name, where the kernel tells it.
pub fn processor() -> Option<String> {
    let text = read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

#[cfg(target_arch = "x86_64")]
fn features() -> Vec<&'static str> {
    let found = [
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
        ("f16c", is_x86_feature_detected!("f16c")),
        ("avxvnni", is_x86_feature_detected!("avxvnni")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
        ("avx512bw", is_x86_feature_detected!("avx512bw")),
        ("avx512vnni", is_x86_feature_detected!("avx512vnni")),
        ("avx512bf16", is_x86_feature_detected!("avx512bf16")),
    ];
    let found = found.into_iter().filter(|(_, there)| *there);
    found.map(|(name, _)| name).collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn features() -> Vec<&'static str> {
    Vec::new()
}

/// When memory is given in pages of 2 MiB: the choice in brackets of `always madvise
/// never`.
fn huge_pages() -> Option<String> {
    let text = read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").ok()?;
    let chosen = text.split_once('[')?.1.split_once(']')?.0;
    Some(chosen.to_owned())
}

/// The soft limit on the line `Max locked memory  SOFT HARD bytes`.
fn locked_memory_limit() -> Option<u64> {
    let text = read_to_string("/proc/self/limits").ok()?;
    let line = text
        .lines()
        .find_map(|it| it.strip_prefix("Max locked memory"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The type of the filesystem that `path` is on: that of the deepest mount point above it.
pub fn filesystem_type(path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    let mounts = read_to_string("/proc/self/mounts").ok()?;
    let mounts = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        let point = words.next()?.replace("\\040", " ");
        path.starts_with(&point)
            .then_some((point.len(), words.next()?))
    });
    // Of two at one point the later hides the earlier.
    let (_, kind) = mounts.max_by_key(|(length, _)| *length)?;
    Some(kind.to_owned())
}
