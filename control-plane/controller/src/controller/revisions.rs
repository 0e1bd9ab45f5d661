//! Revisions: where a rollout continues from, history, and modules that stored revisions name.

use std::sync::Arc;

use assent_api::{PolicyRevisionSpec, revision::Phase};
use assent_core::{
    Digest, PolicyKey, RevisionId,
    plane::Event,
    rollout::{Input, PolicyId, StoredRevisions},
};
use tracing::{info, warn};

use super::{Controller, recovery::Recovered};
use crate::{
    action::{Action, FetchModule},
    backend::Backend,
    objects::{Kind, ObjectRef, PolicyObject, RevisionObject, RouteObject},
    view::Now,
};

impl<B: Backend> Controller<B> {
    /// Where the rollout of a policy that is not known yet continues from. Phases that an
    /// earlier process could not record are recorded now.
    pub(super) fn continue_from_stored(
        &mut self,
        now: Now,
        id: &PolicyId,
        object: &PolicyObject,
    ) -> StoredRevisions {
        let named = self.routed_revision(object);
        // A route to a server that does not exist names nothing: it is removed, and must not
        // come back before the server's replicas serve.
        let routed = named.clone().filter(|_| self.has_server(&object.server));
        let Found {
            mut stored,
            mut specs,
            phases,
            obsolete,
        } = self.find_stored(object, routed.as_ref(), named.as_ref());
        if let Some(routed) = &routed
            && stored.active.is_none()
        {
            match self.recover(id, object, routed) {
                Recovered::Rebuilt(policy, spec) => {
                    specs.push((policy.revision.clone(), spec));
                    stored.active = Some(policy);
                }
                Recovered::Named(policy) => stored.active = Some(policy),
                Recovered::Unknown => self.update_withheld(now, &object.server),
            }
        }
        for (revision, spec) in specs {
            self.remember(id, revision, spec);
        }
        for (revision, phase) in phases {
            self.set_phase(id, revision, phase);
        }
        for revision in obsolete {
            self.retire(id.clone(), revision);
        }
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
        let own = own.filter(|r| r.belongs_to(&object.meta.uid));
        let named = own.filter_map(|route| self.named_by(object, route));
        named.max_by_key(RevisionId::generation)
    }

    /// The revision that a route names. If its path was edited to name nothing that exists, the
    /// revision that it was written for.
    fn named_by(
        &self,
        object: &PolicyObject,
        route: &RouteObject<B::Existing>,
    ) -> Option<RevisionId> {
        let is_own = |id: &RevisionId| {
            let own = |generation| RevisionId::new(&object.key, generation, &object.meta.uid);
            id.generation().map(own).as_ref() == Some(id)
        };
        let is_stored = |id: &RevisionId| {
            let mut own = self.objects.revisions(&object.key, &object.meta.uid);
            own.any(|r| r.revision().as_ref() == Some(id))
        };
        let recorded = route.resolved.as_ref();
        let recorded = recorded.map(|r| RevisionId::from_wire(&r.revision));
        let recorded = recorded.filter(is_own);
        let path = route.revision.clone().filter(is_own);
        match path {
            Some(path) if recorded.is_none() || is_stored(&path) => Some(path),
            _ => recorded,
        }
    }

    /// Stores a revision as history. One that never was active cannot be rolled back to.
    pub(super) fn retire(&mut self, id: PolicyId, revision: RevisionId) {
        let mut own = self.objects.revisions(&id.key, &id.uid);
        let found = own.find(|r| r.policy.as_ref().is_ok_and(|p| p.revision == revision));
        let keep = found.is_some_and(|r| r.phase != Phase::Candidate);
        drop(own);
        self.in_flight(&id).retiring.insert(revision.clone());
        let action = Action::RetireRevision { id, revision, keep };
        self.actions.push(action);
    }

