//! Policies of a directory as objects.

use assent_api::{API_VERSION, PolicyStatus};
use assent_core::{
    PolicyKey,
    rollout::PolicyId,
    status::{self, Truth},
};
use assent_local::objects::Record;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::keeper::Keeper;
use crate::{
    drive::Drive,
    view::{ActiveFacts, PolicyObject, kind, to_condition, to_status},
};

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
    let facts = ActiveFacts {
        since: record.active_since,
        digest: record.active_revision().map(|r| r.module_digest.clone()),
    };
    Some(PolicyObject {
        api_version: API_VERSION,
        kind: kind(&id.key),
        metadata: metadata(&id.key, Some(record)),
        spec: assent_api::json::from_str(record.effective_spec()).unwrap_or_default(),
        status: to_status(&status, since, facts),
    })
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
