//! Policy objects: observed, vetted, stored as revisions, deleted, gone back.

use std::{sync::Arc, time::Duration};

use assent_api::parse::{Module, Rollback};
use assent_api::revision::Phase;
use assent_core::{
    Policy, PolicyKey, RevisionId,
    plane::Event,
    policy::Limits,
    rollout::{Acceptance, Input, PolicyId, Refusal, RefusalReason, Stored, Timing},
};
use assent_grpc::rollout;
use assent_k8s::{
    index::{Kind, PolicyEntry, RevisionEntry},
    revision, webhook,
};
use kube::core::DynamicObject;
use serde_json::Value;
use tracing::{info, warn};

use super::{Machine, Undo};
use crate::{
    cluster::{deed::Deed, sources::References},
    servers::{allowed_capabilities, limits, target_not_found, verification},
    vetting::{Failed, Job},
};

impl Machine {
    /// Brings the plane up to what the policy's object says.
    pub(super) fn observe_policy(&mut self, key: &PolicyKey) {
        let entry = self.index.policy(key).cloned();
        let uid = entry.as_ref().map(|e| e.meta.uid.clone());
        // Whatever bears the name and is not this object is deleted, however that came about.
        let rollouts = self.drive.plane.rollouts().map(|(_, r)| r);
        let others = rollouts.filter(|r| r.id().key == *key && !r.is_ending());
        let others = others.filter(|r| Some(&*r.id().uid) != uid.as_deref());
        let others: Vec<PolicyId> = others.map(|r| r.id().clone()).collect();
        for id in others {
            self.delete(id);
        }
        let Some(entry) = entry else { return };
        let id = id_of(&entry);
        if self.drive.plane.rollout_of(&id).is_none() {
            self.begin(&id, &entry);
        }
        self.drive.apply(Event::Observed {
            id: id.clone(),
            server: entry.server.as_str().into(),
            generation: entry.meta.generation,
            timing: self.timing(&entry),
            stored: Stored::default(),
        });
        if entry.meta.deleting {
            return self.delete(id);
        }
        if !entry.meta.is_held() {
            let deed = Deed::Hold(kind_of(key), entry.meta.clone(), true);
            self.deeds.push(deed);
        }
        self.judge(&id, &entry);
        if let Some(to) = entry.rollback {
            self.undo(key, to, None);
        }
        self.trim_history(key);
    }

    /// Starts what is due: vetting of new generations, and another try of failed ones.
    pub(super) fn work(&mut self) {
        for id in self.jobs.due() {
            // It stays refused, in its own words, until the next try has an end.
            self.vet(&id);
        }
        let rollouts = self.drive.plane.rollouts().map(|(_, r)| r);
        let pending = rollouts.filter(|r| !r.is_ending() && *r.acceptance() == Acceptance::Pending);
        let pending: Vec<PolicyId> = pending.map(|r| r.id().clone()).collect();
        for id in pending {
            self.vet(&id);
        }
    }

    /// A module loads with the policy's settings: the generation becomes a revision.
    pub(super) fn accepted(&mut self, id: &PolicyId, generation: i64, module: &Module) {
        self.modules.insert(module.digest);
        let Some(entry) = self.living(id).filter(|e| e.meta.generation == generation) else {
            return;
        };
        self.jobs.accepted(id);
        let Ok(parsed) = &entry.parsed else { return };
        let limits = self.limits(&entry);
        let own = &self.options.namespace;
        let (policy, object) = revision::make(parsed, &id.uid, generation, module, limits, own);
        let webhook = webhook::desired(&webhook::Input {
            policy: parsed,
            revision: &policy.revision,
            uid: &id.uid,
            reach: &self.reach(&entry.server),
            site: &self.options.site,
        });
        self.storing.insert(id.clone(), generation);
        self.deeds.push(Deed::Store {
            id: id.clone(),
            policy: Arc::new(policy),
            object: Box::new(object),
            webhook: Box::new(webhook),
        });
    }

    pub(super) fn refused(&mut self, id: &PolicyId, generation: i64, failed: Failed) {
        if self.living(id).is_none() {
            return;
        }
        let refusal = self.jobs.refused(id, generation, failed);
        self.drive
            .apply(Event::refused(id.clone(), generation, refusal));
    }

    pub(super) fn stored(&mut self, id: PolicyId, policy: Arc<Policy>, object: DynamicObject) {
        self.storing.remove(&id);
        self.index.apply(Kind::Revisions, object);
        info!(policy = %id.key, revision = %policy.revision, "accepted");
        self.drive.apply(Event::ready(id, policy));
    }

    pub(super) fn not_stored(&mut self, id: &PolicyId, generation: i64, failed: Failed) {
        self.storing.remove(id);
        self.refused(id, generation, failed);
    }

    /// Nothing of the policy is left in any snapshot: the object may go.
    pub(super) fn release(&mut self, id: &PolicyId) {
        self.told.remove(id);
        self.since.remove(id);
        let entry = self.index.policy(&id.key);
        if let Some(entry) = entry.filter(|e| *e.meta.uid == *id.uid && e.meta.is_held()) {
            let meta = entry.meta.clone();
            self.deeds.push(Deed::Hold(kind_of(&id.key), meta, false));
        }
    }

