//! Statuses: computed in passes, compared with what is stored, handed to the writer.

use assent_api::{
    PolicyStatus,
    server::{EvaluatorRow, PolicyServerStatus},
    status::MAX_ROWS,
};
use assent_core::{
    RevisionId,
    fleet::{Replica, State},
    rollout::PolicyId,
    status::{Condition, Truth},
};
use assent_k8s::{
    index::{Kind, PolicyEntry, ServerEntry},
    status::{Target, Wanted},
    workload,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use serde_json::Value;
use tokio::time::Instant;

use super::{
    Machine, PASS_EVERY,
    policies::{id_of, kind_of},
};
use crate::view::{ActiveFacts, now, to_condition, to_status};

/// What events have told of a policy: a word for each condition that people wait for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    accepted: String,
    enforced: String,
}

/// Condition types in the order of a status.
const CONDITIONS: [&str; 4] = ["Accepted", "Programmed", "Enforced", "Ready"];

impl Machine {
    /// Computes every status, if something happened and the last pass is long enough ago.
    pub(super) fn pass(&mut self) {
        if !self.is_restored() || !self.dirty || Instant::now() < self.next_pass {
            return;
        }
        self.dirty = false;
        self.next_pass = Instant::now() + PASS_EVERY;
        let policies: Vec<PolicyEntry> = self.index.policies().cloned().collect();
        for entry in &policies {
            self.policy_status(entry);
        }
        let servers: Vec<ServerEntry> = self.index.servers().cloned().collect();
        for entry in &servers {
            self.server_status(entry);
        }
    }

    /// A status was written, or not.
    pub(in crate::cluster) fn status_written(&mut self, written: assent_k8s::status::Written) {
        match written.result {
            Ok(object) => drop(self.index.apply(written.target.kind, *object)),
            // The watch brings the object that was written meanwhile, or the pass looks again.
            Err(_) => self.dirty = true,
        }
    }

    /// Takes over since when the stored conditions are what they are, so that a restart does
    /// not make them younger; and what events have told already.
    pub(super) fn recall_conditions(&mut self, id: &PolicyId, entry: &PolicyEntry) {
        let Some(status) = stored(entry) else { return };
        let conditions = status.conditions.iter().filter_map(|c| {
            let kind = CONDITIONS.into_iter().find(|kind| *kind == c.type_)?;
            Some((
                kind,
                truth(&c.status)?,
                c.last_transition_time.0.as_second(),
            ))
        });
        let conditions: Vec<_> = conditions.collect();
        self.drive.restore_transitions(id, conditions);
        self.told.insert(id.clone(), Told::of(&status.conditions));
    }

    pub(super) fn recall_since(&mut self, id: &PolicyId, entry: &PolicyEntry, active: &RevisionId) {
        let active_before = stored(entry).and_then(|s| s.active);
        let since = active_before
            .filter(|a| a.revision == active.short())
            .and_then(|a| a.since)
            .map_or_else(Timestamp::now, |t| t.0);
        self.since.insert(id.clone(), (active.to_string(), since));
    }

    fn policy_status(&mut self, entry: &PolicyEntry) {
        let id = id_of(entry);
        let Some((status, since)) = self.drive.status(&id) else {
            return;
        };
        let facts = self.facts(&id);
        let new = to_status(&status, since, facts);
        self.tell(&id, entry, &new);
        let target = Target {
            kind: kind_of(&entry.key),
            namespace: entry.meta.namespace.clone(),
            name: entry.meta.name.clone(),
        };
        let value = serde_json::to_value(&new).unwrap_or_default();
        let urgent = important(&value) != important(&entry.status);
        let wanted = (value != entry.status).then(|| Wanted {
            status: value,
            resource_version: entry.meta.resource_version.clone(),
            uid: entry.meta.uid.clone(),
            urgent,
        });
        // The writer ends with the term.
        let _ = self.statuses.send((target, wanted));
    }

    fn facts(&self, id: &PolicyId) -> ActiveFacts {
        let rollout = self.drive.plane.rollout_of(id);
        let Some(active) = rollout.and_then(|r| r.active()) else {
            return ActiveFacts::default();
        };
        let since = self.since.get(id);
        let since = since.filter(|(revision, _)| *revision == active.revision.as_str());
        ActiveFacts {
            since: since.map(|(_, since)| *since),
            digest: Some(active.content.module_digest.to_string()),
        }
    }

    /// Tells of what changed, once.
    fn tell(&mut self, id: &PolicyId, entry: &PolicyEntry, status: &PolicyStatus) {
        let now = Told::of(&status.conditions);
        let before = self
            .told
            .insert(id.clone(), now.clone())
            .unwrap_or_default();
        let find = |kind: &str| status.conditions.iter().find(|c| c.type_ == kind);
        if before.accepted != now.accepted
            && let Some(condition) = find("Accepted")
        {
            self.announcer.condition(entry, condition);
        }
        if before.enforced != now.enforced
            && let Some(condition) = find("Enforced")
        {
            self.announcer.condition(entry, condition);
        }
    }

