//! Revisions that are served and whose objects were deleted, damaged or lost.
//!
//! Evaluators unload what a snapshot lacks, and a webhook that still names it fails. So a
//! revision that is served stays in the snapshot whatever happens to its object: it is stored
//! again from memory, made again from the policy and what the webhook records of it, or
//! announced by name and content digest alone.

use std::{collections::BTreeSet, sync::Arc};

use assent_api::{
    PolicyRevisionSpec,
    revision::{Phase, ResolvedRevision},
};
use assent_core::{Policy, PolicyKey, RevisionId, plane::Event, rollout::PolicyId};
use tracing::{error, warn};

use super::Controller;
use crate::{
    action::{Action, EventKind, PolicyEvent, RestoreRevision, RevisionIncident},
    backend::Backend,
    objects::{Change, Kind, Object, PolicyObject, RevisionObject, RouteObject},
    revision,
    view::Now,
};

/// What is known of a revision that a route names and that is not stored.
pub(super) enum Recovered {
    /// The revision was made again.
    Rebuilt(Arc<Policy>, Arc<PolicyRevisionSpec>),
    /// Only name and content digest are known.
    Named(Arc<Policy>),
    /// Nothing but its name is known.
    Unknown,
}

impl<B: Backend> Controller<B> {
    /// What is stored of a revision that evaluators hold.
    pub(super) fn spec_of(
        &self,
        id: &PolicyId,
        revision: &RevisionId,
    ) -> Option<&Arc<PolicyRevisionSpec>> {
        self.specs.get(id)?.get(revision)
    }

    pub(super) fn remember(
        &mut self,
        id: &PolicyId,
        revision: RevisionId,
        spec: Arc<PolicyRevisionSpec>,
    ) {
        let own = self.specs.entry(id.clone()).or_default();
        own.insert(revision, spec);
    }

    pub(super) fn forget_revision(&mut self, id: &PolicyId, revision: &RevisionId) {
        if let Some(own) = self.specs.get_mut(id) {
            own.remove(revision);
        }
        self.reported.retain(|(of, _)| of != revision);
    }

    pub(super) fn forget_revisions(&mut self, id: &PolicyId) {
        let own = self.specs.remove(id).unwrap_or_default();
        self.reported.retain(|(of, _)| !own.contains_key(of));
    }

    /// Takes a policy out of all snapshots. It is new when it is observed again.
    pub(super) fn forget_policy(&mut self, now: Now, id: &PolicyId) {
        self.cancel_vetting(id);
        self.forget_revisions(id);
        self.event(now, Event::PolicyForgotten(id.clone()));
    }

    /// Records the phase of a revision for readers and for the next process.
    pub(super) fn set_phase(&mut self, id: &PolicyId, revision: RevisionId, phase: Phase) {
        self.in_flight(id).phases += 1;
        self.actions
            .push(Action::SetPhase(id.clone(), revision, phase));
    }

    pub(super) fn phase_set(
        &mut self,
        id: &PolicyId,
        revision: &RevisionId,
        object: Option<Box<Object<B::Existing>>>,
    ) {
        // The mirror must know the phase before it is asked whether the revision was active.
        if let Some(object) = object.filter(|o| is_revision(o, revision)) {
            self.objects.insert(*object);
        }
        let in_flight = self.in_flight(id);
        in_flight.phases = in_flight.phases.saturating_sub(1);
        let flip = match in_flight.phases {
            0 => in_flight.flip.take(),
            _ => None,
        };
        match flip {
            Some(to) => self.flip(id.clone(), to),
            None => self.landed(id),
        }
    }

    /// Looks at the revisions of every policy.
    pub(super) fn check_all_revisions(&mut self) {
        let stored = self.objects.all_revisions().filter_map(|r| r.key.clone());
        let served = self.specs.keys().map(|id| id.key.clone());
        let keys: BTreeSet<PolicyKey> = stored.chain(served).collect();
        for key in &keys {
            self.check_revisions(key);
        }
    }

    /// Keeps the objects of revisions that are served, and lets others go.
    pub(super) fn check_revisions(&mut self, key: &PolicyKey) {
        let objects = self.objects.revisions_of_key(key);
        let objects: Vec<(RevisionId, RevisionObject)> = objects
            .filter_map(|object| Some((object.revision()?, object.clone())))
            .collect();
        for (revision, object) in &objects {
            let id = PolicyId {
                key: key.clone(),
                uid: object.policy_uid.as_str().into(),
            };
            let meta = &object.meta;
            let wanted = self.is_served(&id, revision);
            if meta.deleting && wanted {
                self.report_deletion(&id, revision, &object.meta.name);
            } else if meta.deleting == meta.has_finalizer && (meta.deleting || wanted) {
                let action = Action::SetFinalizer(Kind::Revisions, meta.clone(), !meta.deleting);
                self.actions.push(action);
            }
        }
        self.restore_missing(key);
        self.repair_phases(key, &objects);
    }

