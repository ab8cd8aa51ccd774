//! What a request has cost.

use std::time::Duration;

use serde::Serialize;

use crate::experts::prefetch::PrefetchStatistics;

/// The statistics of one request; serialised under these names.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those of them whose keys, values and memories were there already.
    pub resumed_tokens: usize,
    /// Tokens generated.
    pub generated_tokens: usize,
    /// The seed of the random numbers that drew them.
    pub seed: u64,
    /// Prompt tokens per second, until the first token could be chosen.
    pub prefill_tokens_per_second: f64,
    /// Tokens per second after the first.
    pub decode_tokens_per_second: f64,
    /// From the request's start to its first token.
    pub first_token_ms: f64,
    /// Bytes read from the drive for the request.
    pub bytes_read: u64,
    /// Bytes read since the engine was opened: to load what stays in memory, for this request
    /// and for those before it.
    pub bytes_read_since_open: u64,
    /// Calls for these bytes that had to follow a short read or an error that passed.
    pub retries: u64,
    /// Bytes read per token after the first, on average.
    pub streamed_bytes_per_token: u64,
    /// Bytes of pinned weights in memory at the end of the request.
    pub pinned_bytes: u64,
    /// Bytes of pinned weights that have been given back, because a limit shrank.
    pub given_back_bytes: u64,
    /// Bytes of the slots that the other weights pass through.
    pub ring_bytes: u64,
    /// Bytes of one of these slots.
    pub slot_bytes: u64,
    /// How experts fared; none where all of them are in memory for good.
    pub experts: Option<ExpertUsage>,
    /// What lossy routing has changed; none where it is off and answers are the model's.
    pub lossy: Option<LossyUsage>,
    /// Bytes of the KV cache.
    pub kv_bytes: u64,
    /// The budget everything was planned for.
    pub budget_bytes: u64,
    /// What the plan spends of it.
    pub planned_bytes: u64,
    /// Where the time of the whole request went.
    #[serde(flatten)]
    pub spent: Spent,
    /// The same for the tokens after the first.
    pub decode: Spent,
    /// Bytes per second that were read while these were decoded.
    pub decode_bytes_per_second: f64,
    /// Page faults of the process that had to wait for a drive, since it began; 0 if
    /// the system does not tell.
    pub major_faults: u64,
    /// The highest memory use so far: of the cgroup if the process is alone in it,
    /// else of the process.
    pub peak_memory_bytes: u64,
    /// How weights are read: `ring`, `uring`, `pread` or `mmap`.
    pub io_backend: &'static str,
    /// Why they are read that way.
    pub io_reason: String,
    /// Whether reads bypass the page cache.
    pub direct_io: bool,
    /// Whether the kernel knows the ring's buffers beforehand.
    pub registered_buffers: bool,
    /// Threads that compute.
    pub threads: usize,
    /// The kernels' instruction set.
    pub kernels: &'static str,
}

/// Where time went: the parts add up to the total.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spent {
    /// All of it.
    pub total_ms: f64,
    /// Time that steps waited for weights.
    pub wait_ms: f64,
    /// The part of it in which they waited for experts; in the rest it was units.
    pub expert_wait_ms: f64,
    /// Time that steps computed.
    pub compute_ms: f64,
    /// Time in which tokens were chosen.
    pub sampling_ms: f64,
    /// The rest: submitting reads, handing tokens over, making their text.
    pub other_ms: f64,
}

/// The experts of a model that do not all fit in memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ExpertUsage {
    /// Slots for experts.
    pub slots: usize,
    /// Bytes of a slot.
    pub slot_bytes: u64,
    /// Experts of the model.
    pub of_experts: usize,
    /// Experts that were in memory when they were needed, after the first token.
    pub hits: u64,
    /// Experts that were not, after the first token.
    pub misses: u64,
    /// The bytes of these per token, without what alignment adds.
    pub missed_bytes_per_token: u64,
    /// Experts that were on their way when they were needed, as guesses or to fill an empty
    /// slot, after the first token.
    pub late: u64,
    /// Time that layers waited for experts, in all.
    pub wait_ms: f64,
    /// The same after the first token, and what the drive did meanwhile.
    pub decode_wait: ExpertWait,
    /// Guesses after the first token.
    pub prefetch: PrefetchUsage,
}

/// Time that layers waited for experts after the first token, and the drive in that time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ExpertWait {
    /// All of it.
    pub total_ms: f64,
    /// The part of it in which the drive had been asked for nothing more.
    pub idle_ms: f64,
    /// Reads under way, on average over the time.
    pub reads: f64,
    /// Bytes per second that were read.
    pub bytes_per_second: f64,
}

/// Experts that were read before they were needed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PrefetchUsage {
    /// `auto`, `off`, `router`, `coact` or `both`.
    pub setting: &'static str,
    /// What became of them after the first token; those filled in since the engine was opened.
    #[serde(flatten)]
    pub counts: PrefetchStatistics,
}

/// Lossy routing, and what it has changed after the first token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct LossyUsage {
    /// Experts that are kept, and among how many of the best others are looked for, if
    /// cache-aware routing is on.
    pub cache_routing: Option<[usize; 2]>,
    /// Experts of a layer that are read for a token, if there is such a limit.
    pub expert_budget: Option<usize>,
    /// Experts that took the place of a router's choice.
    pub substituted: u64,
    /// Experts that were left out.
    pub dropped: u64,
    /// Experts that the routers chose, in all.
    pub of_choices: u64,
}

/// Events per second; 0 for no time.
pub(crate) fn rate(count: usize, time: Duration) -> f64 {
    if time.is_zero() {
        0.0
    } else {
        count as f64 / time.as_secs_f64()
    }
}

pub(crate) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
