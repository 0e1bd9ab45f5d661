//! Status of a policy: what is true of it, on which replicas.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::policy::condition_list;

/// The most rows of a status, unready ones first.
pub const MAX_ROWS: usize = 16;

/// The observed state of a policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyStatus {
    /// The generation that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The revision that is enforced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active: Option<ActiveRevision>,
    /// The revision that is being rolled out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<PendingRevision>,
    /// Progress of the rollout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutCounts>,
    /// Replicas, unready ones first; at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub replicas: Vec<ReplicaRow>,
    /// Number of replicas that are not listed.
    #[serde(default)]
    pub replicas_omitted: i32,
    /// `Accepted`, `Programmed`, `Enforced`, `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "condition_list")]
    pub conditions: Vec<Condition>,
}

/// The revision that the webhook points at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ActiveRevision {
    /// Generation of the policy.
    pub generation: i64,
    /// `<generation>-<first 8 of the uid>`.
    pub revision: String,
    /// When the webhook was pointed at it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// Digest of the module.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// The revision that is being rolled out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PendingRevision {
    /// Generation of the policy.
    pub generation: i64,
    /// `<generation>-<first 8 of the uid>`; absent until the revision is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
}

/// Numbers of replicas by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutCounts {
    /// Number of replicas that must serve it.
    pub desired: i32,
    /// Number of replicas that serve it.
    pub applied: i32,
    /// Number of replicas that refused it.
    pub rejected: i32,
    /// Number of replicas that have not answered yet.
    pub behind: i32,
    /// Number of replicas that are not connected.
    pub disconnected: i32,
}

/// One replica.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaRow {
    /// Its name.
    pub name: String,
    /// The generation that it serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "condition_list")]
    pub conditions: Vec<Condition>,
}
