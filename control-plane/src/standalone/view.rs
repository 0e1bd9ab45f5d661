//! Policies as objects, with the status that an API server would show.

use assent_api::{
    API_VERSION, PolicyStatus,
    status::{ActiveRevision, PendingRevision, ReplicaRow, RolloutCounts},
};
use assent_core::{
    PolicyKey,
    rollout::PolicyId,
    status::{self, Truth},
};
use assent_local::objects::Record;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde::Serialize;
use serde_json::{Value, json};

use super::keeper::Keeper;
use crate::drive::Drive;

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

/// A policy that was never good: there is nothing but what is wrong with it.
pub(super) fn refused(
    key: &PolicyKey,
    reason: &'static str,
    message: &str,
    now: Timestamp,
) -> PolicyObject {
    let condition = |kind, status: Truth, reason: &'static str, message: &str| status::Condition {
        kind,
        status,
        reason,
        message: message.to_owned(),
    };
    let unknown = "the manifest is not valid";
    let conditions = [
        condition("Accepted", Truth::False, reason, message),
        condition("Programmed", Truth::Unknown, "Pending", unknown),
        condition("Enforced", Truth::False, "NotProgrammed", unknown),
        condition("Ready", Truth::False, "NotServed", unknown),
    ];
    let conditions = conditions.iter().map(|c| to_condition(c, 0, now));
    PolicyObject {
        api_version: API_VERSION,
        kind: kind(key),
        metadata: metadata(key, None),
        spec: Value::Null,
        status: PolicyStatus {
            observed_generation: Some(0),
            conditions: conditions.collect(),
            ..PolicyStatus::default()
        },
    }
}

/// The object of a policy that exists.
pub(super) fn object(drive: &mut Drive<Keeper>, id: &PolicyId) -> Option<PolicyObject> {
    let (status, since) = drive.status(id)?;
    let record = drive.performer.book.by_uid(id.uid.parse().ok()?)?;
    Some(PolicyObject {
        api_version: API_VERSION,
        kind: kind(&id.key),
        metadata: metadata(&id.key, Some(record)),
        spec: assent_api::json::from_str(record.effective_spec()).unwrap_or_default(),
        status: to_status(&status, since, record),
    })
}

fn to_status(status: &status::PolicyStatus, since: [i64; 4], record: &Record) -> PolicyStatus {
    let generation = status.observed_generation;
    let conditions = status.conditions.iter().zip(since);
    let conditions = conditions.map(|(c, s)| to_condition(c, generation, seconds(s)));
    let active_digest = record.active_revision().map(|r| r.module_digest.clone());
    PolicyStatus {
        observed_generation: Some(generation),
        active: status.active.as_ref().map(|a| ActiveRevision {
            generation: a.generation,
            revision: a.revision.short().to_owned(),
            since: record.active_since.map(Time),
            digest: active_digest,
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

fn to_condition(condition: &status::Condition, generation: i64, since: Timestamp) -> Condition {
    Condition {
        type_: condition.kind.to_owned(),
        status: condition.status.as_str().to_owned(),
        reason: condition.reason.to_owned(),
        message: condition.message.clone(),
        observed_generation: Some(generation),
        last_transition_time: Time(since),
    }
}

fn metadata(key: &PolicyKey, record: Option<&Record>) -> Value {
    let mut metadata = json!({
        "name": key.name(),
        "generation": record.map_or(0, |r| r.generation),
    });
    if let Some(namespace) = key.namespace() {
        metadata["namespace"] = namespace.into();
    }
    if let Some(record) = record {
        metadata["uid"] = record.uid.to_string().into();
        metadata["creationTimestamp"] = record.created_at.to_string().into();
    }
    metadata
}

fn kind(key: &PolicyKey) -> &'static str {
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
