//! Routes: pointed at a revision, repaired, removed.

use std::sync::Arc;

use assent_api::revision::{Phase, ResolvedRevision};
use assent_core::{
    Policy, PolicyKey, RevisionId,
    plane::Event,
    rollout::{Input, PolicyId, Refusal, RefusalReason},
};
use tracing::{error, info, warn};

use super::{Controller, in_flight::RouteWrite};
use crate::{
    action::{Action, FlipError, RouteUpdate},
    backend::{Backend, RouteSpec},
    objects::{Change, Object, ObjectRef, RouteObject},
    revision,
    view::Now,
};

impl<B: Backend> Controller<B> {
    /// Every required replica serves `to`, as far as is known: check the replicas once more.
    /// The phases of the last flip are recorded first: the next process must know that what is
    /// active now was active, and keep it to roll back to.
    pub(super) fn flip(&mut self, id: PolicyId, to: Arc<Policy>) {
        let in_flight = self.in_flight(&id);
        if in_flight.phases > 0 {
            in_flight.flip = Some(to);
            return;
        }
        let server = self.server_of(&id);
        self.in_flight(&id).route = Some(RouteWrite::Flip);
        self.actions.push(Action::CheckReplicas { id, to, server });
    }

    /// The replicas as they are now: only if every required one serves the revision, the route
    /// is written.
    pub(super) fn replicas_checked(
        &mut self,
        now: Now,
        id: PolicyId,
        to: Arc<Policy>,
        pods: Vec<Object<B::Existing>>,
    ) {
        for pod in pods {
            self.objects.insert(pod);
        }
        let server = self.server_of(&id);
        self.expect(now, &server);
        let fleet = self.plane.server(&server).map(|s| &s.fleet);
        let complete = fleet.is_some_and(|f| f.fold(&to.revision).complete);
        let rollout = self.plane.rollout_of(&id);
        let wanted = rollout.is_some_and(|r| !r.is_deleting()) && !self.ending.contains(&server);
        match self.route_update(&id, &to.revision) {
            Some(update) if complete && wanted => {
                let action = Action::Flip(id, to.revision.clone(), Box::new(update));
                self.actions.push(action);
            }
            _ => self.give_up_flip(now, id, Input::FlipFailed),
        }
    }

    pub(super) fn flipped(
        &mut self,
        now: Now,
        id: PolicyId,
        revision: RevisionId,
        changes: Vec<Change<B::Existing>>,
    ) {
        self.route_written(&id, changes);
        let rollout = self.plane.rollout_of(&id).filter(|r| !r.is_deleting());
        let Some(active) = rollout.map(|r| r.active().map(|p| p.revision.clone())) else {
            // Its server was deleted while the route was being written, and its rollout with it. If the server comes
            // back, this is the revision that protected last.
            if self.living(&id).is_some() {
                self.set_phase(&id, revision, Phase::Active);
            }
            // The policy was deleted, or its server: the removal that was asked for then did not know of this route.
            return self.remove_late_routes(&id);
        };
        let since = (revision.to_string(), now.seconds());
        self.active_since.insert(id.clone(), since);
        self.set_phase(&id, revision.clone(), Phase::Active);
        if let Some(before) = active.filter(|before| *before != revision) {
            self.set_phase(&id, before, Phase::Draining);
        }
        let server = self.server_of(&id);
        if !self.has_server(&server) {
            return self.remove_routes_of_missing_server(&id.key, &server);
        }
        self.event(now, Event::Rollout(id, Input::Flipped(revision)));
    }

    pub(super) fn flip_failed(
        &mut self,
        now: Now,
        id: PolicyId,
        revision: &RevisionId,
        error: &FlipError,
    ) {
        // Without a response nobody knows whether the route was written.
        let input = match error {
            FlipError::Other(_) => Input::FlipUnknown,
            FlipError::Conflict(_) | FlipError::Invalid(_) => Input::FlipFailed,
        };
        match error {
            // Decided again with what is there now.
            FlipError::Conflict(why) => info!(policy = %id.key, %revision, "not flipped: {why}"),
            FlipError::Other(why) => warn!(policy = %id.key, %revision, "not flipped: {why}"),
            FlipError::Invalid(why) => {
                error!(policy = %id.key, %revision, "not flipped: {why}");
                let generation = self.plane.rollout_of(&id).map(|r| r.generation());
                let refusal = Refusal {
                    reason: RefusalReason::Invalid,
                    message: why.clone(),
                };
                if let Some(generation) = generation {
                    self.event(now, Event::refused(id.clone(), generation, refusal));
                }
            }
        }
        self.give_up_flip(now, id, input);
    }

    pub(super) fn repaired(&mut self, now: Now, id: &PolicyId, changes: Vec<Change<B::Existing>>) {
        let written = !changes.is_empty();
        self.route_written(id, changes);
        match self.plane.rollout_of(id) {
            Some(rollout) if !rollout.is_deleting() => {
                if !written || !self.has_server(&self.server_of(id)) {
                    self.check_route(now, &id.key);
                }
            }
            _ => self.remove_late_routes(id),
        }
    }

