//! Performs actions on the stored objects. Each takes effect at once and reports its outcome.

use assent_api::{PolicyRevisionSpec, revision::Phase};
use assent_controller::{
    Action, Change, Controller, Now, Object, Outcome,
    action::{
        EventKind, FlipError, PolicyEvent, RestoreRevision, RollbackTarget, Status, StatusTarget,
        StatusUpdate, StoreRevision,
    },
    objects::{Meta, ObjectRef, RouteObject, policy_key},
};
use assent_core::{PolicyKey, RevisionId, rollout::PolicyId};
use tracing::{debug, info};
use uuid::Uuid;

use super::{
    LocalApi,
    objects::{policy_id, policy_ref, revision_ref, route, route_ref},
};
use crate::{
    backend::LocalBackend,
    state::{RevisionRecord, StoredCondition},
};

// === impl LocalApi ===

impl LocalApi {
    /// Performs an action, or returns it if it concerns modules, streams, metrics or requests.
    pub fn perform(
        &mut self,
        controller: &mut Controller<LocalBackend>,
        now: Now,
        action: Action<LocalBackend>,
    ) -> Option<Action<LocalBackend>> {
        let outcome = match action {
            Action::StoreRevision(store) => self.store_revision(now, *store),
            Action::RestoreRevision(restore) => {
                let RestoreRevision { id, revision, spec } = *restore;
                let object = self.add_revision(now, &id, &revision, &spec);
                Some(Outcome::Restored(id, revision, object.map(Box::new)))
            }
            Action::SetPhase(id, revision, phase) => {
                self.set_phase(controller, now, &id, &revision, phase);
                Some(Outcome::PhaseSet(id, revision, None))
            }
            Action::RetireRevision { id, revision, keep } => {
                match keep {
                    true => self.set_phase(controller, now, &id, &revision, Phase::History),
                    false => self.delete_revision(controller, now, &id, revision.short()),
                }
                Some(Outcome::Retired(id, revision))
            }
            Action::DeleteRevisions(id, names) => {
                for (_, name) in &names {
                    let name = RevisionId::from_wire(name);
                    self.delete_revision(controller, now, &id, name.short());
                }
                Some(Outcome::RevisionsDeleted(id, names))
            }
            // The replicas are those that are connected, which the controller knows.
            Action::CheckReplicas { id, to, .. } => {
                Some(Outcome::ReplicasChecked(id, to, Vec::new()))
            }
            Action::Flip(id, revision, _) => Some(match self.point(now, &id, &revision) {
                Some(change) => Outcome::Flipped(id, revision, vec![change]),
                None => {
                    let why = FlipError::Conflict("the revision was deleted meanwhile".into());
                    Outcome::FlipFailed(id, revision, why)
                }
            }),
            Action::RepairRoute(id, update) => {
                let change = self.point(now, &id, &update.desired);
                Some(Outcome::Repaired(id, change.into_iter().collect()))
            }
            Action::RemoveRoutes(id, routes) => {
                // A policy of the same name may have been created meanwhile.
                let own = routes.iter().filter(|r| r.uid.as_deref() == Some(&*id.uid));
                let removed = self.remove_routes(now, own);
                Some(Outcome::RoutesRemoved(id, removed))
            }
            Action::RemoveServerRoutes(server, routes) => {
                let removed = self.remove_routes(now, &routes);
                Some(Outcome::ServerRoutesRemoved(server, removed))
            }
            Action::RemoveOrphans(routes) => {
                let removed = self.remove_routes(now, &routes);
                Some(Outcome::OrphansRemoved(removed))
            }
            Action::SetFinalizer(_, meta, present) => {
                if let (Some(uid), false) = (uid_of(&meta), present) {
                    self.forget(controller, now, uid);
                }
                None
            }
            Action::RollBack { key, target, .. } => {
                let result = target.and_then(|target| self.roll_back(&key, &target));
                Some(Outcome::RolledBack(key, result))
            }
            Action::WriteStatus(target, update) => {
                update.and_then(|update| self.write_status(target, update))
            }
            Action::RecordEvent(event) => {
                log(&event);
                None
            }
            Action::ApplyServer(server, _) => Some(Outcome::ServerApplied(server, Ok(()))),
            Action::DeletePod(_) | Action::DeleteServer(_) => None,
            other => return Some(other),
        };
        if let Some(outcome) = outcome {
            controller.outcome(now, outcome);
        }
        None
    }

    /// Forgets deleted policies whose name was taken again while they drained, once nothing of
    /// them is left. The controller knows only the new object of that name, so no action names
    /// the old one.
    pub fn forget_replaced(&mut self, controller: &mut Controller<LocalBackend>, now: Now) {
        let deleted = self.store.records().filter(|r| r.deleting);
        let released = deleted.filter(|r| controller.plane().rollout_of(&policy_id(r)).is_none());
        let released: Vec<Uuid> = released.map(|r| r.uid).collect();
        if controller.is_restored() {
            for uid in released {
                self.forget(controller, now, uid);
            }
        }
    }

    fn store_revision(
        &mut self,
        now: Now,
        store: StoreRevision<LocalBackend>,
    ) -> Option<Outcome<LocalBackend>> {
        let StoreRevision {
            id, policy, spec, ..
        } = store;
        let object = self.add_revision(now, &id, &policy.revision, &spec)?;
        Some(Outcome::Stored(id, policy, Box::new(object)))
    }

