//! Statuses: computed for what changed, compared with what is stored.

use assent_api::{
    PolicyStatus,
    server::{CollectionRow, EvaluatorRow, PolicyServerStatus},
    status::MAX_ROWS,
};
use assent_core::{
    RevisionId,
    condition::{Condition, ConditionStatus, ConditionType, Reason},
    fleet::{Replica, ReplicaState},
    rollout::PolicyId,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;

use super::{Controller, STATUS_INTERVAL};
use crate::{
    action::{Action, EventKind, PolicyEvent, Status, StatusTarget, StatusUpdate},
    backend::Backend,
    contexts::CollectionState,
    objects::{Kind, Object, PolicyObject, ServerObject, policy_key},
    view::{ActiveFacts, Now, to_condition, to_status},
};

/// Rows of collections in a status, as the schema has it.
const MAX_COLLECTION_ROWS: usize = 64;

/// What events reported of a policy: status, reason and generation of the conditions that
/// people wait for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Recorded {
    accepted: String,
    enforced: String,
}

impl<B: Backend> Controller<B> {
    /// The status of a policy as its object carries it.
    pub fn policy_status(&mut self, now: Now, id: &PolicyId) -> Option<PolicyStatus> {
        let (status, since) = self.status(now, id)?;
        Some(to_status(&status, since, self.active_facts(id)))
    }

    pub(super) fn has_dirty_statuses(&self) -> bool {
        self.restored && !(self.dirty.policies.is_empty() && self.dirty.servers.is_empty())
    }

    /// Computes the statuses of policies that may have changed, unless the last time was a
    /// moment ago.
    pub(super) fn update_policy_statuses(&mut self, now: Now) {
        if !self.restored {
            return;
        }
        self.collect_dirty();
        if !self.has_dirty_statuses() || now.at < self.next_status {
            return;
        }
        self.next_status = now.at + STATUS_INTERVAL;
        self.server_statuses_due = true;
        for key in std::mem::take(&mut self.dirty.policies) {
            if let Some(object) = self.objects.policy(&key).cloned() {
                self.update_policy_status(now, &object);
            }
        }
    }

    /// Computes the statuses of servers that may have changed, at the same times. They name
    /// the published snapshot, so this follows publishing: before it a process that has just
    /// started would report none.
    pub(super) fn update_server_statuses(&mut self, now: Now) {
        if !std::mem::take(&mut self.server_statuses_due) {
            return;
        }
        for name in std::mem::take(&mut self.dirty.servers) {
            if let Some(object) = self.objects.server(&name).cloned() {
                self.update_server_status(now, &object);
            }
        }
    }

    /// A status was written, or its object changed meanwhile.
    pub(super) fn status_written(
        &mut self,
        target: &StatusTarget,
        object: Option<Box<Object<B::Existing>>>,
    ) {
        match object {
            Some(object) => drop(self.objects.insert(*object)),
            // The watch brings the object that was written meanwhile; look again in any case.
            None => match target.kind {
                Kind::Servers => drop(self.dirty.servers.insert(target.name.clone())),
                _ => {
                    let key = policy_key(target.kind, &target.namespace, &target.name);
                    self.dirty.policies.extend(key);
                }
            },
        }
    }

    /// Takes over since when the stored conditions have their status, so that a restart does
    /// not make them younger, and what events reported already.
    pub(super) fn restore_conditions(&mut self, id: &PolicyId, object: &PolicyObject) {
        let Some(status) = &object.status else { return };
        let transitions = self.transitions.entry(id.clone()).or_default();
        for condition in &status.conditions {
            let kinds = ConditionType::ALL.into_iter();
            let kind = kinds.into_iter().find(|k| k.as_str() == condition.type_);
            if let Some((kind, status)) = kind.zip(condition_status(&condition.status)) {
                let since = condition.last_transition_time.0.as_second();
                transitions.restore(kind, status, since);
            }
        }
        self.recorded
            .insert(id.clone(), Recorded::of(&status.conditions));
    }

    pub(super) fn restore_active_since(
        &mut self,
        now: Now,
        id: &PolicyId,
        object: &PolicyObject,
        active: &RevisionId,
    ) {
        let before = object.status.as_ref().and_then(|s| s.active.as_ref());
        let since = before
            .filter(|a| a.revision == active.short())
            .and_then(|a| a.since.as_ref())
            .map_or_else(|| now.seconds(), |t| t.0);
        self.active_since
            .insert(id.clone(), (active.to_string(), since));
    }

    /// What the plane says has changed. A heartbeat changes nothing.
    fn collect_dirty(&mut self) {
        let (policies, servers) = self.plane.take_dirty();
        self.dirty
            .policies
            .extend(policies.into_iter().map(|id| id.key));
        self.dirty
            .servers
            .extend(servers.into_iter().map(|server| server.to_string()));
    }

