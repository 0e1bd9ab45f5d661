//! `AdmissionPolicy` and `ClusterAdmissionPolicy`: what a user wants.

// Each printer column has a type of its own; the lint takes them for repetitions.
#![allow(clippy::duplicated_attributes)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{
    rules::{
        ContextAwareResource, FailurePolicy, LabelSelector, MatchCondition, MatchPolicy,
        PolicyMode, Rule, SideEffects,
    },
    settings::SettingsSource,
    status::PolicyStatus,
};

/// The default of `timeoutSeconds`, as in a webhook configuration.
pub const DEFAULT_TIMEOUT_SECONDS: i32 = 10;

/// The longest `timeoutSeconds` that an API server takes.
pub const MAX_TIMEOUT_SECONDS: i32 = 30;

/// The default of `rollout.progressDeadlineSeconds`, as for a Deployment.
pub const DEFAULT_PROGRESS_DEADLINE_SECONDS: i32 = 600;

/// The default of `revisionHistoryLimit`: a few steps back, and few objects.
pub const DEFAULT_HISTORY_LIMIT: i32 = 5;

/// The largest `revisionHistoryLimit`: each revision is an object in the cluster's store.
pub const MAX_HISTORY_LIMIT: i32 = 100;

/// A policy that applies to the objects of its own namespace.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "policies.assent.dev",
    version = "v1alpha1",
    kind = "AdmissionPolicy",
    plural = "admissionpolicies",
    namespaced,
    status = "PolicyStatus",
    derive = "PartialEq",
    doc = "A policy for admission requests of its own namespace.",
    shortname = "ap",
    category = "assent",
    category = "policy",
    printcolumn(name = "Server", type_ = "string", json_path = ".spec.policyServer"),
    printcolumn(name = "Mode", type_ = "string", json_path = ".spec.mode"),
    printcolumn(
        name = "Accepted",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Accepted\")].status"
    ),
    printcolumn(
        name = "Enforced",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Enforced\")].status"
    ),
    printcolumn(
        name = "Active",
        type_ = "integer",
        json_path = ".status.active.generation"
    ),
    printcolumn(
        name = "Applied",
        type_ = "integer",
        json_path = ".status.rollout.applied"
    ),
    printcolumn(
        name = "Want",
        type_ = "integer",
        json_path = ".status.rollout.desired"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason",
        priority = 1
    ),
    printcolumn(
        name = "Module",
        type_ = "string",
        json_path = ".spec.module",
        priority = 1
    ),
    printcolumn(
        name = "Digest",
        type_ = "string",
        json_path = ".status.active.digest",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = namespaced_validations()))]
pub struct AdmissionPolicySpec {
    /// The PolicyServer whose evaluators run the policy.
    #[serde(default = "default_server")]
    #[schemars(length(min = 1, max = 253), extend("x-kubernetes-validations" = immutable("policyServer")))]
    pub policy_server: String,
    /// Where the Wasm module, or the text that it is built from, is: `registry://`, `https://`, `http://`,
    /// `configmap://` or `file://`; without a scheme it is an image in a registry.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(min = 1, max = 2048))]
    pub module: String,
    /// The policy written as text, instead of a module.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// Settings of the policy, validated by the module itself.
    #[serde(default)]
    #[schemars(schema_with = "free_object")]
    pub settings: Map<String, Value>,
    /// Settings that come from Secrets. They are encrypted wherever they are stored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub settings_from: Vec<SettingsSource>,
    /// The control plane writes this field when a value of `settingsFrom` changes: it makes a new generation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub settings_version: Option<String>,
    /// Requests that the policy sees.
    #[schemars(length(min = 1, max = 64))]
    pub rules: Vec<Rule>,
    /// Whether the policy may change objects.
    #[serde(default)]
    pub mutating: bool,
    /// `protect` denies, `monitor` only counts.
    #[serde(default)]
    pub mode: PolicyMode,
    /// What happens to a request when no evaluator answers.
    #[serde(default)]
    pub failure_policy: FailurePolicy,
    /// Whether requests by equivalent API versions are seen too.
    #[serde(default)]
    pub match_policy: MatchPolicy,
    /// Conditions in CEL that a request must meet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub match_conditions: Vec<MatchCondition>,
    /// Labels that the object must have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object_selector: Option<LabelSelector>,
    /// Side effects of an evaluation.
    #[serde(default)]
    pub side_effects: SideEffects,
    /// How long the API server waits for an answer.
    #[serde(default = "default_timeout")]
    #[schemars(range(min = 1, max = 30))]
    pub timeout_seconds: i32,
    /// How long one evaluation may take; the PolicyServer's limit if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 29))]
    pub timeout_eval_seconds: Option<i32>,
    /// Replaces the policy's rejection message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub message: Option<String>,
    /// Entrypoint of a Rego module; its first if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub entrypoint: Option<String>,
    /// Whether audits of existing objects ask the policy. There are no such audits: the field has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub background_audit: Option<bool>,
    /// Kubernetes kinds that the policy may read. A namespaced policy reads objects of its own namespace only, and only
    /// if its PolicyServer grants it `kubernetes/*`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub context_aware_resources: Vec<ContextAwareResource>,
    /// How a new revision is rolled out.
    #[serde(default)]
    pub rollout: Rollout,
    /// Retired revisions that are kept for rollback.
    #[serde(default = "default_history")]
    #[schemars(range(min = 0, max = 100))]
    pub revision_history_limit: i32,
}

