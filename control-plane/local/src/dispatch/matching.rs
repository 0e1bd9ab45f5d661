//! Whether a request concerns a policy: rules, scope, selectors.

use std::collections::BTreeMap;

use assent_api::{
    Parsed,
    rules::{LabelSelector, Operation, Rule, Scope},
    tenancy::NAMESPACE_NAME_LABEL,
};
use serde_json::Value;

/// What a request is about.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    /// `resource.group`.
    pub group: String,
    /// `resource.version`.
    pub version: String,
    /// `resource.resource`.
    pub resource: String,
    /// `subResource`.
    pub subresource: String,
    /// `operation`.
    pub operation: String,
    /// `namespace`; empty for objects outside of namespaces.
    pub namespace: String,
    /// `object`, null if there is none.
    pub object: Value,
    /// `oldObject`, null if there is none.
    pub old_object: Value,
    /// The whole request, without the two objects.
    pub rest: Value,
}

/// Whether a policy is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Matched {
    /// It is.
    Yes,
    /// It is not.
    No,
    /// A match condition failed, and the policy's `failurePolicy` is `Fail`.
    Error(String),
}

/// Whether the rules and selectors of `policy` match `request`.
pub(super) fn concerns(
    policy: &Parsed,
    request: &Request,
    namespace_labels: &BTreeMap<String, String>,
) -> bool {
    let own = policy.key.namespace();
    own.is_none_or(|namespace| request.is_namespaced() && request.namespace == namespace)
        && policy.rules.iter().any(|rule| rule_matches(rule, request))
        && namespace_matches(
            policy.namespace_selector.as_ref(),
            request,
            namespace_labels,
        )
        && object_matches(policy.object_selector.as_ref(), request)
}

fn rule_matches(rule: &Rule, request: &Request) -> bool {
    let any = |list: &[String], text: &str| list.iter().any(|item| item == "*" || item == text);
    any(&rule.api_groups, &request.group)
        && any(&rule.api_versions, &request.version)
        && operation_matches(&rule.operations, &request.operation)
        && resource_matches(&rule.resources, request)
        && scope_matches(rule.scope, request)
}

fn operation_matches(operations: &[Operation], operation: &str) -> bool {
    operations.iter().any(|known| match known {
        Operation::All => true,
        Operation::Create => operation == "CREATE",
        Operation::Update => operation == "UPDATE",
        Operation::Delete => operation == "DELETE",
        Operation::Connect => operation == "CONNECT",
    })
}

/// `pods` is without subresources; `pods/*` is with and without.
fn resource_matches(resources: &[String], request: &Request) -> bool {
    resources.iter().any(|resource| {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        (resource == "*" || resource == request.resource)
            && (subresource == "*" || subresource == request.subresource)
    })
}

fn scope_matches(scope: Scope, request: &Request) -> bool {
    match scope {
        Scope::All => true,
        Scope::Namespaced => request.is_namespaced(),
        Scope::Cluster => !request.is_namespaced(),
    }
}

/// A namespace selector never skips objects outside of namespaces. A Namespace is judged by
/// its own labels.
fn namespace_matches(
    selector: Option<&LabelSelector>,
    request: &Request,
    known: &BTreeMap<String, String>,
) -> bool {
    let Some(selector) = selector else {
        return true;
    };
    if request.is_namespaced() {
        return selector.selects(known);
    }
    if !request.is_namespace() {
        return true;
    }
    let object = match request.object.is_null() {
        true => &request.old_object,
        false => &request.object,
    };
    let mut labels = labels_of(object).unwrap_or_default();
    if let Some(name) = object.pointer("/metadata/name").and_then(Value::as_str) {
        labels.insert(NAMESPACE_NAME_LABEL.to_owned(), name.to_owned());
    }
    selector.selects(&labels)
}

/// The old or the new object must match. An object without metadata, the options of an exec
/// say, has no labels and matches only the empty selector.
fn object_matches(selector: Option<&LabelSelector>, request: &Request) -> bool {
    let Some(selector) = selector else {
        return true;
    };
    if selector.match_labels.is_empty() && selector.match_expressions.is_empty() {
        return true;
    }
    let objects = [&request.object, &request.old_object];
    let mut labels = objects.into_iter().filter_map(labels_of);
    labels.any(|labels| selector.selects(&labels))
}

/// Labels of an object; `None` if it has no metadata.
fn labels_of(object: &Value) -> Option<BTreeMap<String, String>> {
    let metadata = object.get("metadata")?.as_object()?;
    let labels = metadata.get("labels").and_then(Value::as_object);
    let text = |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_owned()));
    Some(labels.into_iter().flatten().filter_map(text).collect())
}

// === impl Request ===

impl Request {
    /// A Namespace is an object outside of namespaces, although its request names one.
    fn is_namespaced(&self) -> bool {
        !self.namespace.is_empty() && !self.is_namespace()
    }

    fn is_namespace(&self) -> bool {
        self.group.is_empty() && self.resource == "namespaces"
    }
}