    fn update_policy_status(&mut self, now: Now, object: &PolicyObject) {
        let id = object.id();
        let Some(status) = self.policy_status(now, &id) else {
            return;
        };
        self.record_events(&id, object, &status);
        let stored = object.status.as_ref();
        let update = (stored != Some(&status)).then(|| StatusUpdate {
            urgent: stored.is_none_or(|stored| is_urgent(stored, &status)),
            status: Status::Policy(Box::new(status)),
            resource_version: object.meta.resource_version.clone(),
            uid: object.meta.uid.clone(),
        });
        let target = StatusTarget {
            kind: object.kind(),
            namespace: object.meta.namespace.clone(),
            name: object.meta.name.clone(),
        };
        self.actions.push(Action::WriteStatus(target, update));
    }

    fn active_facts(&self, id: &PolicyId) -> ActiveFacts {
        let rollout = self.plane.rollout_of(id);
        let Some(active) = rollout.and_then(|r| r.active()) else {
            return ActiveFacts::default();
        };
        let since = self.active_since.get(id);
        let since = since.filter(|(revision, _)| *revision == active.revision.as_str());
        ActiveFacts {
            since: since.map(|(_, since)| *since),
            digest: active
                .has_content()
                .then(|| active.content.module_digest.to_string()),
        }
    }

    /// Records what changed, once.
    fn record_events(&mut self, id: &PolicyId, object: &PolicyObject, status: &PolicyStatus) {
        let now = Recorded::of(&status.conditions);
        let before = self.recorded.insert(id.clone(), now.clone());
        let before = before.unwrap_or_default();
        let changed = [
            ("Accepted", before.accepted != now.accepted),
            ("Enforced", before.enforced != now.enforced),
        ];
        for (kind, _) in changed.into_iter().filter(|(_, changed)| *changed) {
            let found = status.conditions.iter().find(|c| c.type_ == kind);
            let Some(condition) = found else { continue };
            let event = PolicyEvent {
                key: object.key.clone(),
                meta: object.meta.clone(),
                what: EventKind::Condition(condition.clone()),
            };
            self.actions.push(Action::RecordEvent(Box::new(event)));
        }
    }

    fn update_server_status(&mut self, now: Now, object: &ServerObject) {
        let name = &object.meta.name;
        let set = self.objects.set(name);
        let mut status = PolicyServerStatus {
            observed_generation: Some(object.meta.generation),
            replicas: set.map_or(0, |s| s.replicas),
            ready_replicas: set.map_or(0, |s| s.ready),
            selector: self.backend.selector(name),
            ..PolicyServerStatus::default()
        };
        if let Some(server) = self.plane.server(name) {
            let current = server.version();
            status.snapshot = current.map(|v| v.to_string());
            let mut rows: Vec<(bool, EvaluatorRow)> = server
                .fleet
                .replicas()
                .map(|(name, replica)| {
                    let state = current.map(|v| replica.state(v));
                    let row = evaluator_row(now, name, replica, state, object);
                    (state == Some(ReplicaState::Current), row)
                })
                .collect();
            rows.sort_by(|a, b| (a.0, &a.1.name).cmp(&(b.0, &b.1.name)));
            let omitted = rows.len().saturating_sub(MAX_ROWS);
            status.evaluators_omitted = i32::try_from(omitted).unwrap_or(i32::MAX);
            let shown = rows.into_iter().take(MAX_ROWS);
            status.evaluators = shown.map(|(_, row)| row).collect();
        }
        status.context = self.collection_rows(name);
        let ready = self.server_ready(object, &status);
        let stored = object.status.as_ref();
        let before = stored.and_then(|s| s.conditions.first());
        status.conditions = vec![with_time(now, &ready, object.meta.generation, before)];
        let update = (stored != Some(&status)).then(|| StatusUpdate {
            urgent: stored.is_none_or(|stored| is_server_urgent(stored, &status)),
            status: Status::Server(Box::new(status)),
            resource_version: object.meta.resource_version.clone(),
            uid: object.meta.uid.clone(),
        });
        let target = StatusTarget {
            kind: Kind::Servers,
            namespace: String::new(),
            name: name.clone(),
        };
        self.actions.push(Action::WriteStatus(target, update));
    }

    /// The collections of a server, the largest first.
    fn collection_rows(&self, server: &str) -> Vec<CollectionRow> {
        let count = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let rows = self.contexts.reports_of(server).map(|(spec, report)| {
            let state = report.map_or(CollectionState::Syncing, |r| r.state);
            CollectionRow {
                id: spec.id().to_string().chars().take(8).collect(),
                api_version: spec.api_version().to_owned(),
                kind: spec.kind().to_owned(),
                state: state.as_str().to_owned(),
                objects: report.map_or(0, |r| count(r.objects)),
                bytes: report.map_or(0, |r| count(r.bytes)),
                message: report.map_or_else(String::new, |r| r.detail.clone()),
            }
        });
        let mut rows: Vec<CollectionRow> = rows.collect();
        rows.sort_by(|a, b| (b.bytes, &a.id).cmp(&(a.bytes, &b.id)));
        rows.truncate(MAX_COLLECTION_ROWS);
        rows
    }

