//! What evaluators of earlier versions cannot do, and routes that depend on it.
//!
//! While evaluators are being replaced, some of them answer 404 at `/confirm/`. A webhook with
//! that path and `failurePolicy: Fail` would deny every request that reaches one of them.

use assent_core::{PolicyKey, fleet::feature, rollout::PolicyId};

use super::Controller;
use crate::{backend::Backend, objects::Kind, view::Now};

/// What is known of the evaluators of one server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Confirming {
    /// All of them answer `/confirm/`.
    all: bool,
    /// One of them does not.
    not_all: bool,
}

impl<B: Backend> Controller<B> {
    /// Whether what a mutating policy changed is confirmed when objects are validated: if every
    /// required replica can. What is confirmed already stays so until a replica is known that
    /// cannot: a leader that has just begun knows of none that it can.
    pub(super) fn is_confirmed(&self, id: &PolicyId) -> bool {
        let server = self.plane.server_of(id);
        let Some(server) = server.and_then(|name| self.plane.server(name)) else {
            return false;
        };
        let mut own = self.objects.routes(&id.key);
        match own.any(|r| r.belongs_to(&id.uid) && r.confirms) {
            true => !server.fleet.lacks(feature::CONFIRM),
            false => server.fleet.supports(feature::CONFIRM),
        }
    }

    /// The required replicas of a server may have changed, or what they can do.
    pub(super) fn note_features(&mut self, name: &str) {
        let Some(server) = self.plane.server(name) else {
            return;
        };
        let known = Confirming {
            all: server.fleet.supports(feature::CONFIRM),
            not_all: server.fleet.lacks(feature::CONFIRM),
        };
        if self.confirming.insert(name.to_owned(), known) == Some(known) {
            return;
        }
        let own = self.plane.rollouts_of_server(name).map(|r| r.id());
        let own = own.filter(|id| self.may_mutate(id));
        let own: Vec<PolicyKey> = own.map(|id| id.key.clone()).collect();
        self.dirty.routes.extend(own);
    }

    /// Checks routes that depend on what evaluators can do. One that is being written is checked
    /// after that.
    pub(super) fn check_dirty_routes(&mut self, now: Now) {
        let keys = std::mem::take(&mut self.dirty.routes);
        for key in keys {
            let rollout = self.plane.rollout(&key);
            if rollout.is_some_and(|r| self.is_routing(r.id())) {
                self.dirty.routes.insert(key);
            } else {
                self.check_route(now, &key);
            }
        }
    }

    /// Whether a webhook of the policy changes objects, or soon will.
    fn may_mutate(&self, id: &PolicyId) -> bool {
        let mut own = self.objects.routes(&id.key);
        self.is_routing(id) || own.any(|route| route.kind == Kind::Mutating)
    }
}
