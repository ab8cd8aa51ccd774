//! What a request costs: time, reads and memory, measured between two moments.

use std::time::{Duration, Instant};

use emel_loader::files::OpenFiles;
use emel_loader::plan::ExpertSlotsPlan;
use emel_loader::reader::Backend;
use emel_model::routing::LossyRouting;
use emel_systemd::{Cgroup, Memory};

use crate::blueprint::Blueprint;
use crate::experts::demand::ExpertStatistics;
use crate::experts::prefetch::{Prefetch, PrefetchStatistics};
use crate::pass_runner::PassRunner;
use crate::usage::{
    ExpertUsage, ExpertWait, LossyUsage, PrefetchUsage, Spent, Usage, milliseconds, rate,
};

/// What is the same in every request's usage.
pub(crate) struct FixedUsage {
    ring_bytes: u64,
    slot_bytes: u64,
    expert_slots: Option<ExpertSlotsPlan>,
    lossy: LossyRouting,
    /// Experts that a token goes to, in all layers.
    choices_per_token: usize,
    kv_bytes: u64,
    budget_bytes: u64,
    planned_bytes: u64,
    io_backend: &'static str,
    io_reason: String,
    direct_io: bool,
    registered_buffers: bool,
    threads: usize,
    kernels: &'static str,
    prefetch: Prefetch,
}

impl FixedUsage {
    pub(crate) fn new(
        blueprint: &Blueprint,
        (backend, io_reason): (Backend, String),
        files: &OpenFiles,
        runner: &PassRunner,
    ) -> Self {
        let plan = &blueprint.plan;
        Self {
            ring_bytes: plan.ring_bytes(),
            slot_bytes: plan.slot_bytes as u64,
            expert_slots: (plan.expert_slots.clone()).or_else(|| plan.spare_expert_slots.clone()),
            lossy: blueprint.settings.lossy,
            choices_per_token: blueprint
                .program
                .routers
                .iter()
                .map(|router| router.used)
                .sum(),
            kv_bytes: blueprint.kv_bytes(),
            budget_bytes: plan.budget_bytes,
            planned_bytes: plan.total_bytes(),
            io_backend: backend.name(),
            io_reason,
            direct_io: backend.needs_buffers() && files.all_direct(),
            registered_buffers: runner.has_registered_buffers(),
            threads: blueprint.settings.threads,
            kernels: runner.kernels_name(),
            prefetch: blueprint.settings.prefetch,
        }
    }
}

/// The seed and tokens of a request, and passes after its first token.
pub(crate) struct Counts {
    pub(crate) seed: u64,
    pub(crate) prompt: usize,
    pub(crate) resumed: usize,
    pub(crate) generated: usize,
    pub(crate) passes: usize,
}

