//! Time as the core sees it: an argument.

use std::{
    ops::{Add, Sub},
    time::Duration,
};

/// Milliseconds on the monotonic clock of the caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

// === impl Millis ===

impl Millis {
    /// The time since `earlier`; zero if that is in the future.
    pub fn since(self, earlier: Millis) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Millis {
    type Output = Millis;

    fn add(self, by: Duration) -> Millis {
        let millis = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        Millis(self.0.saturating_add(millis))
    }
}

impl Sub<Duration> for Millis {
    type Output = Millis;

    fn sub(self, by: Duration) -> Millis {
        let millis = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        Millis(self.0.saturating_sub(millis))
    }
}
