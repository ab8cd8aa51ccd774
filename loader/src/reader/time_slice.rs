//! How soon the kernel lets a reader's thread run.

/// The slice that a reader's thread asks for: the shortest that the kernel gives.
const SLICE_NS: u64 = 100_000;

/// `SCHED_FLAG_KEEP_POLICY`: a thread of another policy, as `chrt` gives, keeps it.
const KEEP_POLICY: u64 = libc::SCHED_FLAG_KEEP_POLICY as u64;

/// As the kernel reads it (`struct sched_attr`, first version).
#[repr(C)]
struct SchedulingAttributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    /// For ordinary threads, the slice (Linux 6.12 and later).
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

/// Has the calling thread run as soon as it wakes, even where every processor computes.
///
/// A thread that wakes waits for the slice of the one that runs to end, 3 ms and more,
/// which is the time of several reads; unless its own slice is shorter. It asks for no
/// privilege and no larger share of the processor. Advice only: older kernels keep their
/// slice, and preempt for a thread that has slept anyway.
pub(super) fn run_at_once() {
    // SAFETY: reads a number of the calling thread, from no memory of ours.
    let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    let attributes = SchedulingAttributes {
        size: size_of::<SchedulingAttributes>() as u32,
        policy: 0,
        flags: KEEP_POLICY,
        nice,
        priority: 0,
        runtime_ns: SLICE_NS,
        deadline_ns: 0,
        period_ns: 0,
    };
    // SAFETY: the attributes are readable and as large as they say; thread 0 is the calling one,
    // and the kernel keeps no pointer to them.
    let _ = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> i32 {
        // SAFETY: reads a number of the calling thread, from no memory of ours.
        unsafe { libc::sched_getscheduler(0) }
    }

    #[test]
    fn a_thread_keeps_its_policy() {
        for wanted in [libc::SCHED_OTHER, libc::SCHED_BATCH, libc::SCHED_IDLE] {
            let before_and_after = std::thread::spawn(move || {
                let parameters = libc::sched_param { sched_priority: 0 };
                // SAFETY: the parameters are readable; thread 0 is the calling one.
                unsafe { libc::sched_setscheduler(0, wanted, &raw const parameters) };
                let before = policy();
                run_at_once();
                (before, policy())
            });
            assert_eq!(before_and_after.join().unwrap(), (wanted, wanted));
        }
    }
}
