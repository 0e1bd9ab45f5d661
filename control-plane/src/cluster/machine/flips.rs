//! Webhook configurations: pointed at a revision, kept as they must be, removed.

use std::sync::Arc;

use assent_core::{
    Policy, PolicyKey, RevisionId,
    plane::Event,
    rollout::{Input, PolicyId, Refusal, RefusalReason},
};
use assent_k8s::{
    index::{Kind, RevisionEntry},
    revision,
    webhook::{self, Desired},
};
use jiff::Timestamp;
use kube::core::DynamicObject;
use tracing::{error, info, warn};

use super::Machine;
use crate::cluster::deed::{Deed, Pointed, Pointing, Present};

impl Machine {
    /// Every required replica serves `to`, as far as is known: a last look at the pods.
    pub(super) fn flip(&mut self, id: PolicyId, to: Arc<Policy>) {
        let server = self.server_of(&id).unwrap_or_default();
        self.flipping.insert(id.clone());
        self.deeds.push(Deed::ReadPods { id, to, server });
    }

    /// The pods as they are now: only if every required one serves the revision, the webhook
    /// is written.
    pub(super) fn pods_read(&mut self, id: PolicyId, to: Arc<Policy>, pods: Vec<DynamicObject>) {
        for pod in pods {
            self.index.apply(Kind::Pods, pod);
        }
        let server = self.server_of(&id).unwrap_or_default();
        self.expect(&server);
        let fleet = self.drive.plane.server(&server).map(|s| &s.fleet);
        let complete = fleet.is_some_and(|f| f.fold(&to.revision).complete);
        let rollout = self.drive.plane.rollout_of(&id);
        let wanted = rollout.is_some_and(|r| !r.is_ending()) && !self.ending.contains(&server);
        let pointing = self.pointing(&id, &to.revision);
        match pointing {
            Some(pointing) if complete && wanted => {
                let deed = Deed::Flip(id, to.revision.clone(), Box::new(pointing));
                self.deeds.push(deed);
            }
            _ => self.give_up_flip(id),
        }
    }

    pub(super) fn flipped(&mut self, id: PolicyId, revision: RevisionId, pointed: Vec<Pointed>) {
        self.flipping.remove(&id);
        self.take_pointed(pointed);
        let before = self.active_of(&id).filter(|before| *before != revision);
        self.since
            .insert(id.clone(), (revision.to_string(), Timestamp::now()));
        self.set_phase(&id, &revision, "Active");
        if let Some(before) = before {
            self.set_phase(&id, &before, "Draining");
        }
        let event = Event::Policy(id, Input::Flipped(revision));
        self.drive.apply(event);
    }

    pub(super) fn flip_failed(
        &mut self,
        id: PolicyId,
        revision: &RevisionId,
        error: &webhook::Error,
    ) {
        match error {
            // The decision is thrown away and made again on what is there now.
            webhook::Error::Conflict | webhook::Error::Exists | webhook::Error::Gone => {
                info!(policy = %id.key, %revision, "not flipped: {error}");
            }
            webhook::Error::Invalid(_) => {
                error!(policy = %id.key, %revision, "not flipped: {error}");
                let generation = self.drive.plane.rollout_of(&id).map(|r| r.generation());
                let refusal = Refusal {
                    reason: RefusalReason::Invalid,
                    message: error.to_string(),
                };
                if let Some(generation) = generation {
                    self.drive
                        .apply(Event::refused(id.clone(), generation, refusal));
                }
            }
            webhook::Error::Other(_) => warn!(policy = %id.key, %revision, "not flipped: {error}"),
        }
        self.give_up_flip(id);
    }

    pub(super) fn repaired(&mut self, key: &PolicyKey, pointed: Vec<Pointed>) {
        self.repairing.remove(key);
        let done = !pointed.is_empty();
        self.take_pointed(pointed);
        if !done {
            self.check_webhook(key);
        }
    }

    /// The policy's webhook configuration changed, or what it must be did.
    pub(super) fn check_webhook(&mut self, key: &PolicyKey) {
        let Some(rollout) = self.drive.plane.rollout(key) else {
            return self.remove_orphans();
        };
        let id = rollout.id().clone();
        let (active, candidate) = (
            rollout.active().map(|p| p.revision.clone()),
            rollout.candidate().map(|c| c.policy.revision.clone()),
        );
        if self.flipping.contains(&id) || self.repairing.contains(key) {
            return;
        }
        let server = self.server_of(&id).unwrap_or_default();
        if !self.has_server(&server) {
            return self.remove_stray(key, &server);
        }
        let own = self.index.webhooks(key);
        let own = own.filter(|w| w.named.uid.as_deref() == Some(&*id.uid));
        let named: Vec<Option<&RevisionId>> = own.map(|w| w.named.revision.as_ref()).collect();
        // It was pointed there by a write whose answer was lost.
        if let Some(candidate) = candidate.filter(|c| named.contains(&Some(c))) {
            return self.flipped(id, candidate, Vec::new());
        }
        let Some(active) = active else { return };
        let Some(pointing) = self.pointing(&id, &active) else {
            return;
        };
        if is_right(&pointing) {
            return;
        }
        warn!(policy = %key, "the webhook configuration is not what it must be and is repaired");
        self.repairing.insert(key.clone());
        let deed = Deed::Repair(key.clone(), Box::new(pointing));
        self.deeds.push(deed);
    }

