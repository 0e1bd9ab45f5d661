//! Limits that the child puts on itself, before it looks at the module.

use std::{io, time::Duration};

use rustix::process::{Resource, Rlimit, Signal, setrlimit};
use serde::{Deserialize, Serialize};

/// Processor time per second of the deadline: compiling uses several cores, and the
/// parent's clock is the real limit. This one ends a child whose parent is stopped.
const CORES: u64 = 8;

/// Lower than anything that serves.
const NICE: i32 = 10;

/// What the process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ProcessLimits {
    memory_bytes: u64,
    cpu_seconds: u64,
}

// === impl ProcessLimits ===

impl ProcessLimits {
    pub(super) fn new(memory_bytes: u64, deadline: Duration) -> Self {
        Self {
            memory_bytes,
            cpu_seconds: (deadline.as_secs() + 1) * CORES,
        }
    }

    /// On data, not on addresses: each linear memory reserves 4 GiB of addresses
    /// whatever it uses.
    pub(super) fn apply(self) -> io::Result<()> {
        set(Resource::Data, self.memory_bytes)?;
        set(Resource::Cpu, self.cpu_seconds)
    }
}

/// Ends with the parent, leaves no core dump (it would hold settings), and gives way
/// to everything else.
///
/// The signal comes when the *thread* that made this process ends: the parent starts
/// children from threads of its runtime, which live as long as it does.
pub(super) fn confine() -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    set(Resource::Core, 0)?;
    rustix::process::nice(NICE)?;
    Ok(())
}

fn set(resource: Resource, value: u64) -> io::Result<()> {
    // A lower limit that is already in force stays.
    let limits = rustix::process::getrlimit(resource);
    let value = limits.maximum.map_or(value, |most| most.min(value));
    let limit = Rlimit {
        current: Some(value),
        maximum: Some(value),
    };
    Ok(setrlimit(resource, limit)?)
}
