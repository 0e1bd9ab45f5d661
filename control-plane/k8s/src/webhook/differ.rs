//! Compares an existing configuration with the desired one, and merges the two for an update.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::admissionregistration::v1::{MutatingWebhook, RuleWithOperations},
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference},
};
use kube::core::DynamicObject;
use serde_json::Value;

use super::Desired;

/// Whether `actual` lacks a part of `desired` or has other webhooks. Labels, annotations and
/// owners that others added, and defaults that the API server filled in, are no difference.
pub fn differs(actual: &DynamicObject, desired: &Desired) -> bool {
    metadata_differs(&actual.metadata, desired.metadata())
        || webhooks_of(actual).as_ref() != Some(&desired_webhooks(desired))
}

/// `desired` as an update of `actual`: conditional on the resourceVersion of `actual`, and with
/// the metadata that others added to it.
pub fn merged(actual: &ObjectMeta, desired: &Desired) -> Desired {
    let mut merged = desired.clone();
    let metadata = merged.metadata_mut();
    let ours = std::mem::replace(
        metadata,
        ObjectMeta {
            // The API server computes the managed fields.
            managed_fields: None,
            ..actual.clone()
        },
    );
    extend(&mut metadata.labels, ours.labels);
    extend(&mut metadata.annotations, ours.annotations);
    let ours = ours.owner_references.unwrap_or_default();
    let owners = metadata.owner_references.get_or_insert_default();
    // The garbage collector would take an earlier object of that name for a deleted owner.
    owners.retain(|theirs| !ours.iter().any(|ours| is_same_name(ours, theirs)));
    owners.extend(ours);
    merged
}

fn metadata_differs(actual: &ObjectMeta, desired: &ObjectMeta) -> bool {
    let owners = actual.owner_references.as_deref().unwrap_or_default();
    let owned = |ours: &OwnerReference| {
        let same = |theirs: &OwnerReference| is_same_name(ours, theirs) && ours.uid == theirs.uid;
        owners.iter().any(same)
    };
    !has_all(&actual.labels, &desired.labels)
        || !has_all(&actual.annotations, &desired.annotations)
        || !desired.owner_references.iter().flatten().all(owned)
}

fn is_same_name(one: &OwnerReference, other: &OwnerReference) -> bool {
    let name = |owner: &OwnerReference| {
        let OwnerReference {
            api_version,
            kind,
            name,
            ..
        } = owner.clone();
        (api_version, kind, name)
    };
    name(one) == name(other)
}

type Map = Option<BTreeMap<String, String>>;

fn has_all(actual: &Map, desired: &Map) -> bool {
    let has = |name: &String, value: &String| {
        let actual = actual.as_ref().and_then(|actual| actual.get(name));
        actual == Some(value)
    };
    let mut desired = desired.iter().flatten();
    desired.all(|(name, value)| has(name, value))
}

fn extend(actual: &mut Map, ours: Map) {
    let actual = actual.get_or_insert_default();
    actual.extend(ours.unwrap_or_default());
}

/// `None` if the value cannot be parsed as webhooks.
fn webhooks_of(actual: &DynamicObject) -> Option<Vec<MutatingWebhook>> {
    let webhooks = actual.data.get("webhooks").unwrap_or(&Value::Null);
    let webhooks: Option<Vec<MutatingWebhook>> = serde_json::from_value(webhooks.clone()).ok()?;
    Some(
        webhooks
            .unwrap_or_default()
            .into_iter()
            .map(filled)
            .collect(),
    )
}

/// Both kinds as mutating webhooks, whose type has all fields of a validating webhook.
fn desired_webhooks(desired: &Desired) -> Vec<MutatingWebhook> {
    let webhooks = match desired {
        Desired::Validating(object) => super::same(&object.webhooks),
        Desired::Mutating(object) => object.webhooks.clone(),
    };
    let webhooks: Vec<MutatingWebhook> = webhooks.unwrap_or_default();
    webhooks.into_iter().map(filled).collect()
}

/// Sets the API server's defaults, and normalizes empty lists and maps.
fn filled(mut webhook: MutatingWebhook) -> MutatingWebhook {
    default(&mut webhook.failure_policy, "Fail");
    default(&mut webhook.match_policy, "Equivalent");
    default(&mut webhook.reinvocation_policy, "Never");
    webhook.timeout_seconds.get_or_insert(10);
    webhook.match_conditions.get_or_insert_default();
    for rule in webhook.rules.get_or_insert_default() {
        fill_rule(rule);
    }
    fill_selector(webhook.namespace_selector.get_or_insert_default());
    fill_selector(webhook.object_selector.get_or_insert_default());
    if let Some(service) = &mut webhook.client_config.service {
        service.port.get_or_insert(443);
    }
    webhook
}

fn fill_rule(rule: &mut RuleWithOperations) {
    default(&mut rule.scope, "*");
    for list in [
        &mut rule.api_groups,
        &mut rule.api_versions,
        &mut rule.operations,
        &mut rule.resources,
    ] {
        list.get_or_insert_default();
    }
}

fn fill_selector(selector: &mut LabelSelector) {
    selector.match_labels.get_or_insert_default();
    for requirement in selector.match_expressions.get_or_insert_default() {
        requirement.values.get_or_insert_default();
    }
}

fn default(field: &mut Option<String>, value: &str) {
    field.get_or_insert_with(|| value.to_owned());
}