/// What a request has cost: in all since `meter`, and after its first token since `decode`.
pub(crate) fn usage(
    metered: Metered<'_>,
    meter: &Meter,
    prefill: Duration,
    decode: &Meter,
    counts: Counts,
) -> Usage {
    let total = meter.read(metered);
    let after_first = decode.read(metered);
    let first_token = decode.started - meter.started;
    let decode_seconds = after_first.time.as_secs_f64();
    let fixed = metered.fixed;
    let weights = metered.runner.weights();
    Usage {
        seed: counts.seed,
        prompt_tokens: counts.prompt,
        resumed_tokens: counts.resumed,
        generated_tokens: counts.generated,
        prefill_tokens_per_second: rate(counts.prompt - counts.resumed, prefill),
        decode_tokens_per_second: rate(counts.passes, after_first.time),
        first_token_ms: milliseconds(first_token),
        bytes_read: total.costs.bytes_read,
        bytes_read_since_open: meter.costs.bytes_read + total.costs.bytes_read,
        retries: total.costs.retries,
        streamed_bytes_per_token: after_first
            .costs
            .bytes_read
            .checked_div(counts.passes as u64)
            .unwrap_or(0),
        pinned_bytes: weights.pinned_bytes(),
        given_back_bytes: weights.given_back_bytes(),
        ring_bytes: fixed.ring_bytes,
        slot_bytes: fixed.slot_bytes,
        experts: weights
            .expert_slots()
            .zip(fixed.expert_slots.as_ref())
            .map(|(slots, planned)| ExpertUsage {
                slots,
                slot_bytes: planned.layout.slot_bytes as u64,
                of_experts: planned.layout.experts(),
                hits: after_first.costs.experts.hits,
                misses: after_first.costs.experts.misses,
                missed_bytes_per_token: (after_first.costs.experts.missed_bytes)
                    .checked_div(counts.passes as u64)
                    .unwrap_or(0),
                late: after_first.costs.experts.late,
                wait_ms: milliseconds(total.costs.experts.wait),
                decode_wait: after_first.expert_wait(),
                prefetch: PrefetchUsage {
                    setting: fixed.prefetch.name(),
                    counts: PrefetchStatistics {
                        // Most of it before the first request.
                        filled: metered.runner.expert_statistics().prefetch.filled,
                        ..after_first.costs.experts.prefetch
                    },
                },
            }),
        lossy: lossy_usage(fixed, &after_first.costs.experts, counts.passes),
        kv_bytes: fixed.kv_bytes,
        budget_bytes: fixed.budget_bytes,
        planned_bytes: fixed.planned_bytes,
        spent: total.spent(),
        decode: after_first.spent(),
        decode_bytes_per_second: if decode_seconds > 0.0 {
            after_first.costs.bytes_read as f64 / decode_seconds
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

fn lossy_usage(
    fixed: &FixedUsage,
    experts: &ExpertStatistics,
    passes: usize,
) -> Option<LossyUsage> {
    let lossy = &fixed.lossy;
    lossy.is_on().then(|| LossyUsage {
        cache_routing: lossy.cache_routing.map(|rule| [rule.kept, rule.among]),
        expert_budget: lossy.expert_budget,
        substituted: experts.substituted,
        dropped: experts.dropped,
        of_choices: (passes * fixed.choices_per_token) as u64,
    })
}

/// What costs are read from.
#[derive(Clone, Copy)]
pub(crate) struct Metered<'a> {
    pub(crate) runner: &'a PassRunner,
    pub(crate) fixed: &'a FixedUsage,
    /// Time spent on sampling.
    pub(crate) sampling: Duration,
}

/// Costs since a moment.
#[derive(Clone)]
pub(crate) struct Meter {
    pub(crate) started: Instant,
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
struct Interval {
    time: Duration,
    costs: Costs,
}

impl Costs {
    fn so_far(metered: Metered<'_>) -> Self {
        let read = metered.runner.read_statistics();
        Self {
            bytes_read: read.bytes_read,
            retries: read.retries,
            wait: read.wait,
            compute: metered.runner.compute(),
            sampling: metered.sampling,
            experts: metered.runner.expert_statistics(),
        }
    }

    fn since(&self, before: &Self) -> Self {
        Self {
            bytes_read: self.bytes_read - before.bytes_read,
            retries: self.retries - before.retries,
            wait: self.wait - before.wait,
            compute: self.compute - before.compute,
            sampling: self.sampling - before.sampling,
            experts: self.experts.since(&before.experts),
        }
    }
}

impl Meter {
    pub(crate) fn start(metered: Metered<'_>) -> Self {
        Self {
            started: Instant::now(),
            costs: Costs::so_far(metered),
        }
    }

    fn read(&self, metered: Metered<'_>) -> Interval {
        Interval {
            time: self.started.elapsed(),
            costs: Costs::so_far(metered).since(&self.costs),
        }
    }
}

impl Interval {
    fn expert_wait(&self) -> ExpertWait {
        let experts = &self.costs.experts;
        let seconds = experts.wait.as_secs_f64();
        let per_second = |amount: f64| if seconds > 0.0 { amount / seconds } else { 0.0 };
        ExpertWait {
            total_ms: milliseconds(experts.wait),
            idle_ms: milliseconds(experts.idle_wait),
            reads: per_second(experts.wait_reads),
            bytes_per_second: per_second(experts.wait_bytes as f64),
        }
    }

    fn spent(&self) -> Spent {
        let costs = &self.costs;
        let known = costs.wait + costs.compute + costs.sampling;
        Spent {
            total_ms: milliseconds(self.time),
            wait_ms: milliseconds(costs.wait),
            expert_wait_ms: milliseconds(costs.experts.wait),
            compute_ms: milliseconds(costs.compute),
            sampling_ms: milliseconds(costs.sampling),
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
