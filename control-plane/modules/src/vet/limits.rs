//! Limits that the child puts on itself, before it looks at the module.

use std::{io, time::Duration};

use rustix::process::{Resource, Rlimit, Signal, setrlimit};
use serde::{Deserialize, Serialize};

/// After the signal that ends the process by default, before the one that can't be caught.
const CPU_GRACE_SECONDS: u64 = 5;

/// Lower priority than everything that serves.
const NICE: i32 = 10;

/// The resources of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ProcessLimits {
    memory_bytes: u64,
    cpu_seconds: u64,
}

// === impl ProcessLimits ===

impl ProcessLimits {
    pub(super) fn new(memory_bytes: u64, cpu_time: Duration) -> Self {
        Self {
            memory_bytes,
            // Zero would be no limit.
            cpu_seconds: cpu_time.as_secs() + 1,
        }
    }

    /// On data, not on addresses: each linear memory reserves 4 GiB of addresses
    /// whatever it uses.
    pub(super) fn apply(self) -> io::Result<()> {
        set(Resource::Data, self.memory_bytes, self.memory_bytes)?;
        // At the first limit comes SIGXCPU, by which the parent tells a slow module from
        // one that the system killed for its memory.
        let cpu = self.cpu_seconds;
        set(Resource::Cpu, cpu, cpu + CPU_GRACE_SECONDS)
    }
}

/// Makes the process end with its parent, write no core dump (it would contain settings),
/// run at a low priority, and be the first to go if memory runs out.
///
/// The signal comes when the *thread* that made this process ends: the parent starts
/// children from threads of its runtime, which live as long as it does.
pub(super) fn yield_to_parent() -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    set(Resource::Core, 0, 0)?;
    // Needs no privileges, because it only makes this process a better victim. Without
    // `/proc` the limit on memory has to do.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    rustix::process::nice(NICE)?;
    Ok(())
}

fn set(resource: Resource, soft: u64, hard: u64) -> io::Result<()> {
    // A lower limit that is already in force stays.
    let present = rustix::process::getrlimit(resource).maximum;
    let hard = present.map_or(hard, |present| present.min(hard));
    let limit = Rlimit {
        current: Some(soft.min(hard)),
        maximum: Some(hard),
    };
    Ok(setrlimit(resource, limit)?)
}
