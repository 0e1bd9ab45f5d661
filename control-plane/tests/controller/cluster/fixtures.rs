//! Objects of the cluster, and their names.

use assent_api::{parse, settings::SettingsKey, tenancy::Reserved};
use assent_controller::{Kind, Meta};
use assent_core::{Digest, PolicyKey, RevisionId};
use assent_k8s::names;
use serde_json::{Value, json};

use super::NAMESPACE;
use crate::world::policy_key;

pub(crate) fn mk_server(name: &str) -> Value {
    json!({
        "metadata": {
            "name": name, "uid": uid(name), "generation": 1,
            "finalizers": [names::FINALIZER],
        },
        "spec": {},
    })
}

pub(crate) fn mk_set(server: &str) -> Value {
    json!({
        "metadata": {
            "name": names::server(server), "namespace": NAMESPACE, "uid": uid("set"),
            "labels": { names::SERVER_LABEL: server },
        },
        "status": { "replicas": 2, "readyReplicas": 2 },
    })
}

pub(crate) fn mk_pod(name: &str, ready: bool) -> Value {
    json!({
        "metadata": {
            "name": name, "namespace": NAMESPACE, "uid": uid(name),
            "labels": { names::SERVER_LABEL: "default" },
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "StatefulSet",
                "name": names::server("default"), "uid": uid("set"), "controller": true,
            }],
        },
        "spec": {
            "containers": [{ "name": names::EVALUATOR_CONTAINER, "image": "example.com/e:v1" }],
        },
        "status": {
            "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }],
        },
    })
}

/// Looks like a uid, and is the same for the same name.
pub(crate) fn uid(name: &str) -> String {
    let digest = Digest::of(name.as_bytes()).to_string();
    let hex: String = digest
        .chars()
        .filter(char::is_ascii_hexdigit)
        .rev()
        .collect();
    format!("{}-{}-4000-8000-{}", &hex[..8], &hex[8..12], &hex[12..24])
}

pub(super) fn parse_options() -> parse::Options {
    parse::Options {
        reserved: Reserved {
            secrets: [names::CA.to_owned()].into(),
            ..Reserved::default()
        },
        settings_key: Some(SettingsKey::new(&[7; 32])),
        ..parse::Options::default()
    }
}

pub(super) fn kind_of(policy: &str) -> Kind {
    match policy_key(policy).namespace() {
        Some(_) => Kind::Policies,
        None => Kind::ClusterPolicies,
    }
}

/// The name of a policy's webhook configuration.
pub(crate) fn webhook_name(policy: &str) -> String {
    names::webhook_configuration(&policy_key(policy))
}

pub(super) fn revision_path(key: &PolicyKey, revision: &RevisionId) -> String {
    let namespace = key.namespace().unwrap_or(NAMESPACE);
    format!("{namespace}/{}", names::revision(key, revision.short()))
}

pub(super) fn bump_generation(object: &mut Value) {
    let generation = object["metadata"]["generation"].as_i64().unwrap();
    object["metadata"]["generation"] = (generation + 1).into();
}

pub(super) fn meta_path(meta: &Meta) -> String {
    match meta.namespace.as_str() {
        "" => meta.name.clone(),
        namespace => format!("{namespace}/{}", meta.name),
    }
}

/// `namespace/name`, or the name alone.
pub(super) fn path(object: &Value) -> String {
    let text = |field: &str| object["metadata"][field].as_str();
    let name = text("name").unwrap();
    text("namespace").map_or_else(|| name.to_owned(), |n| format!("{n}/{name}"))
}
