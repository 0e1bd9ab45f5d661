//! Events of the plane, and the actions that follow from its effects.

use assent_core::{
    PolicyKey,
    plane::{Effect, Event},
    rollout::{Output, PolicyId},
};
use tracing::{debug, info};

use super::Controller;
use crate::{
    action::{Action, Measurement},
    backend::Backend,
    view::Now,
};

// === impl Controller ===

impl<B: Backend> Controller<B> {
    /// Applies an event to the plane, and turns what follows at once into actions.
    pub(super) fn event(&mut self, now: Now, event: Event) {
        if let Some(key) = policy_of(&event) {
            self.dirty.policies.insert(key.clone());
            self.dirty.contexts.insert(key.clone());
        }
        let mut effects = Vec::new();
        self.plane.apply(now.at, event, &mut effects);
        self.perform(now, effects);
    }

    pub(super) fn perform(&mut self, now: Now, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Publish { server, snapshot } => {
                    debug!(%server, version = %snapshot.version(), "published");
                    self.dirty.servers.insert(server.to_string());
                    self.actions.push(Action::Publish(server, snapshot));
                }
                Effect::AppliedEverywhere { server, took } => {
                    debug!(%server, ?took, "applied by every replica");
                    let measured = Measurement::PublishToApplied(took);
                    self.actions.push(Action::Measure(measured));
                }
                Effect::Rollout(id, output) => self.output(now, id, output),
            }
        }
    }

    fn output(&mut self, now: Now, id: PolicyId, output: Output) {
        self.dirty.policies.insert(id.key.clone());
        self.dirty.contexts.insert(id.key.clone());
        match output {
            Output::Flip { to, .. } => {
                info!(policy = %id.key, revision = %to.revision, "applied by every replica, flipping");
                self.actions.push(Action::Measure(Measurement::Flip));
                self.flip(id, to);
            }
            Output::Retire(revision) if self.is_routed_to(&id, &revision) => {
                self.keep_routed(now, id, revision);
            }
            Output::Retire(revision) => {
                debug!(%revision, "retired");
                self.retire(id, revision);
            }
            Output::RemoveWebhook => {
                info!(policy = %id.key, "deleted, removing its route");
                self.unroute(id);
            }
            Output::Release => self.release(&id),
            Output::Enforced(took) => {
                info!(policy = %id.key, ?took, "enforced");
                let measured = Measurement::ChangeToEnforced(took);
                self.actions.push(Action::Measure(measured));
            }
        }
    }
}

/// The policy whose status an event may change by itself.
fn policy_of(event: &Event) -> Option<&PolicyKey> {
    match event {
        Event::PolicyObserved { id, .. } | Event::Rollout(id, _) | Event::PolicyForgotten(id) => {
            Some(&id.key)
        }
        _ => None,
    }
}