    fn add_revision(
        &mut self,
        now: Now,
        id: &PolicyId,
        revision: &RevisionId,
        spec: &PolicyRevisionSpec,
    ) -> Option<Object<()>> {
        let uid = uid(id)?;
        let name = revision.short();
        let revision = RevisionRecord::new(spec, name, now.date);
        self.store.add_revision(uid, revision);
        let record = self.store.by_uid(uid)?;
        Some(self.revision(record, record.revision(name)?))
    }

    fn set_phase(
        &mut self,
        controller: &mut Controller<LocalBackend>,
        now: Now,
        id: &PolicyId,
        revision: &RevisionId,
        phase: Phase,
    ) {
        let Some(uid) = uid(id) else { return };
        self.store.set_phase(uid, revision.short(), phase);
        if let Some(change) = self.revision_change(uid, revision.short()) {
            controller.change(now, change);
        }
    }

    fn delete_revision(
        &mut self,
        controller: &mut Controller<LocalBackend>,
        now: Now,
        id: &PolicyId,
        name: &str,
    ) {
        let Some(uid) = uid(id) else { return };
        self.store.delete_revision(uid, name);
        let record = self.store.by_uid(uid);
        let gone = record.filter(|r| r.revision(name).is_none());
        if let Some(gone) = gone.map(|r| revision_ref(r, name)) {
            controller.change(now, Change::Deleted(gone));
        }
    }

    /// Points the dispatch at a revision, if it exists.
    fn point(&mut self, now: Now, id: &PolicyId, revision: &RevisionId) -> Option<Change<()>> {
        let uid = uid(id)?;
        self.store.by_uid(uid)?.revision(revision.short())?;
        self.store
            .set_active(uid, Some(revision.short()), now.seconds());
        let route = route(self.store.by_uid(uid)?)?;
        Some(Change::Applied(route))
    }

    fn remove_routes<'a>(
        &mut self,
        now: Now,
        routes: impl IntoIterator<Item = &'a RouteObject<()>>,
    ) -> Vec<ObjectRef> {
        let mut removed = Vec::new();
        for route in routes {
            if let Some(uid) = uid_of(&route.meta) {
                self.store.set_active(uid, None, now.seconds());
            }
            removed.push(route_ref(&route.meta.uid));
        }
        removed
    }

    /// Removes the record of a deleted policy, with its revisions.
    fn forget(&mut self, controller: &mut Controller<LocalBackend>, now: Now, uid: Uuid) {
        let Some(record) = self.store.by_uid(uid).cloned() else {
            return;
        };
        if !self.store.forget(uid) {
            return;
        }
        self.statuses.remove(&uid);
        for revision in &record.revisions {
            let revision = revision_ref(&record, &revision.name);
            controller.change(now, Change::Deleted(revision));
        }
        controller.change(now, Change::Deleted(policy_ref(&record)));
    }

    /// Overrides the spec of the manifest, which belongs to the user and is not edited.
    fn roll_back(
        &mut self,
        key: &PolicyKey,
        target: &RollbackTarget,
    ) -> Result<(i64, Box<Object<()>>), String> {
        let gone = || format!("{key} was deleted meanwhile");
        self.store.roll_back(key, target).ok_or_else(gone)?;
        if let Some(done) = self.rollbacks.remove(key) {
            self.store.set_rollback_done(key, Some(done));
        }
        let record = self.store.get(key).ok_or_else(gone)?;
        Ok((target.generation, Box::new(self.policy(record))))
    }

    /// Keeps the status in memory. Only since when conditions have their status is stored, so
    /// that counters and messages cause no writes.
    fn write_status(
        &mut self,
        target: StatusTarget,
        update: StatusUpdate,
    ) -> Option<Outcome<LocalBackend>> {
        let Status::Policy(status) = update.status else {
            return None;
        };
        let key = policy_key(target.kind, &target.namespace, &target.name)?;
        let uid: Uuid = update.uid.parse().ok()?;
        self.store.by_uid(uid)?;
        let conditions = status.conditions.iter().map(|c| StoredCondition {
            r#type: c.type_.clone(),
            status: c.status.clone(),
            last_transition_time: c.last_transition_time.0,
        });
        self.store.set_conditions(uid, conditions.collect());
        self.statuses.insert(uid, *status);
        let record = self.store.by_uid(uid)?;
        debug_assert_eq!(record.key(), key);
        let object = Box::new(self.policy(record));
        Some(Outcome::StatusWritten(target, Some(object)))
    }
}

/// There are no Events without a cluster; the log has them.
fn log(event: &PolicyEvent) {
    match &event.what {
        EventKind::Condition(c) => {
            let (kind, reason) = (&c.type_, &c.reason);
            info!(policy = %event.key, "{kind}={}, {reason}: {}", c.status, c.message);
        }
        // The controller logs these.
        EventKind::RolledBack { .. }
        | EventKind::RollbackRejected(_)
        | EventKind::SettingsChanged
        | EventKind::Revision(..) => {
            debug!(policy = %event.key, what = ?event.what, "event");
        }
    }
}

fn uid(id: &PolicyId) -> Option<Uuid> {
    id.uid.parse().ok()
}

fn uid_of(meta: &Meta) -> Option<Uuid> {
    meta.uid.parse().ok()
}
