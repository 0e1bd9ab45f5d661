//! Policies: observed, vetted, stored as revisions, deleted.

use std::{sync::Arc, time::Duration};

use assent_api::{Parsed, PolicyRevisionSpec, parse::Module, revision::ResolvedRevision};
use assent_core::{
    Policy, PolicyKey,
    plane::Event,
    rollout::{Acceptance, Input, PolicyId, Refusal, RefusalReason, StoredRevisions, Timing},
};
use tracing::info;

use super::{Controller, contexts::ContextReadiness};
use crate::{
    action::{Action, Failure, StoreRevision, VetJob},
    backend::{Backend, RouteSpec},
    objects::{Object, PolicyObject, ProblemScope},
    revision::{self, spec_limits},
    server::{granted_capabilities, limits, target_invalid, target_not_found, verification},
    view::Now,
};

/// A stored revision, and what is stored of it.
type StoredGeneration = (Arc<Policy>, Arc<PolicyRevisionSpec>);

impl<B: Backend> Controller<B> {
    /// Brings the rollout up to date with the policy's object.
    pub(super) fn observe_policy(&mut self, now: Now, key: &PolicyKey) {
        let object = self.objects.policy(key).cloned();
        let uid = object.as_ref().map(|o| o.meta.uid.as_str());
        // Every other policy object that had this name is deleted, however that came about.
        let others = self.plane.rollouts_of_key(key);
        let others = others.filter(|r| !r.is_deleting() && Some(&*r.id().uid) != uid);
        let others: Vec<PolicyId> = others.map(|r| r.id().clone()).collect();
        for id in others {
            self.delete(now, id);
        }
        let Some(object) = object else { return };
        let id = object.id();
        let stored = match self.plane.rollout_of(&id) {
            Some(_) => StoredRevisions::default(),
            None => self.continue_from_stored(now, &id, &object),
        };
        self.event(
            now,
            Event::PolicyObserved {
                id: id.clone(),
                server: object.server.as_str().into(),
                generation: object.meta.generation,
                timing: self.timing(&object),
                stored,
            },
        );
        if object.meta.deleting {
            return self.delete(now, id);
        }
        self.check_signatures(&id);
        if !object.meta.has_finalizer {
            let action = Action::SetFinalizer(object.kind(), object.meta.clone(), true);
            self.actions.push(action);
        }
        self.validate(now, &id, &object);
        if let Some(to) = object.rollback {
            self.request_rollback(now, key, to, None);
        }
        self.trim_history(key);
    }

    /// Starts to vet new generations, and retries failed ones that are due.
    pub(super) fn vet_pending(&mut self, now: Now) {
        // A retried policy stays rejected, with its message, until the retry ends.
        for id in self.jobs.take_due(now.at) {
            self.vet(&id);
        }
        for id in std::mem::take(&mut self.pending) {
            let rollout = self.plane.rollout_of(&id);
            let pending = |acceptance: &Acceptance| *acceptance == Acceptance::Pending;
            if rollout.is_some_and(|r| !r.is_deleting() && pending(r.acceptance())) {
                self.vet(&id);
            }
        }
    }

    pub(super) fn vetted(
        &mut self,
        now: Now,
        id: &PolicyId,
        generation: i64,
        result: Result<Module, Failure>,
    ) {
        self.jobs.ended(id, generation);
        match result {
            Ok(module) => self.accepted(now, id, generation, &module),
            Err(failure) => self.rejected(now, id, generation, failure),
        }
    }

    pub(super) fn stored(
        &mut self,
        now: Now,
        id: PolicyId,
        policy: Arc<Policy>,
        object: Object<B::Existing>,
    ) {
        self.storing_ended(&id);
        self.modules.insert(policy.content.module_digest);
        if let Object::Revision(stored) = &object
            && let Some(spec) = &stored.spec
        {
            self.remember(&id, policy.revision.clone(), spec.clone());
        }
        self.objects.insert(object);
        info!(policy = %id.key, revision = %policy.revision, "accepted");
        self.event(now, Event::ready(id.clone(), policy));
        self.check_signatures(&id);
        if let Some(object) = self.living(&id).cloned() {
            self.validate(now, &id, &object);
        }
    }

