//! How long a policy takes, and whether it can be relied on to be quick.

use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// What is known of a policy's evaluations.
pub(super) struct Pace {
    since: Instant,
    /// What an evaluation takes, in microseconds, the last ones counting most; 0 before the first.
    typical_us: AtomicU64,
    /// Evaluations that took far too long for a quick policy.
    lapses: AtomicU32,
    /// Milliseconds from `since` until which a lapse is remembered.
    distrusted_ms: AtomicU64,
}

/// Weight of one evaluation in the average: the last dozen count.
const WEIGHT: u64 = 8;

/// Quick is what takes hardly longer than reading the request and writing the answer.
const QUICK: Duration = Duration::from_millis(1);

/// Longer than a busy machine makes a quick policy wait for a processor.
const LAPSE: Duration = Duration::from_millis(50);

/// How long the first lapse is remembered; each further one twice as long as the one before,
/// up to some minutes.
const FIRST: Duration = Duration::from_secs(1);
const DOUBLINGS: u32 = 8;

// === impl Pace ===

impl Pace {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            since: now,
            typical_us: AtomicU64::new(0),
            lapses: AtomicU32::new(0),
            distrusted_ms: AtomicU64::new(0),
        }
    }

    /// Learns what an evaluation took that ended now.
    pub(super) fn took(&self, time: Duration, now: Instant) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1);
        // A race loses a sample, which matters to nobody.
        let before = self.typical_us.load(Relaxed);
        let typical = match before {
            0 => us,
            _ => before - before / WEIGHT + us / WEIGHT,
        };
        self.typical_us.store(typical, Relaxed);
        if time >= LAPSE {
            let lapses = self.lapses.fetch_add(1, Relaxed).min(DOUBLINGS);
            let until = now + FIRST * (1 << lapses);
            self.distrusted_ms.store(self.millis(until), Relaxed);
        }
    }

    pub(super) fn typical(&self) -> Duration {
        Duration::from_micros(self.typical_us.load(Relaxed))
    }

    /// Whether evaluations are known to be quick: no guess before the first, and none for a while
    /// after one that was not.
    pub(super) fn is_quick(&self, now: Instant) -> bool {
        let typical = self.typical();
        let known = typical > Duration::ZERO && typical < QUICK;
        known && self.millis(now) >= self.distrusted_ms.load(Relaxed)
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

    fn settle(pace: &Pace, now: Instant) {
        for _ in 0..200 {
            pace.took(SOON, now);
        }
    }

    #[test]
    fn the_average_follows() {
        let now = Instant::now();
        let pace = Pace::new(now);
        pace.took(Duration::from_micros(80), now);
        assert_eq!(pace.typical(), Duration::from_micros(80));
        for _ in 0..100 {
            pace.took(Duration::from_micros(8_000), now);
        }
        assert!(pace.typical() > Duration::from_micros(7_500));
    }

    #[test]
    fn a_policy_proves_itself_first() {
        let now = Instant::now();
        let pace = Pace::new(now);
        assert!(!pace.is_quick(now));
        pace.took(SOON, now);
        assert!(pace.is_quick(now));
        settle(&pace, now);
        pace.took(Duration::from_millis(20), now);
        assert!(!pace.is_quick(now));
        settle(&pace, now);
        assert!(pace.is_quick(now));
    }

    #[test]
    fn lapses_are_remembered_longer_each_time() {
        let mut now = Instant::now();
        let pace = Pace::new(now);
        for doublings in [0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 8] {
            pace.took(LAPSE, now);
            settle(&pace, now);
            now += FIRST * (1 << doublings) - Duration::from_millis(1);
            assert!(!pace.is_quick(now), "{doublings}");
            now += Duration::from_millis(1);
            assert!(pace.is_quick(now), "{doublings}");
        }
    }
}
