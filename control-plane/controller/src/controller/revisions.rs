//! Revisions: where a rollout continues from, history, and modules that stored revisions name.

use assent_api::revision::Phase;
use assent_core::{
    Digest, PolicyKey, RevisionId,
    plane::Event,
    rollout::{Input, PolicyId, StoredRevisions},
};
use tracing::{info, warn};

use super::Controller;
use crate::{
    action::{Action, FetchModule},
    backend::Backend,
    objects::{PolicyObject, RevisionObject},
    view::Now,
};

impl<B: Backend> Controller<B> {
    /// Where the rollout of a policy that is not known yet continues from.
    pub(super) fn continue_from_stored(
        &mut self,
        now: Now,
        id: &PolicyId,
        object: &PolicyObject,
    ) -> StoredRevisions {
        let stored = self.stored_revisions(object);
        if let Some(active) = &stored.active {
            self.restore_active_since(now, id, object, &active.revision);
        }
        self.restore_conditions(id, object);
        stored
    }

    /// The revision that the policy's route names. Between two kinds the newer one counts: it
    /// is created before the older one is removed.
    pub(super) fn routed_revision(&self, object: &PolicyObject) -> Option<RevisionId> {
        let own = self.objects.routes(&object.key);
        let own = own.filter(|r| r.uid.as_deref() == Some(&object.meta.uid));
        let named = own.filter_map(|r| r.revision.as_ref());
        let generation = |id: &RevisionId| {
            let mut all = self.objects.revisions(&object.key, &object.meta.uid);
            let found = all.find_map(|r| r.policy.as_ref().ok().filter(|p| p.revision == *id));
            found.map(|p| p.generation)
        };
        named.max_by_key(|id| generation(id)).cloned()
    }

    /// Stores a revision as history. One that never was active cannot be rolled back to.
    pub(super) fn retire(&mut self, id: PolicyId, revision: RevisionId) {
        let mut own = self.objects.revisions(&id.key, &id.uid);
        let found = own.find(|r| r.policy.as_ref().is_ok_and(|p| p.revision == revision));
        let keep = found.is_some_and(|r| r.phase != Phase::Candidate);
        let action = Action::RetireRevision { id, revision, keep };
        self.actions.push(action);
    }

    pub(super) fn retired(&mut self, now: Now, id: PolicyId, revision: RevisionId) {
        let key = id.key.clone();
        self.signatures.remove(&revision);
        self.event(now, Event::Rollout(id, Input::Retired(revision)));
        self.trim_history(&key);
    }

    /// Deletes the oldest history beyond what the policy keeps.
    pub(super) fn trim_history(&mut self, key: &PolicyKey) {
        let Some(object) = self.objects.policy(key) else {
            return;
        };
        let Ok(parsed) = &object.parsed else { return };
        let id = object.id();
        let deleting = self.in_flight.get(&id).map(|f| &f.deleting);
        let own = self.objects.revisions(key, &object.meta.uid);
        let own = own.filter(|r| r.phase == Phase::History && !r.meta.deleting);
        let mut history: Vec<(i64, &RevisionObject)> = own
            .map(|r| (r.policy.as_ref().map_or(0, |p| p.generation), r))
            .collect();
        history.sort_by_key(|(generation, _)| std::cmp::Reverse(*generation));
        let old = history.into_iter().skip(parsed.history_limit);
        let old: Vec<(String, String)> = old
            .map(|(_, r)| r.meta.full_name())
            .filter(|name| deleting.is_none_or(|d| !d.contains(name)))
            .collect();
        if !old.is_empty() {
            self.in_flight(&id).deleting.extend(old.iter().cloned());
            self.actions.push(Action::DeleteRevisions(id, old));
        }
    }

    pub(super) fn revisions_deleted(&mut self, id: &PolicyId, names: &[(String, String)]) {
        let deleting = &mut self.in_flight(id).deleting;
        deleting.retain(|name| !names.contains(name));
        self.landed(id);
    }

    /// Fetches modules that distributed revisions name and the module store lacks. Evaluators
    /// that hold them continue to serve; one that starts meanwhile waits.
    pub(super) fn fetch_missing_modules(&mut self) {
        let mut missing: Vec<(PolicyId, String, Digest, RevisionId)> = Vec::new();
        for (server, rollout) in self.plane.rollouts() {
            for (policy, _) in rollout.entries() {
                let digest = policy.content.module_digest;
                if self.modules.insert(digest) {
                    let revision = policy.revision.clone();
                    missing.push((rollout.id().clone(), server.to_string(), digest, revision));
                }
            }
        }
        for (id, server, digest, revision) in missing {
            let mut own = self.objects.revisions(&id.key, &id.uid);
            let found = own.find(|r| r.policy.as_ref().is_ok_and(|p| p.revision == revision));
            let url = found.and_then(|r| Some(r.spec.as_ref()?.module_url.clone()));
            let Some(url) = url else { continue };
            info!(%revision, %digest, "the module store lacks the module; fetching it again");
            let server = self.objects.server(&server).and_then(|s| s.spec());
            let fetch = FetchModule {
                url,
                digest,
                server: server.cloned().map(Box::new),
            };
            self.actions.push(Action::FetchModule(Box::new(fetch)));
        }
    }

    /// What the route names is active. If it names nothing, the revision of the newest
    /// generation becomes a candidate again, whatever its phase. A candidate whose module is
    /// missing is left out, so that it is vetted again. A route to a server that does not exist
    /// names nothing: it is removed, and must not come back before the server's replicas serve.
    /// A policy that is being deleted may have lost its route already: what was active drains.
    fn stored_revisions(&self, object: &PolicyObject) -> StoredRevisions {
        let mut stored = StoredRevisions::default();
        let routed = self.routed_revision(object);
        let routed = routed.filter(|_| self.has_server(&object.server));
        let continues = routed.is_none() && !object.meta.deleting;
        for found in self.objects.revisions(&object.key, &object.meta.uid) {
            let policy = match &found.policy {
                Ok(policy) => policy.clone(),
                Err(why) => {
                    warn!(policy = %object.key, revision = %found.meta.name, "a stored revision cannot be used: {why}");
                    continue;
                }
            };
            let is_current = policy.generation == object.meta.generation;
            if routed.as_ref() == Some(&policy.revision) {
                stored.active = Some(policy);
            } else if found.phase == Phase::Candidate || (continues && is_current) {
                if self.modules.contains(&policy.content.module_digest) {
                    stored.candidates.push(policy);
                }
            } else if found.phase != Phase::History {
                stored.draining.push(policy);
            }
        }
        stored.candidates.sort_by_key(|p| p.generation);
        stored
    }
}