    /// A server that ends removes the webhooks of its policies. One that came after that, by a
    /// write that was on its way, would ask nobody: it goes too.
    fn remove_stray(&mut self, key: &PolicyKey, server: &str) {
        let stray = self.present(key);
        if !self.ending.contains(server) && !stray.is_empty() {
            warn!(policy = %key, server, "removing a webhook configuration whose server is gone");
            self.deeds.push(Deed::RemoveOrphans(stray));
        }
    }

    pub(super) fn repair_all(&mut self) {
        let living = self.drive.plane.rollouts().filter(|(_, r)| !r.is_ending());
        let keys: Vec<PolicyKey> = living.map(|(_, r)| r.id().key.clone()).collect();
        for key in keys {
            self.check_webhook(&key);
        }
    }

    /// Configurations of policies that do not exist, or of an earlier life of their name.
    pub(super) fn remove_orphans(&mut self) {
        let orphan = |w: &&assent_k8s::index::WebhookEntry| {
            let uid = self.index.policy(&w.key).map(|p| p.meta.uid.as_str());
            // A policy that is being deleted removes its own, after what its rollout says.
            uid != w.named.uid.as_deref() && !self.has_rollout(&w.key, w.named.uid.as_deref())
        };
        let orphans = self.index.all_webhooks().filter(orphan);
        let orphans: Vec<Present> = orphans
            .map(|w| (webhook_kind(w.kind), w.object.clone()))
            .collect();
        if !orphans.is_empty() {
            warn!(
                count = orphans.len(),
                "removing webhook configurations of policies that are gone"
            );
            self.deeds.push(Deed::RemoveOrphans(orphans));
        }
    }

    pub(super) fn unroute(&mut self, id: PolicyId) {
        let present = self.present(&id.key);
        self.deeds.push(Deed::Unroute(id, present));
    }

    /// The configurations that a policy has.
    pub(super) fn present(&self, key: &PolicyKey) -> Vec<Present> {
        let own = self.index.webhooks(key);
        own.map(|w| (webhook_kind(w.kind), w.object.clone()))
            .collect()
    }

    /// What makes the policy's webhook name `revision`.
    fn pointing(&self, id: &PolicyId, revision: &RevisionId) -> Option<Pointing> {
        let desired = self.desired(id, revision)?;
        Some(Pointing {
            desired,
            present: self.present(&id.key),
        })
    }

    fn desired(&self, id: &PolicyId, revision: &RevisionId) -> Option<Desired> {
        let own = |r: &&RevisionEntry| {
            let policy = r.policy.as_ref().ok();
            policy.is_some_and(|p| p.revision == *revision)
        };
        let mut revisions = self.index.revisions(&id.key, &id.uid);
        let object = revisions.find(own)?.object.clone()?;
        let parsed = match revision::parsed(&object, &self.options.parse) {
            Ok(parsed) => parsed,
            Err(why) => {
                error!(%revision, "a stored revision can't be used: {why}");
                return None;
            }
        };
        Some(webhook::desired(&webhook::Input {
            policy: &parsed,
            revision,
            uid: &id.uid,
            reach: &self.reach(&parsed.server),
            site: &self.options.site,
        }))
    }

    fn set_phase(&mut self, id: &PolicyId, revision: &RevisionId, phase: &'static str) {
        let deed = Deed::SetPhase(id.key.clone(), revision.clone(), phase);
        self.deeds.push(deed);
    }

    fn give_up_flip(&mut self, id: PolicyId) {
        self.flipping.remove(&id);
        let key = id.key.clone();
        self.drive.apply(Event::Policy(id, Input::FlipFailed));
        self.check_webhook(&key);
    }

    fn take_pointed(&mut self, pointed: Vec<Pointed>) {
        for pointed in pointed {
            match pointed {
                Pointed::At(kind, object) => drop(self.index.apply(kind, *object)),
                Pointed::Gone(kind, object) => drop(self.index.delete(kind, &object)),
            }
        }
    }

    fn active_of(&self, id: &PolicyId) -> Option<RevisionId> {
        let rollout = self.drive.plane.rollout_of(id)?;
        rollout.active().map(|p| p.revision.clone())
    }

    fn server_of(&self, id: &PolicyId) -> Option<String> {
        let mut rollouts = self.drive.plane.rollouts();
        let found = rollouts.find(|(_, r)| r.id() == id);
        found.map(|(server, _)| server.to_string())
    }

    fn has_rollout(&self, key: &PolicyKey, uid: Option<&str>) -> bool {
        let mut rollouts = self.drive.plane.rollouts();
        rollouts.any(|(_, r)| r.id().key == *key && Some(&*r.id().uid) == uid)
    }
}

/// Whether nothing has to be written.
fn is_right(pointing: &Pointing) -> bool {
    match pointing.present.as_slice() {
        [(kind, actual)] => {
            *kind == pointing.desired.kind() && !webhook::differs(actual, &pointing.desired)
        }
        _ => false,
    }
}

/// The same kind of a mirrored configuration.
fn webhook_kind(kind: Kind) -> webhook::Kind {
    match kind {
        Kind::Mutating => webhook::Kind::Mutating,
        _ => webhook::Kind::Validating,
    }
}
