//! Policies of a directory as objects.

use assent_api::{API_VERSION, PolicyStatus};
use assent_controller::view::to_condition;
use assent_core::{
    PolicyKey,
    rollout::PolicyId,
    status::{Condition, ConditionStatus, ConditionType, Reason},
};
use assent_local::{
    decide::{self, Problem},
    state::PolicyRecord,
};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::view::{ManifestProblem, PolicyObject, kind};

/// A manifest whose object is not known.
pub(super) fn manifest_problem(problem: &Problem) -> ManifestProblem {
    let place = problem.place.clone();
    let place = place.unwrap_or_else(|| "directory".to_owned());
    let reason = match problem.reason {
        decide::Reason::Unreadable => "Unreadable",
        decide::Reason::Invalid => "Invalid",
        decide::Reason::Duplicate => "Conflicted",
        decide::Reason::PullError => "PullError",
    };
    ManifestProblem {
        place,
        reason,
        message: problem.message.clone(),
    }
}

/// A policy that never had a valid manifest: only its problem is known.
pub(super) fn never_valid(key: &PolicyKey, problem: &Problem, since: Timestamp) -> PolicyObject {
    let reason = match problem.reason {
        decide::Reason::Unreadable | decide::Reason::Invalid => Reason::Invalid,
        decide::Reason::Duplicate => Reason::Conflicted,
        decide::Reason::PullError => Reason::PullError,
    };
    let unknown = "the manifest is not valid";
    let conditions = [
        Condition::new(
            ConditionType::Accepted,
            ConditionStatus::False,
            reason,
            problem.message.as_str(),
        ),
        Condition::new(
            ConditionType::Programmed,
            ConditionStatus::Unknown,
            Reason::Pending,
            unknown,
        ),
        Condition::new(
            ConditionType::Enforced,
            ConditionStatus::False,
            Reason::NotProgrammed,
            unknown,
        ),
        Condition::new(
            ConditionType::Ready,
            ConditionStatus::False,
            Reason::NotServed,
            unknown,
        ),
    ];
    let conditions = conditions.iter().map(|c| to_condition(c, 0, since));
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

/// The object of a policy.
pub(super) fn object(record: &PolicyRecord, status: PolicyStatus) -> PolicyObject {
    let key = record.key();
    PolicyObject {
        api_version: API_VERSION,
        kind: kind(&key),
        metadata: metadata(&key, Some(record)),
        spec: assent_api::json::from_str(record.effective_spec()).unwrap_or_default(),
        status,
    }
}

/// The policy object that a record stores.
pub(super) fn policy_id(record: &PolicyRecord) -> PolicyId {
    PolicyId {
        key: record.key(),
        uid: record.uid.to_string().into(),
    }
}

fn metadata(key: &PolicyKey, record: Option<&PolicyRecord>) -> Value {
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
