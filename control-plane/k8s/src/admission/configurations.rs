//! The webhook configurations of the control plane's own kinds and of the injector.
//!
//! They fail closed: an object that nobody checked must not be stored. So each says narrowly
//! what it is asked for, and a control plane that is down, being upgraded or gone locks nobody
//! out: objects that are being deleted, edits of nothing but metadata, deletes, scaling (but to
//! zero), the cluster's own collectors and Assent's own service accounts never wait for Assent.

use k8s_openapi::{
    api::admissionregistration::v1::{
        MatchCondition, MutatingWebhook, MutatingWebhookConfiguration, RuleWithOperations,
        ValidatingWebhook, ValidatingWebhookConfiguration,
    },
    apimachinery::pkg::apis::meta::v1::{
        LabelSelector, LabelSelectorRequirement, ObjectMeta, OwnerReference,
    },
};

use super::{INJECT_PATH, MUTATE_PATH, VALIDATE_PATH};
use crate::{
    names::{ALLOW_DELETE_ANNOTATION, MANAGED_BY, SERVER_LABEL},
    webhook::WebhookEndpoint,
};

/// Name of the configuration that validates.
pub const VALIDATING: &str = "assent";

/// Name of the configuration that fills in defaults.
pub const DEFAULTS: &str = "assent-defaults";

/// Name of the configuration that gives pods their evaluators.
pub const INJECTOR: &str = "assent-injector";

/// The garbage collectors, which must never wait for the control plane.
const COLLECTORS: &[&str] = &[
    "system:kube-controller-manager",
    "system:serviceaccount:kube-system:generic-garbage-collector",
    "system:serviceaccount:kube-system:namespace-controller",
];

/// Kinds that users write.
const KINDS: &[&str] = &[
    "admissionpolicies",
    "clusteradmissionpolicies",
    "policyservers",
];

/// Reviews take milliseconds; a client should not wait longer for a control plane that hangs.
const TIMEOUT_SECONDS: i32 = 10;

/// What makes the configurations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// The control plane's webhook port.
    pub endpoint: WebhookEndpoint,
    /// The control plane's namespace.
    pub namespace: String,
    /// The uid of that Namespace object, which owns every configuration: none outlives it.
    pub namespace_uid: String,
    /// Certificates that the control plane's is checked with, PEM.
    pub ca_bundle: Vec<u8>,
    /// The control plane's own users: `system:serviceaccount:<namespace>:<name>`.
    pub service_accounts: Vec<String>,
}

/// Validates policies and PolicyServers.
pub fn validating(input: &Input) -> ValidatingWebhookConfiguration {
    let hook = |name: &str, rule, conditions, failure_policy: &str| ValidatingWebhook {
        name: format!("{name}.policies.assent.dev"),
        admission_review_versions: vec!["v1".to_owned()],
        client_config: input
            .endpoint
            .client_config(VALIDATE_PATH, &input.ca_bundle),
        failure_policy: Some(failure_policy.to_owned()),
        match_conditions: Some(conditions),
        match_policy: Some("Equivalent".to_owned()),
        namespace_selector: Some(LabelSelector::default()),
        object_selector: Some(LabelSelector::default()),
        rules: Some(vec![rule]),
        side_effects: "None".to_owned(),
        timeout_seconds: Some(TIMEOUT_SECONDS),
    };
    let servers = |operation| rule(&["policyservers"], &[operation]);
    let scale = rule(&["policyservers/scale"], &["UPDATE"]);
    let revisions = rule(
        &["policyrevisions", "policyrevisions/status"],
        &["CREATE", "UPDATE", "DELETE"],
    );
    ValidatingWebhookConfiguration {
        metadata: metadata(VALIDATING, input),
        webhooks: Some(vec![
            hook(
                "validate",
                rule(KINDS, &["CREATE", "UPDATE"]),
                written(input),
                "Fail",
            ),
            hook("scale", scale, vec![to_zero()], "Fail"),
            hook(
                "delete-default",
                servers("DELETE"),
                deleted_default(),
                "Fail",
            ),
            // Says what is no longer enforced, and is not worth waiting for.
            hook("delete", servers("DELETE"), deleted_other(), "Ignore"),
            hook("revisions", revisions, foreign_write(input), "Fail"),
        ]),
    }
}

/// Fills in defaults of policies and PolicyServers.
pub fn defaults(input: &Input) -> MutatingWebhookConfiguration {
    let webhook = MutatingWebhook {
        name: "defaults.policies.assent.dev".to_owned(),
        client_config: input.endpoint.client_config(MUTATE_PATH, &input.ca_bundle),
        match_conditions: Some(written(input)),
        namespace_selector: Some(LabelSelector::default()),
        object_selector: Some(LabelSelector::default()),
        reinvocation_policy: Some("Never".to_owned()),
        rules: Some(vec![rule(KINDS, &["CREATE", "UPDATE"])]),
        ..mutating()
    };
    MutatingWebhookConfiguration {
        metadata: metadata(DEFAULTS, input),
        webhooks: Some(vec![webhook]),
    }
}

/// Gives pods their evaluators. Pods of the control plane never carry the label, so it can
/// always start.
pub fn injector(input: &Input) -> MutatingWebhookConfiguration {
    let mut pods = rule(&["pods"], &["CREATE"]);
    pods.api_groups = Some(vec![String::new()]);
    pods.api_versions = Some(vec!["v1".to_owned()]);
    pods.scope = Some("Namespaced".to_owned());
    let webhook = MutatingWebhook {
        name: "injector.policies.assent.dev".to_owned(),
        client_config: input.endpoint.client_config(INJECT_PATH, &input.ca_bundle),
        match_conditions: Some(Vec::new()),
        namespace_selector: Some(selector(
            "kubernetes.io/metadata.name",
            "NotIn",
            &["kube-system"],
        )),
        object_selector: Some(selector(SERVER_LABEL, "Exists", &[])),
        // Other webhooks may change the pod afterwards; it is reviewed again.
        reinvocation_policy: Some("IfNeeded".to_owned()),
        rules: Some(vec![pods]),
        ..mutating()
    };
    MutatingWebhookConfiguration {
        metadata: metadata(INJECTOR, input),
        webhooks: Some(vec![webhook]),
    }
}