    /// Records phases again that got lost, or that somebody changed.
    fn repair_phases(&mut self, key: &PolicyKey, objects: &[(RevisionId, RevisionObject)]) {
        for (revision, object) in objects {
            let id = PolicyId {
                key: key.clone(),
                uid: object.policy_uid.as_str().into(),
            };
            let writing = self.in_flight.get(&id).is_some_and(|f| f.phases > 0);
            let living = self.living(&id).is_some() && self.is_served(&id, revision);
            let expected = self.phase_of(&id, revision).filter(|_| living && !writing);
            if let Some(expected) = expected.filter(|phase| *phase != object.phase) {
                self.set_phase(&id, revision.clone(), expected);
            }
        }
    }

    /// A revision that belongs to no policy can be deleted, whoever put the finalizer there.
    pub(super) fn release_foreign(&mut self, change: &Change<B::Existing>) {
        let objects = match change {
            Change::Applied(object) => std::slice::from_ref(object),
            Change::Listed(Kind::Revisions, objects) => objects,
            _ => return,
        };
        for object in objects {
            if let Object::Revision(object) = object
                && object.key.is_none()
                && object.meta.deleting
                && object.meta.has_finalizer
            {
                let action = Action::SetFinalizer(Kind::Revisions, object.meta.clone(), false);
                self.actions.push(action);
            }
        }
    }

    pub(super) fn revision_restored(
        &mut self,
        now: Now,
        id: &PolicyId,
        revision: &RevisionId,
        object: Option<Box<Object<B::Existing>>>,
    ) {
        self.in_flight(id).restoring.remove(revision);
        self.landed(id);
        let Some(object) = object.filter(|o| is_revision(o, revision)) else {
            return self.check_revisions(&id.key);
        };
        let message = format!(
            "the PolicyRevision {} was missing or damaged and was created again",
            object.meta().name
        );
        self.report_always(id, RevisionIncident::Restored, message);
        let affected = self.objects.insert(*object);
        if let Some(phase) = self.phase_of(id, revision) {
            self.set_phase(id, revision.clone(), phase);
        }
        self.handle(now, affected);
    }

    /// What can be said of a revision that the policy's route names and that is not stored.
    pub(super) fn recover(
        &mut self,
        id: &PolicyId,
        object: &PolicyObject,
        routed: &RevisionId,
    ) -> Recovered {
        let generation = routed.generation().unwrap_or_default();
        let Some(resolved) = self.resolved(object, routed) else {
            return self.not_recovered(id, object, routed);
        };
        let made = match &object.parsed {
            Ok(parsed) if generation == object.meta.generation => {
                revision::rebuild(parsed, &id.uid, generation, &resolved)
            }
            Ok(_) => Err("the policy was edited since".to_owned()),
            Err(why) => Err(why.clone()),
        };
        match (made, resolved.content_digest.parse()) {
            (Ok((policy, spec)), _) => Recovered::Rebuilt(Arc::new(policy), Arc::new(spec)),
            (Err(why), Ok(digest)) => {
                let message = format!(
                    "the webhook names the revision {routed}, whose PolicyRevision is gone and \
                     cannot be made again ({why}): replicas that have loaded it continue to serve \
                     it, and no other replica can load it; edit or re-apply the policy to replace it"
                );
                self.report(id, object, routed, RevisionIncident::Lost, message);
                let key = id.key.clone();
                let policy = Policy::without_content(key, generation, &id.uid, digest);
                Recovered::Named(Arc::new(policy))
            }
            (Err(_), Err(_)) => self.not_recovered(id, object, routed),
        }
    }

    /// The content digest that the route records for a revision, if it does.
    pub(super) fn resolved(
        &self,
        object: &PolicyObject,
        revision: &RevisionId,
    ) -> Option<Arc<ResolvedRevision>> {
        let mut own = self.objects.routes(&object.key);
        let found = own.find_map(|route| resolved_for(route, revision));
        found.cloned()
    }

    /// Looks again for a revision of which nothing was known: its route or objects changed.
    pub(super) fn look_for_unknown(&mut self, now: Now, key: &PolicyKey) {
        let mut ids = self.unknown.keys().filter(|id| id.key == *key);
        let Some(id) = ids.next().cloned() else {
            return;
        };
        self.unknown.remove(&id);
        let server = self.server_of(&id);
        self.forget_policy(now, &id);
        self.observe_policy(now, key);
        self.update_withheld(now, &server);
    }

    /// Nothing is published to a server while one of its webhooks names an unknown revision.
    pub(super) fn update_withheld(&mut self, now: Now, server: &str) {
        let unknown = self.unknown.keys();
        let withheld = unknown
            .filter_map(|id| self.objects.policy(&id.key))
            .any(|object| object.server == server);
        let event = Event::ServerWithheld {
            server: server.into(),
            withheld,
        };
        self.event(now, event);
    }