    pub(super) fn retired(&mut self, now: Now, id: PolicyId, revision: RevisionId) {
        let key = id.key.clone();
        self.signatures.remove(&revision);
        self.in_flight(&id).retiring.remove(&revision);
        self.landed(&id);
        self.forget_revision(&id, &revision);
        self.forget_candidate(&id, &revision);
        self.event(now, Event::Rollout(id, Input::Retired(revision)));
        self.check_revisions(&key);
        self.trim_history(&key);
    }

    /// The object of a candidate that left is deleted, before a watch reports it.
    fn forget_candidate(&mut self, id: &PolicyId, revision: &RevisionId) {
        let mut own = self.objects.revisions(&id.key, &id.uid);
        let found =
            own.find(|r| r.phase == Phase::Candidate && r.revision().as_ref() == Some(revision));
        let meta = found.map(|r| r.meta.clone());
        drop(own);
        if let Some(meta) = meta {
            self.objects.remove(&ObjectRef {
                kind: Kind::Revisions,
                namespace: meta.namespace,
                name: meta.name,
                uid: meta.uid,
            });
        }
    }

    /// Deletes the oldest history beyond what the policy keeps, and candidates that nobody rolls out: the response to
    /// their write was lost, and the policy was edited since.
    pub(super) fn trim_history(&mut self, key: &PolicyKey) {
        let Some(object) = self.objects.policy(key) else {
            return;
        };
        let Ok(parsed) = &object.parsed else { return };
        let id = object.id();
        let deleting = self.in_flight.get(&id).map(|f| &f.deleting);
        let own = self.objects.revisions(key, &object.meta.uid);
        let own = own.filter(|r| r.phase == Phase::History && !r.meta.deleting);
        // The phase of a revision that a route names may be wrong.
        let own = own.filter(|r| r.revision().is_none_or(|own| !self.is_served(&id, &own)));
        let mut history: Vec<(i64, &RevisionObject)> = own
            .map(|r| (r.policy.as_ref().map_or(0, |p| p.generation), r))
            .collect();
        history.sort_by_key(|(generation, _)| std::cmp::Reverse(*generation));
        let old = history.into_iter().skip(parsed.history_limit);
        let own = self.objects.revisions(key, &object.meta.uid);
        let abandoned = own.filter(|r| self.is_abandoned(object, r));
        let old: Vec<(String, String)> = old
            .map(|(_, r)| r)
            .chain(abandoned)
            .map(|r| r.meta.full_name())
            .filter(|name| deleting.is_none_or(|d| !d.contains(name)))
            .collect();
        if !old.is_empty() {
            self.in_flight(&id).deleting.extend(old.iter().cloned());
            self.actions.push(Action::DeleteRevisions(id, old));
        }
    }

    fn is_abandoned(&self, object: &PolicyObject, stored: &RevisionObject) -> bool {
        let id = object.id();
        let Ok(policy) = &stored.policy else {
            return false;
        };
        let storing = self.in_flight.get(&id).and_then(|f| f.storing);
        policy.generation < object.meta.generation
            && storing != Some(policy.generation)
            && !stored.meta.deleting
            && !was_active(object, stored, &policy.revision)
            && !self.is_served(&id, &policy.revision)
            && !self.is_retiring(&id, &policy.revision)
            && !self.is_routed_to(&id, &policy.revision)
    }