    pub(super) fn not_stored(
        &mut self,
        now: Now,
        id: &PolicyId,
        generation: i64,
        failure: Failure,
    ) {
        self.storing_ended(id);
        self.rejected(now, id, generation, failure);
        self.trim_history(&id.key);
    }

    /// Nothing of the policy is left in any snapshot: its object may go.
    pub(super) fn release(&mut self, id: &PolicyId) {
        self.rejected_unvetted.remove(id);
        self.awaiting_context.remove(id);
        self.forget_revisions(id);
        self.recorded.remove(id);
        self.forget_signatures(id);
        self.unavailable_settings.remove(id);
        self.active_since.remove(id);
        self.transitions.remove(id);
        let object = self.objects.policy(&id.key);
        let object = object.filter(|o| *o.meta.uid == *id.uid && o.meta.has_finalizer);
        if let Some(object) = object {
            let action = Action::SetFinalizer(object.kind(), object.meta.clone(), false);
            self.actions.push(action);
        }
        self.check_revisions(&id.key);
    }

    /// Reconsiders the policies of a server that were rejected for something that the server
    /// determines: whether it exists, where modules come from, who signs them, its limits.
    pub(super) fn reconsider_policies_of(&mut self, now: Now, server: &str) {
        let keys: Vec<PolicyKey> = self.objects.policies_of(server).cloned().collect();
        for key in keys {
            let Some(object) = self.objects.policy(&key).cloned() else {
                continue;
            };
            let id = object.id();
            let readable = object.parsed.is_ok();
            let permission = self.permission_refusal(&object).map(|r| r.reason);
            let context = |parsed: &Parsed| self.context_refusal(&object, parsed).is_some();
            let lost_context = object.parsed.as_ref().is_ok_and(context);
            if self.refused_permission(&object) != permission || lost_context {
                self.validate(now, &id, &object);
                continue;
            }
            let Some(rollout) = self.plane.rollout_of(&id) else {
                continue;
            };
            let Acceptance::Refused(refusal) = rollout.acceptance() else {
                continue;
            };
            let depends = match refusal.reason {
                RefusalReason::PullError
                | RefusalReason::SignatureRejected
                | RefusalReason::TargetNotFound => true,
                reason if reason.is_context() => true,
                // What the parser rejects does not depend on the server.
                RefusalReason::Invalid => readable,
                _ => false,
            };
            if !depends {
                continue;
            }
            let is_refused = self.server_refusal(server, false).is_some();
            match is_refused || self.rejected_unvetted.contains(&id) {
                // It is vetted only once nothing else stands against it.
                true => self.validate(now, &id, &object),
                false => self.reconsider(now, id),
            }
        }
    }

    /// The policy's object, unless it is being deleted or is another object of that name.
    pub(super) fn living(&self, id: &PolicyId) -> Option<&PolicyObject> {
        let object = self.objects.policy(&id.key)?;
        (*object.meta.uid == *id.uid && !object.meta.deleting).then_some(object)
    }

    fn storing_ended(&mut self, id: &PolicyId) {
        self.in_flight(id).storing = None;
        self.landed(id);
    }

    /// A module loads with the policy's settings: the generation becomes a revision.
    fn accepted(&mut self, now: Now, id: &PolicyId, generation: i64, module: &Module) {
        let object = self.living(id).filter(|o| o.meta.generation == generation);
        let Some(object) = object.cloned() else {
            return;
        };
        let Ok(parsed) = &object.parsed else { return };
        let refused = self.target_refusal(&object, false);
        let refused = refused.or_else(|| self.context_refusal(&object, parsed));
        if let Some(refusal) = refused {
            return self.event(now, Event::refused(id.clone(), generation, refusal));
        }
        if let Some(stored) = self.stored_generation(id, generation) {
            return self.accepted_again(now, id, parsed, module, &stored);
        }
        match self.context_readiness(&object, parsed) {
            ContextReadiness::Ready => {}
            ContextReadiness::Waiting => return self.await_context(id, generation, module),
            ContextReadiness::Refused(failure) => {
                return self.rejected(now, id, generation, failure);
            }
        }
        self.jobs.accepted(id);
        let server = self.objects.server(&object.server).and_then(|s| s.spec());
        let limits = limits(server, parsed);
        let (policy, spec) = revision::make(parsed, &id.uid, generation, module, limits);
        let route = self.backend.desired(&RouteSpec {
            policy: parsed,
            revision: &policy.revision,
            resolved: &ResolvedRevision::new(policy.revision.as_str(), &spec),
            uid: &id.uid,
            confirmed: self.is_confirmed(id),
        });
        self.in_flight(id).storing = Some(generation);
        let store = StoreRevision {
            id: id.clone(),
            policy: Arc::new(policy),
            spec,
            route,
        };
        self.actions.push(Action::StoreRevision(Box::new(store)));
    }

