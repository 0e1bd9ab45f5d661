//! Policies as objects, with the status that an API server shows.

use assent_api::{PolicyStatus, parse};
use assent_core::PolicyKey;
use serde::Serialize;
use serde_json::Value;

/// One policy as an object: what `GET /status` lists.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyObject {
    /// `policies.assent.dev/v1alpha1`.
    pub api_version: &'static str,
    /// The kind of the policy.
    pub kind: &'static str,
    /// Name, namespace, uid, generation.
    pub metadata: Value,
    /// The spec that is wanted now.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub spec: Value,
    /// What is true of it.
    pub status: PolicyStatus,
}

/// A manifest that is not valid and whose object is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestProblem {
    /// File and line, or the directory itself.
    pub place: String,
    /// The kind of problem, as in a condition.
    pub reason: &'static str,
    /// What is wrong, and what to do.
    pub message: String,
}

/// The kind that a policy's key stands for.
pub(crate) fn kind(key: &PolicyKey) -> &'static str {
    parse::Kind::of(key).as_str()
}

/// A module's URL for people. One that contains a whole text is shown by its digest.
pub(crate) fn shown_url(url: &str) -> String {
    match url.parse::<assent_oci::ModuleUrl>() {
        Ok(parsed) if parsed.inline_text().is_some() => parsed.redacted(),
        _ => url.to_owned(),
    }
}
