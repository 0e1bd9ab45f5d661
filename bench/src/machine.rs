//! What the machine says of itself and of a process.

use std::{fs, time::Duration};

use anyhow::Context as _;

/// Clock ticks a second in `/proc`: fixed at 100 on Linux for every architecture of today.
const TICKS_PER_SECOND: u64 = 100;

/// The load average above which numbers are not to be quoted.
const IDLE: f64 = 0.5;

/// The load average of the last minute.
pub(crate) fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first = text.split_whitespace().next();
    first.and_then(|n| n.parse().ok()).unwrap_or(f64::NAN)
}

/// Whether the machine was idle enough for numbers to mean something.
pub(crate) fn is_idle(load: f64) -> bool {
    load <= IDLE
}

/// Processor time that a process has used.
pub(crate) fn cpu(pid: u32) -> anyhow::Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).context("failed to read /proc")?;
    // The name in parentheses may contain anything; what follows it is numbers.
    let (_, fields) = stat
        .rsplit_once(") ")
        .context("failed to read the process's times")?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks = |n: usize| -> u64 { fields.get(n).and_then(|f| f.parse().ok()).unwrap_or(0) };
    Ok(Duration::from_millis(
        (ticks(11) + ticks(12)) * 1_000 / TICKS_PER_SECOND,
    ))
}

/// Processor time that this thread has used, in nanoseconds of the scheduler's clock. The
/// kernel brings it up to date every few milliseconds: measure longer than that.
pub(crate) fn thread_cpu() -> anyhow::Result<Duration> {
    let text = fs::read_to_string("/proc/thread-self/schedstat").context("failed to read /proc")?;
    let nanos = text.split_whitespace().next().and_then(|n| n.parse().ok());
    let nanos = nanos.context("failed to read the thread's times")?;
    Ok(Duration::from_nanos(nanos))
}

/// Memory of a process in bytes: what it has now and what it had at most.
pub(crate) fn memory(pid: u32) -> anyhow::Result<(u64, u64)> {
    let status =
        fs::read_to_string(format!("/proc/{pid}/status")).context("failed to read /proc")?;
    let field = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
        kib.unwrap_or(0) * 1_024
    };
    Ok((field("VmRSS:"), field("VmHWM:")))
}
