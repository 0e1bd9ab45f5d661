//! Statuses: written conditionally, and never more than what is true.

use assent_api::PolicyStatus;
use assent_controller::{
    Kind, Object, Outcome,
    action::{Status, StatusTarget, StatusUpdate},
    objects::policy_key,
};
use assent_core::{RevisionId, plane::StreamEvent};

use crate::{
    Verdict,
    api::path_of,
    backend::{Cluster, Webhook},
    jobs::Job,
    world::{GRACE, World},
};

impl World {
    pub(crate) fn submit_status(
        &mut self,
        target: StatusTarget,
        update: Option<StatusUpdate>,
    ) -> Verdict {
        let process = self.process.as_mut().unwrap();
        let Some(update) = update else {
            process.statuses.remove(&target);
            return Ok(());
        };
        let is_first = process
            .statuses
            .insert(target.clone(), update.clone())
            .is_none();
        if let Status::Policy(status) = &update.status {
            self.check_status(&target, &update.uid, status)?;
        }
        if is_first {
            self.send(Job::Status(target));
        }
        Ok(())
    }

    /// The newest status of an object is written, if the object is as it was when the status was computed.
    pub(crate) fn write_status(&mut self, target: &StatusTarget) -> Option<Outcome<Cluster>> {
        let update = self.process.as_mut()?.statuses.remove(target)?;
        let path = match target.namespace.as_str() {
            "" => target.name.clone(),
            namespace => format!("{namespace}/{}", target.name),
        };
        let version = Some(update.resource_version.as_str());
        let written = self.api.update(target.kind, &path, version, |object| {
            match (object, &update.status) {
                (Object::Policy(policy), Status::Policy(status)) => {
                    policy.status = Some((**status).clone())
                }
                (Object::Server(server), Status::Server(status)) => {
                    server.status = Some((**status).clone())
                }
                _ => {}
            }
        });
        Some(Outcome::StatusWritten(
            target.clone(),
            written.ok().map(Box::new),
        ))
    }

    /// What the controller may conclude from what it was told.
    pub(crate) fn believe(&mut self, event: &StreamEvent) {
        let process = self.process.as_mut().unwrap();
        match event {
            StreamEvent::Opened { node, .. } => {
                let known = process
                    .instances
                    .insert(node.id.clone(), node.instance_uid.clone());
                if known.as_ref() != Some(&node.instance_uid) {
                    process.beliefs.remove(&node.id);
                }
            }
            StreamEvent::Reported {
                replica, report, ..
            } => {
                if let Some(applied) = &report.applied {
                    let all = applied.snapshot.policies().map(|p| p.revision.clone());
                    let rejected =
                        |r: &RevisionId| applied.rejected.iter().any(|x| x.revision == *r);
                    let loaded = all.filter(|r| !rejected(r)).collect();
                    process.beliefs.insert(replica.to_string(), loaded);
                }
            }
            _ => {}
        }
    }

    /// I4: conditions claim no more than replicas said and webhooks name.
    fn check_status(&self, target: &StatusTarget, uid: &str, status: &PolicyStatus) -> Verdict {
        let key = policy_key(target.kind, &target.namespace, &target.name).unwrap();
        let holds = |kind: &str| {
            let mut conditions = status.conditions.iter();
            conditions.any(|c| c.type_ == kind && c.status == "True")
        };
        let generation = status.observed_generation.unwrap_or_default();
        let revision = RevisionId::new(&key, generation, uid);
        if let Some(active) = &status.active {
            let named = RevisionId::new(&key, active.generation, uid);
            if !self.history.pointed.contains(&named) {
                return Err(format!(
                    "I4: {named} is reported as active, and no webhook ever named it"
                ));
            }
        }
        if holds("Enforced") {
            if !self.history.pointed.contains(&revision) {
                return Err(format!(
                    "I4: {revision} is enforced, and no webhook ever named it"
                ));
            }
            if status.rollout.is_none_or(|r| r.desired == 0) {
                return Err(format!(
                    "I4: {revision} is enforced by no replica: {:?}",
                    status.rollout
                ));
            }
        }
        if holds("Programmed") {
            self.check_programmed(&revision)?;
        }
        Ok(())
    }

    fn check_programmed(&self, revision: &RevisionId) -> Verdict {
        let process = self.process.as_ref().unwrap();
        let key = revision.policy().unwrap();
        let Some(server) = process.controller.objects().policy(key).map(|p| &p.server) else {
            return Ok(());
        };
        for pod in process
            .controller
            .objects()
            .members(server)
            .filter(|p| p.ready && !p.meta.deleting)
        {
            let name = &pod.meta.name;
            match process.beliefs.get(name) {
                Some(loaded) if loaded.contains(revision) => {}
                Some(_) => return Err(format!("I4: {revision} is programmed, but not on {name}")),
                // A pod that has not connected yet counts as it was for a while.
                None if self.now <= self.first_seen(name) + GRACE + GRACE => {}
                None => {
                    return Err(format!(
                        "I4: {revision} is programmed, and {name} never connected"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Since when this leader may know of a pod.
    fn first_seen(&self, pod: &str) -> assent_core::Millis {
        let process = self.process.as_ref().unwrap();
        let ready = self.history.ready_since.get(pod).copied();
        process.since.max(ready.unwrap_or_default())
    }

    /// At the end, what is stored is what the controller would say now.
    pub(crate) fn check_stored_status(&mut self, object: &Object<Webhook>) -> Verdict {
        let Object::Policy(policy) = object else {
            return Ok(());
        };
        let now = self.clock();
        let process = self.process.as_mut().unwrap();
        let computed = process.controller.policy_status(now, &policy.id());
        match computed == policy.status {
            true => Ok(()),
            false => Err(format!(
                "I7: the status of {} is {:?}, not {computed:?}",
                path_of(&policy.meta),
                policy.status
            )),
        }
    }
}

/// Kinds of policies.
pub(crate) const POLICIES: [Kind; 2] = [Kind::ClusterPolicies, Kind::Policies];