    /// The module of a generation that is stored already was fetched again: the stored revision
    /// goes on. Replicas may hold it, so its name never gets other content.
    fn accepted_again(
        &mut self,
        now: Now,
        id: &PolicyId,
        parsed: &Parsed,
        module: &Module,
        (stored, spec): &StoredGeneration,
    ) {
        let (policy, _) = revision::make(
            parsed,
            &id.uid,
            stored.generation,
            module,
            spec_limits(spec),
        );
        if policy.content_digest != stored.content_digest {
            let refusal = Refusal {
                reason: RefusalReason::Invalid,
                message: format!(
                    "the stored PolicyRevision of generation {} has other content than its spec \
                     and module give; edit the policy to make a new generation",
                    stored.generation
                ),
            };
            return self.event(now, Event::refused(id.clone(), stored.generation, refusal));
        }
        self.modules.insert(stored.content.module_digest);
        self.remember(id, stored.revision.clone(), spec.clone());
        info!(policy = %id.key, revision = %stored.revision, "accepted again");
        self.event(now, Event::ready(id.clone(), stored.clone()));
    }

    /// The readable revision of a generation.
    fn stored_generation(&self, id: &PolicyId, generation: i64) -> Option<StoredGeneration> {
        let mut own = self.objects.revisions(&id.key, &id.uid);
        own.find_map(|object| {
            let policy = object.policy.as_ref().ok()?;
            let spec = object.spec.as_ref()?;
            (policy.generation == generation).then(|| (policy.clone(), spec.clone()))
        })
    }

    fn rejected(&mut self, now: Now, id: &PolicyId, generation: i64, failure: Failure) {
        let object = self.living(id);
        if object.is_none_or(|o| o.meta.generation != generation) {
            return;
        }
        let refusal = self.jobs.rejected(now.at, id, generation, failure);
        self.event(now, Event::refused(id.clone(), generation, refusal));
    }

    fn delete(&mut self, now: Now, id: PolicyId) {
        self.cancel_vetting(&id);
        self.event(now, Event::Rollout(id, Input::Deleted));
    }

    pub(super) fn cancel_vetting(&mut self, id: &PolicyId) {
        self.awaiting_context.remove(id);
        if self.jobs.cancel(id) {
            self.actions.push(Action::CancelVet(id.clone()));
        }
    }

    /// Rejects the newest generation for what can be said without its module, and reconsiders
    /// one that was rejected for something that has been remedied.
    pub(super) fn validate(&mut self, now: Now, id: &PolicyId, object: &PolicyObject) {
        let generation = object.meta.generation;
        let Some(rollout) = self.plane.rollout_of(id) else {
            return;
        };
        let has_revision = rollout.has_revision_of(generation);
        let before = match rollout.acceptance() {
            Acceptance::Refused(refusal) => Some(refusal.clone()),
            _ => None,
        };
        if let Some(refusal) = self.refusal(object, has_revision) {
            self.cancel_vetting(id);
            self.rejected_unvetted.insert(id.clone());
            if before.as_ref() != Some(&refusal) {
                self.event(now, Event::refused(id.clone(), generation, refusal));
            }
            return;
        }
        if self.rejected_unvetted.remove(id) {
            // A missing server was created, or the problem with the source has gone.
            return self.reconsider(now, id.clone());
        }
        self.pending.insert(id.clone());
    }

