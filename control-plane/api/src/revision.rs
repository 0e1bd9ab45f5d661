//! `PolicyRevision`: one immutable, resolved generation of a policy.

// Each printer column has a type of its own; the lint takes them for repetitions.
#![allow(clippy::duplicated_attributes)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::policy::{condition_list, free_object};

/// Everything that a revision was built from. It was loaded once before it was stored.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "policies.assent.dev",
    version = "v1alpha1",
    kind = "PolicyRevision",
    plural = "policyrevisions",
    namespaced,
    status = "PolicyRevisionStatus",
    derive = "PartialEq",
    doc = "One immutable, resolved generation of a policy. Only the control plane writes it.",
    shortname = "prev",
    category = "assent",
    category = "policy",
    printcolumn(name = "Kind", type_ = "string", json_path = ".spec.policyRef.kind"),
    printcolumn(name = "Policy", type_ = "string", json_path = ".spec.policyRef.name"),
    printcolumn(name = "Generation", type_ = "integer", json_path = ".spec.generation"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    ),
    printcolumn(name = "ABI", type_ = "string", json_path = ".spec.abi", priority = 1),
    printcolumn(
        name = "Digest",
        type_ = "string",
        json_path = ".spec.moduleDigest",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = immutable()))]
pub struct PolicyRevisionSpec {
    /// The policy that this is a revision of.
    pub policy_ref: PolicyRef,
    /// The policy's generation.
    #[schemars(range(min = 1))]
    pub generation: i64,
    /// Where the module came from.
    #[schemars(length(max = 2048))]
    pub module_url: String,
    /// `sha256:<hex>` of the module.
    #[schemars(regex(pattern = r"^sha256:[0-9a-f]{64}$"))]
    pub module_digest: String,
    /// Size of the module in bytes.
    #[serde(default)]
    #[schemars(schema_with = "integer")]
    pub module_size: u64,
    /// `wapc`, `opa`, `gatekeeper` or `wasi`.
    #[schemars(length(min = 1, max = 63))]
    pub abi: String,
    /// `sha256:<hex>` over everything that changes a verdict.
    #[schemars(regex(pattern = r"^sha256:[0-9a-f]{64}$"))]
    pub content_digest: String,
    /// Canonical JSON. The API server asks for a bound before it compares; no object is larger.
    #[schemars(length(max = 1_572_864))]
    pub settings: String,
    /// The settings with the values of Secrets, encrypted with the control plane's key; only if
    /// the policy has `settingsFrom`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1_572_864))]
    pub sealed_settings: Option<String>,
    /// Keyed hash of the settings with the values of Secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub settings_version: Option<String>,
    /// Host calls that the policy may make.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(max = 253)))]
    pub host_capabilities: Vec<String>,
    /// Fingerprint of the key that signed the module; absent if the PolicyServer required no signature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub signer: Option<String>,
    /// Resolved deadline of one evaluation in milliseconds.
    #[schemars(schema_with = "integer")]
    pub timeout_ms: u32,
    /// Resolved cap on the sandbox's memory.
    #[schemars(schema_with = "integer")]
    pub memory_bytes: u64,
    /// The policy's spec as it was, defaults filled in.
    #[schemars(schema_with = "free_object")]
    pub policy: Map<String, Value>,
}

/// What a revision consists of besides the policy's spec. With the policy object of the same
/// generation it is enough to make the revision again, and the content digest proves that the
/// result is the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResolvedRevision {
    /// The whole name of the revision, `<policy>/<generation>-<uid8>`.
    pub revision: String,
    /// `sha256:<hex>` over everything that changes a verdict.
    pub content_digest: String,
    /// Where the module came from, pinned.
    pub module_url: String,
    /// `sha256:<hex>` of the module.
    pub module_digest: String,
    /// Size of the module in bytes.
    pub module_size: u64,
    /// `wapc`, `opa`, `gatekeeper` or `wasi`.
    pub abi: String,
    /// Host calls that the policy may make.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host_capabilities: Vec<String>,
    /// Resolved deadline of one evaluation in milliseconds.
    pub timeout_ms: u32,
    /// Resolved cap on the sandbox's memory.
    pub memory_bytes: u64,
    /// The key that signed the module, if one had to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signer: Option<String>,
}

/// Names a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyRef {
    /// `AdmissionPolicy` or `ClusterAdmissionPolicy`.
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,
    /// Its name; its namespace is the revision's.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Distinguishes it from an earlier object of the same name.
    #[schemars(length(min = 1, max = 128))]
    pub uid: String,
}

/// The phase of a revision.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyRevisionStatus {
    /// Repaired from the webhook configuration, which alone decides what is active.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Conditions of the revision.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "condition_list")]
    pub conditions: Vec<Condition>,
}

/// The phase of a revision.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub enum Phase {
    /// Being rolled out.
    Candidate,
    /// The webhook calls this revision.
    Active,
    /// The webhook calls another revision; requests to this one are still answered.
    Draining,
    /// Kept for rollback.
    History,
}

// === impl ResolvedRevision ===

impl ResolvedRevision {
    /// Of the revision with this name.
    pub fn new(revision: &str, spec: &PolicyRevisionSpec) -> Self {
        Self {
            revision: revision.to_owned(),
            content_digest: spec.content_digest.clone(),
            module_url: spec.module_url.clone(),
            module_digest: spec.module_digest.clone(),
            module_size: spec.module_size,
            abi: spec.abi.clone(),
            host_capabilities: spec.host_capabilities.clone(),
            timeout_ms: spec.timeout_ms,
            memory_bytes: spec.memory_bytes,
            signer: spec.signer.clone(),
        }
    }
}

/// A count; the API server knows no unsigned formats.
fn integer(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let schema = json!({ "type": "integer", "format": "int64", "minimum": 0 });
    schema.try_into().expect("an object must be a schema")
}

fn immutable() -> Value {
    json!([{ "rule": "self == oldSelf", "message": "a revision is immutable" }])
}
