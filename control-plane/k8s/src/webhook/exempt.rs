//! What no policy ever sees, so that no policy locks a cluster out of itself.
//!
//! A selector of namespaces skips our own and the system's, but never an object outside of
//! namespaces: those are skipped by a condition.

use std::collections::BTreeSet;

use assent_api::{
    GROUP, Parsed,
    rules::{LabelSelector, MatchCondition, Operator, Requirement},
};
use k8s_openapi::{
    api::admissionregistration::v1::MatchCondition as WebhookCondition,
    apimachinery::pkg::apis::meta::v1::LabelSelector as WebhookSelector,
};

use super::{WebhookDefaults, same};

/// The label that every namespace has.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// Where a cluster's own parts and its nodes' heartbeats live.
const SYSTEM_NAMESPACES: &[&str] = &["kube-system", "kube-node-lease"];

/// Resources that a cluster and its control planes need to come back, by group; no resources
/// are all of the group. Before Kubernetes 1.37 webhooks see reviews of tokens too: one that
/// fails would keep evaluators from ever authenticating, and so from ever answering.
const RESOURCES: &[(&str, &[&str])] = &[
    (GROUP, &[]),
    ("", &["events", "nodes"]),
    ("events.k8s.io", &["events"]),
    ("certificates.k8s.io", &["certificatesigningrequests"]),
    ("coordination.k8s.io", &["leases"]),
    ("authentication.k8s.io", &["tokenreviews"]),
    (
        "authorization.k8s.io",
        &[
            "localsubjectaccessreviews",
            "selfsubjectaccessreviews",
            "selfsubjectrulesreviews",
            "subjectaccessreviews",
        ],
    ),
];

/// Name of our condition.
const CONDITION: &str = "policies.assent.dev/exempt";

/// Conditions that an API server takes.
const MAX_CONDITIONS: usize = 64;

/// The user's selector of namespaces, and ours.
pub(super) fn namespaces(policy: &Parsed, defaults: &WebhookDefaults) -> WebhookSelector {
    let mut selector: LabelSelector = policy.namespace_selector.clone().unwrap_or_default();
    let mut require = |operator, values| {
        selector.match_expressions.push(Requirement {
            key: NAME_LABEL.to_owned(),
            operator,
            values,
        });
    };
    if let Some(own) = policy.key.namespace() {
        require(Operator::In, vec![own.to_owned()]);
    }
    let excluded: BTreeSet<&str> = SYSTEM_NAMESPACES
        .iter()
        .copied()
        .chain([defaults.namespace.as_str()])
        .chain(defaults.excluded_namespaces.iter().map(String::as_str))
        .collect();
    let excluded = excluded.into_iter().map(str::to_owned).collect();
    require(Operator::NotIn, excluded);
    same(&selector)
}

/// Our condition, and the user's. An API server asks a webhook only where all hold, and one
/// that is false decides even where another can't be evaluated.
pub(super) fn conditions(policy: &Parsed, defaults: &WebhookDefaults) -> Vec<WebhookCondition> {
    let mut theirs = policy.match_conditions.clone();
    while theirs.len() >= MAX_CONDITIONS {
        fold_last(&mut theirs);
    }
    let ours = MatchCondition {
        name: free_name(&theirs),
        expression: expression(defaults),
    };
    theirs.insert(0, ours);
    same(&theirs)
}

/// Makes one of the last two, to leave room for ours. Ours is never part of it: a user's text
/// with a parenthesis too many would undo it.
fn fold_last(conditions: &mut Vec<MatchCondition>) {
    let Some(last) = conditions.pop() else { return };
    if let Some(before) = conditions.last_mut() {
        // On lines of their own: an expression may end in a comment.
        before.expression = format!("(\n{}\n) && (\n{}\n)", before.expression, last.expression);
    }
}

fn free_name(theirs: &[MatchCondition]) -> String {
    let mut name = CONDITION.to_owned();
    while theirs.iter().any(|condition| condition.name == name) {
        name.push('x');
    }
    name
}

fn expression(defaults: &WebhookDefaults) -> String {
    let mut exempt: Vec<String> = RESOURCES.iter().map(resources).collect();
    if !defaults.service_accounts.is_empty() {
        let ours = list(defaults.service_accounts.iter().map(String::as_str));
        exempt.push(format!(
            "has(request.userInfo.username) && request.userInfo.username in {ours}"
        ));
    }
    format!("!({})", exempt.join("\n|| "))
}

fn resources((group, resources): &(&str, &[&str])) -> String {
    let group = format!("request.resource.group == {}", quoted(group));
    if resources.is_empty() {
        return group;
    }
    let resources = list(resources.iter().copied());
    format!("{group} && request.resource.resource in {resources}")
}

fn list<'a>(items: impl Iterator<Item = &'a str>) -> String {
    let items: Vec<String> = items.map(quoted).collect();
    format!("[{}]", items.join(", "))
}

/// A string of CEL; JSON's escapes are among its own.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
