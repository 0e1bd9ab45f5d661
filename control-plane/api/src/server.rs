//! `PolicyServer`: a group of evaluators that run the same policies.

// Each printer column has a type of its own; the lint takes them for repetitions.
#![allow(clippy::duplicated_attributes)]

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{
        Affinity, ConfigMapKeySelector, EnvVar, PodSecurityContext, ResourceRequirements,
        SecurityContext, Toleration,
    },
    apimachinery::pkg::{
        api::resource::Quantity, apis::meta::v1::Condition, util::intstr::IntOrString,
    },
};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{policy::condition_list, tenancy::AllowedNamespaces};

/// Host calls that modules of cluster policies may make if the PolicyServer does not say. Nothing among them tells the
/// outside what a policy sees, which a name that is looked up does.
pub const DEFAULT_HOST_CAPABILITIES: [&str; 3] = ["crypto/*", "kubernetes/*", "oci/*"];

/// What a group of evaluators is made of.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "policies.assent.dev",
    version = "v1alpha1",
    kind = "PolicyServer",
    plural = "policyservers",
    status = "PolicyServerStatus",
    derive = "PartialEq",
    doc = "A group of evaluators that run the same policies.",
    shortname = "ps",
    category = "assent",
    category = "policy",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Replicas", type_ = "integer", json_path = ".spec.replicas"),
    printcolumn(name = "Ready", type_ = "integer", json_path = ".status.readyReplicas"),
    printcolumn(
        name = "Snapshot",
        type_ = "string",
        json_path = ".status.snapshot",
        priority = 1
    ),
    printcolumn(
        name = "Image",
        type_ = "string",
        json_path = ".spec.image",
        priority = 1
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = one_budget()))]
pub struct PolicyServerSpec {
    /// Evaluators that run.
    #[serde(default = "one")]
    #[schemars(range(min = 0))]
    pub replicas: i32,
    /// Image of the evaluator; the default of the control plane if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Environment of the evaluator.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<EnvVar>,
    /// Annotations of the pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Labels of the pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Where modules may come from, beyond public registries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sources: Option<Sources>,
    /// Secret with the credentials of registries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_secret: Option<String>,
    /// Service account of the pods; one is created if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,
    /// Resources of the evaluator's container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// Where pods run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// Taints that pods tolerate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// Priority of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// Security contexts, where the restricted ones do not do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security_contexts: Option<SecurityContexts>,
    /// Pods that must stay up through voluntary disruptions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_available: Option<IntOrString>,
    /// Pods that may be down through voluntary disruptions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrString>,
    /// What modules must be signed with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verification: Option<Verification>,
    /// Limits of one evaluation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<EvaluationLimits>,
    /// Host calls that modules of cluster policies may make: `*`, `oci/*` or `oci/v1/verify`. The list in a module's
    /// metadata, if it has one, narrows this. `net/*` must be named.
    #[serde(default = "default_host_capabilities")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 253)))]
    pub host_capabilities: Vec<String>,
    /// Host calls that modules of namespaced policies may make; none if absent. A wildcard does not include
    /// `kubernetes/can_i`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespaced_policies_capabilities: Vec<String>,
    /// Namespaces whose policies may name this PolicyServer. If absent, `default` takes all
    /// namespaces and every other PolicyServer none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_namespaces: Option<AllowedNamespaces>,
    /// Pods of others that may have an evaluator beside them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub injection: Option<Injection>,
    /// A volume for the evaluators' caches instead of an emptyDir.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<Storage>,
    /// How webhooks are cut.
    #[serde(default)]
    pub webhook_mode: WebhookMode,
}

/// Where modules may come from, beyond public registries.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Sources {
    /// Hosts that are spoken to without TLS, or without checking it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 253)))]
    pub insecure: Vec<String>,
    /// Hosts with a certificate authority of their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub secure: Vec<SecureSource>,
}

/// A host with a certificate authority of its own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = one_certificate()))]
pub struct SecureSource {
    /// The host, with an optional port.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// The authority's certificate, PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// Where the authority's certificate is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_from: Option<CertificateFrom>,
}

/// Where a certificate is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CertificateFrom {
    /// A key of a ConfigMap in the control plane's namespace.
    pub config_map_key_ref: ConfigMapKeySelector,
}

/// Security contexts of an evaluator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecurityContexts {
    /// Of the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<SecurityContext>,
    /// Of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodSecurityContext>,
}

/// What modules must be signed with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Verification {
    /// Public keys, PEM; a signature by one of them is enough.
    #[schemars(length(min = 1))]
    pub public_keys: Vec<String>,
}

/// Limits of one evaluation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EvaluationLimits {
    /// How long an evaluation may take if the policy sets no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 29))]
    pub timeout_eval_seconds: Option<i32>,
    /// Memory of a policy's sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Quantity>,
}

/// Pods of others that may have an evaluator beside them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Injection {
    /// Their namespaces.
    #[serde(default)]
    pub allowed_namespaces: Vec<String>,
}

/// A volume for the evaluators' caches.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Storage {
    /// Size of the volume.
    pub size: Quantity,
    /// Its class; the cluster's default if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_class_name: Option<String>,
}

/// How webhooks are cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WebhookMode {
    /// One webhook for each policy.
    #[default]
    PerPolicy,
}

/// What is true of a PolicyServer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyServerStatus {
    /// The generation that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Pods that there are.
    #[serde(default)]
    pub replicas: i32,
    /// Pods that are ready.
    #[serde(default)]
    pub ready_replicas: i32,
    /// Label selector of the pods, for autoscalers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Version of the snapshot that evaluators must hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// Single evaluators, unready ones first; at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub evaluators: Vec<EvaluatorRow>,
    /// Evaluators without a row.
    #[serde(default)]
    pub evaluators_omitted: i32,
    /// `Ready` and others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "condition_list")]
    pub conditions: Vec<Condition>,
}

/// One evaluator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EvaluatorRow {
    /// Its name.
    pub name: String,
    /// Version of the snapshot that it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "condition_list")]
    pub conditions: Vec<Condition>,
}

fn one() -> i32 {
    1
}

fn default_host_capabilities() -> Vec<String> {
    DEFAULT_HOST_CAPABILITIES.map(str::to_owned).into()
}

fn one_budget() -> Value {
    json!([{
        "rule": "!(has(self.minAvailable) && has(self.maxUnavailable))",
        "message": "give minAvailable or maxUnavailable, not both",
    }])
}

fn one_certificate() -> Value {
    json!([{
        "rule": "has(self.certificate) != has(self.certificateFrom)",
        "message": "give certificate or certificateFrom, and not both",
    }])
}

// === impl PolicyServerSpec ===

impl Default for PolicyServerSpec {
    /// What an empty spec means: the defaults stand at the fields.
    fn default() -> Self {
        serde_json::from_value(json!({})).expect("every field of the spec must have a default")
    }
}
