//! Responses of a control plane as JSON. Names and meanings are a contract with scripts.

use assent_proto::v1::{self, ReplicaState, Stage};
use serde::Serialize;

use crate::age::rfc3339;

/// The state of a policy on one PolicyServer.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Policy {
    pub(crate) policy: String,
    pub(crate) generation: i64,
    pub(crate) enforced: bool,
    pub(crate) active_revision: Option<String>,
    pub(crate) candidate_revision: Option<String>,
    pub(crate) rollout: Counts,
    pub(crate) conditions: Vec<Condition>,
}

/// Numbers of replicas by state.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Counts {
    pub(crate) desired: u32,
    pub(crate) applied: u32,
    pub(crate) rejected: u32,
    pub(crate) behind: u32,
    pub(crate) disconnected: u32,
}

/// A condition, as in Kubernetes.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Condition {
    pub(crate) r#type: String,
    pub(crate) status: String,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) observed_generation: i64,
    pub(crate) last_transition_time: Option<String>,
}

/// One evaluator.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Replica {
    pub(crate) name: String,
    pub(crate) state: &'static str,
    pub(crate) identity: String,
    pub(crate) endpoint: String,
    pub(crate) evaluator_version: String,
    pub(crate) engine: String,
    pub(crate) instance_uid: String,
    pub(crate) connected_since: Option<String>,
    pub(crate) last_seen: Option<String>,
    pub(crate) version_sent: String,
    pub(crate) version_acked: String,
    pub(crate) version_rejected: String,
    pub(crate) protocol_errors: u64,
    pub(crate) rejected: Vec<Rejection>,
}

/// A rejection by a replica. Without a revision it concerns the whole set.
#[derive(Debug, Serialize)]
pub(crate) struct Rejection {
    pub(crate) revision: Option<String>,
    pub(crate) stage: &'static str,
    pub(crate) message: String,
    pub(crate) retryable: bool,
}

/// One revision of a policy.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Revision {
    pub(crate) name: String,
    pub(crate) generation: i64,
    pub(crate) phase: String,
    pub(crate) module: String,
    pub(crate) module_digest: String,
    pub(crate) content_digest: String,
    pub(crate) created_at: Option<String>,
}

// === impl Policy ===

impl From<&v1::PolicyStatus> for Policy {
    fn from(status: &v1::PolicyStatus) -> Self {
        let conditions: Vec<Condition> = status.conditions.iter().map(Condition::from).collect();
        let enforced = conditions.iter().find(|c| c.r#type == "Enforced");
        let generations = conditions.iter().map(|c| c.observed_generation);
        Self {
            policy: status.policy.clone(),
            generation: generations.max().unwrap_or_default(),
            enforced: enforced.is_some_and(|c| c.status == "True"),
            active_revision: short(&status.active_revision),
            candidate_revision: short(&status.candidate_revision),
            rollout: Counts {
                desired: status.wanted,
                applied: status.applied,
                rejected: status.rejected,
                behind: status.behind,
                disconnected: status.disconnected,
            },
            conditions,
        }
    }
}

// === impl Condition ===

impl From<&v1::Condition> for Condition {
    fn from(condition: &v1::Condition) -> Self {
        Self {
            r#type: condition.r#type.clone(),
            status: condition.status.clone(),
            reason: condition.reason.clone(),
            message: condition.message.clone(),
            observed_generation: condition.observed_generation,
            last_transition_time: rfc3339(condition.last_transition_time.as_ref()),
        }
    }
}

// === impl Replica ===

impl From<&v1::ReplicaStatus> for Replica {
    fn from(status: &v1::ReplicaStatus) -> Self {
        let node = status.node.clone().unwrap_or_default();
        Self {
            name: node.id,
            state: state_name(status.state()),
            identity: status.identity.clone(),
            endpoint: node.endpoint,
            evaluator_version: node.evaluator_version,
            engine: node.engine,
            instance_uid: node.instance_uid,
            connected_since: rfc3339(status.connected_since.as_ref()),
            last_seen: rfc3339(status.last_seen.as_ref()),
            version_sent: status.version_sent.clone(),
            version_acked: status.version_acked.clone(),
            version_rejected: status.version_rejected.clone(),
            protocol_errors: status.protocol_errors,
            rejected: status.rejected.iter().map(Rejection::from).collect(),
        }
    }
}

// === impl Rejection ===

impl From<&v1::RejectedPolicy> for Rejection {
    fn from(rejected: &v1::RejectedPolicy) -> Self {
        let message = rejected
            .status
            .as_ref()
            .map(|status| status.message.clone());
        Self {
            revision: Some(rejected.revision.clone()).filter(|revision| !revision.is_empty()),
            stage: stage_name(rejected.stage()),
            message: message.unwrap_or_default(),
            retryable: rejected.retryable,
        }
    }
}

// === impl Revision ===

impl From<&v1::RevisionInfo> for Revision {
    fn from(info: &v1::RevisionInfo) -> Self {
        Self {
            name: info.name.clone(),
            generation: info.generation,
            phase: info.phase.clone(),
            module: info.module.clone(),
            module_digest: info.module_digest.clone(),
            content_digest: info.content_digest.clone(),
            created_at: rfc3339(info.created_at.as_ref()),
        }
    }
}

/// The part `<generation>-<uid8>` of a revision's full name.
fn short(revision: &str) -> Option<String> {
    let name = revision.rsplit('/').next().unwrap_or_default();
    Some(name.to_owned()).filter(|name| !name.is_empty())
}

fn state_name(state: ReplicaState) -> &'static str {
    match state {
        ReplicaState::Unspecified => "Unknown",
        ReplicaState::Current => "Current",
        ReplicaState::Behind => "Behind",
        ReplicaState::Rejected => "Rejected",
        ReplicaState::Disconnected => "Disconnected",
    }
}

fn stage_name(stage: Stage) -> &'static str {
    match stage {
        Stage::Unspecified => "Unspecified",
        Stage::Fetch => "Fetch",
        Stage::Verify => "Verify",
        Stage::Compile => "Compile",
        Stage::Link => "Link",
        Stage::Instantiate => "Instantiate",
        Stage::Settings => "Settings",
        Stage::Selftest => "SelfTest",
        Stage::Swap => "Swap",
        Stage::Runtime => "Runtime",
        Stage::Context => "Context",
    }
}