    fn is_retiring(&self, id: &PolicyId, revision: &RevisionId) -> bool {
        let in_flight = self.in_flight.get(id);
        in_flight.is_some_and(|f| f.retiring.contains(revision))
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
            for (policy, _) in rollout.entries().filter(|(p, _)| p.has_content()) {
                let digest = policy.content.module_digest;
                if self.modules.insert(digest) {
                    let revision = policy.revision.clone();
                    missing.push((rollout.id().clone(), server.to_string(), digest, revision));
                }
            }
        }
        for (id, server, digest, revision) in missing {
            let url = self.spec_of(&id, &revision);
            let url = url.map(|spec| spec.module_url.clone());
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
    /// generation becomes a candidate again, whatever its phase, and the one that was active last
    /// returns beside it: the newest generation may turn out to be bad. A candidate whose module is
    /// missing is left out, so that its module is fetched and vetted again. A policy that is
    /// being deleted may have lost its route already: what was active drains.
    fn find_stored(
        &self,
        object: &PolicyObject,
        routed: Option<&RevisionId>,
        named: Option<&RevisionId>,
    ) -> Found {
        let mut found = Found::default();
        let continues = routed.is_none() && !object.meta.deleting;
        let recorded = routed.and_then(|routed| self.resolved(object, routed));
        let last_good = continues.then(|| self.last_active(object, named)).flatten();
        for revision in self.objects.revisions(&object.key, &object.meta.uid) {
            let (policy, spec) = match (&revision.policy, &revision.spec) {
                (Ok(policy), Some(spec)) => (policy.clone(), spec.clone()),
                (Err(why), _) => {
                    warn!(policy = %object.key, revision = %revision.meta.name, "a stored revision cannot be used: {why}");
                    continue;
                }
                (Ok(_), None) => continue,
            };
            let id = policy.revision.clone();
            let is_current = policy.generation == object.meta.generation;
            if routed == Some(&id) {
                // Somebody may have replaced the object by one with other content.
                if recorded
                    .as_ref()
                    .is_some_and(|r| r.content_digest != spec.content_digest)
                {
                    warn!(policy = %object.key, revision = %id, "the stored revision is not the one that its route was written for");
                    continue;
                }
                if revision.phase != Phase::Active {
                    found.phases.push((id.clone(), Phase::Active));
                }
                found.stored.active = Some(policy);
            } else if last_good.as_ref() == Some(&id) {
                // It is known to work: a missing module is only fetched.
                let is_recorded = revision.phase == Phase::History
                    || is_current && revision.phase != Phase::Candidate;
                if !is_recorded {
                    found.phases.push((id.clone(), Phase::History));
                }
                found.stored.last_good = Some(policy);
            } else if was_active(object, revision, &id) {
                if revision.phase == Phase::History {
                    continue;
                }
                // The phases of a policy that is being deleted are of no use to anybody.
                if revision.phase != Phase::Draining && !object.meta.deleting {
                    found.phases.push((id.clone(), Phase::Draining));
                }
                found.stored.draining.push(policy);
            } else if self.modules.contains(&policy.content.module_digest) {
                found.stored.candidates.push(policy);
            } else {
                if !is_current {
                    found.obsolete.push(id);
                }
                continue;
            }
            found.specs.push((id, spec));
        }
        found.stored.candidates.sort_by_key(|p| p.generation);
        found
    }

    /// The revision that was active last. Generations become active in their order: a rollback makes a new one.
    /// The process that pointed a route at one may have ended before it recorded the phase.
    fn last_active(&self, object: &PolicyObject, named: Option<&RevisionId>) -> Option<RevisionId> {
        let own = self.objects.revisions(&object.key, &object.meta.uid);
        let own = own.filter_map(|r| Some((r.policy.as_ref().ok()?, r)));
        let active =
            own.filter(|(p, r)| named == Some(&p.revision) || was_active(object, r, &p.revision));
        let last = active.max_by_key(|(p, _)| p.generation);
        last.map(|(p, _)| p.revision.clone())
    }
}

/// Stored revisions of a policy, and what their objects lack.
#[derive(Default)]
struct Found {
    stored: StoredRevisions,
    specs: Vec<(RevisionId, Arc<PolicyRevisionSpec>)>,
    /// Phases that must be recorded.
    phases: Vec<(RevisionId, Phase)>,
    /// Candidates of earlier generations that were never active.
    obsolete: Vec<RevisionId>,
}

/// Whether a revision was active. The process that pointed a route at it may have ended before
/// it recorded the phase, and have written the policy's status all the same.
fn was_active(object: &PolicyObject, revision: &RevisionObject, id: &RevisionId) -> bool {
    let status = object.status.as_ref().and_then(|s| s.active.as_ref());
    revision.phase != Phase::Candidate || status.is_some_and(|a| a.revision == id.short())
}