    fn refusal(&self, object: &PolicyObject, has_revision: bool) -> Option<Refusal> {
        let invalid = |message: &String| Refusal {
            reason: RefusalReason::Invalid,
            message: message.clone(),
        };
        let parsed = match &object.parsed {
            Ok(parsed) => parsed,
            Err(message) => return Some(invalid(message)),
        };
        if let Some(problem) = &object.problem {
            let applies = match problem.scope {
                ProblemScope::Always => true,
                ProblemScope::BeforeRevision => !has_revision,
                ProblemScope::AfterRevision => has_revision,
            };
            if applies {
                return Some(problem.refusal.clone());
            }
        }
        let refused = self.target_refusal(object, has_revision);
        let refused = refused.or_else(|| self.context_refusal(object, parsed));
        if refused.is_some() {
            return refused;
        }
        self.backend
            .check(parsed)
            .err()
            .map(|message| invalid(&message))
    }

    /// Why the policy cannot be run by the server that it names.
    fn target_refusal(&self, object: &PolicyObject, has_revision: bool) -> Option<Refusal> {
        let refused = self.server_refusal(&object.server, has_revision);
        refused.or_else(|| self.permission_refusal(object))
    }

    /// Why policies cannot target a server. An invalid one affects only new generations:
    /// without its spec nobody knows which modules it accepts, and by whom they must be signed.
    fn server_refusal(&self, name: &str, has_revision: bool) -> Option<Refusal> {
        if !self.has_server(name) {
            return Some(target_not_found(name));
        }
        let object = self.objects.server(name).filter(|_| !has_revision)?;
        let why = object.parsed.as_ref().err()?;
        Some(target_invalid(name, why))
    }

    fn reconsider(&mut self, now: Now, id: PolicyId) {
        // A retry that waits is replaced by a try now.
        self.cancel_vetting(&id);
        self.pending.insert(id.clone());
        self.event(now, Event::Rollout(id, Input::Reconsidered));
    }

    fn vet(&mut self, id: &PolicyId) {
        let Some(object) = self.living(id) else {
            return;
        };
        let generation = object.meta.generation;
        let Ok(parsed) = &object.parsed else { return };
        let storing = self.in_flight.get(id).and_then(|f| f.storing);
        let awaiting = self.awaiting_context.get(id);
        if self.jobs.is_running(id, generation)
            || awaiting.is_some_and(|(vetted, _)| *vetted == generation)
            || storing == Some(generation)
            || self.target_refusal(object, false).is_some()
            || self.context_refusal(object, parsed).is_some()
        {
            return;
        }
        let server = self.objects.server(&object.server).and_then(|s| s.spec());
        // A generation that became a revision keeps its module, wherever its tag points now.
        let stored = self.stored_generation(id, generation);
        let spec = stored.as_ref().map(|(_, spec)| spec);
        let stored_digest = spec.and_then(|spec| spec.module_digest.parse().ok());
        let job = VetJob {
            id: id.clone(),
            generation,
            url: spec.map_or_else(|| parsed.module.clone(), |spec| spec.module_url.clone()),
            pinned: stored_digest.or(object.pinned),
            settings: parsed.settings.clone(),
            settings_from: parsed.settings_from.clone(),
            secret_settings: stored
                .as_ref()
                .and_then(|(policy, spec)| revision::secret_settings(policy, spec)),
            entrypoint: parsed.entrypoint.clone(),
            mutating: parsed.mutating,
            check: parsed.requests.is_some(),
            limits: limits(server, parsed),
            granted_capabilities: granted_capabilities(server, parsed),
            declares_context: !parsed.context_resources.is_empty(),
            verification: verification(server),
            server: server.cloned().map(Box::new),
        };
        self.jobs.begin(id.clone(), generation);
        self.dirty.contexts.insert(id.key.clone());
        self.actions.push(Action::Vet(Box::new(job)));
    }

    fn timing(&self, object: &PolicyObject) -> Timing {
        let parsed = object.parsed.as_ref().ok();
        let progress = parsed.map_or(600, |p| p.progress_deadline_seconds);
        let timeout = parsed.map_or(10, |p| p.timeout_seconds);
        let timing = Timing::for_webhook(
            Duration::from_secs(progress.into()),
            Duration::from_secs(timeout.into()),
        );
        match self.config.drain {
            Some(drain) => timing.with_drain(drain),
            None => timing,
        }
    }
}
