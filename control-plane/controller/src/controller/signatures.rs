//! Signatures of what is distributed, checked again when the keys of a PolicyServer change.
//!
//! A signature that no longer counts takes nothing out of force: it is reported, and people decide.

use assent_core::{
    RevisionId,
    condition::{Condition, Reason},
    rollout::PolicyId,
    status::PolicyStatus,
};

use super::Controller;
use crate::{
    action::{Action, VerifySignature},
    backend::Backend,
    server::verification,
};

/// What is known about the signature of a revision's module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SignatureCheck {
    /// The keys of the PolicyServer, one of which must have signed.
    keys: Vec<String>,
    /// Why none of them counts; `None` while that is not known.
    rejected: Option<String>,
}

impl<B: Backend> Controller<B> {
    /// Checks what the policies of a server distribute.
    pub(super) fn check_signatures_of(&mut self, server: &str) {
        let own = self.plane.rollouts_of_server(server);
        let own: Vec<PolicyId> = own.map(|r| r.id().clone()).collect();
        for id in &own {
            self.check_signatures(id);
        }
    }

    /// Checks what a policy distributes with the keys that its server has now, unless that was done.
    pub(super) fn check_signatures(&mut self, id: &PolicyId) {
        let server = self.objects.server(&self.server_of(id));
        // Nobody knows the keys of a server that is not valid.
        let Some(server) = server.filter(|s| s.parsed.is_ok()) else {
            return;
        };
        let keys = verification(server.spec());
        if keys.is_empty() && self.signatures.is_empty() {
            return;
        }
        let server = server.spec().cloned();
        let rollout = self.plane.rollout_of(id).filter(|r| !r.is_deleting());
        let candidate = rollout.and_then(|r| r.candidate()).map(|c| &c.policy);
        let distributed = rollout
            .and_then(|r| r.active())
            .into_iter()
            .chain(candidate)
            .chain(rollout.and_then(|r| r.last_good()));
        let distributed: Vec<RevisionId> = distributed.map(|p| p.revision.clone()).collect();
        for revision in distributed {
            let known = self.signatures.get(&revision);
            if known.map_or(keys.is_empty(), |known| known.keys == keys) {
                continue;
            }
            if keys.is_empty() {
                self.signatures.remove(&revision);
                self.dirty.policies.insert(id.key.clone());
                continue;
            }
            let mut own = self.objects.revisions(&id.key, &id.uid);
            let stored = own.find(|r| r.policy.as_ref().is_ok_and(|p| p.revision == revision));
            let Some(spec) = stored.and_then(|r| r.spec.as_ref()) else {
                continue;
            };
            let check = VerifySignature {
                id: id.clone(),
                revision: revision.clone(),
                url: spec.module_url.clone(),
                signer: spec.signer.clone(),
                keys: keys.clone(),
                server: server.clone().map(Box::new),
            };
            self.signatures.entry(revision).or_default().keys = keys.clone();
            self.actions.push(Action::VerifySignature(Box::new(check)));
        }
    }

    /// A signature was checked; a result for keys that have been replaced says nothing.
    pub(super) fn signature_checked(
        &mut self,
        id: &PolicyId,
        revision: &RevisionId,
        keys: &[String],
        result: Result<(), String>,
    ) {
        let known = self.signatures.get_mut(revision);
        if let Some(known) = known.filter(|known| known.keys == keys) {
            known.rejected = result.err();
            self.dirty.policies.insert(id.key.clone());
        }
    }

    pub(super) fn forget_signatures(&mut self, id: &PolicyId) {
        self.signatures
            .retain(|revision, _| revision.policy() != Some(&id.key));
    }

    /// Says at `Enforced` that the active revision would not be accepted today. It stays enforced.
    pub(super) fn report_signature(&self, id: &PolicyId, status: &mut PolicyStatus) {
        let active = self.plane.rollout_of(id).and_then(|r| r.active());
        let known = active.and_then(|active| self.signatures.get(&active.revision));
        let Some(why) = known.and_then(|known| known.rejected.as_deref()) else {
            return;
        };
        let conditions = status.conditions.iter_mut();
        for enforced in conditions.filter(|c| c.reason == Reason::Enforced) {
            let message = format!("{}, but {why}", enforced.message);
            let (kind, status) = (enforced.kind, enforced.status);
            *enforced = Condition::new(kind, status, Reason::SignatureRejected, message);
        }
    }
}