fn mutating() -> MutatingWebhook {
    MutatingWebhook {
        admission_review_versions: vec!["v1".to_owned()],
        failure_policy: Some("Fail".to_owned()),
        match_policy: Some("Equivalent".to_owned()),
        side_effects: "None".to_owned(),
        timeout_seconds: Some(TIMEOUT_SECONDS),
        ..MutatingWebhook::default()
    }
}

fn metadata(name: &str, input: &Input) -> ObjectMeta {
    let (managed_by, us) = MANAGED_BY;
    ObjectMeta {
        name: Some(name.to_owned()),
        labels: Some([(managed_by.to_owned(), us.to_owned())].into()),
        owner_references: Some(vec![OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Namespace".to_owned(),
            name: input.namespace.clone(),
            uid: input.namespace_uid.clone(),
            ..OwnerReference::default()
        }]),
        ..ObjectMeta::default()
    }
}

fn rule(resources: &[&str], operations: &[&str]) -> RuleWithOperations {
    let owned = |list: &[&str]| Some(list.iter().map(|&item| item.to_owned()).collect());
    RuleWithOperations {
        api_groups: owned(&[assent_api::GROUP]),
        api_versions: owned(&["*"]),
        operations: owned(operations),
        resources: owned(resources),
        scope: Some("*".to_owned()),
    }
}

fn selector(key: &str, operator: &str, values: &[&str]) -> LabelSelector {
    let values: Vec<_> = values.iter().map(|&value| value.to_owned()).collect();
    LabelSelector {
        match_expressions: Some(vec![LabelSelectorRequirement {
            key: key.to_owned(),
            operator: operator.to_owned(),
            values: (!values.is_empty()).then_some(values),
        }]),
        match_labels: None,
    }
}

fn condition(name: &str, expression: impl Into<String>) -> MatchCondition {
    MatchCondition {
        name: name.to_owned(),
        expression: expression.into(),
    }
}

/// What is asked about an object that is written. An error in a condition refuses the request,
/// so each field that may be missing is asked for first.
fn written(input: &Input) -> Vec<MatchCondition> {
    let ours = input.service_accounts.iter().map(String::as_str);
    let exempt: Vec<_> = ours.chain(COLLECTORS.iter().copied()).map(quoted).collect();
    let rollback = quoted(assent_api::ROLLBACK_ANNOTATION);
    vec![
        condition(
            "not-by-ourselves",
            format!("!(request.userInfo.username in [{}])", exempt.join(", ")),
        ),
        condition("not-leaving", "!has(object.metadata.deletionTimestamp)"),
        condition(
            "more-than-metadata",
            format!(
                "request.operation != 'UPDATE' || !has(object.spec) || !has(oldObject.spec)\n\
                 || object.spec != oldObject.spec\n\
                 || has(object.metadata.annotations) && {rollback} in object.metadata.annotations"
            ),
        ),
    ]
}

/// A Scale leaves its replicas out when they are zero.
fn to_zero() -> MatchCondition {
    condition(
        "to-zero",
        "!has(object.spec) || !has(object.spec.replicas) || object.spec.replicas == 0",
    )
}

/// The name is the old object's: a request that deletes many at once names none.
fn deleted_default() -> Vec<MatchCondition> {
    let annotation = quoted(ALLOW_DELETE_ANNOTATION);
    vec![
        condition("is-default", "oldObject.metadata.name == 'default'"),
        condition("not-leaving", "!has(oldObject.metadata.deletionTimestamp)"),
        condition(
            "not-allowed",
            format!(
                "!has(oldObject.metadata.annotations)\n\
                 || !({annotation} in oldObject.metadata.annotations)\n\
                 || oldObject.metadata.annotations[{annotation}] != 'true'"
            ),
        ),
    ]
}

/// A write of a revision by somebody who has no business with it. Collectors delete revisions
/// and change their owners, and a revision that is being deleted never waits.
fn foreign_write(input: &Input) -> Vec<MatchCondition> {
    let list = |users: Vec<String>| users.join(", ");
    let ours = list(input.service_accounts.iter().map(|u| quoted(u)).collect());
    let collectors = list(COLLECTORS.iter().map(|u| quoted(u)).collect());
    let whole = "(!has(request.subResource) || request.subResource == '')";
    vec![
        condition(
            "not-by-ourselves",
            format!("!(request.userInfo.username in [{ours}])"),
        ),
        condition(
            "not-collected",
            format!(
                "!({whole} && request.operation in ['UPDATE', 'DELETE']\n\
                 && request.userInfo.username in [{collectors}])"
            ),
        ),
        condition(
            "not-leaving",
            format!(
                "!({whole} && request.operation == 'UPDATE'\n\
                 && has(object.metadata.deletionTimestamp))"
            ),
        ),
    ]
}

fn deleted_other() -> Vec<MatchCondition> {
    vec![
        condition("is-other", "oldObject.metadata.name != 'default'"),
        condition("not-leaving", "!has(oldObject.metadata.deletionTimestamp)"),
    ]
}

/// A string of CEL; JSON's escapes are among its own.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests;
