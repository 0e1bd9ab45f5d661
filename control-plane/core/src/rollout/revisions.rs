//! Revisions of one policy besides the active one.

use std::sync::Arc;

use super::Timing;
use crate::{policy::Policy, time::Millis};

/// The stored revisions of a policy when a control plane starts.
#[derive(Clone, Debug, Default)]
pub struct StoredRevisions {
    /// The revision that the webhook names.
    pub active: Option<Arc<Policy>>,
    /// Candidates, oldest first; only the newest continues.
    pub candidates: Vec<Arc<Policy>>,
    /// Revisions that drain.
    pub draining: Vec<Arc<Policy>>,
    /// If the webhook is lost: what it named last.
    pub last_good: Option<Arc<Policy>>,
}

/// A revision that is being rolled out.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The revision.
    pub policy: Arc<Policy>,
    pub(super) since: Millis,
    /// It was active until the webhook was lost.
    pub(super) was_active: bool,
    /// It was not applied everywhere before the progress deadline. It can still become active.
    pub stalled: bool,
    /// The progress deadline has passed, whether or not it is stalled: there is no deadline any
    /// more.
    pub(super) overdue: bool,
}

/// A revision that is served although it is neither active nor a candidate.
#[derive(Clone, Debug)]
pub(super) struct Retired {
    pub(super) policy: Arc<Policy>,
    pub(super) since: Millis,
    pub(super) last_request: Option<Millis>,
    /// It was superseded before it was active: no request can be on its way.
    pub(super) never_active: bool,
    /// It was asked to leave, and stays until that is stored.
    pub(super) requested: bool,
}

// === impl Candidate ===

impl Candidate {
    pub(super) fn new(policy: Arc<Policy>, since: Millis) -> Self {
        Self {
            policy,
            since,
            was_active: false,
            stalled: false,
            overdue: false,
        }
    }

    pub(super) fn returning(policy: Arc<Policy>, since: Millis) -> Self {
        Self {
            was_active: true,
            ..Self::new(policy, since)
        }
    }
}

// === impl Retired ===

impl Retired {
    pub(super) fn draining(policy: Arc<Policy>, since: Millis) -> Self {
        Self {
            policy,
            since,
            last_request: None,
            never_active: false,
            requested: false,
        }
    }

    pub(super) fn superseded(policy: Arc<Policy>, since: Millis) -> Self {
        Self {
            never_active: true,
            ..Self::draining(policy, since)
        }
    }

    /// When it leaves, if no further request arrives.
    pub(super) fn leaves_at(&self, timing: &Timing) -> Millis {
        if self.never_active {
            return self.since;
        }
        let quiet = self.last_request.map(|at| at + timing.quiet);
        let drained = (self.since + timing.drain).max(quiet.unwrap_or_default());
        drained.min(self.since + timing.longest_drain)
    }
}