    /// Goes back to an earlier revision; `answer` is told how that went.
    pub(in crate::cluster) fn undo(&mut self, key: &PolicyKey, to: Rollback, answer: Option<Undo>) {
        let waiting = self.undoing.get_mut(key);
        if let Some(waiting) = waiting {
            waiting.extend(answer);
            return;
        }
        let Some(entry) = self.index.policy(key).filter(|e| !e.meta.deleting).cloned() else {
            if let Some(answer) = answer {
                let why = format!("there is no policy {key}");
                // Whoever asked and left is not told.
                let _ = answer.send(Err(rollout::Error::NotFound(why)));
            }
            return;
        };
        let target = self.target(&entry, to);
        self.undoing
            .insert(key.clone(), answer.into_iter().collect());
        self.deeds.push(Deed::RollBack {
            kind: kind_of(key),
            meta: entry.meta,
            key: key.clone(),
            target,
        });
    }

    pub(super) fn rolled_back(
        &mut self,
        key: &PolicyKey,
        result: Result<(i64, Box<DynamicObject>), String>,
    ) {
        let waiting = self.undoing.remove(key).unwrap_or_default();
        let result = result.map(|(from, object)| {
            let generation = object.metadata.generation.unwrap_or(0);
            // The annotation is gone at once, not when a watch tells.
            self.index.apply(kind_of(key), *object);
            (from, generation)
        });
        match &result {
            Ok((from, generation)) => {
                info!(policy = %key, from, generation, "rolled back");
                self.announcer
                    .rolled_back(self.index.policy(key), *from, *generation);
            }
            Err(why) => {
                warn!(policy = %key, "not rolled back: {why}");
                self.announcer.not_rolled_back(self.index.policy(key), why);
            }
        }
        for answer in waiting {
            let result = result.clone().map_err(rollout::Error::Refused);
            let _ = answer.send(result);
        }
    }

    /// A policy that was not known: goes on from what is stored of it.
    fn begin(&mut self, id: &PolicyId, entry: &PolicyEntry) {
        let stored = self.stored_of(entry);
        if let Some(active) = &stored.active {
            self.recall_since(id, entry, &active.revision);
        }
        self.recall_conditions(id, entry);
        self.drive.apply(Event::Observed {
            id: id.clone(),
            server: entry.server.as_str().into(),
            generation: entry.meta.generation,
            timing: self.timing(entry),
            stored,
        });
    }

    /// What the webhook names is active. Where it names nothing, the revision of this very
    /// generation is on its way again, whatever its phase says; a candidate whose module is not
    /// here is made anew.
    fn stored_of(&self, entry: &PolicyEntry) -> Stored {
        let mut stored = Stored::default();
        let named = self.named(entry);
        for found in self.index.revisions(&entry.key, &entry.meta.uid) {
            let policy = match &found.policy {
                Ok(policy) => policy.clone(),
                Err(why) => {
                    warn!(policy = %entry.key, revision = %found.meta.name, "a stored revision can't be used: {why}");
                    continue;
                }
            };
            let current = policy.generation == entry.meta.generation;
            if named.as_ref() == Some(&policy.revision) {
                stored.active = Some(policy);
            } else if found.phase == Phase::Candidate || (named.is_none() && current) {
                if self.modules.contains(&policy.content.module_digest) {
                    stored.candidates.push(policy);
                }
            } else if found.phase != Phase::History {
                stored.draining.push(policy);
            }
        }
        stored.candidates.sort_by_key(|p| p.generation);
        stored
    }

    /// The revision that the policy's webhook names. Between two kinds the newer one counts:
    /// it is made before the older one goes.
    fn named(&self, entry: &PolicyEntry) -> Option<RevisionId> {
        let own = self.index.webhooks(&entry.key);
        let own = own.filter(|w| w.named.uid.as_deref() == Some(&entry.meta.uid));
        let named: Vec<&RevisionId> = own.filter_map(|w| w.named.revision.as_ref()).collect();
        let generation = |id: &RevisionId| {
            let mut all = self.index.revisions(&entry.key, &entry.meta.uid);
            let found = all.find_map(|r| r.policy.as_ref().ok().filter(|p| p.revision == *id));
            found.map(|p| p.generation)
        };
        named.into_iter().max_by_key(|id| generation(id)).cloned()
    }

    fn delete(&mut self, id: PolicyId) {
        self.jobs.cancel(&id);
        self.drive.apply(Event::Policy(id, Input::Deleted));
    }

