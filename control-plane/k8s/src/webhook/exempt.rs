//! Requests that no policy sees, so that no policy locks a cluster out of itself.
//!
//! A namespace selector exempts the namespaces of Assent and of the system. It does not apply to
//! cluster-scoped objects, so a match condition exempts those.

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

/// The namespaces of the cluster's own components and of the nodes' heartbeats.
const SYSTEM_NAMESPACES: &[&str] = &["kube-system", "kube-node-lease"];

/// Resources that a cluster and its control planes need in order to recover, by group; an empty
/// list means the whole group. Before Kubernetes 1.37 webhooks also see TokenReviews: a webhook
/// that fails for them would keep evaluators from authenticating, and so from ever answering.
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

/// The name of the match condition that exempts requests.
const CONDITION: &str = "policies.assent.dev/exempt";

/// The most conditions that an API server accepts in one webhook.
const MAX_CONDITIONS: usize = 64;

/// The user's namespace selector, and the requirements that exempt namespaces.
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

/// The exempting condition, and the user's conditions. An API server calls a webhook only if all
/// of them hold; one that is false decides even if another one cannot be evaluated.
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

/// Joins the last two conditions into one, which leaves room for the exempting condition. That
/// one is never joined: an extra parenthesis in a user's expression would disable it.
fn fold_last(conditions: &mut Vec<MatchCondition>) {
    let Some(last) = conditions.pop() else { return };
    if let Some(before) = conditions.last_mut() {
        // Each expression is on its own line: it may end in a comment.
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

/// A CEL string literal; CEL supports all of JSON's escapes.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
