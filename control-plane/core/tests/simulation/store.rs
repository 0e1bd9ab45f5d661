//! What outlives a control plane: objects, revisions and webhooks, each written by itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use assent_core::{
    Millis, Policy, RevisionId, Route, RouteState, Snapshot,
    rollout::{MAX_DRAINING, PolicyId, StoredRevisions},
};

/// Everything that is stored.
#[derive(Default)]
pub(crate) struct Store {
    pub(crate) objects: BTreeMap<PolicyId, Object>,
    /// Objects that were released.
    pub(crate) released: BTreeSet<PolicyId>,
}

/// One policy object with its revisions and its webhook.
pub(crate) struct Object {
    /// The newest generation, as it would be if it is accepted.
    pub(crate) newest: Arc<Policy>,
    /// Whether vetting accepts the newest generation.
    pub(crate) acceptable: bool,
    pub(crate) deleting: bool,
    pub(crate) webhook: Option<Arc<Policy>>,
    /// Revisions that are not history, by generation.
    pub(crate) revisions: BTreeMap<i64, Arc<Policy>>,
    /// Every content that there ever was, to go back to.
    pub(crate) history: Vec<Arc<Policy>>,
    /// Those that the webhook named before, and until when.
    pub(crate) left: BTreeMap<RevisionId, Millis>,
    /// The newest generation that became a revision.
    pub(crate) accepted: i64,
}

// === impl Object ===

impl Object {
    pub(crate) fn new(first: Arc<Policy>, acceptable: bool) -> Self {
        Self {
            newest: first.clone(),
            acceptable,
            deleting: false,
            webhook: None,
            revisions: BTreeMap::new(),
            history: vec![first],
            left: BTreeMap::new(),
            accepted: 0,
        }
    }

    /// What a control plane that starts reads: the webhook decides, the rest follows.
    pub(crate) fn stored(&self) -> StoredRevisions {
        let others = self.revisions.values().filter(|p| !self.names(p));
        let drains = |p: &&Arc<Policy>| self.has_left(p);
        let (draining, candidates): (Vec<_>, Vec<_>) = others.partition(drains);
        StoredRevisions {
            active: self.webhook.clone(),
            candidates: candidates.into_iter().cloned().collect(),
            draining: draining.into_iter().cloned().collect(),
            ..StoredRevisions::default()
        }
    }

    pub(crate) fn flip(
        &mut self,
        now: Millis,
        from: Option<&RevisionId>,
        to: &Arc<Policy>,
    ) -> Result<(), String> {
        let named = self.webhook.as_ref().map(|p| &p.revision);
        if named != from {
            return Err(format!(
                "flips from {from:?} while the webhook names {named:?}"
            ));
        }
        if !self.revisions.contains_key(&to.generation) {
            return Err(format!("I6: flips to {}, which is history", to.revision));
        }
        self.leave(now);
        self.webhook = Some(to.clone());
        Ok(())
    }

    pub(crate) fn unroute(&mut self, now: Millis) {
        self.leave(now);
        self.webhook = None;
    }

    /// I6: what drains is kept for its time, unless there are more than may be.
    pub(crate) fn retire(
        &mut self,
        now: Millis,
        revision: &RevisionId,
        drain_ms: u64,
    ) -> Result<(), String> {
        let found = self
            .revisions
            .values()
            .find(|p| p.revision == *revision)
            .cloned();
        let Some(policy) = found else {
            return Err(format!("retires {revision} twice"));
        };
        if self.names(&policy) {
            return Err(format!("I6: retires {revision}, which the webhook names"));
        }
        let draining = self.revisions.values().filter(|p| self.has_left(p)).count();
        if let Some(since) = self.left.get(revision)
            && now.0 < since.0 + drain_ms
            && draining <= MAX_DRAINING
        {
            return Err(format!("I6: retires {revision} before it drained"));
        }
        self.revisions.remove(&policy.generation);
        Ok(())
    }

    fn leave(&mut self, now: Millis) {
        if let Some(old) = &self.webhook {
            self.left.insert(old.revision.clone(), now);
        }
    }

    fn names(&self, policy: &Policy) -> bool {
        self.webhook
            .as_ref()
            .is_some_and(|w| w.revision == policy.revision)
    }

    pub(crate) fn has_left(&self, policy: &Policy) -> bool {
        !self.names(policy)
            && (self.left.contains_key(&policy.revision) || self.deleting && self.webhook.is_none())
    }

    fn state(&self, policy: &Policy) -> RouteState {
        match (self.names(policy), self.left.contains_key(&policy.revision)) {
            (true, _) => RouteState::Active,
            (false, true) => RouteState::Retired,
            (false, false) => RouteState::Candidate,
        }
    }
}

// === impl Store ===

impl Store {
    /// The snapshot that follows from what is stored, put together in the plainest way.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let policies = self
            .objects
            .values()
            .flat_map(|o| o.revisions.values().cloned());
        let routes = self.objects.values().flat_map(|o| {
            let revisions = o.revisions.values();
            revisions.map(|p| Arc::new(Route::of(&p.revision, o.state(p))))
        });
        Snapshot::new(policies, routes)
    }
}
