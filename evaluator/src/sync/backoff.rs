//! How long to wait before the next stream. Randomness is an argument.

use std::time::Duration;

/// First ceiling: a restarted control plane gets its clients back within moments, spread.
const BASE: Duration = Duration::from_millis(250);

/// Last ceiling: a control plane that was away for long has everybody back within it.
const CAP: Duration = Duration::from_secs(15);

/// Least wait after ABORTED, so that two processes under one name do not chase each other.
const ABORTED: Duration = Duration::from_secs(1);

/// Ceilings of retries after transient failures: 1 s, doubled up to this.
const RETRY_CAP: Duration = Duration::from_secs(60);

/// Counts failures in a row.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// A response was applied before it ended.
    Worked,
    /// It ended before any response was applied.
    Failed,
    /// Another process took its place, or this evaluator rejected a response.
    Aborted,
}

// === impl Backoff ===

impl Backoff {
    /// The wait before the next stream: full jitter, `random` in 0..1.
    pub(crate) fn after(&mut self, ended: Ended, random: f64) -> Duration {
        self.failures = match ended {
            Ended::Worked => 0,
            Ended::Failed | Ended::Aborted => self.failures.saturating_add(1),
        };
        let ceiling = doubled(BASE, self.failures.saturating_sub(1), CAP);
        match ended {
            Ended::Aborted => ABORTED + ceiling.max(ABORTED).mul_f64(random),
            Ended::Worked | Ended::Failed => ceiling.mul_f64(random),
        }
    }
}

/// The wait before retry number `attempt` (from 0): between half the ceiling and all of it.
pub(crate) fn retry(attempt: u32, random: f64) -> Duration {
    let ceiling = doubled(Duration::from_secs(1), attempt, RETRY_CAP);
    ceiling.mul_f64(0.5 + random / 2.0)
}

fn doubled(base: Duration, times: u32, cap: Duration) -> Duration {
    base.saturating_mul(1_u32.checked_shl(times).unwrap_or(u32::MAX))
        .min(cap)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_widen_the_wait_up_to_a_cap() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.after(Ended::Failed, 1.0), BASE);
        assert_eq!(backoff.after(Ended::Failed, 1.0), BASE * 2);
        assert_eq!(backoff.after(Ended::Failed, 0.0), Duration::ZERO);
        for _ in 0..100 {
            backoff.after(Ended::Failed, 0.5);
        }
        assert_eq!(backoff.after(Ended::Failed, 1.0), CAP);
    }

    #[test]
    fn a_stream_that_worked_resets_the_backoff() {
        let mut backoff = Backoff { failures: 50 };
        assert_eq!(backoff.after(Ended::Worked, 1.0), BASE);
        assert_eq!(backoff.after(Ended::Failed, 1.0), BASE);
    }

    #[test]
    fn aborted_waits_a_second_or_more_and_counts_as_a_failure() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.after(Ended::Aborted, 0.0), ABORTED);
        assert_eq!(backoff.after(Ended::Aborted, 1.0), ABORTED * 2);
        assert_eq!(backoff.failures, 2);
    }

    #[test]
    fn retries_wait_longer_each_time() {
        assert_eq!(retry(0, 0.0), Duration::from_millis(500));
        assert_eq!(retry(1, 1.0), Duration::from_secs(2));
        assert_eq!(retry(1000, 1.0), RETRY_CAP);
    }
}
