//! `PolicyServer`: a group of evaluators that run the same policies.

// Each printer column has a type of its own; the lint takes them for repetitions.
#![allow(clippy::duplicated_attributes)]

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{
        Affinity, ConfigMapKeySelector, EnvVar, LocalObjectReference, PodSecurityContext,
        ResourceRequirements, SecurityContext, Toleration, TopologySpreadConstraint,
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

/// A group of evaluators that run the same policies.
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
    /// Number of evaluators.
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
    /// Secret with the credentials of registries that modules are pulled from; nodes use it for the image too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_secret: Option<String>,
    /// Service account of the pods; one is created if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,
    /// Resources of the evaluator's container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// Affinity of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// Taints that pods tolerate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// Priority of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// Security contexts, if the restricted ones are not suitable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security_contexts: Option<SecurityContexts>,
    /// Pods that must stay available during voluntary disruptions: a number or a percentage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_available: Option<IntOrString>,
    /// Pods that may be unavailable during voluntary disruptions: a number or a percentage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrString>,
    /// Keys that modules must be signed with.
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
    /// Kubernetes objects that policies may read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<ContextAccess>,
    /// Namespaces whose policies may name this PolicyServer. If absent, `default` takes all
    /// namespaces and every other PolicyServer none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_namespaces: Option<AllowedNamespaces>,
    /// Pods of other workloads that may get an evaluator as a sidecar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub injection: Option<Injection>,
    /// A volume for the evaluators' caches instead of an emptyDir.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<Storage>,
    /// How policies are divided among webhooks.
    #[serde(default)]
    pub webhook_mode: WebhookMode,
    /// Labels of the nodes that pods may run on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// How pods are spread over zones and nodes; a missing label selector is that of the pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
    /// Secrets that nodes pull the evaluator's image with, also in pods that get it as a sidecar: there they are those of
    /// the pod's namespace. Modules are pulled with `imagePullSecret`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub image_pull_secrets: Vec<LocalObjectReference>,
}

/// Where modules may come from, beyond public registries.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Sources {
    /// Hosts that are contacted without TLS, or without verifying their certificate.
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
    /// Security context of the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<SecurityContext>,
    /// Security context of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodSecurityContext>,
}

/// Keys that modules must be signed with.
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

/// Kubernetes objects that policies may read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextAccess {
    /// Kinds that policies may declare. Every kind but Secret if absent or empty; a Secret must be named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub allow: Vec<AllowedKind>,
    /// Bytes of objects that one evaluator may hold; 256Mi if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<Quantity>,
    /// Reading objects that are older than this is an error, and the policy's `failurePolicy` decides. Objects of any
    /// age are read if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 15))]
    pub max_staleness_seconds: Option<i32>,
}

/// A kind that policies may declare.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AllowedKind {
    /// `v1`, `apps/v1`, `apps/*` for every version, or `*`.
    #[schemars(length(min = 1, max = 317))]
    pub api_version: String,
    /// `Deployment`, or `*` for every kind but Secret.
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,
}

/// Pods of other workloads that may get an evaluator as a sidecar.
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

/// How policies are divided among webhooks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WebhookMode {
    /// One webhook for each policy.
    #[default]
    PerPolicy,
}

/// The observed state of a PolicyServer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyServerStatus {
    /// The generation that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Number of pods.
    #[serde(default)]
    pub replicas: i32,
    /// Number of pods that are ready.
    #[serde(default)]
    pub ready_replicas: i32,
    /// Label selector of the pods, for autoscalers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Version of the snapshot that evaluators must hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// Evaluators, unready ones first; at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub evaluators: Vec<EvaluatorRow>,
    /// Number of evaluators that are not listed.
    #[serde(default)]
    pub evaluators_omitted: i32,
    /// Kubernetes objects that its policies read, the largest first; at most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["id"]))]
    pub context: Vec<CollectionRow>,
    /// `Ready` and others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "condition_list")]
    pub conditions: Vec<Condition>,
}

/// Kubernetes objects that policies read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CollectionRow {
    /// The first characters of its id: a kind may be declared with other fields, namespaces or labels.
    pub id: String,
    /// `v1`, `apps/v1`.
    pub api_version: String,
    /// `Deployment`.
    pub kind: String,
    /// `Syncing`, `Synced`, `Stale`, `Forbidden`, `Absent` or `TooLarge`.
    pub state: String,
    /// Objects.
    #[serde(default)]
    pub objects: i64,
    /// Bytes that each evaluator holds of them.
    #[serde(default)]
    pub bytes: i64,
    /// Why it is not synced.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
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

// === impl ContextAccess ===

impl ContextAccess {
    /// Whether policies may declare a kind.
    pub fn allows(&self, api_version: &str, kind: &str) -> bool {
        let is_secret = kind == "Secret" && !api_version.contains('/');
        if self.allow.is_empty() {
            return !is_secret;
        }
        self.allow.iter().any(|allowed| {
            let kind_matches = allowed.kind == kind || allowed.kind == "*" && !is_secret;
            kind_matches && allowed.matches_version(api_version)
        })
    }
}

// === impl AllowedKind ===

impl AllowedKind {
    fn matches_version(&self, api_version: &str) -> bool {
        let group = |text: &str| text.rsplit_once('/').map(|(group, _)| group.to_owned());
        match self.api_version.strip_suffix("/*") {
            Some(allowed) => group(api_version).as_deref() == Some(allowed),
            None => self.api_version == "*" || self.api_version == api_version,
        }
    }
}

// === impl PolicyServerSpec ===

impl Default for PolicyServerSpec {
    /// An empty spec: the defaults are documented at the fields.
    fn default() -> Self {
        serde_json::from_value(json!({})).expect("every field of the spec must have a default")
    }
}