    fn not_recovered(
        &mut self,
        id: &PolicyId,
        object: &PolicyObject,
        routed: &RevisionId,
    ) -> Recovered {
        let message = format!(
            "the webhook names the revision {routed}, of which nothing else is known: nothing is \
             published to the PolicyServer {:?}, so that replicas that have loaded the revision \
             continue to serve it; restore its PolicyRevision, or delete the policy's webhook \
             configuration to give the revision up",
            object.server
        );
        self.report(id, object, routed, RevisionIncident::Lost, message);
        self.unknown.insert(id.clone(), routed.clone());
        Recovered::Unknown
    }

    /// Whether evaluators must hold the revision.
    pub(super) fn is_served(&self, id: &PolicyId, revision: &RevisionId) -> bool {
        let retiring = self.in_flight.get(id).map(|f| &f.retiring);
        let rollout = self.plane.rollout_of(id);
        retiring.is_none_or(|retiring| !retiring.contains(revision))
            && rollout.is_some_and(|r| r.entries().any(|(p, _)| p.revision == *revision))
    }

    fn restore_missing(&mut self, key: &PolicyKey) {
        let living: Vec<PolicyId> = self
            .plane
            .rollouts_of_key(key)
            .filter(|r| !r.is_deleting())
            .map(|r| r.id().clone())
            .collect();
        for id in living {
            let own = self.specs.get(&id).into_iter().flatten();
            let missing = own.filter(|(revision, spec)| {
                self.is_served(&id, revision) && !self.is_stored(&id, revision, spec)
            });
            let missing: Vec<_> = missing.map(|(r, s)| (r.clone(), s.clone())).collect();
            for (revision, spec) in missing {
                if !self.in_flight(&id).restoring.insert(revision.clone()) {
                    continue;
                }
                warn!(policy = %key, %revision, "a PolicyRevision that is served is missing or damaged; storing it again");
                let restore = RestoreRevision {
                    id: id.clone(),
                    revision,
                    spec,
                };
                let action = Action::RestoreRevision(Box::new(restore));
                self.actions.push(action);
            }
        }
    }

    fn is_stored(&self, id: &PolicyId, revision: &RevisionId, spec: &PolicyRevisionSpec) -> bool {
        let mut own = self.objects.revisions(&id.key, &id.uid);
        own.any(|object| {
            let policy = object.policy.as_ref().ok();
            policy.is_some_and(|p| p.revision == *revision)
                && object
                    .spec
                    .as_ref()
                    .is_some_and(|stored| stored.content_digest == spec.content_digest)
        })
    }

    /// The phase of a revision that was active; `None` for a candidate.
    fn phase_of(&self, id: &PolicyId, revision: &RevisionId) -> Option<Phase> {
        use assent_core::RouteState;
        let rollout = self.plane.rollout_of(id)?;
        let mut entries = rollout.entries();
        let (_, state) = entries.find(|(p, _)| p.revision == *revision)?;
        match state {
            RouteState::Active => Some(Phase::Active),
            RouteState::Retired => Some(Phase::Draining),
            RouteState::Candidate => None,
        }
    }

    fn report_deletion(&mut self, id: &PolicyId, revision: &RevisionId, name: &str) {
        let Some(object) = self.objects.policy(&id.key).cloned() else {
            return;
        };
        // Deleting the policy, or its namespace, deletes its revisions too.
        if object.meta.deleting || *object.meta.uid != *id.uid {
            return;
        }
        let message = format!(
            "somebody asked to delete the PolicyRevision {name}, which is being served; it is \
             kept until another revision has replaced it"
        );
        self.report(id, &object, revision, RevisionIncident::Kept, message);
    }

    fn report_always(&mut self, id: &PolicyId, incident: RevisionIncident, message: String) {
        if let Some(object) = self.living(id) {
            let event = PolicyEvent {
                key: object.key.clone(),
                meta: object.meta.clone(),
                what: EventKind::Revision(incident, message),
            };
            self.actions.push(Action::RecordEvent(Box::new(event)));
        }
    }

    /// Reports an incident once.
    fn report(
        &mut self,
        id: &PolicyId,
        object: &PolicyObject,
        revision: &RevisionId,
        incident: RevisionIncident,
        message: String,
    ) {
        if !self.reported.insert((revision.clone(), incident)) {
            return;
        }
        match incident {
            RevisionIncident::Lost => error!(policy = %object.key, "{message}"),
            _ => warn!(policy = %object.key, "{message}"),
        }
        self.report_always(id, incident, message);
    }
}

/// What a route records of a revision, if it was written for it.
pub(super) fn resolved_for<'a, E>(
    route: &'a RouteObject<E>,
    revision: &RevisionId,
) -> Option<&'a Arc<ResolvedRevision>> {
    let resolved = route.resolved.as_ref()?;
    (resolved.revision == revision.as_str()).then_some(resolved)
}

fn is_revision<E>(object: &Object<E>, revision: &RevisionId) -> bool {
    matches!(object, Object::Revision(object) if object.revision().as_ref() == Some(revision))
}