    /// What stands against the newest generation before its module is looked at.
    fn judge(&mut self, id: &PolicyId, entry: &PolicyEntry) {
        let generation = entry.meta.generation;
        let refusal = match &entry.parsed {
            Err(message) => Some(Refusal {
                reason: RefusalReason::Invalid,
                message: message.clone(),
            }),
            Ok(_) if !self.has_server(&entry.server) => Some(target_not_found(&entry.server)),
            Ok(_) => None,
        };
        if let Some(refusal) = refusal {
            self.jobs.cancel(id);
            return self
                .drive
                .apply(Event::refused(id.clone(), generation, refusal));
        }
        let Some(rollout) = self.drive.plane.rollout_of(id) else {
            return;
        };
        // A missing server has come. (What was wrong with the object itself ended with its
        // generation.)
        if matches!(rollout.acceptance(), Acceptance::Refused(r) if r.reason == RefusalReason::TargetNotFound)
        {
            let event = Event::Policy(id.clone(), Input::Reconsidered);
            self.drive.apply(event);
        }
    }

    fn vet(&mut self, id: &PolicyId) {
        let Some(entry) = self.living(id) else {
            return;
        };
        let generation = entry.meta.generation;
        let Ok(parsed) = &entry.parsed else { return };
        if self.jobs.is_running(id, generation)
            || self.storing.get(id) == Some(&generation)
            || !self.has_server(&entry.server)
        {
            return;
        }
        let server = self.index.server(&entry.server);
        let server = server.and_then(|s| s.parsed.as_ref().ok());
        let job = Job {
            id: id.clone(),
            generation,
            url: parsed.module.clone(),
            pinned: None,
            files: None,
            reach: self.options.reach,
            verification: verification(server),
            settings: parsed.settings.clone(),
            entrypoint: parsed.entrypoint.clone(),
            mutating: parsed.mutating,
            limits: limits(server, parsed),
            allowed_capabilities: allowed_capabilities(server, parsed),
        };
        let sources = References::of(server);
        let cancelled = self.jobs.begin(id.clone(), generation);
        self.deeds
            .push(Deed::Vet(Box::new(job), sources, cancelled));
    }

    fn limits(&self, entry: &PolicyEntry) -> Limits {
        let server = self.index.server(&entry.server);
        let server = server.and_then(|s| s.parsed.as_ref().ok());
        match &entry.parsed {
            Ok(parsed) => limits(server, parsed),
            Err(_) => Limits::default(),
        }
    }

    fn living(&self, id: &PolicyId) -> Option<PolicyEntry> {
        let entry = self.index.policy(&id.key)?;
        (*entry.meta.uid == *id.uid && !entry.meta.deleting).then(|| entry.clone())
    }

    fn timing(&self, entry: &PolicyEntry) -> Timing {
        let parsed = entry.parsed.as_ref().ok();
        let progress = parsed.map_or(600, |p| p.progress_deadline_seconds);
        let timeout = parsed.map_or(10, |p| p.timeout_seconds);
        let timing = Timing::for_webhook(
            Duration::from_secs(progress.into()),
            Duration::from_secs(timeout.into()),
        );
        match self.options.drain {
            Some(drain) => timing.with_drain(drain),
            None => timing,
        }
    }

    /// The generation that a rollback goes to and the spec that it had, with its very module.
    fn target(&self, entry: &PolicyEntry, to: Rollback) -> Result<(i64, Value), String> {
        let active = self.named(entry);
        let known = self.index.revisions(&entry.key, &entry.meta.uid);
        let known = known.filter(|r| r.policy.is_ok() && r.object.is_some());
        let mut known: Vec<(i64, &RevisionEntry)> = known
            .filter_map(|r| Some((r.policy.as_ref().ok()?.generation, r)))
            .collect();
        known.sort_by_key(|(generation, _)| std::cmp::Reverse(*generation));
        let is_active = |r: &RevisionEntry| {
            let own = r.policy.as_ref().ok().map(|p| &p.revision);
            own.is_some() && own == active.as_ref()
        };
        let at = known.iter().find(|(_, r)| is_active(r)).map(|(g, _)| *g);
        let found = match to {
            Rollback::Generation(wanted) => known.iter().find(|(g, _)| *g == wanted),
            Rollback::Previous => known.iter().find(|(g, r)| {
                // One that never was active is nothing to go back to.
                r.phase != Phase::Candidate && at.is_some_and(|at| *g < at)
            }),
        };
        let (generation, found) = found.ok_or_else(|| match to {
            Rollback::Previous => "there is no earlier revision to go back to".to_owned(),
            Rollback::Generation(n) => format!(
                "there is no revision of generation {n}; kept are those of `kubectl get policyrevisions`"
            ),
        })?;
        let object = found.object.as_ref().ok_or("the revision can't be read")?;
        let mut spec = object.spec.policy.clone();
        spec.insert("module".into(), object.spec.module_url.clone().into());
        Ok((*generation, Value::Object(spec)))
    }
}

/// Which life of a policy an object is.
pub(super) fn id_of(entry: &PolicyEntry) -> PolicyId {
    PolicyId {
        key: entry.key.clone(),
        uid: entry.meta.uid.as_str().into(),
    }
}

/// The kind of a policy's object.
pub(super) fn kind_of(key: &PolicyKey) -> Kind {
    match key.namespace() {
        Some(_) => Kind::Policies,
        None => Kind::ClusterPolicies,
    }
}
