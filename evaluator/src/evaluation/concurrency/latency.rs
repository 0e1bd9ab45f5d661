//! How long the evaluations of a policy take, and whether they can be relied on to be quick.

use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// The recent evaluations of a policy.
pub(super) struct LatencyTracker {
    since: Instant,
    /// A moving average in microseconds; 0 before the first evaluation.
    typical_us: AtomicU64,
    /// Evaluations that took far too long for a quick policy.
    outliers: AtomicU32,
    /// Milliseconds from `since` until which the policy does not count as quick.
    slow_until_ms: AtomicU64,
}

/// Weight of one evaluation in the average: the last dozen count.
const WEIGHT: u64 = 8;

/// A quick evaluation takes hardly longer than reading the request and writing the answer.
const QUICK: Duration = Duration::from_millis(1);

/// Longer than a busy machine makes a quick policy wait for a processor.
const OUTLIER: Duration = Duration::from_millis(50);

/// How long a policy does not count as quick after its first outlier. Each further outlier doubles it, up to some
/// minutes.
const FIRST_PENALTY: Duration = Duration::from_secs(1);
const DOUBLINGS: u32 = 8;

// === impl LatencyTracker ===

impl LatencyTracker {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            since: now,
            typical_us: AtomicU64::new(0),
            outliers: AtomicU32::new(0),
            slow_until_ms: AtomicU64::new(0),
        }
    }

    /// Adds an evaluation that ended now.
    pub(super) fn record(&self, duration: Duration, now: Instant) {
        let us = u64::try_from(duration.as_micros())
            .unwrap_or(u64::MAX)
            .max(1);
        // A race loses a sample, which does not matter for an average.
        let before = self.typical_us.load(Relaxed);
        let typical = match before {
            0 => us,
            _ => before - before / WEIGHT + us / WEIGHT,
        };
        self.typical_us.store(typical, Relaxed);
        if duration >= OUTLIER {
            let outliers = self.outliers.fetch_add(1, Relaxed).min(DOUBLINGS);
            let until = now + FIRST_PENALTY * (1 << outliers);
            self.slow_until_ms.store(self.millis(until), Relaxed);
        }
    }

    pub(super) fn typical(&self) -> Duration {
        Duration::from_micros(self.typical_us.load(Relaxed))
    }

    /// Whether evaluations are known to be quick: not before the first one, and not for a while after an outlier.
    pub(super) fn is_quick(&self, now: Instant) -> bool {
        let typical = self.typical();
        let known = typical > Duration::ZERO && typical < QUICK;
        known && self.millis(now) >= self.slow_until_ms.load(Relaxed)
    }

    fn millis(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.since);
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_micros(100);

    fn settle(latency: &LatencyTracker, now: Instant) {
        for _ in 0..200 {
            latency.record(SOON, now);
        }
    }

    #[test]
    fn the_average_follows_recent_evaluations() {
        let now = Instant::now();
        let latency = LatencyTracker::new(now);
        latency.record(Duration::from_micros(80), now);
        assert_eq!(latency.typical(), Duration::from_micros(80));
        for _ in 0..100 {
            latency.record(Duration::from_micros(8_000), now);
        }
        assert!(latency.typical() > Duration::from_micros(7_500));
    }

    #[test]
    fn a_policy_counts_as_quick_only_after_quick_evaluations() {
        let now = Instant::now();
        let latency = LatencyTracker::new(now);
        assert!(!latency.is_quick(now));
        latency.record(SOON, now);
        assert!(latency.is_quick(now));
        settle(&latency, now);
        latency.record(Duration::from_millis(20), now);
        assert!(!latency.is_quick(now));
        settle(&latency, now);
        assert!(latency.is_quick(now));
    }

    #[test]
    fn each_outlier_doubles_the_penalty() {
        let mut now = Instant::now();
        let latency = LatencyTracker::new(now);
        for doublings in [0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 8] {
            latency.record(OUTLIER, now);
            settle(&latency, now);
            now += FIRST_PENALTY * (1 << doublings) - Duration::from_millis(1);
            assert!(!latency.is_quick(now), "{doublings}");
            now += Duration::from_millis(1);
            assert!(latency.is_quick(now), "{doublings}");
        }
    }
}
