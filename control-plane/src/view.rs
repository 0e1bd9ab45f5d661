//! Policies as objects, with the status that an API server shows.

use assent_api::{
    PolicyStatus,
    status::{ActiveRevision, PendingRevision, ReplicaRow, RolloutCounts},
};
use assent_core::{PolicyKey, status};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde::Serialize;
use serde_json::Value;

/// One policy as an object: what `GET /status` lists.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyObject {
    /// `policies.assent.dev/v1alpha1`.
    pub api_version: &'static str,
    /// `ClusterAdmissionPolicy` or `AdmissionPolicy`.
    pub kind: &'static str,
    /// Name, namespace, uid, generation.
    pub metadata: Value,
    /// The spec that is wanted now.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub spec: Value,
    /// What is true of it.
    pub status: PolicyStatus,
}

/// What is known of the active revision besides its name.
#[derive(Clone, Debug, Default)]
pub(crate) struct ActiveFacts {
    /// When the webhook was pointed at it.
    pub(crate) since: Option<Timestamp>,
    /// Digest of its module.
    pub(crate) digest: Option<String>,
}

/// A status with its times, as an object has it.
pub(crate) fn to_status(
    status: &status::PolicyStatus,
    since: [i64; 4],
    active: ActiveFacts,
) -> PolicyStatus {
    let generation = status.observed_generation;
    let conditions = status.conditions.iter().zip(since);
    let conditions = conditions.map(|(c, s)| to_condition(c, generation, seconds(s)));
    PolicyStatus {
        observed_generation: Some(generation),
        active: status.active.as_ref().map(|a| ActiveRevision {
            generation: a.generation,
            revision: a.revision.short().to_owned(),
            since: active.since.map(Time),
            digest: active.digest,
        }),
        pending: status.pending.as_ref().map(|p| PendingRevision {
            generation: p.generation,
            revision: Some(p.revision.short().to_owned()),
        }),
        rollout: Some(RolloutCounts {
            desired: count(status.fold.wanted),
            applied: count(status.fold.applied),
            rejected: count(status.fold.rejected),
            behind: count(status.fold.behind),
            disconnected: count(status.fold.disconnected),
        }),
        replicas: status
            .rows
            .iter()
            .map(|r| to_row(r, generation, seconds(since[1])))
            .collect(),
        replicas_omitted: count(status.omitted),
        conditions: conditions.collect(),
    }
}

fn to_row(row: &status::Row, generation: i64, since: Timestamp) -> ReplicaRow {
    ReplicaRow {
        name: row.name.to_string(),
        generation: row.generation,
        conditions: vec![to_condition(&row.ready, generation, since)],
    }
}

/// A condition with its time.
pub(crate) fn to_condition(
    condition: &status::Condition,
    generation: i64,
    since: Timestamp,
) -> Condition {
    Condition {
        type_: condition.kind.to_owned(),
        status: condition.status.as_str().to_owned(),
        reason: condition.reason.to_owned(),
        message: condition.message.clone(),
        observed_generation: Some(generation),
        last_transition_time: Time(since),
    }
}

/// The kind that a policy's key stands for.
pub(crate) fn kind(key: &PolicyKey) -> &'static str {
    match key.namespace() {
        Some(_) => "AdmissionPolicy",
        None => "ClusterAdmissionPolicy",
    }
}

fn seconds(at: i64) -> Timestamp {
    Timestamp::from_second(at).unwrap_or(Timestamp::UNIX_EPOCH)
}

fn count(n: u32) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

/// To the second, as Kubernetes writes times.
pub(crate) fn now() -> Time {
    let now = Timestamp::now().as_second();
    Time(Timestamp::from_second(now).unwrap_or(Timestamp::UNIX_EPOCH))
}
