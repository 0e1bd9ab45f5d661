//! PolicyServers: created, applied, deleted.

use assent_api::parse::ContextLimits;
use assent_core::{plane::Event, rollout::PolicyId};
use tracing::{info, warn};

use super::Controller;
use crate::{
    action::Action,
    backend::Backend,
    objects::{Kind, RouteObject},
    view::Now,
};

/// What was applied for a server.
#[derive(Clone, Debug, Default)]
pub(super) struct Applied {
    /// The generation that was applied last.
    pub(super) generation: i64,
    /// Being applied.
    pub(super) running: bool,
    /// To be applied again afterwards.
    pub(super) again: bool,
    /// What went wrong last.
    pub(super) error: Option<String>,
    /// The spec that policies were last considered with.
    pub(super) considered: Option<std::sync::Arc<[u8]>>,
}

impl<B: Backend> Controller<B> {
    /// Brings everything up to date with the server's object.
    pub(super) fn observe_server(&mut self, now: Now, name: &str) {
        let object = self.objects.server(name).filter(|s| !s.meta.deleting);
        let Some(object) = object else {
            return self.end_server(name);
        };
        let kind = Kind::Servers;
        if !object.meta.has_finalizer {
            let action = Action::SetFinalizer(kind, object.meta.clone(), true);
            self.actions.push(action);
        }
        if self.ending.contains(name) {
            return;
        }
        let spec = object.spec().map(|s| s.spec_json.clone());
        let limits = object
            .spec()
            .map_or_else(ContextLimits::default, |s| s.context);
        let is_new = self.plane.server(name).is_none();
        if is_new {
            self.actions.push(Action::AddServer(name.to_owned()));
            let counted = self.backend.counted_replicas();
            let server = name.into();
            self.event(now, Event::ServerAdded { server, counted });
            self.update_withheld(now, name);
        }
        self.contexts.set_limits(name, Some(limits));
        let applied = self.applied.entry(name.to_owned()).or_default();
        let edited = applied.considered != spec;
        applied.considered = spec;
        if is_new || edited {
            self.reconsider_policies_of(now, name);
            self.check_signatures_of(name);
        }
        self.apply_server(name, false);
    }

    /// Whether policies can target it.
    pub(super) fn has_server(&self, name: &str) -> bool {
        let object = self.objects.server(name);
        object.is_some_and(|s| !s.meta.deleting) && !self.ending.contains(name)
    }

    /// Applies the server's objects if its spec changed, or if `always`.
    pub(super) fn apply_server(&mut self, name: &str, always: bool) {
        let object = self.objects.server(name).filter(|s| !s.meta.deleting);
        let Some(object) = object else { return };
        let generation = object.meta.generation;
        let parsed = match &object.parsed {
            Ok(Some(parsed)) => parsed,
            Ok(None) => return,
            Err(why) => {
                let why = why.clone();
                self.applied.entry(name.to_owned()).or_default().error = Some(why);
                return;
            }
        };
        let Some(workload) = self.backend.workload(parsed, &object.meta.uid) else {
            return;
        };
        let applied = self.applied.entry(name.to_owned()).or_default();
        if applied.running {
            applied.again |= always || applied.generation != generation;
            return;
        }
        if applied.generation == generation && !always {
            return;
        }
        applied.generation = generation;
        applied.running = true;
        let action = Action::ApplyServer(name.to_owned(), Box::new(workload));
        self.actions.push(action);
    }

    pub(super) fn server_applied(&mut self, name: &str, result: Result<(), String>) {
        self.dirty.servers.insert(name.to_owned());
        let Some(applied) = self.applied.get_mut(name) else {
            return;
        };
        applied.running = false;
        if let Err(why) = &result {
            warn!(
                server = name,
                "failed to apply the objects of the PolicyServer: {why}"
            );
            // The next resync tries again.
            applied.generation = 0;
        }
        applied.error = result.err();
        if std::mem::take(&mut applied.again) {
            self.apply_server(name, true);
        }
    }

    /// Removes the routes of its policies first, then what was made for it. Its policies stay
    /// and report `TargetNotFound`: nothing that a user wrote is deleted.
    fn end_server(&mut self, name: &str) {
        if self.ending.contains(name) {
            return;
        }
        let known = self.plane.server(name).is_some();
        let object = self.objects.server(name);
        if !known && !object.is_some_and(|s| s.meta.has_finalizer) {
            return;
        }
        info!(server = name, "the PolicyServer is being deleted");
        self.ending.insert(name.to_owned());
        let existing = self.routes_of_server(name);
        let action = Action::RemoveServerRoutes(name.to_owned(), existing);
        self.actions.push(action);
    }

    fn routes_of_server(&self, name: &str) -> Vec<RouteObject<B::Existing>> {
        let keys = self.objects.policies_of(name);
        keys.flat_map(|key| self.existing_routes(key)).collect()
    }

    pub(super) fn server_unrouted(&mut self, now: Now, name: &str) {
        // Routes that were being written when the others were removed.
        let late = self.routes_of_server(name);
        if !late.is_empty() {
            let action = Action::RemoveServerRoutes(name.to_owned(), late);
            return self.actions.push(action);
        }
        self.ending.remove(name);
        let own = self.plane.rollouts_of_server(name);
        let own = own.filter(|r| !r.is_deleting());
        let own: Vec<PolicyId> = own.map(|r| r.id().clone()).collect();
        for id in &own {
            self.forget_policy(now, id);
        }
        self.contexts.set_limits(name, None);
        self.actions.push(Action::RemoveServer(name.to_owned()));
        self.confirming.remove(name);
        self.event(now, Event::ServerRemoved(name.into()));
        self.applied.remove(name);
        let object = self.objects.server(name);
        if let Some(meta) = object.map(|o| o.meta.clone())
            && meta.deleting
            && meta.has_finalizer
        {
            self.actions.push(Action::DeleteServer(meta));
        }
        for id in own {
            self.observe_policy(now, &id.key);
        }
        // It may have been created again meanwhile.
        if self.has_server(name) {
            self.observe_server(now, name);
        }
    }
}