    fn server_status(&mut self, entry: &ServerEntry) {
        let name = &entry.meta.name;
        let set = self.index.set(name);
        let mut status = PolicyServerStatus {
            observed_generation: Some(entry.meta.generation),
            replicas: set.map_or(0, |s| s.replicas),
            ready_replicas: set.map_or(0, |s| s.ready),
            selector: Some(workload::selector(name)),
            ..PolicyServerStatus::default()
        };
        if let Some(server) = self.drive.plane.server(name) {
            status.snapshot = server.version().map(|v| v.to_string());
            let current = server.version();
            let mut rows: Vec<(bool, EvaluatorRow)> = server
                .fleet
                .replicas()
                .map(|(name, replica)| {
                    let state = current.map(|v| replica.state(v));
                    let row = self.row(name, replica, state, entry);
                    (state == Some(State::Current), row)
                })
                .collect();
            rows.sort_by(|a, b| (a.0, &a.1.name).cmp(&(b.0, &b.1.name)));
            let omitted = rows.len().saturating_sub(MAX_ROWS);
            status.evaluators_omitted = i32::try_from(omitted).unwrap_or(i32::MAX);
            let shown = rows.into_iter().take(MAX_ROWS);
            status.evaluators = shown.map(|(_, row)| row).collect();
        }
        let ready = self.server_ready(entry, &status);
        status.conditions = vec![since_stored(&ready, entry)];
        let value = serde_json::to_value(&status).unwrap_or_default();
        let urgent = important(&value) != important(&entry.status);
        let wanted = (value != entry.status).then(|| Wanted {
            status: value,
            resource_version: entry.meta.resource_version.clone(),
            uid: entry.meta.uid.clone(),
            urgent,
        });
        let target = Target {
            kind: Kind::Servers,
            namespace: String::new(),
            name: name.clone(),
        };
        let _ = self.statuses.send((target, wanted));
    }

    fn row(
        &self,
        name: &str,
        replica: &Replica,
        state: Option<State>,
        entry: &ServerEntry,
    ) -> EvaluatorRow {
        let (status, reason, message) = match state {
            Some(State::Current) => (Truth::True, "Current", "serves the whole snapshot"),
            Some(State::Behind) | None => (
                Truth::False,
                "Behind",
                "has not answered for the snapshot yet",
            ),
            Some(State::Rejected) => (
                Truth::False,
                "Rejected",
                "refused the snapshot or a part of it: its policies say what and why",
            ),
            Some(State::Disconnected) => (Truth::Unknown, "Disconnected", "is not connected"),
        };
        let condition = Condition {
            kind: "Ready",
            status,
            reason,
            message: message.into(),
        };
        let stored = entry.status.get("evaluators").and_then(Value::as_array);
        let own = stored.into_iter().flatten().find(|row| row["name"] == name);
        let before = own.and_then(|row| row.pointer("/conditions/0"));
        EvaluatorRow {
            name: name.to_owned(),
            snapshot: replica.report.acked.map(|v| v.to_string()),
            conditions: vec![with_time(&condition, entry.meta.generation, before)],
        }
    }

    fn server_ready(&self, entry: &ServerEntry, status: &PolicyServerStatus) -> Condition {
        let say = |status, reason, message: String| Condition {
            kind: "Ready",
            status,
            reason,
            message,
        };
        let applied = self.applied.get(&entry.meta.name);
        if let Err(why) = &entry.parsed {
            return say(Truth::False, "Invalid", why.clone());
        }
        if let Some(why) = applied.and_then(|a| a.error.as_ref()) {
            return say(Truth::False, "ApplyFailed", why.clone());
        }
        let wanted = entry.parsed.as_ref().map_or(0, |p| p.spec.replicas);
        match status.ready_replicas {
            ready if ready >= wanted => say(Truth::True, "Ready", "every replica is ready".into()),
            _ => say(
                Truth::False,
                "Progressing",
                "not every replica is ready; `kubectl get pods` of its StatefulSet says why".into(),
            ),
        }
    }
}

// === impl Told ===

impl Told {
    fn of(conditions: &[meta::Condition]) -> Self {
        let word = |kind: &str| {
            let found = conditions.iter().find(|c| c.type_ == kind);
            found.map_or_else(String::new, |c| {
                format!(
                    "{}/{}/{}",
                    c.status,
                    c.reason,
                    c.observed_generation.unwrap_or(0)
                )
            })
        };
        Self {
            accepted: word("Accepted"),
            enforced: word("Enforced"),
        }
    }
}

/// The status as stored, if it can be read.
fn stored(entry: &PolicyEntry) -> Option<PolicyStatus> {
    serde_json::from_value(entry.status.clone()).ok()
}

/// What of a status people and programs wait for; the rest only grows old.
pub(super) fn important(status: &Value) -> Vec<Option<&Value>> {
    let parts = [
        "/observedGeneration",
        "/active",
        "/pending",
        "/conditions",
        "/rollout/rejected",
        "/replicas",
        "/readyReplicas",
        "/snapshot",
    ];
    let important = parts.iter().map(|pointer| status.pointer(pointer));
    // A policy's `replicas` are rows; a server's is a number that autoscalers read.
    important
        .map(|part| part.filter(|value| !value.is_array() || !is_rows(value)))
        .collect()
}

fn is_rows(value: &Value) -> bool {
    let first = value.as_array().and_then(|rows| rows.first());
    first.is_some_and(|row| row.get("name").is_some())
}

fn since_stored(condition: &Condition, entry: &ServerEntry) -> meta::Condition {
    let before = entry.status.pointer("/conditions/0");
    with_time(condition, entry.meta.generation, before)
}

/// The condition with the time of `before`, if its status is the same.
fn with_time(condition: &Condition, generation: i64, before: Option<&Value>) -> meta::Condition {
    let before: Option<meta::Condition> =
        before.and_then(|value| serde_json::from_value(value.clone()).ok());
    let same = before.filter(|b| b.status == condition.status.as_str());
    let since = same.map_or_else(now, |b| b.last_transition_time);
    to_condition(condition, generation, since.0)
}

fn truth(text: &str) -> Option<Truth> {
    match text {
        "True" => Some(Truth::True),
        "False" => Some(Truth::False),
        "Unknown" => Some(Truth::Unknown),
        _ => None,
    }
}
