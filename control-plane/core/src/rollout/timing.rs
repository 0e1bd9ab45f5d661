//! How long the steps of a rollout take.

use std::time::Duration;

/// Durations of a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The time after which a candidate that is not applied everywhere is stalled.
    pub progress: Duration,
    /// The least time for which a retired revision is served.
    pub drain: Duration,
    /// The time without a request after which a retired revision leaves.
    pub quiet: Duration,
    /// The longest time for which a retired revision is served, requests or not.
    pub longest_drain: Duration,
    /// The time for which a deleted policy is served after its webhook was removed.
    pub delete_drain: Duration,
}

// === impl Timing ===

impl Timing {
    /// The default times for a webhook with this timeout: see docs/design/rollout.md.
    pub fn for_webhook(progress: Duration, webhook_timeout: Duration) -> Self {
        Self {
            progress,
            // Twice the timeout: a request that an API server sent just before it saw the new
            // path is answered, and so is its retry.
            drain: Duration::from_secs(60).max(2 * webhook_timeout),
            quiet: Duration::from_secs(30),
            longest_drain: Duration::from_secs(600),
            delete_drain: Duration::from_secs(10),
        }
    }

    /// The same with every drain as short as `drain`, for tests and trials.
    pub fn with_drain(self, drain: Duration) -> Self {
        Self {
            drain,
            quiet: self.quiet.min(drain),
            longest_drain: self.longest_drain.max(drain),
            delete_drain: drain,
            ..self
        }
    }
}