    fn server_ready(&self, object: &ServerObject, status: &PolicyServerStatus) -> Condition {
        let condition = |status, reason, message: String| Condition {
            kind: ConditionType::Ready,
            status,
            reason,
            message,
        };
        let applied = self.applied.get(&object.meta.name);
        if let Err(why) = &object.parsed {
            return condition(ConditionStatus::False, Reason::Invalid, why.clone());
        }
        if let Some(why) = applied.and_then(|a| a.error.as_ref()) {
            return condition(ConditionStatus::False, Reason::ApplyFailed, why.clone());
        }
        let wanted = object.spec().map_or(0, |p| p.spec.replicas);
        match status.ready_replicas {
            ready if ready >= wanted => {
                condition(ConditionStatus::True, Reason::Ready, "every replica is ready".into())
            }
            _ => condition(
                ConditionStatus::False,
                Reason::Progressing,
                "not every replica is ready; see the pods of its StatefulSet with `kubectl get pods`"
                    .into(),
            ),
        }
    }
}

// === impl Recorded ===

impl Recorded {
    fn of(conditions: &[meta::Condition]) -> Self {
        let summary = |kind: &str| {
            let found = conditions.iter().find(|c| c.type_ == kind);
            found.map_or_else(String::new, |c| {
                let generation = c.observed_generation.unwrap_or(0);
                format!("{}/{}/{generation}", c.status, c.reason)
            })
        };
        Self {
            accepted: summary("Accepted"),
            enforced: summary("Enforced"),
        }
    }
}

fn evaluator_row(
    now: Now,
    name: &str,
    replica: &Replica,
    state: Option<ReplicaState>,
    object: &ServerObject,
) -> EvaluatorRow {
    let (status, reason, message) = match state {
        Some(ReplicaState::Current) => (
            ConditionStatus::True,
            Reason::Current,
            "serves the whole snapshot",
        ),
        Some(ReplicaState::Behind) | None => (
            ConditionStatus::False,
            Reason::Behind,
            "has not answered for the snapshot yet",
        ),
        Some(ReplicaState::Rejected) => (
            ConditionStatus::False,
            Reason::Rejected,
            "rejected the snapshot or a part of it; see the status of its policies",
        ),
        Some(ReplicaState::Disconnected) => (
            ConditionStatus::Unknown,
            Reason::Disconnected,
            "is not connected",
        ),
    };
    let condition = Condition {
        kind: ConditionType::Ready,
        status,
        reason,
        message: message.into(),
    };
    let stored = object.status.iter().flat_map(|s| &s.evaluators);
    let before = stored.filter(|row| row.name == name);
    let before = before.flat_map(|row| &row.conditions).next();
    EvaluatorRow {
        name: name.to_owned(),
        snapshot: replica.report.acked.map(|v| v.to_string()),
        conditions: vec![with_time(now, &condition, object.meta.generation, before)],
    }
}

/// Whether people or programs may be waiting for the change; rows and counters only age.
fn is_urgent(stored: &PolicyStatus, new: &PolicyStatus) -> bool {
    let rejected = |s: &PolicyStatus| s.rollout.map(|r| r.rejected);
    stored.observed_generation != new.observed_generation
        || stored.active != new.active
        || stored.pending != new.pending
        || stored.conditions != new.conditions
        || rejected(stored) != rejected(new)
}

fn is_server_urgent(stored: &PolicyServerStatus, new: &PolicyServerStatus) -> bool {
    // Autoscalers read the counts.
    stored.observed_generation != new.observed_generation
        || stored.replicas != new.replicas
        || stored.ready_replicas != new.ready_replicas
        || stored.snapshot != new.snapshot
        || stored.conditions != new.conditions
        || states(stored) != states(new)
}

fn states(status: &PolicyServerStatus) -> Vec<(&str, &str)> {
    let rows = status.context.iter();
    rows.map(|row| (row.id.as_str(), row.state.as_str()))
        .collect()
}

/// The condition with the time of `before`, if its status is the same.
fn with_time(
    now: Now,
    condition: &Condition,
    generation: i64,
    before: Option<&meta::Condition>,
) -> meta::Condition {
    let same = before.filter(|b| b.status == condition.status.as_str());
    let since = same.map_or_else(|| now.seconds(), |b| b.last_transition_time.0);
    to_condition(condition, generation, since)
}

fn condition_status(text: &str) -> Option<ConditionStatus> {
    match text {
        "True" => Some(ConditionStatus::True),
        "False" => Some(ConditionStatus::False),
        "Unknown" => Some(ConditionStatus::Unknown),
        _ => None,
    }
}
