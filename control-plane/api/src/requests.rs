//! `RequestPolicy` and `ClusterRequestPolicy`: policies for requests at Envoy.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{policy::Rollout, rules::PolicyMode};

/// The default of `timeoutEvalMilliseconds`: a client waits for the answer.
pub const DEFAULT_TIMEOUT_MILLISECONDS: i32 = 500;

/// The longest `timeoutEvalMilliseconds`.
pub const MAX_TIMEOUT_MILLISECONDS: i32 = 30_000;

/// The largest `order`.
pub const MAX_ORDER: i32 = 1_000;

/// Which requests a policy decides about, and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestPolicySpec {
    /// The PolicyServer whose evaluators run the policy.
    pub policy_server: String,
    /// Where the Wasm module is.
    pub module: String,
    /// Settings of the policy, validated by the module itself.
    pub settings: Map<String, Value>,
    /// Requests that the policy decides about: any entry may match; without entries, all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub r#match: Vec<RequestMatch>,
    /// Policies are asked in this order, then by name.
    pub order: i32,
    /// Whether bodies are parsed for the policy.
    pub reads_body: bool,
    /// `protect` denies, `monitor` only counts.
    pub mode: PolicyMode,
    /// How long one evaluation may take.
    pub timeout_eval_milliseconds: i32,
    /// Entrypoint of a Rego module; its first if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<String>,
    /// How a new revision is rolled out.
    pub rollout: Rollout,
    /// Retired revisions that are kept for rollback.
    pub revision_history_limit: i32,
}

/// One entry of `match`: all of the lists that are given must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestMatch {
    /// Exact, or `*.suffix`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// Exact paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
    /// Prefixes of whole segments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub path_prefixes: Vec<String>,
    /// HTTP methods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// Headers, all of which must match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<HeaderMatch>,
}

/// A header that a request must have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeaderMatch {
    /// In lower case.
    pub name: String,
    /// Its whole value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exact: Option<String>,
    /// True: any value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub present: Option<bool>,
}