/// A policy that applies to the whole cluster.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "policies.assent.dev",
    version = "v1alpha1",
    kind = "ClusterAdmissionPolicy",
    plural = "clusteradmissionpolicies",
    status = "PolicyStatus",
    derive = "PartialEq",
    doc = "A policy for admission requests of the whole cluster.",
    shortname = "cap",
    category = "assent",
    category = "policy",
    printcolumn(name = "Server", type_ = "string", json_path = ".spec.policyServer"),
    printcolumn(name = "Mode", type_ = "string", json_path = ".spec.mode"),
    printcolumn(
        name = "Accepted",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Accepted\")].status"
    ),
    printcolumn(
        name = "Enforced",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Enforced\")].status"
    ),
    printcolumn(
        name = "Active",
        type_ = "integer",
        json_path = ".status.active.generation"
    ),
    printcolumn(
        name = "Applied",
        type_ = "integer",
        json_path = ".status.rollout.applied"
    ),
    printcolumn(
        name = "Want",
        type_ = "integer",
        json_path = ".status.rollout.desired"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason",
        priority = 1
    ),
    printcolumn(
        name = "Module",
        type_ = "string",
        json_path = ".spec.module",
        priority = 1
    ),
    printcolumn(
        name = "Digest",
        type_ = "string",
        json_path = ".status.active.digest",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = cluster_validations()))]
pub struct ClusterAdmissionPolicySpec {
    /// Everything that a namespaced policy has.
    #[serde(flatten)]
    pub common: AdmissionPolicySpec,
    /// Labels that the namespace of the object must have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
}

/// A policy written as text: one of the two.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Source {
    /// In Rego: a module with a rule `deny`, `violation`, `main` or `allow`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 262_144))]
    pub rego: Option<String>,
    /// In CEL: `validations`, `variables` and `auditAnnotations` as in a ValidatingAdmissionPolicy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "expressions")]
    pub cel: Option<Map<String, Value>>,
}

/// How a new revision is rolled out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Rollout {
    /// A candidate that is not served by every replica within this time is `Stalled`.
    #[serde(default = "default_deadline")]
    #[schemars(range(min = 1))]
    pub progress_deadline_seconds: i32,
}

/// A list of conditions, as Kubernetes keeps them: one of each type.
pub(crate) fn condition_list(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let mut schema = <Vec<Condition>>::json_schema(generator);
    schema.insert("x-kubernetes-list-type".into(), json!("map"));
    schema.insert("x-kubernetes-list-map-keys".into(), json!(["type"]));
    schema
}

/// An object whose fields only the module knows.
pub(crate) fn free_object(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let schema = json!({
        "type": "object",
        "default": {},
        "x-kubernetes-preserve-unknown-fields": true,
    });
    schema.try_into().expect("an object must be a schema")
}

/// Expressions, which the interpreter checks.
fn expressions(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let schema = json!({
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": true,
    });
    schema.try_into().expect("an object must be a schema")
}

fn immutable(field: &str) -> Value {
    json!([{
        "rule": "self == oldSelf",
        "message": format!("{field} is immutable: delete the policy and create it again to move it"),
    }])
}

fn cluster_validations() -> Value {
    json!([{
        "rule": "!has(self.timeoutEvalSeconds) || self.timeoutEvalSeconds < self.timeoutSeconds",
        "message": "timeoutEvalSeconds must be less than timeoutSeconds",
        "fieldPath": ".timeoutEvalSeconds",
    }, {
        "rule": "has(self.module) != has(self.source)",
        "message": "give either module or source",
    }, {
        "rule": "!has(self.source) || has(self.source.rego) != has(self.source.cel)",
        "message": "give either rego or cel",
        "fieldPath": ".source",
    }])
}

fn namespaced_validations() -> Value {
    let mut rules = cluster_validations();
    if let Value::Array(rules) = &mut rules {
        rules.push(json!({
            "rule": "self.rules.all(r, !('*/*' in r.resources) && !('*' in r.resources && '*' in r.apiGroups))",
            "message": "a namespaced policy must name its resources: wildcards on everything are refused",
            "fieldPath": ".rules",
        }));
        rules.push(json!({
            "rule": "self.rules.all(r, r.scope != 'Cluster')",
            "message": "a namespaced policy sees no cluster-scoped objects",
            "fieldPath": ".rules",
        }));
    }
    rules
}

fn default_server() -> String {
    assent_core::policy::DEFAULT_SERVER.to_owned()
}

fn default_timeout() -> i32 {
    DEFAULT_TIMEOUT_SECONDS
}

fn default_history() -> i32 {
    DEFAULT_HISTORY_LIMIT
}

fn default_deadline() -> i32 {
    DEFAULT_PROGRESS_DEADLINE_SECONDS
}

// === impl Rollout ===

impl Default for Rollout {
    fn default() -> Self {
        Self {
            progress_deadline_seconds: DEFAULT_PROGRESS_DEADLINE_SECONDS,
        }
    }
}

#[cfg(test)]
mod tests;
