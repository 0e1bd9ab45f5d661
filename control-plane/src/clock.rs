//! The one place that reads clocks: core time from a monotonic clock, dates for people.

use std::time::{Duration, Instant, SystemTime};

use assent_core::Millis;
use jiff::Timestamp;

/// Core time since this process started, and the dates that belong to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
    date: SystemTime,
}

// === impl Clock ===

impl Clock {
    /// A clock that starts now. It starts at one second, so that nothing is at time zero.
    pub(crate) fn start() -> Self {
        let back = Duration::from_secs(1);
        Self {
            start: Instant::now()
                .checked_sub(back)
                .unwrap_or_else(Instant::now),
            date: SystemTime::now() - back,
        }
    }

    /// The time now.
    pub(crate) fn now(&self) -> Millis {
        Millis::default() + self.start.elapsed()
    }

    /// When a core time is, for sleeping until then.
    pub(crate) fn instant(&self, at: Millis) -> tokio::time::Instant {
        (self.start + at.since(Millis::default())).into()
    }

    /// The date of a core time.
    pub(crate) fn date(&self, at: Millis) -> SystemTime {
        self.date + at.since(Millis::default())
    }

    /// The date of a core time, for objects.
    pub(crate) fn timestamp(&self, at: Millis) -> Timestamp {
        Timestamp::try_from(self.date(at)).unwrap_or(Timestamp::UNIX_EPOCH)
    }
}