    /// The policy's route changed, or what it must be.
    pub(super) fn check_route(&mut self, now: Now, key: &PolicyKey) {
        let Some(rollout) = self.plane.rollout(key) else {
            return self.remove_orphans(key);
        };
        let id = rollout.id().clone();
        let written = rollout
            .unrouted()
            .find(|revision| self.is_routed_to(&id, revision))
            .cloned();
        if self.is_routing(&id) {
            return;
        }
        let server = self.server_of(&id);
        if !self.has_server(&server) {
            return self.remove_routes_of_missing_server(key, &server);
        }
        // The route was written, but the response was lost. The rest of the transition may be missing: a change
        // between validating and mutating takes several writes.
        if let Some(written) = written {
            self.flipped(now, id.clone(), written, Vec::new());
        }
        let active = self.plane.rollout_of(&id).and_then(|r| r.active());
        let Some(active) = active.map(|p| p.revision.clone()) else {
            return;
        };
        let Some(update) = self.route_update(&id, &active) else {
            return;
        };
        let existing: Vec<&RouteObject<B::Existing>> = update.existing.iter().collect();
        if self.backend.is_current(&existing, &update.desired) {
            return;
        }
        warn!(policy = %key, "the route differs from what it must be; repairing it");
        self.in_flight(&id).route = Some(RouteWrite::Repair);
        self.actions.push(Action::RepairRoute(id, Box::new(update)));
    }

    /// Removes the routes of this key that belong to no policy, or to an earlier object of
    /// that name.
    pub(super) fn remove_orphans(&mut self, key: &PolicyKey) {
        let uid = self.objects.policy(key).map(|p| p.meta.uid.as_str());
        let is_orphan = |route: &&RouteObject<B::Existing>| {
            let of = route.uid.as_deref();
            let is_own = uid.is_some_and(|uid| route.belongs_to(uid));
            // A policy that is being deleted removes its own route when its rollout says so.
            !is_own && !self.has_rollout(key, of)
        };
        let orphans: Vec<_> = self
            .objects
            .routes(key)
            .filter(is_orphan)
            .cloned()
            .collect();
        if !orphans.is_empty() {
            warn!(policy = %key, "removing a route whose policy does not exist");
            self.actions.push(Action::RemoveOrphans(orphans));
        }
    }

    pub(super) fn unroute(&mut self, id: PolicyId) {
        let existing = self.existing_routes(&id.key);
        self.actions.push(Action::RemoveRoutes(id, existing));
    }

    /// The routes that a policy has.
    pub(super) fn existing_routes(&self, key: &PolicyKey) -> Vec<RouteObject<B::Existing>> {
        self.objects.routes(key).cloned().collect()
    }

    pub(super) fn forget_routes(&mut self, routes: &[ObjectRef]) {
        for route in routes {
            self.objects.remove(route);
        }
    }

    /// The server of a policy; empty if the policy is not known.
    pub(super) fn server_of(&self, id: &PolicyId) -> String {
        let server = self.plane.server_of(id);
        server.map_or_else(String::new, |s| s.to_string())
    }

    /// A server that is being deleted removes the routes of its policies. A route that was
    /// written after that would lead nowhere.
    fn remove_routes_of_missing_server(&mut self, key: &PolicyKey, server: &str) {
        let existing = self.existing_routes(key);
        if !self.ending.contains(server) && !existing.is_empty() {
            warn!(policy = %key, server, "removing a route whose PolicyServer does not exist");
            self.actions.push(Action::RemoveOrphans(existing));
        }
    }

    fn remove_late_routes(&mut self, id: &PolicyId) {
        let own = self.objects.routes(&id.key);
        let own = own.filter(|r| r.uid.as_deref() == Some(&*id.uid));
        let late: Vec<_> = own.cloned().collect();
        if !late.is_empty() {
            info!(policy = %id.key, "removing a route that was written while its policy was deleted");
            self.actions.push(Action::RemoveOrphans(late));
        }
    }

    /// What makes the policy's route name `revision`.
    fn route_update(&self, id: &PolicyId, revision: &RevisionId) -> Option<RouteUpdate<B>> {
        let spec = self.spec_of(id, revision)?;
        let parsed = match revision::parsed(&id.key, spec, &self.config.parse) {
            Ok(parsed) => parsed,
            Err(why) => {
                error!(%revision, "a stored revision cannot be used: {why}");
                return None;
            }
        };
        let desired = self.backend.desired(&RouteSpec {
            policy: &parsed,
            revision,
            resolved: &ResolvedRevision::new(revision.as_str(), spec),
            uid: &id.uid,
            confirmed: self.is_confirmed(id),
        });
        Some(RouteUpdate {
            desired,
            existing: self.existing_routes(&id.key),
        })
    }

    fn give_up_flip(&mut self, now: Now, id: PolicyId, input: Input) {
        self.route_written(&id, Vec::new());
        let key = id.key.clone();
        self.event(now, Event::Rollout(id, input));
        self.check_route(now, &key);
    }

    fn route_written(&mut self, id: &PolicyId, changes: Vec<Change<B::Existing>>) {
        self.in_flight(id).route = None;
        self.landed(id);
        for change in changes {
            match change {
                // The response to a write, which may be older than what a watch has reported.
                Change::Applied(object) => drop(self.objects.insert(object)),
                other => drop(self.objects.apply(other)),
            }
        }
    }

    /// A revision has drained, and a route still names it: a write failed, or somebody edited the route. Without the
    /// revision evaluators would answer 404, so it stays until the route is repaired.
    pub(super) fn keep_routed(&mut self, now: Now, id: PolicyId, revision: RevisionId) {
        let key = id.key.clone();
        warn!(policy = %key, %revision, "a route names a revision that has drained; keeping it");
        self.event(now, Event::Rollout(id, Input::StillRouted(revision)));
        self.check_route(now, &key);
    }

    pub(super) fn is_routed_to(&self, id: &PolicyId, revision: &RevisionId) -> bool {
        let own = self.objects.routes(&id.key);
        let mut own = own.filter(|r| r.belongs_to(&id.uid));
        own.any(|r| r.revision.as_ref() == Some(revision))
    }

    fn has_rollout(&self, key: &PolicyKey, uid: Option<&str>) -> bool {
        let Some(uid) = uid else { return false };
        let id = PolicyId {
            key: key.clone(),
            uid: uid.into(),
        };
        self.plane.rollout_of(&id).is_some()
    }
}
