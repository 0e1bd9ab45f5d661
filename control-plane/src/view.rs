//! Policies as objects, with the status that an API server shows.

use assent_api::PolicyStatus;
use assent_core::PolicyKey;
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

/// The kind that a policy's key stands for.
pub(crate) fn kind(key: &PolicyKey) -> &'static str {
    match key.namespace() {
        Some(_) => "AdmissionPolicy",
        None => "ClusterAdmissionPolicy",
    }
}
