//! The parts of a policy that select requests, as in a webhook configuration.

use std::{collections::BTreeMap, fmt};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Entries in one list of a rule, and rules in one policy. Nobody needs more, and the API
/// server asks for a bound before it runs a validation over a list.
pub const MAX_ITEMS: usize = 64;

/// Requests that a policy sees: all lists must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Rule {
    /// API groups; `""` is the core group, `*` all.
    #[schemars(length(min = 1, max = 64), inner(length(max = 253)))]
    pub api_groups: Vec<String>,
    /// API versions; `*` is all.
    #[schemars(length(min = 1, max = 64), inner(length(min = 1, max = 63)))]
    pub api_versions: Vec<String>,
    /// `CREATE`, `UPDATE`, `DELETE`, `CONNECT` or `*`.
    #[schemars(length(min = 1, max = 64))]
    pub operations: Vec<Operation>,
    /// `pods`, `pods/exec`, `pods/*`, `*/scale`, `*` (no subresources) or `*/*`.
    #[schemars(length(min = 1, max = 64), inner(length(min = 1, max = 253)))]
    pub resources: Vec<String>,
    /// Only objects in namespaces, only objects outside of them, or both.
    #[serde(default)]
    pub scope: Scope,
}

/// What is done to an object.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub enum Operation {
    /// `CREATE`
    #[serde(rename = "CREATE")]
    Create,
    /// `UPDATE`
    #[serde(rename = "UPDATE")]
    Update,
    /// `DELETE`
    #[serde(rename = "DELETE")]
    Delete,
    /// `CONNECT`
    #[serde(rename = "CONNECT")]
    Connect,
    /// All of them.
    #[serde(rename = "*")]
    All,
}

/// Where an object lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Scope {
    /// Outside of namespaces; Namespace objects themselves are there too.
    Cluster,
    /// In a namespace.
    Namespaced,
    /// Both.
    #[default]
    #[serde(rename = "*")]
    All,
}

/// A query over labels; all parts must match, and an empty one matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LabelSelector {
    /// Labels that must be there with these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// Requirements on single labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<Requirement>,
}

/// A requirement on one label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Requirement {
    /// The label.
    pub key: String,
    /// How it relates to `values`.
    pub operator: Operator,
    /// Not empty for `In` and `NotIn`, empty for the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// How a label relates to the values of a [`Requirement`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Operator {
    /// The label has one of the values.
    In,
    /// The label is missing or has none of the values.
    NotIn,
    /// The label is there.
    Exists,
    /// The label is missing.
    DoesNotExist,
}

/// A condition in CEL that must hold for a request to reach the policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MatchCondition {
    /// Unique in its policy.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// CEL over `object`, `oldObject` and `request`; gives true or false.
    #[schemars(length(min = 1))]
    pub expression: String,
}

/// A Kubernetes kind that a policy may read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextAwareResource {
    /// `v1`, `apps/v1`.
    #[schemars(length(min = 1, max = 317))]
    pub api_version: String,
    /// `Deployment`.
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,
    /// Dotted paths that the policy reads, such as `spec.rules.host`; whole objects if absent. Lists are looked through,
    /// and a path keeps everything below it. Name, namespace, uid, labels and owner references are always kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 1024)))]
    pub fields: Vec<String>,
    /// Only objects of these namespaces; all if absent. A namespaced policy reads its own namespace only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 63)))]
    pub namespaces: Vec<String>,
    /// Only objects with these labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_selector: Option<LabelSelector>,
}

/// What a denial does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PolicyMode {
    /// It denies.
    #[default]
    Protect,
    /// It is counted, and the request goes through.
    Monitor,
}

/// What happens to a request when the policy can't be asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum FailurePolicy {
    /// It is let through.
    Ignore,
    /// It is refused.
    #[default]
    Fail,
}

/// Whether a request by another version of the same API is seen too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum MatchPolicy {
    /// Only what the rules say.
    Exact,
    /// Equivalent versions too, converted.
    #[default]
    Equivalent,
}

/// Side effects of an evaluation. Policies are sandboxed and have none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum SideEffects {
    /// Nothing.
    #[default]
    None,
    /// Nothing on a dry run.
    NoneOnDryRun,
}

// === impl LabelSelector ===

impl LabelSelector {
    /// Whether it selects an object with these labels.
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        let equal = |(key, value): (&String, &String)| labels.get(key) == Some(value);
        self.match_labels.iter().all(equal)
            && self.match_expressions.iter().all(|r| r.holds(labels))
    }
}

impl fmt::Display for LabelSelector {
    /// As `kubectl` writes selectors, in one order: equal selectors have equal texts.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let labels = self.match_labels.iter();
        let mut parts: Vec<String> = labels
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        parts.extend(self.match_expressions.iter().map(ToString::to_string));
        parts.sort();
        parts.dedup();
        f.write_str(&parts.join(","))
    }
}

// === impl Requirement ===

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.key;
        let mut values: Vec<&str> = self.values.iter().map(String::as_str).collect();
        values.sort_unstable();
        values.dedup();
        let values = values.join(",");
        match self.operator {
            Operator::In => write!(f, "{key} in ({values})"),
            Operator::NotIn => write!(f, "{key} notin ({values})"),
            Operator::Exists => f.write_str(key),
            Operator::DoesNotExist => write!(f, "!{key}"),
        }
    }
}

impl Requirement {
    fn holds(&self, labels: &BTreeMap<String, String>) -> bool {
        let label = labels.get(&self.key);
        let listed = label.is_some_and(|value| self.values.contains(value));
        match self.operator {
            Operator::In => listed,
            Operator::NotIn => !listed,
            Operator::Exists => label.is_some(),
            Operator::DoesNotExist => label.is_none(),
        }
    }
}

// === impl PolicyMode ===

impl From<PolicyMode> for assent_core::Mode {
    fn from(mode: PolicyMode) -> Self {
        match mode {
            PolicyMode::Protect => assent_core::Mode::Protect,
            PolicyMode::Monitor => assent_core::Mode::Monitor,
        }
    }
}
