//! Writes that have not reported yet.

use std::{collections::BTreeSet, sync::Arc};

use assent_core::{Policy, RevisionId, rollout::PolicyId};

use super::Controller;
use crate::backend::Backend;

/// Writes for one policy that have not reported yet.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    /// Its route is being written.
    pub(super) route: Option<RouteWrite>,
    /// The generation whose revision is being stored.
    pub(super) storing: Option<i64>,
    /// Revisions that are being deleted, by namespace and name.
    pub(super) deleting: BTreeSet<(String, String)>,
    /// Revisions that are becoming history or are being deleted.
    pub(super) retiring: BTreeSet<RevisionId>,
    /// Revisions that are being stored again.
    pub(super) restoring: BTreeSet<RevisionId>,
    /// Phases that are being written.
    pub(super) phases: usize,
    /// What to flip to once they are.
    pub(super) flip: Option<Arc<Policy>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RouteWrite {
    Flip,
    Repair,
}

// === impl Controller ===

impl<B: Backend> Controller<B> {
    pub(super) fn in_flight(&mut self, id: &PolicyId) -> &mut InFlight {
        self.in_flight.entry(id.clone()).or_default()
    }

    /// Drops the entry of a policy that waits for nothing.
    pub(super) fn landed(&mut self, id: &PolicyId) {
        if self.in_flight.get(id).is_some_and(InFlight::is_empty) {
            self.in_flight.remove(id);
        }
    }

    pub(super) fn is_routing(&self, id: &PolicyId) -> bool {
        self.in_flight.get(id).is_some_and(|f| f.route.is_some())
    }
}

// === impl InFlight ===

impl InFlight {
    fn is_empty(&self) -> bool {
        self.route.is_none()
            && self.storing.is_none()
            && self.deleting.is_empty()
            && self.retiring.is_empty()
            && self.restoring.is_empty()
            && self.phases == 0
            && self.flip.is_none()
    }
}
